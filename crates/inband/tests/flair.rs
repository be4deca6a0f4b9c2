//! A FLAIR cluster on real packets, driven by the command line: it serves Redis clients while its switch, its leader
//! and a follower fail and recover, and nothing acknowledged is lost. Strangers are ignored.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::flair::{addresses, hosts, Flair, TIMEOUT};
use crate::common::small_disk::SmallDisk;
use crate::common::{lab_works, Client, PROGRAM};
use inband_flair::client::{self, Op, Outcome};
use inband_flair::dataplane::wire::{self, Header, Type};
use inband_flair::digests::Digests;
use inband_flair::timing::ClientTiming;
use inband_ground::auth::{Gate, Keys, Secret};
use inband_host::key_file::KeyFile;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

fn survives(name: &str, options: &[&str]) {
    let flair = Flair::up(name, options);
    let mut client = Client::connect(flair.resp);
    flair.check(&mut client, 0);
    flair.wait_until_counted("flair_reads_follower");
    for (round, role) in (1..).zip(["switch", "leader", "follower/0", "switch/0", "gateway"]) {
        let said = flair.succeeds(&["kill", role]);
        assert!(said.starts_with("killed "), "{said}");
        if role != "gateway" {
            assert_eq!(client.call(&["GET", "key99"]), format!("{}.99", round - 1));
            flair.check(&mut client, round);
        }
        flair.succeeds(&["restart", role]);
        flair.wait_until_whole();
        if role == "gateway" {
            client = Client::connect(flair.resp);
        }
        flair.check(&mut client, round);
    }
    let (succeeded, said) = flair.run(&["kill", "replica/9"]);
    assert!(
        !succeeded && said.contains("no host is \"replica/9\""),
        "{said}"
    );
    assert_eq!(client.call(&["DEL", "key1", "key2"]), ":2");
    assert_eq!(client.call(&["DEL", "key1", "key4", "no"]), ":1");
    assert_eq!(client.call(&["EXISTS", "key1", "key3"]), ":1");
    assert_eq!(client.call(&["MSET", "a", "1", "b", "2", "a", "3"]), "+OK");
    assert_eq!(client.call(&["MGET", "a", "b"]), "3 2");
    assert_eq!(client.call(&["MGET", "key1", "key3"]), "(nil) 5.3");
    let long = "x".repeat(1400);
    let said = client.call(&["SET", "long", &long]);
    assert!(said.contains("over the limit of 1376 bytes"), "{said}");
    flair.succeeds(&["down"]);
    let (succeeded, said) = flair.run(&["status"]);
    assert!(!succeeded && said.contains("inband up flair"), "{said}");
}

/// The logs of two of three replicas are empty, so no replica can lead, and none founds an empty store.
#[test]
fn a_start_that_waits_ends_at_an_interrupt() {
    let options = ["--dataplane", "udp", "--durability", "sync"];
    let flair = Flair::up("wait", &options);
    flair.succeeds(&["down"]);
    for replica in ["replica-1", "replica-2"] {
        let log = flair.data.join("hosts").join(replica).join("raft");
        std::fs::remove_dir_all(&log).expect("removed");
        std::fs::create_dir(&log).expect("empty");
    }
    for detach in [&[][..], &["--detach"]] {
        let mut up = Command::new(PROGRAM)
            .args(["up", "flair", "--resp", &flair.resp.to_string(), "--data"])
            .arg(&flair.data)
            .args(options)
            .args(detach)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(up.stderr.take().expect("it is piped"));
        let mut lines = said.lines().map(|line| line.expect("text"));
        let why = lines.find(|line| line.starts_with("waiting, for at most 60 s: "));
        let why = why.expect("it says what it waits for");
        assert!(why.contains("replica/"), "{why}");
        kill(Pid::from_raw(up.id() as i32), Signal::SIGINT).expect("interrupted");
        let said: Vec<String> = lines.collect();
        assert!(!up.wait().expect("it ends").success());
        assert!(said.join(" ").contains("interrupted"), "{said:?}");
    }
}

#[test]
fn a_switch_in_user_space_serves_through_failures() {
    survives("udp", &["--dataplane", "udp"]);
}

#[test]
fn hosts_in_namespaces_serve_through_failures() {
    if lab_works() {
        survives("lab", &[]);
    }
}

