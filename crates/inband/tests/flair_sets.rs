//! Several replica sets behind one FLAIR switch: keys are distributed over them, and a set whose leader fails delays
//! only requests for its own keys.

use crate::common::flair::{hosts, members, Flair};
use crate::common::{lab_works, Client};
use inband_flair::sets::set_of;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

const SETS: u16 = 3;
const OPTIONS: [&str; 4] = ["--sets", "3", "--replicas", "3"];
/// Keys of each set that are written continuously.
const KEYS: usize = 4;

/// Keys of one set.
fn keys_of(set: u16) -> Vec<String> {
    let keys = (0..).map(|number| format!("key{number}"));
    keys.filter(|key| set_of(key.as_bytes(), SETS) == set)
        .take(KEYS)
        .collect()
}

fn leader_of(status: &Value, set: u16) -> Option<String> {
    let mut members = members(status, u64::from(set));
    let leads = |host: &&Value| {
        let replica = &host["status"]["replica"];
        !replica["serving"].is_null()
    };
    let leader = members.find(leads)?;
    Some(leader["name"].as_str().expect("a name").to_owned())
}

/// Sets and gets keys of some sets.
fn check(client: &mut Client, sets: &[u16], value: &str) {
    for key in sets.iter().flat_map(|set| keys_of(*set)) {
        assert_eq!(client.call(&["SET", &key, value]), "+OK");
        assert_eq!(client.call(&["GET", &key]), value);
    }
}

fn signal_set(status: &Value, set: u16, signal: Signal) {
    for host in members(status, set.into()) {
        let pid = host["pid"].as_u64().expect("it runs");
        kill(Pid::from_raw(pid as i32), signal).expect("ours");
    }
}

/// No replica of set 1 answers; the other sets do.
fn others_do_not_pause(flair: &Flair) {
    let status = flair.status();
    signal_set(&status, 1, Signal::SIGSTOP);
    let resp = flair.resp;
    let waiting = std::thread::spawn(move || check(&mut Client::connect(resp), &[1], "late"));
    check(&mut Client::connect(resp), &[0, 2], "meanwhile");
    assert!(!waiting.is_finished(), "nobody could answer it");
    signal_set(&status, 1, Signal::SIGCONT);
    waiting.join().expect("it is answered");

    let said = flair.succeeds(&["kill", "leader/1"]);
    assert!(said.contains("killed replica/1/"), "{said}");
    check(&mut Client::connect(resp), &[0, 2, 1], "of the next leader");
    let is_another = |leader: String| !said.contains(&format!("killed {leader}\n"));
    flair.wait_for("another leader of set 1", |status| {
        leader_of(status, 1).is_some_and(is_another)
    });
    flair.succeeds(&["restart", "leader/1"]);
    flair.wait_until_whole();
}

fn serves_all_sets(name: &str, options: &[&str]) {
    let flair = Flair::up(name, &[&OPTIONS[..], options].concat());
    let mut client = Client::connect(flair.resp);
    flair.check(&mut client, 0);
    let status = flair.wait_for("known to hold keys in each set", |status| {
        (0..u64::from(SETS)).all(|set| {
            members(status, set).any(|host| host["status"]["replica"]["keys"].as_u64() > Some(10))
        })
    });
    assert_eq!(hosts(&status).len(), 3 * 3 + 2 + 1);
    let said = flair.succeeds(&["status"]);
    for line in ["3 sets of 4096 groups", "  set 2: session", "replica/2/2"] {
        assert!(said.contains(line), "{said}");
    }
    let all: Vec<String> = (0..SETS).flat_map(keys_of).collect();
    let mut words = vec!["MSET".to_owned()];
    words.extend(
        all.iter()
            .flat_map(|key| [key.clone(), format!("of-{key}")]),
    );
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(client.call(&words), "+OK");
    let mut words = vec!["MGET"];
    words.extend(all.iter().map(String::as_str));
    let values: Vec<String> = all.iter().map(|key| format!("of-{key}")).collect();
    assert_eq!(client.call(&words), values.join(" "), "in the order asked");
    words[0] = "DEL";
    words.push("no-such-key");
    assert_eq!(client.call(&words), format!(":{}", all.len()));

    others_do_not_pause(&flair);
    // The data path of every set moves to the other switch.
    for (round, switch) in (1..).zip(["switch/0", "switch/1"]) {
        flair.succeeds(&["kill", switch]);
        flair.check(&mut client, round);
        flair.succeeds(&["restart", switch]);
    }
    for (role, says) in [
        ("leader", "of which set?"),
        ("follower/3/0", "there is no set 3"),
        ("replica/0", "no host is \"replica/0\""),
    ] {
        let (succeeded, said) = flair.run(&["kill", role]);
        assert!(!succeeded && said.contains(says), "{said}");
    }
    let said = flair.succeeds(&["kill", "follower/2/0"]);
    assert!(said.starts_with("killed replica/2/"), "{said}");
    flair.check(&mut client, 3);
    flair.succeeds(&["restart", "follower/2/0"]);
    flair.wait_until_whole();
}

#[test]
fn sets_share_a_switch_in_user_space() {
    serves_all_sets("sets-udp", &["--dataplane", "udp"]);
}

#[test]
fn sets_share_a_switch_in_the_kernel() {
    if lab_works() {
        serves_all_sets("sets-lab", &[]);
    }
}

#[test]
fn data_on_disk_stay_in_their_sets() {
    let durable = ["--dataplane", "udp", "--durability", "sync", "--sets", "2"];
    let flair = Flair::up("sets-sync", &durable);
    flair.check(&mut Client::connect(flair.resp), 0);
    flair.succeeds(&["down"]);
    for other in ["1", "3"] {
        let (succeeded, said) = flair.run(&["up", "--dataplane", "udp", "--sets", other]);
        assert!(
            !succeeded && said.contains("--switches 2 --sets 2"),
            "{said}"
        );
    }
    let (succeeded, said) = flair.run(&["up", "--sets", "9"]);
    assert!(!succeeded && said.contains("9 is not in 1..=8"), "{said}");
    flair.up_again(&["--dataplane", "udp", "--sets", "2"]);
    let mut client = Client::connect(flair.resp);
    for key in 0..100 {
        assert_eq!(
            client.call(&["GET", &format!("key{key}")]),
            format!("0.{key}")
        );
    }
}
