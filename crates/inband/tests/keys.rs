//! Clusters whose packets carry tags: strangers are ignored, and keys are rotated while they serve.

use std::net::{SocketAddrV4, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{check, lab_works, Client, Cluster, Load, PROGRAM};
use inband_ground::auth::{Keys, Secret};
use inband_host::key_file::KeyFile;
use inband_paxos::config::Dataplane;
use inband_paxos::dataplane::wire::{self, Header, Type};
use inband_testing::port::free_ports;

const TIMEOUT: Duration = Duration::from_secs(60);

fn inband(args: &[&str]) -> (bool, String) {
    let output = Command::new(PROGRAM).args(args).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

fn as_text(path: &Path) -> &str {
    path.to_str().expect("of letters")
}

/// What an attacker without the key can produce: every type, with absurd contents, tagged or not.
fn throw(targets: &[SocketAddrV4]) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let guess = Keys::new(1, &[(1, Secret([0; 16]))]).expect("a key");
    for target in targets {
        for kind in Type::ALL {
            // Claiming to be a member, in the right epoch.
            let mut header = Header::new(kind, 2, 1);
            (header.instance, header.floor, header.round) = (1 << 40, 1 << 40, 1 << 60);
            header.digest = wire::digest(b"nonsense");
            let mut packet = Vec::new();
            wire::emit(&header, b"nonsense", &mut packet);
            let _ = socket.send_to(&packet, target);
            guess.sign(&mut packet);
            let _ = socket.send_to(&packet, target);
        }
    }
}

/// With another key, nobody could read the votes, and values would be added that the former one cannot read.
#[test]
fn votes_on_disk_are_not_continued_with_another_digest_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let resp = format!("127.0.0.1:{}", free_ports(8));
    let metrics = free_ports(16).to_string();
    let up = || {
        inband(&[
            "up",
            "--detach",
            "--dataplane",
            "udp",
            "--durability",
            "sync",
            "--data",
            as_text(&data),
            "--resp",
            &resp,
            "--metrics-port",
            &metrics,
        ])
    };
    let down = || inband(&["down", "--data", as_text(&data)]);
    let (good, said) = up();
    assert!(good, "{said}");
    let set = |key| Client::connect(resp.parse().expect("an address")).call(&["SET", key, "1"]);
    assert_eq!(set("a"), "+OK");
    let (good, said) = down();
    assert!(good, "{said}");

    let (keys, kept) = (data.join("keys.toml"), data.join("kept.toml"));
    std::fs::rename(&keys, &kept).expect("moved");
    let (good, said) = up();
    assert!(
        !good && said.contains("the key file of this cluster is missing"),
        "{said}"
    );
    let other = KeyFile::generate().expect("keys");
    other.save(&keys).expect("written");
    let (good, said) = up();
    assert!(!good && said.contains("with another digest key"), "{said}");
    std::fs::rename(&kept, &keys).expect("moved back");
    let (good, said) = up();
    assert!(good, "{said}");
    assert_eq!(set("b"), "+OK");
    let (good, said) = down();
    assert!(good, "{said}");
}