/// What an attacker without the key can produce: every type, with absurd contents, tagged or not.
fn throw(targets: &[SocketAddrV4]) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let guess = Keys::new(1, &[(1, Secret([0; 16]))]).expect("a key");
    for target in targets {
        for kind in Type::ALL {
            let mut header = Header::new(kind, 0, 1);
            (header.session, header.seq, header.term) = (u64::MAX >> 1, 1 << 40, 9);
            header.key_hash = wire::key_hash(b"key1");
            header.digest = wire::digest(b"nonsense");
            let mut packet = Vec::new();
            wire::emit(&header, b"key1", b"nonsense", &mut packet);
            let _ = socket.send_to(&packet, target);
            guess.sign(&mut packet);
            let _ = socket.send_to(&packet, target);
        }
    }
}

/// How long a client asks that nobody hears.
const UNHEARD: Duration = Duration::from_secs(1);

/// Reads a key as a client of the first switch that has this key file. `None`: no answer.
fn read_with(
    keys: &KeyFile,
    switches: &[SocketAddrV4],
    key: &str,
    limit: Duration,
) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let timeout = Duration::from_millis(20);
    socket.set_read_timeout(Some(timeout)).expect("set");
    let mut gate = Gate::of::<inband_flair::dataplane::Flair>(Some(keys.keys()), 1);
    let mut client = client::Client::new(client::Config {
        reads: Default::default(),
        set: 0,
        switches: switches.len() as u8,
        nonce: u64::from(socket.local_addr().expect("bound").port()),
        timing: ClientTiming {
            deadline_ns: limit.as_nanos() as u64,
            ..ClientTiming::default()
        },
    });
    client.set_digests(Digests::new(keys.digest()));
    let (begun, mut out) = (Instant::now(), client::Out::default());
    let now = || begun.elapsed().as_nanos() as u64;
    let read = client.submit(now(), Op::Get(key.into()), &mut out);
    read.expect("it is taken");
    let mut buffer = [0; 2048];
    loop {
        out.packets.sign(&gate);
        for (switch, packet) in out.packets.iter() {
            let _ = socket.send_to(packet, switches[usize::from(switch)]);
        }
        out.packets.clear();
        match out.outcomes.pop() {
            Some((_, Outcome::Value(value))) => return value,
            Some(_) => return None,
            None => {}
        }
        if let Ok(len_bytes) = socket.recv(&mut buffer) {
            if gate.admits(&buffer[..len_bytes]) {
                client.on_packet(now(), &buffer[..len_bytes], &mut out);
            }
        }
        client.tick(now(), &mut out);
    }
}

fn strangers_are_not_heard(name: &str, options: &[&str]) {
    let flair = Flair::up(name, options);
    let mut client = Client::connect(flair.resp);
    flair.check(&mut client, 0);
    let status = flair.status();
    flair.beside_gateway(|| throw(&addresses(&status, "")));
    flair.wait_for("counted by every host", |status| {
        hosts(status).iter().all(|host| {
            let counters = &host["status"]["counters"];
            let counts = |name: &str| counters[name].as_u64().is_some_and(|count| count > 0);
            counts("bad_key") && counts("bad_tag")
        })
    });
    let said = flair.succeeds(&["status"]);
    assert!(said.contains("packets: key 1  bad_key"), "{said}");
    flair.check(&mut client, 1);

    let file = flair.data.join("keys.toml");
    let keys = KeyFile::load(&file).expect("it is there");
    let switches = addresses(&status, "switch");
    let value = flair.beside_gateway(|| read_with(&keys, &switches, "key7", TIMEOUT));
    assert_eq!(value.as_deref(), Some(&b"1.7"[..]), "with the key");
    let other = KeyFile::generate().expect("random bytes");
    let value = flair.beside_gateway(|| read_with(&other, &switches, "key7", UNHEARD));
    assert_eq!(value, None, "with another key");

    // A host that was down meanwhile returns with the new key.
    flair.succeeds(&["kill", "follower/0"]);
    let data = flair.data.to_str().expect("of letters");
    let mut rotate = Command::new(PROGRAM);
    rotate.args(["key", "rotate", "--data", data]);
    let output = rotate.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("all hosts send with key 2"), "{output:?}");
    flair.succeeds(&["restart", "follower/0"]);
    flair.wait_until_whole();
    flair.wait_for("the new key alone", |status| {
        let is_new = |host: &Value| {
            let keys = &host["status"]["keys"];
            keys["active"] == 2 && keys["accepted"] == serde_json::json!([2])
        };
        hosts(status).iter().all(is_new)
    });
    let output = Command::new(PROGRAM)
        .args(["key", "list", "--data", data])
        .output();
    let said = String::from_utf8(output.expect("it runs").stdout).expect("text");
    for host in hosts(&flair.status()) {
        let line = format!(
            "{:<12} sends with key 2, accepts 2",
            host["name"].as_str().expect("a name")
        );
        assert!(said.contains(&line), "{said}");
    }
    flair.check(&mut client, 2);
    let value = flair.beside_gateway(|| read_with(&keys, &switches, "key7", UNHEARD));
    assert_eq!(value, None, "the old key is forgotten");
    let said = flair.succeeds(&["status"]);
    assert!(said.contains("Raft: TLS"), "{said}");
}

