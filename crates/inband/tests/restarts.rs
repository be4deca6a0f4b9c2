//! A host process that exits by itself is restarted; one that was killed on request is not.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::{Client, PROGRAM};
use inband_testing::port::free_ports;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than the supervisor waits before it restarts a process.
const STAYS_FOR: Duration = Duration::from_secs(3);

/// A cluster in the background, stopped when dropped.
struct Running {
    dir: tempfile::TempDir,
    /// `flair`, `falcon` or nothing.
    system: Vec<&'static str>,
    /// The list in its status that contains the processes.
    list: &'static str,
}

impl Running {
    fn up(system: &[&'static str], list: &'static str, options: &[&str]) -> Running {
        let running = Running {
            dir: tempfile::tempdir().expect("a directory"),
            system: system.to_vec(),
            list,
        };
        let options = [&["--detach", "--dataplane", "udp"], options].concat();
        let output = running.run("up", &options);
        assert!(output.status.success(), "{output:?}");
        running
    }

    fn run(&self, command: &str, options: &[&str]) -> Output {
        let data = self.dir.path().join("data");
        let mut process = Command::new(PROGRAM);
        process.arg(command);
        match command {
            "up" => process.args(&self.system),
            _ => &mut process,
        };
        process.arg("--data").arg(data).args(options);
        process.output().expect("it runs")
    }

    fn submit(&self, task: &[&str]) -> Output {
        let data = self.dir.path().join("data");
        let mut process = Command::new(PROGRAM);
        process.args(["falcon", "submit", "--data"]).arg(data);
        process.arg("--").args(task).output().expect("it runs")
    }

    /// The status entry of a process.
    fn entry(&self, name: &str) -> Value {
        let deadline = Instant::now() + LIMIT;
        let status: Value = loop {
            // It fails if what it asks waits for a CPU for too long.
            let output = self.run("status", &["--json"]);
            if output.status.success() {
                break serde_json::from_slice(&output.stdout).expect("it is JSON");
            }
            assert!(Instant::now() < deadline, "{output:?}");
        };
        let list = status[self.list].as_array().expect("a list");
        let found = list.iter().find(|entry| entry["name"] == name);
        found
            .unwrap_or_else(|| panic!("no {name}: {status}"))
            .clone()
    }

    fn wait_for(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let entry = self.entry(name);
            if is_so(&entry) {
                return entry;
            }
            assert!(Instant::now() < deadline, "{name} is not {what}: {entry}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills a process without telling the supervisor, and waits until another one has replaced it.
    fn dies(&self, name: &str) {
        let before = self.entry(name);
        let pid = before["pid"].as_i64().expect("it runs");
        kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("it is killed");
        let after = self.wait_for(name, "started again", |entry| {
            entry["pid"].as_i64().is_some_and(|now| now != pid)
        });
        assert_eq!(after["restarts"], 1, "{after}");
        assert_eq!(after["last_exit"], "signal: 9 (SIGKILL)", "{after}");
        let deadline = Instant::now() + LIMIT;
        loop {
            // It fails if what it asks waits for a CPU for too long.
            let output = self.run("status", &[]);
            let said = String::from_utf8_lossy(&output.stdout);
            let mut lines = said.lines().filter(|l| l.trim().starts_with(name));
            if lines.any(|l| l.contains("restarts 1")) {
                break;
            }
            assert!(Instant::now() < deadline, "{output:?}");
        }
    }

    fn stays_killed(&self, name: &str) {
        let deadline = Instant::now() + LIMIT;
        // Refused until the host that died takes part again.
        loop {
            let output = self.run("kill", &[name]);
            if output.status.success() {
                break;
            }
            assert!(Instant::now() < deadline, "{output:?}");
        }
        std::thread::sleep(STAYS_FOR);
        let entry = self.entry(name);
        assert!(entry["pid"].is_null(), "{entry}");
        assert!(self.run("restart", &[name]).status.success());
        assert!(self.entry(name)["pid"].is_i64());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.run("down", &[]);
    }
}

#[test]
fn a_host_of_the_store_that_dies_serves_again() {
    let address = format!("127.0.0.1:{}", free_ports(8));
    let metrics = free_ports(16).to_string();
    let options = ["--resp", &address, "--metrics-port", &metrics];
    let cluster = Running::up(&[], "hosts", &options);
    cluster.dies("replica/0");
    cluster.dies("acceptor/1");
    cluster.wait_for("acceptor/1", "voting", |entry| {
        let acceptors = entry["status"]["acceptors"].as_array();
        acceptors.is_some_and(|all| all.iter().all(|a| a["voting"] == true) && !all.is_empty())
    });
    let mut client = Client::connect(address.parse().expect("an address"));
    assert_eq!(client.call(&["SET", "a", "1"]), "+OK");
    cluster.stays_killed("acceptor/2");
}

#[test]
fn a_host_of_flair_that_dies_serves_again() {
    let address = format!("127.0.0.1:{}", free_ports(1));
    let cluster = Running::up(&["flair"], "hosts", &["--resp", &address]);
    cluster.dies("gateway");
    cluster.dies("replica/1");
    let mut client = Client::connect(address.parse().expect("an address"));
    assert_eq!(client.call(&["SET", "a", "1"]), "+OK");
    cluster.stays_killed("replica/2");
}

#[test]
fn a_process_of_falcon_that_dies_works_again() {
    let address = format!("127.0.0.1:{}", free_ports(1));
    let options = ["--listen", &address, "--executors", "1"];
    let cluster = Running::up(&["falcon"], "processes", &options);
    cluster.dies("worker/0");
    cluster.dies("scheduler");
    let output = cluster.submit(&["echo", "done"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"done\n");
    cluster.stays_killed("worker/0");
}