fn strangers_are_not_heard_and_keys_are_rotated(dataplane: Dataplane) {
    let cluster = Cluster::start("keys", dataplane, |_| {});
    let load = Load::start(&[cluster.resp()], 2);
    let status = cluster.status();
    let data = as_text(&status.data).to_owned();
    let targets: Vec<SocketAddrV4> = status.hosts.iter().map(|h| h.address).collect();
    match cluster.supervisor.lab() {
        Some(lab) => {
            let from = lab.host("replica/2").expect("there is one");
            let throw = || {
                throw(&targets);
                Ok::<(), inband_lab::LabError>(())
            };
            let thrown = from.namespace().run(throw);
            thrown.expect("the namespace can be entered");
        }
        None => throw(&targets),
    }
    cluster.wait_for("every host counts them", TIMEOUT, |status| {
        let counts = |counters: &std::collections::BTreeMap<String, u64>, name: &str| {
            counters.get(name).is_some_and(|count| *count > 0)
        };
        status.hosts.iter().all(|host| {
            let said = host.status.as_ref();
            said.is_some_and(|s| counts(&s.counters, "bad_key") && counts(&s.counters, "bad_tag"))
        })
    });

    for id in [2, 3] {
        let (good, said) = inband(&["key", "rotate", "--data", &data]);
        assert!(good && said.contains(&format!("key {id}")), "{said}");
        cluster.wait_for("every host says so", TIMEOUT, |status| {
            status.hosts.iter().all(|host| {
                let keys = host.status.as_ref().and_then(|s| s.keys.as_ref());
                keys.is_some_and(|keys| keys.active == id && keys.accepted == [id])
            })
        });
        let (good, said) = inband(&["key", "list", "--data", &data]);
        let each = format!("sends with key {id}, accepts {id}");
        assert!(
            good && said.matches(&each).count() >= status.hosts.len(),
            "{said}"
        );
        assert!(Client::connect(cluster.resp()).call(&["SET", "a", "b"]) == "+OK");
    }
    // A host that was down meanwhile returns with the new key.
    cluster.supervisor.kill("acceptor/2").expect("it runs");
    let (good, said) = inband(&["key", "rotate", "--data", &data]);
    assert!(good && said.contains("key 4"), "{said}");
    cluster.supervisor.restart("acceptor/2").expect("it starts");
    cluster.wait_until_all_vote(TIMEOUT);
    let (good, said) = inband(&["status", "--data", &data]);
    assert!(good && said.contains("  key 4"), "{said}");
    let (good, said) = inband(&["doctor", "--data", &data]);
    assert!(
        said.contains("keys.toml is for its owner alone"),
        "{good} {said}"
    );
    let records = load.stop();
    let sets: usize = records.iter().map(|record| record.acknowledged.len()).sum();
    assert!(sets > 0, "it served all the time");
    check(cluster.resp(), &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn with_roles_in_the_kernel() {
    if lab_works() {
        strangers_are_not_heard_and_keys_are_rotated(Dataplane::Xdp);
    }
}

#[test]
fn with_roles_in_user_space() {
    strangers_are_not_heard_and_keys_are_rotated(Dataplane::Udp);
}

#[test]
fn a_cluster_keeps_its_keys() {
    let cluster = Cluster::start("kept", Dataplane::Udp, |_| {});
    assert_eq!(
        Client::connect(cluster.resp()).call(&["SET", "a", "1"]),
        "+OK"
    );
    let file = cluster.status().data.join("keys.toml");
    let keys = KeyFile::load(&file).expect("it is there");
    let (cluster, _) = cluster.down_and_up(|_| ());
    assert_eq!(KeyFile::load(&file).expect("it is there"), keys);
    assert_eq!(
        Client::connect(cluster.resp()).call(&["SET", "a", "2"]),
        "+OK"
    );
    cluster.down_and_compare();
}

#[test]
fn key_files_of_hosts_by_hand() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("keys.toml");
    let file = as_text(&path);
    for (args, expected) in [
        (&["new", file][..], "sends with key 1, accepts 1"),
        (&["add", file], "sends with key 1, accepts 1, 2"),
        (&["activate", file, "2"], "sends with key 2, accepts 1, 2"),
        (&["drop", file], "sends with key 2, accepts 2"),
        (&["list", "--file", file], "sends with key 2, accepts 2"),
    ] {
        let (good, said) = inband(&[&["key"], args].concat());
        assert!(good && said.contains(expected), "{args:?}: {said}");
    }
    let (good, said) = inband(&["key", "new", file]);
    assert!(!good && said.contains("exists"), "{said}");
    let (good, said) = inband(&["key", "activate", file, "7"]);
    assert!(!good && said.contains("no key 7"), "{said}");
    let mut open = std::fs::metadata(&path).expect("it is there").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o644);
    std::fs::set_permissions(&path, open).expect("ours");
    let (good, said) = inband(&["doctor", "--key-file", file]);
    assert!(!good && said.contains("chmod 600"), "{said}");
}