#[test]
fn a_switch_in_user_space_hears_no_strangers() {
    strangers_are_not_heard("tags-udp", &["--dataplane", "udp"]);
}

#[test]
fn a_switch_in_the_kernel_hears_no_strangers() {
    if lab_works() {
        strangers_are_not_heard("tags-lab", &[]);
    }
}

#[test]
fn without_keys_and_certificates_if_that_is_asked_for() {
    let open = ["--dataplane", "udp", "--no-key", "--no-tls"];
    let flair = Flair::up("open", &open);
    flair.check(&mut Client::connect(flair.resp), 0);
    let said = flair.succeeds(&["status"]);
    assert!(
        said.contains("packets: not authenticated; Raft: plain"),
        "{said}"
    );
}

/// Sets numbers until the connection is lost. Returns how many were acknowledged.
fn set_until_it_breaks(resp: SocketAddr, prefix: &str) -> usize {
    let mut client = Client::connect(resp);
    let mut count = 0;
    loop {
        let (key, value) = (format!("{prefix}{count}"), count.to_string());
        match client.try_call(&["SET", &key, &value]) {
            Some(said) if said == "+OK" => count += 1,
            _ => return count,
        }
    }
}

fn survives_the_end_of_all(name: &str, options: &[&str]) {
    let durable = [&["--durability", "sync"], options].concat();
    let flair = Flair::up(name, &durable);
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let prefix = format!("{round}.");
        let setting = {
            let (resp, prefix) = (flair.resp, prefix.clone());
            std::thread::spawn(move || set_until_it_breaks(resp, &prefix))
        };
        let mut client = Client::connect(flair.resp);
        let deadline = Instant::now() + TIMEOUT;
        while client.call(&["GET", &format!("{prefix}50")]) != "50" {
            assert!(Instant::now() < deadline, "nothing is written");
        }
        flair.kill_all();
        acknowledged.push((prefix, setting.join().expect("it ends")));
        // The choices of the first start are remembered.
        let said = flair.up_again(options);
        assert!(said.contains("durability sync"), "{said}");
        let mut client = Client::connect(flair.resp);
        for (prefix, count) in &acknowledged {
            for number in 0..*count {
                let value = client.call(&["GET", &format!("{prefix}{number}")]);
                assert_eq!(value, number.to_string(), "{prefix}{number} of {count}");
            }
        }
    }
    let keys = KeyFile::load(&flair.data.join("keys.toml")).expect("it is there");
    let said = flair.succeeds(&["down"]);
    assert!(said.contains("its data stays"), "{said}");
    for (option, value) in [("--durability", "memory"), ("--replicas", "5")] {
        let (succeeded, said) = flair.run(&["up", option, value, "--dataplane", "udp"]);
        assert!(
            !succeeded && said.contains("--durability sync --replicas 3"),
            "{said}"
        );
    }
    flair.up_again(options);
    assert_eq!(
        KeyFile::load(&flair.data.join("keys.toml")).expect("there"),
        keys
    );
    assert_eq!(Client::connect(flair.resp).call(&["GET", "0.7"]), "7");

    // A replica that lost its log gets it from the others.
    flair.succeeds(&["kill", "replica/2"]);
    std::fs::remove_dir_all(flair.data.join("hosts/replica-2/raft")).expect("it is there");
    flair.succeeds(&["restart", "replica/2"]);
    flair.wait_until_whole();
    flair.check(&mut Client::connect(flair.resp), 1);
}

#[test]
fn with_sync_the_end_of_all_processes_takes_nothing() {
    survives_the_end_of_all("sync-udp", &["--dataplane", "udp"]);
}

#[test]
fn with_sync_the_end_of_all_processes_in_namespaces_takes_nothing() {
    if lab_works() {
        survives_the_end_of_all("sync-lab", &[]);
    }
}

#[test]
fn with_memory_the_end_of_all_is_the_end_and_down_says_so() {
    let options = ["--dataplane", "udp"];
    let flair = Flair::up("memory", &options);
    let keys = KeyFile::load(&flair.data.join("keys.toml")).expect("it is there");
    assert_eq!(Client::connect(flair.resp).call(&["SET", "a", "1"]), "+OK");
    let said = flair.succeeds(&["down"]);
    assert!(said.contains("in memory and is gone"), "{said}");
    let (succeeded, said) = flair.run(&[&["up"], &options[..]].concat());
    assert!(!succeeded && said.contains("--accept-loss"), "{said}");
    flair.up_again(&[&options[..], &["--accept-loss"]].concat());
    assert_eq!(Client::connect(flair.resp).call(&["GET", "a"]), "(nil)");
    // Packets of the one before, sent again, would mean something to it.
    let new = KeyFile::load(&flair.data.join("keys.toml")).expect("it is there");
    assert_ne!(new, keys);
}

