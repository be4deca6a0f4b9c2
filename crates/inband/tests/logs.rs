//! The log of `inband run`: text or JSON, and how much of it.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::PROGRAM;
use crate::run::{free_addresses, wait_until_it_answers, TIMEOUT};
use inband_testing::port::free_ports;

/// Ports of a host: packets and checkpoints, and the control service.
const PORTS: u16 = 2;

/// One host with all roles, whose standard error is in a file.
pub struct LoggedHost {
    pub dir: TempDir,
    pub resp: SocketAddr,
    pub metrics: SocketAddr,
    /// Where it receives packets.
    pub address: SocketAddr,
    process: Option<Child>,
}

impl Drop for LoggedHost {
    fn drop(&mut self) {
        self.kill();
    }
}

impl LoggedHost {
    /// A host that does not run yet. `host` is added to `[host]`, `tables` to the file; DIR is its directory.
    pub fn prepare(host: &str, tables: &str) -> LoggedHost {
        let dir = tempfile::tempdir().expect("a directory");
        let [resp, metrics] = free_addresses();
        let address: SocketAddr = ([127, 0, 0, 1], free_ports(PORTS)).into();
        let text = format!(
            r#"
            cluster = {{ name = "logged", epoch = 1, first_instance = 1, durability = "memory" }}
            [host]
            node = 1
            state_dir = "DIR/state"
            dataplane = "udp"
            resp = ["{resp}"]
            metrics = "{metrics}"
            {host}
            {tables}
            [[node]]
            id = 1
            name = "one"
            address = "{address}"
            roles = ["leader", "acceptor", "replica", "controller"]
            "#
        );
        let text = text.replace("DIR", &dir.path().display().to_string());
        fs::write(dir.path().join("config.toml"), text).expect("the configuration");
        LoggedHost {
            dir,
            resp,
            metrics,
            address,
            process: None,
        }
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--config"]).arg(self.config());
        command.env_remove("INBAND_LOG").stdin(Stdio::null());
        command
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    pub fn run(&mut self, mut command: Command) {
        let log = File::create(self.log_path()).expect("a log");
        let process = command.stderr(log).spawn().expect("it runs");
        self.process = Some(process);
    }

    pub fn start(&mut self, arguments: &[&str]) {
        let mut command = self.command();
        command.args(arguments);
        self.run(command);
    }

    pub fn id(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).expect("the log")
    }

    pub fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} in\n{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// The lines of a log, each of which must be an object.
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(value.is_object(), "{line}");
        value
    };
    log.lines().map(object).collect()
}

#[test]
fn a_line_of_the_log_is_a_json_object() {
    let mut host = LoggedHost::prepare("", "[log]\nformat = \"json\"");
    host.start(&[]);
    wait_until_it_answers(host.resp, &["SET", "a", "1"], "+OK");
    let lines = objects(&host.log());
    let is_dataplane = |line: &&Value| {
        let message = line["message"].as_str();
        message.is_some_and(|text| text.starts_with("one: dataplane udp"))
    };
    let line = lines.iter().find(is_dataplane).expect("its data plane");
    assert_eq!(line["level"], "INFO");
    let time = line["timestamp"].as_str().expect("a time");
    assert!(time.contains('T') && time.ends_with('Z'), "{time}");

    // What ends a process is a line of its log, too.
    let second = host.command().output().expect("it runs");
    assert!(!second.status.success());
    let said = objects(&String::from_utf8_lossy(&second.stderr));
    let last = said.last().expect("a line");
    assert_eq!(last["level"], "ERROR");
    let why = last["message"].as_str().expect("a message");
    assert!(why.contains("in use by process"), "{why}");
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let text_or_json = |arguments: &[&str], format: Option<&str>| {
        let host = LoggedHost::prepare("", "[log]\nformat = \"json\"");
        // It ends at once, because its state directory is a file.
        fs::write(host.dir.path().join("state"), "").expect("a file");
        let mut command = host.command();
        command.args(arguments);
        if let Some(format) = format {
            command.env("INBAND_LOG_FORMAT", format);
        }
        let output = command.output().expect("it runs");
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match said.starts_with('{') {
            true => "json",
            false => "text",
        }
    };
    assert_eq!(text_or_json(&[], None), "json");
    assert_eq!(text_or_json(&[], Some("text")), "text");
    assert_eq!(
        text_or_json(&["--log-format", "json"], Some("text")),
        "json"
    );
    assert_eq!(text_or_json(&["--log-format", "text"], None), "text");
}

#[test]
fn what_is_less_severe_than_the_level_is_left_out() {
    let mut host = LoggedHost::prepare("", "[log]\nlevel = \"warn\"");
    host.start(&[]);
    wait_until_it_answers(host.resp, &["SET", "a", "1"], "+OK");
    assert!(!host.log().contains("INFO"), "{}", host.log());
    host.kill();
    // The environment's filter wins.
    let mut command = host.command();
    command.env("INBAND_LOG", "info");
    host.run(command);
    host.wait_for_log("one: dataplane udp");
}
