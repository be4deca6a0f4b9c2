//! A FLAIR cluster on real packets, through the command line: it serves Redis clients while its switch, its leader and
//! a follower die and come back, and nothing that was answered is lost.

mod common;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{lab_works, port, Client, PROGRAM};
use serde_json::Value;

/// How long a cluster may take to be whole again; far longer than it does.
const PATIENCE: Duration = Duration::from_secs(20);

struct Flair {
    data: PathBuf,
    resp: SocketAddr,
}

impl Flair {
    fn up(name: &str, options: &[&str]) -> Flair {
        let data = std::env::temp_dir().join(format!("ib-flair-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let resp = SocketAddr::from(([127, 0, 0, 1], port(1)));
        let flair = Flair { data, resp };
        let resp = resp.to_string();
        let said = flair.succeeds(&[&["up", "--detach", "--resp", &resp], options].concat());
        assert!(said.contains("self-check: SET and GET agree"), "{said}");
        assert!(
            said.contains(&format!("-p {}", flair.resp.port())),
            "{said}"
        );
        flair
    }

    fn run(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new(PROGRAM)
            .arg("flair")
            .args(args)
            .arg("--data")
            .arg(&self.data)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    }

    fn succeeds(&self, args: &[&str]) -> String {
        let (succeeded, said) = self.run(args);
        assert!(succeeded, "{args:?}: {said}");
        said
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.succeeds(&["status", "--json"])).expect("it is JSON")
    }

    /// The value of a counter, of all hosts together.
    fn count(&self, name: &str) -> u64 {
        let status = self.status();
        let hosts = status["hosts"].as_array().expect("there are hosts");
        let of = |host: &Value| host["status"]["counters"][name].as_u64().unwrap_or(0);
        hosts.iter().map(of).sum()
    }

    /// Set and get keys, each its own value.
    fn check(&self, client: &mut Client, round: u32) {
        for key in 0..100 {
            let (key, value) = (format!("key{key}"), format!("{round}.{key}"));
            assert_eq!(client.call(&["SET", &key, &value]), "+OK");
            assert_eq!(client.call(&["GET", &key]), value);
        }
    }

    /// All replicas are voters and have applied the same.
    fn wait_until_whole(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            let hosts = status["hosts"].as_array().expect("there are hosts");
            let replicas: Vec<&Value> = hosts
                .iter()
                .map(|host| &host["status"]["replica"])
                .filter(|replica| !replica.is_null())
                .collect();
            let voters = |r: &&Value| r["voters"].as_array().map_or(0, Vec::len);
            let is_whole = replicas.len() == 3
                && replicas.iter().all(|r| voters(r) == 3)
                && replicas
                    .iter()
                    .all(|r| r["applied"] == replicas[0]["applied"]);
            if is_whole {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "it does not become whole: {status}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Flair {
    fn drop(&mut self) {
        let (_, said) = self.run(&["down"]);
        println!("{said}");
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn survives(name: &str, options: &[&str]) {
    let flair = Flair::up(name, options);
    let mut client = Client::connect(flair.resp);
    flair.check(&mut client, 0);
    assert!(
        flair.count("flair_reads_follower") > 0,
        "followers read nothing"
    );
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
    assert_eq!(client.call(&["MGET", "key1", "key3"]), "(nil) 5.3");
    let long = "x".repeat(1400);
    let said = client.call(&["SET", "long", &long]);
    assert!(said.contains("over the limit of 1376 bytes"), "{said}");
    flair.succeeds(&["down"]);
    let (succeeded, said) = flair.run(&["status"]);
    assert!(!succeeded && said.contains("inband flair up"), "{said}");
}

#[test]
fn a_switch_in_user_space_serves_through_failures() {
    survives("udp", &["--dataplane", "udp"]);
}

#[test]
fn hosts_in_namespaces_serve_through_failures() {
    if lab_works("hosts_in_namespaces_serve_through_failures") {
        survives("lab", &[]);
    }
}
