//! `/live` and `/ready` of hosts of `inband run`: the second of two acceptors makes the majority, and takes it away.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use inband_host::key_file::KeyFile;
use tempfile::TempDir;

use crate::common::PROGRAM;
use crate::run::{free_addresses, start, wait_until_it_answers, TIMEOUT};

/// The status and the text of an answer; nothing if nobody listens.
pub fn ask(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).ok()?;
    let mut said = String::new();
    socket.read_to_string(&mut said).ok()?;
    let (head, text) = said.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, text.to_owned()))
}

pub fn wait_until_it_says(address: SocketAddr, path: &str, status: u16, text: &str) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let said = ask(address, path);
        if matches!(&said, Some((s, t)) if *s == status && t.starts_with(text)) {
            return;
        }
        assert!(Instant::now() < deadline, "{path}: {said:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two hosts on loopback, not started: a store that needs the acceptor of the other host for every decision.
pub struct TwoHosts {
    pub store: PathBuf,
    pub store_http: SocketAddr,
    pub resp: SocketAddr,
    pub acceptor: PathBuf,
    pub acceptor_http: SocketAddr,
    _dirs: [TempDir; 2],
}

impl TwoHosts {
    pub fn new() -> TwoHosts {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let [one, two] = free_addresses();
        let [resp, store_http] = free_addresses();
        let [acceptor_http, _] = free_addresses();
        let write = |dir: &Path, node: u8, options: &str| {
            let text = format!(
                r#"
                cluster = {{ name = "two", epoch = 1, first_instance = 1, durability = "memory" }}
                host = {{ node = {node}, state_dir = {dir:?}, dataplane = "udp", {options} }}
                node = [
                    {{ id = 1, name = "one", address = "{one}", roles = ["leader", "acceptor", "replica"] }},
                    {{ id = 2, name = "two", address = "{two}", roles = ["acceptor"] }},
                ]
                "#
            );
            let path = dir.join("config.toml");
            std::fs::write(&path, text).expect("the configuration");
            path
        };
        let store = format!("metrics = \"{store_http}\", resp = [\"{resp}\"]");
        let acceptor = format!("metrics = \"{acceptor_http}\"");
        TwoHosts {
            store: write(dirs[0].path(), 1, &store),
            store_http,
            resp,
            acceptor: write(dirs[1].path(), 2, &acceptor),
            acceptor_http,
            _dirs: dirs,
        }
    }
}

#[test]
fn a_host_is_live_at_once_and_ready_while_it_reaches_a_majority() {
    let hosts = TwoHosts::new();
    let _store = start(&hosts.store);
    wait_until_it_says(hosts.store_http, "/live", 200, "live\n");
    wait_until_it_says(hosts.store_http, "/ready", 503, "not ready: no majority");
    let second = start(&hosts.acceptor);
    wait_until_it_says(hosts.store_http, "/ready", 200, "ready\n");
    wait_until_it_says(hosts.acceptor_http, "/ready", 200, "ready\n");
    wait_until_it_answers(hosts.resp, &["SET", "a", "1"], "+OK");
    drop(second);
    wait_until_it_says(hosts.store_http, "/ready", 503, "not ready: no majority");
    wait_until_it_says(hosts.store_http, "/live", 200, "live\n");
}

/// Both are alive, and their control planes and disks are in order.
#[test]
fn hosts_with_different_keys_say_so() {
    let hosts = TwoHosts::new();
    let keys = hosts.store.with_file_name("keys.toml");
    KeyFile::generate()
        .expect("keys")
        .save(&keys)
        .expect("saved");
    for (path, cluster) in [
        (&hosts.store, format!("epoch = 1, key_file = {keys:?},")),
        (&hosts.acceptor, "epoch = 1,".into()),
    ] {
        let text = std::fs::read_to_string(path).expect("read");
        let all = r#"roles = ["leader", "acceptor", "replica"]"#;
        let text = text.replace(r#"roles = ["acceptor"]"#, all);
        std::fs::write(path, text.replace("epoch = 1,", &cluster)).expect("written");
    }
    let _both = [start(&hosts.store), start(&hosts.acceptor)];
    let why = " packets were dropped because of their key (bad_key, bad_tag): ";
    for address in [hosts.store_http, hosts.acceptor_http] {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let said = ask(address, "/ready");
            let is_named = |text: &String| text.contains("no majority") && text.contains(why);
            if matches!(&said, Some((503, text)) if is_named(text)) {
                break;
            }
            assert!(Instant::now() < deadline, "{said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let status = Command::new(PROGRAM)
        .args(["status", "--config"])
        .arg(&hosts.store)
        .output();
    let said = String::from_utf8_lossy(&status.expect("it runs").stdout).into_owned();
    assert!(
        said.contains("DROPS PACKETS: ") && said.contains(why),
        "{said}"
    );
}