#[test]
fn with_sync_a_lost_majority_of_logs_is_told() {
    let options = ["--dataplane", "udp", "--durability", "sync"];
    let flair = Flair::up("lost-logs", &options);
    assert_eq!(Client::connect(flair.resp).call(&["SET", "a", "1"]), "+OK");
    flair.succeeds(&["down"]);
    let (succeeded, said) = flair.run(&["up", "--accept-loss"]);
    assert!(!succeeded && said.contains("not lost"), "{said}");
    // A minority is nothing that the others lack.
    let log = |replica: &str| flair.data.join("hosts").join(replica).join("raft");
    std::fs::remove_dir_all(log("replica-0")).expect("it is there");
    flair.up_again(&options);
    assert_eq!(Client::connect(flair.resp).call(&["GET", "a"]), "1");
    flair.wait_until_whole();
    flair.succeeds(&["down"]);
    // Without its record, it might be of any cluster.
    let record = flair.data.join("flair.json");
    let text = std::fs::read_to_string(&record).expect("it is there");
    std::fs::remove_file(&record).expect("it is there");
    for other in [&["--sets", "2"][..], &["--accept-loss"]] {
        let (succeeded, said) = flair.run(&[&["up"], &options[..], other].concat());
        assert!(
            !succeeded && said.contains("does not say of which cluster"),
            "{said}"
        );
    }
    std::fs::write(&record, text).expect("written");
    for lost in [&["replica-0", "replica-1"][..], &["replica-2"]] {
        for replica in lost {
            std::fs::remove_dir_all(log(replica)).expect("it is there");
        }
        let (succeeded, said) = flair.run(&[&["up"], &options[..]].concat());
        assert!(
            !succeeded
                && said.contains(" of 3 replicas have their log")
                && said.contains("--accept-loss"),
            "{said}"
        );
    }
    flair.up_again(&[&options[..], &["--accept-loss"]].concat());
    assert_eq!(Client::connect(flair.resp).call(&["GET", "a"]), "(nil)");
}

#[test]
fn a_full_disk_is_shown_and_recovers_by_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(dir.path().join("replica")) else {
        return;
    };
    let options = ["--dataplane", "udp", "--durability", "sync"];
    let flair = Flair::up("full-disk", &options);
    flair.succeeds(&["down"]);
    let log = flair.data.join("hosts/replica-1/raft");
    let moved = dir.path().join("replica/raft");
    let copied = Command::new("cp").arg("-a").args([&log, &moved]).status();
    assert!(copied.expect("it runs").success());
    std::fs::remove_dir_all(&log).expect("it is there");
    symlink(&moved, &log).expect("linked");
    flair.up_again(&options);
    let filler = disk.fill();
    let value = "x".repeat(1024);
    let of_replica = |status: &Value| {
        let mut all = hosts(status).iter();
        let host = all.find(|host| host["name"] == "replica/1");
        host.expect("it is there")["status"]["replica"]["disk_is_full"] == true
    };
    // Space that the log has preallocated still suffices for some writes. The other two acknowledge them.
    flair.wait_for("full", |status| {
        let mut client = Client::connect(flair.resp);
        for key in 0..100 {
            client.call(&["SET", &format!("key{key}"), &value]);
        }
        of_replica(status)
    });
    let said = flair.succeeds(&["status"]);
    let line = said.lines().find(|line| line.contains("replica/1"));
    assert!(
        line.is_some_and(|line| line.contains("disk full")),
        "{said}"
    );
    std::fs::remove_file(filler).expect("it is there");
    flair.wait_for("written", |status| !of_replica(status));
    flair.wait_until_whole();
    let said = flair.succeeds(&["status"]);
    assert!(!said.contains("disk full"), "{said}");
    flair.succeeds(&["down"]);
}

