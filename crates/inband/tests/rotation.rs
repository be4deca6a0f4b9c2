//! Keys and certificates are replaced by SIGHUP while Falcon and FLAIR work.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use inband_transport::certificates::{holder, Authority, CertificateFiles};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::common::flair::{hosts, Flair};
use crate::common::{Client, PROGRAM};
use crate::falcon::Falcon;
use crate::reload::{write_secret, SecureClient};
use crate::run::TIMEOUT;
use inband_testing::port::free_ports;

/// Clients of Falcon look at the key file every second.
const CLIENTS_NOTICE: Duration = Duration::from_millis(1_500);

/// A process whose log is read.
struct Logged {
    child: Child,
    lines: Receiver<String>,
}

impl Logged {
    fn start(args: &[&str]) -> Logged {
        let mut command = Command::new(PROGRAM);
        let mut child = command
            .arg("falcon")
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Logged { child, lines }
    }

    /// Returns all lines up to the one with this text.
    fn wait_for(&self, text: &str) -> Vec<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut said = Vec::new();
        while !said.last().is_some_and(|line: &String| line.contains(text)) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => said.push(line),
                Err(error) => panic!("no {text:?} ({error}) in {said:?}"),
            }
        }
        said
    }

    fn reload(&self) -> String {
        hang_up(self.child.id());
        self.wait_for("SIGHUP: done").join("\n")
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hang_up(pid: u32) {
    kill(Pid::from_raw(pid as i32), Signal::SIGHUP).expect("signalled");
}

fn key(args: &[&str]) {
    let done = Command::new(PROGRAM).arg("key").args(args).output();
    let done = done.expect("it runs");
    assert!(done.status.success(), "{done:?}");
}

/// A task of a job of 60: the first 50 take a moment, and the last ones run until this file is there.
fn until_told(go: &Path) -> String {
    let go = go.display();
    format!("sleep 0.1; until [ $INBAND_TASK -lt 50 ] || [ -e {go} ]; do sleep 0.05; done")
}

#[test]
fn falcons_keys_are_replaced_while_a_client_has_tasks() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys.toml");
    let keys = keys.to_str().expect("text");
    key(&["new", keys]);
    let former = dir.path().join("former.toml");
    fs::copy(keys, &former).expect("copied");
    let listen = SocketAddrV4::new(Ipv4Addr::LOCALHOST, free_ports(1)).to_string();
    let scheduler = Logged::start(&["scheduler", "--listen", &listen, "--key-file", keys]);
    scheduler.wait_for("listens at");
    let reach = ["--scheduler", &listen, "--key-file", keys];
    let worker = Logged::start(&[&["worker", "--executors", "1"][..], &reach].concat());
    worker.wait_for("knows it");
    // It runs until after the rotation.
    let go = dir.path().join("go");
    let script = until_told(&go);
    let tasks = ["--count", "60", "--", "sh", "-c", &script];
    let mut client = Command::new(PROGRAM);
    client.args(["falcon", "submit"]).args(reach).args(tasks);
    let mut client = client.spawn().expect("it starts");

    for (step, takes) in [
        (&["add", keys][..], "sends with 1, accepts [1, 2]"),
        (&["activate", keys, "2"][..], "sends with 2, accepts [1, 2]"),
        (&["drop", keys][..], "sends with 2, accepts [2]"),
    ] {
        key(step);
        for process in [&scheduler, &worker] {
            let said = process.reload();
            assert!(said.contains(takes), "{said}");
        }
        thread::sleep(CLIENTS_NOTICE);
    }
    assert!(
        client.try_wait().expect("ours").is_none(),
        "it ended before the rotation"
    );
    fs::write(&go, "").expect("written");
    let ended = client.wait().expect("it ends");
    assert!(ended.success(), "{ended}");

    let with_former = former.to_str().expect("text");
    let mut stranger = Command::new(PROGRAM);
    stranger.args(["falcon", "submit", "--scheduler", &listen]);
    stranger.args(["--key-file", with_former, "--", "true"]);
    let said = stranger.output().expect("it runs");
    assert!(!said.status.success(), "the former key is still accepted");

    fs::write(keys, "half of").expect("written");
    let said = scheduler.reload();
    assert!(said.contains("what was read before stays in use"), "{said}");
}

#[test]
fn key_rotate_replaces_falcons_key_while_a_client_has_tasks() {
    let falcon = Falcon::up("rotate", &["--executors", "2"]);
    let key = |command: &str| {
        let mut key = Command::new(PROGRAM);
        key.args(["key", command, "--data"]).arg(&falcon.data);
        key.output().expect("it runs")
    };
    // Nobody replaces the file that a worker on another machine has.
    let mut elsewhere = falcon.worker(&["--name", "elsewhere", "--executors", "1"]);
    let refused = key("rotate");
    assert!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("the worker elsewhere is not this cluster's own"),
        "{said}"
    );
    elsewhere.kill().expect("ours");
    elsewhere.wait().expect("it ends");
    falcon.wait_for("its own worker alone", |_| falcon.workers() == 1);

    let go = falcon.data.join("go");
    let script = until_told(&go);
    let mut client = falcon.start(&["submit", "--count", "60", "--", "sh", "-c", &script]);
    let rotated = key("rotate");
    let said = String::from_utf8_lossy(&rotated.stdout);
    assert!(said.contains("all hosts send with key 2"), "{rotated:?}");
    let has_ended = client.try_wait().expect("ours");
    assert!(has_ended.is_none(), "it ended before the rotation");
    fs::write(&go, "").expect("written");
    let ended = client.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{ended:?}");
    let listed = key("list");
    let said = String::from_utf8_lossy(&listed.stdout);
    assert!(
        said.contains("scheduler    sends with key 2, accepts 2"),
        "{said}"
    );
}

/// Gives a host a certificate of the authority in the cluster's directory, which is created. False: it has none.
fn renew(cluster_dir: &Path, host_dir: &Path) -> bool {
    let tls = host_dir.join("tls");
    let files = CertificateFiles::in_dir(&tls);
    if !tls.exists() {
        return false;
    }
    let holder = holder(&files.certificate).expect("read");
    let holder = holder.expect("a certificate of ours");
    let authority = Authority::open_or_make(&cluster_dir.join("authority"), &holder.cluster);
    let local = [IpAddr::from(Ipv4Addr::LOCALHOST)];
    let issued = authority.expect("made").issue(holder.node, &local, &files);
    issued.expect("written");
    true
}

/// A new authority, as after the loss of a key: a replica that starts with its certificates is a stranger to those that
/// have not read theirs again.
#[test]
fn flairs_certificates_are_replaced_while_it_serves() {
    let flair = Flair::up("certificates", &["--dataplane", "udp"]);
    flair.wait_until_whole();
    let mut client = Client::connect(flair.resp);
    flair.check(&mut client, 0);

    fs::remove_dir_all(flair.data.join("authority")).expect("it has one");
    let renewed = fs::read_dir(flair.data.join("hosts")).expect("hosts");
    let renewed = renewed.filter(|host| renew(&flair.data, &host.as_ref().expect("a host").path()));
    assert!(renewed.count() >= 3, "the replicas have certificates");
    for host in hosts(&flair.status()) {
        hang_up(host["pid"].as_u64().expect("it runs") as u32);
    }
    // Each replica connects again, to the others and from them.
    for replica in ["follower/0", "follower/0", "leader"] {
        flair.succeeds(&["kill", replica]);
        flair.succeeds(&["restart", replica]);
        flair.wait_until_whole();
    }
    flair.check(&mut client, 1);
    flair.succeeds(&["down"]);
}

/// Sends the gateway's process the signal and returns what it logs until it has read its files again.
fn reload_gateway(flair: &Flair) -> String {
    let log = flair.data.join("hosts/gateway/log");
    let read = || fs::read_to_string(&log).expect("its log");
    let before = read().len();
    let status = flair.status();
    let gateway = hosts(&status).iter().find(|host| host["name"] == "gateway");
    let pid = gateway.expect("there is one")["pid"].as_u64();
    hang_up(pid.expect("it runs") as u32);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let said = read()[before..].to_owned();
        if said.contains("SIGHUP: done") {
            return said;
        }
        assert!(Instant::now() < deadline, "{said}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A gateway takes what was read when its loop gets to it.
fn connects(address: SocketAddr, ca: &Path) -> SecureClient {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(client) = SecureClient::connect(address, ca) {
            return client;
        }
        assert!(Instant::now() < deadline, "{} is unknown", ca.display());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_flair_gateways_password_and_certificate_are_replaced_while_a_client_is_connected() {
    let dir = tempfile::tempdir().expect("a directory");
    let password = dir.path().join("password");
    write_secret(&password, "first\n");
    let password_file = password.to_str().expect("text");
    let options = ["--resp-tls", "--password-file", password_file];
    let flair = Flair::up(
        "access-replaced",
        &[&["--dataplane", "udp"], &options[..]].concat(),
    );
    let (ca, former) = (
        flair.data.join("authority/ca.pem"),
        dir.path().join("former.pem"),
    );
    fs::copy(&ca, &former).expect("copied");
    let mut early = connects(flair.resp, &former);
    assert_eq!(early.ask("AUTH first").as_deref(), Some("+OK"));
    assert_eq!(early.ask("SET a 1").as_deref(), Some("+OK"));

    fs::remove_dir_all(flair.data.join("authority")).expect("it has one");
    assert!(renew(&flair.data, &flair.data.join("hosts/gateway")));
    write_secret(&password, "second\n");
    // Nothing changes before the signal.
    assert!(SecureClient::connect(flair.resp, &ca).is_none());
    let said = reload_gateway(&flair);
    assert!(
        said.contains("password and certificate for clients: "),
        "{said}"
    );
    let mut late = connects(flair.resp, &ca);
    assert!(SecureClient::connect(flair.resp, &former).is_none());
    let refused = late.ask("AUTH first").expect("an answer");
    assert!(refused.starts_with("-WRONGPASS"), "{refused}");
    assert_eq!(late.ask("AUTH second").as_deref(), Some("+OK"));
    assert_eq!(late.ask("SET a 2").as_deref(), Some("+OK"));
    assert_eq!(early.ask("SET a 3").as_deref(), Some("+OK"));

    fs::remove_file(&password).expect("removed");
    let said = reload_gateway(&flair);
    assert!(said.contains("stays in use"), "{said}");
    let mut later = connects(flair.resp, &ca);
    assert_eq!(later.ask("AUTH second").as_deref(), Some("+OK"));
    // `down` has a client, too.
    write_secret(&password, "second\n");
}