#[test]
fn with_memory_no_replica_is_stopped_that_the_others_need() {
    let flair = Flair::up("spare", &["--dataplane", "udp"]);
    let wait_until_running = |name: &str| {
        flair.wait_for("running", |status| {
            let mut hosts = hosts(status).iter();
            hosts.any(|host| host["name"] == name && host["process"] == "running")
        });
    };
    let mut client = Client::connect(flair.resp);
    assert_eq!(client.call(&["SET", "greeting", "hello"]), "+OK");
    // Each votes again before the next one is asked for.
    for replica in ["replica/1", "replica/2", "leader"] {
        flair.succeeds(&["restart", replica]);
        assert_eq!(client.call(&["GET", "greeting"]), "hello", "{replica}");
    }

    flair.succeeds(&["kill", "replica/0"]);
    for command in ["kill", "restart"] {
        let (succeeded, said) = flair.run(&[command, "replica/1"]);
        assert!(
            !succeeded
                && said.contains("replica/1 cannot be spared")
                && said.contains("2 of 3 replicas vote")
                && said.contains("--force"),
            "{said}"
        );
    }
    flair.succeeds(&["kill", "switch"]);
    flair.succeeds(&["restart", "switch"]);
    flair.succeeds(&["restart", "replica/0"]);
    assert_eq!(client.call(&["GET", "greeting"]), "hello");

    // One that waits for the others' votes keeps nobody from letting them continue.
    flair.succeeds(&["kill", "replica/1"]);
    flair.succeeds(&["pause", "replica/2"]);
    std::thread::scope(|scope| {
        let restarted = scope.spawn(|| flair.run(&["restart", "replica/1"]));
        wait_until_running("replica/1");
        flair.succeeds(&["resume", "replica/2"]);
        let (succeeded, said) = restarted.join().expect("it ends");
        assert!(succeeded, "{said}");
    });
    assert_eq!(client.call(&["GET", "greeting"]), "hello");

    // Forced, the store is lost: the new log is never voted for.
    flair.succeeds(&["kill", "--force", "replica/1"]);
    flair.succeeds(&["kill", "--force", "replica/2"]);
    flair.succeeds(&["restart", "--force", "replica/1"]);
    let said = flair.succeeds(&["status"]);
    let line = said.lines().find(|line| line.contains("replica/1"));
    assert!(
        line.is_some_and(|line| line.contains("does not vote yet")),
        "{said}"
    );
    std::thread::scope(|scope| {
        let restarted = scope.spawn(|| flair.run(&["restart", "replica/2"]));
        wait_until_running("replica/2");
        flair.succeeds(&["down"]);
        let (succeeded, said) = restarted.join().expect("it ends");
        assert!(!succeeded && said.contains("is being stopped"), "{said}");
    });
}

fn redis(program: &str, flair: &Flair, args: &[&str]) -> Option<String> {
    let port = flair.resp.port().to_string();
    let output = Command::new(program)
        .args(["-p", &port])
        .args(args)
        .output();
    let Ok(output) = output else {
        inband_testing::not_run(format!("there is no {program}"));
        return None;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(said + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn redis_clients_speak_tls_and_say_the_password() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("password");
    std::fs::write(&file, "secret\n").expect("written");
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, own).expect("set");
    let password_file = file.to_str().expect("of letters");
    // Its self-check is a client with TLS that sends the password.
    let flair = Flair::up(
        "access",
        &[
            "--dataplane",
            "udp",
            "--resp-tls",
            "--password-file",
            password_file,
        ],
    );
    let ca = flair.data.join("authority/ca.pem");
    let tls = ["--tls", "--cacert", ca.to_str().expect("of letters")];
    let ask = |args: &[&str]| redis("redis-cli", &flair, args);
    let Some(said) = ask(&[&tls[..], &["-a", "secret", "SET", "a", "b"]].concat()) else {
        return;
    };
    assert!(said.contains("OK"), "{said}");
    let said = ask(&[&tls[..], &["GET", "a"]].concat()).expect("it is there");
    assert!(said.contains("NOAUTH"), "{said}");
    let said = ask(&[&tls[..], &["-a", "guess", "GET", "a"]].concat()).expect("it is there");
    assert!(said.contains("WRONGPASS"), "{said}");
    let said = ask(&["-a", "secret", "GET", "a"]).expect("it is there");
    let is_told = said.lines().any(|line| line.trim_matches('"') == "b");
    assert!(!is_told, "without TLS: {said}");
    flair.wait_until_counted("gateway_passwords_refused");
}

#[test]
fn redis_benchmark_runs_unchanged() {
    let flair = Flair::up("benchmark", &["--dataplane", "udp"]);
    let args = ["-t", "set,get,mset", "-n", "2000", "-P", "8", "-q"];
    if let Some(said) = redis("redis-benchmark", &flair, &args) {
        for test in ["SET", "GET", "MSET (10 keys)"] {
            let done = format!("{test}: ");
            assert!(said.contains(&done) && !said.contains("rror"), "{said}");
        }
    }
}
