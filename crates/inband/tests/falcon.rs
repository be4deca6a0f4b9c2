//! A Falcon cluster on real packets, driven by the command line: commands run as tasks while workers, the scheduler and
//! clients fail; nothing is left behind at the end.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{lab_works, PROGRAM};
use inband_testing::port::free_ports;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

/// Time limit for an action that takes a moment, or the few seconds until a process is declared dead.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub struct Falcon {
    pub data: PathBuf,
    address: SocketAddrV4,
}

impl Falcon {
    pub fn up(name: &str, options: &[&str]) -> Falcon {
        let data = std::env::temp_dir().join(format!("ib-falcon-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, free_ports(1));
        let falcon = Falcon { data, address };
        falcon.up_again(options);
        falcon
    }

    fn up_again(&self, options: &[&str]) {
        let listen = self.address.to_string();
        let said = self.succeeds(&[&["up", "--detach", "--listen", &listen], options].concat());
        assert!(said.contains("self-check: 200 tasks"), "{said}");
        assert!(said.contains("ready: inband falcon submit"), "{said}");
    }

    /// `inband falcon ...` in this cluster.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        let (name, options) = args.split_first().expect("a command");
        command
            .args(["falcon", name, "--data"])
            .arg(&self.data)
            .args(options)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("it runs")
    }

    fn succeeds(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The error output of a command that must fail.
    fn fails(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    pub fn start(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    }

    /// A worker that `up` did not start.
    pub fn worker(&self, options: &[&str]) -> Child {
        let before = self.workers();
        let mut command = self.command(&[&["worker"], options].concat());
        let worker = command.stderr(Stdio::null()).spawn().expect("it starts");
        self.wait_for("one worker more", |_| self.workers() == before + 1);
        worker
    }

    pub fn workers(&self) -> usize {
        let status = self.status();
        let workers = status["scheduler"]["workers"].as_array();
        workers.map_or(0, Vec::len)
    }

    fn status(&self) -> Value {
        self.wait_for_status("there is an answer", |_| true)
    }

    /// Waits until a condition on the scheduler's status holds.
    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        self.wait_for_status(what, |status| is_so(&status["scheduler"]));
    }

    fn wait_for_status(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            // It fails if the scheduler waits for a CPU longer than the command waits for the scheduler.
            let output = self.run(&["status", "--json"]);
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if output.status.success() && is_so(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "not {what}: {output:?}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn file(&self, name: &str) -> String {
        let path = self.data.join(name);
        path.to_str().expect("of letters").to_owned()
    }
}

impl Drop for Falcon {
    fn drop(&mut self) {
        let output = self.run(&["down"]);
        println!("{output:?}");
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.data);
        }
    }
}

fn busy(scheduler: &Value) -> u64 {
    let workers = scheduler["workers"].as_array();
    let busy = |worker: &Value| worker["busy"].as_u64().unwrap_or(0);
    workers.map_or(0, |workers| workers.iter().map(busy).sum())
}

/// Tasks in the queues. A client whose SUBMIT is not answered in time submits again, so a task may be there twice.
fn queued(scheduler: &Value) -> u64 {
    scheduler["queued"].as_u64().unwrap_or(0)
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).expect("ours");
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The process whose id a task has written to a file.
fn pid_in(file: &str) -> Pid {
    wait_until("a task that runs", || {
        std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n'))
    });
    let text = std::fs::read_to_string(file).expect("it was there");
    Pid::from_raw(text.trim().parse().expect("a number"))
}

fn runs(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie counts as dead, too.
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Numbers, one per line, without duplicates.
fn numbers(text: &str) -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    for line in text.lines() {
        assert!(
            numbers.insert(line.parse().expect("a number")),
            "{line} is there twice"
        );
    }
    numbers
}

/// Commands run, and their output and exit status are returned; invalid options are refused with helpful messages.
fn commands_run(name: &str, options: &[&str]) {
    let falcon = Falcon::up(name, &[&["--executors", "4"], options].concat());
    let script = "echo out; echo err >&2; exit 3";
    let output = falcon.run(&["submit", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");

    let mut cat = falcon.command(&[
        "submit", "--stdin", "--dir", "/", "--", "sh", "-c", "pwd; cat",
    ]);
    let file = falcon.file("input");
    std::fs::write(&file, "from here\n".repeat(1000)).expect("written");
    let output = cat
        .stdin(std::fs::File::open(&file).expect("there"))
        .output();
    let said = String::from_utf8(output.expect("it runs").stdout).expect("text");
    assert_eq!(
        said,
        format!("/\n{}", "from here\n".repeat(1000)),
        "longer than a packet"
    );

    let count = [
        "submit",
        "--count",
        "300",
        "--env",
        "A=7",
        "--",
        "sh",
        "-c",
        "echo $A$INBAND_TASK",
    ];
    let expected = (0..300).map(|n| format!("7{n}").parse().expect("a number"));
    assert_eq!(numbers(&falcon.succeeds(&count)), expected.collect());

    let late = falcon.run(&["submit", "--deadline-ms", "200", "--", "sleep", "600"]);
    assert_eq!(late.status.code(), Some(124), "{late:?}");
    let output = falcon.run(&["submit", "--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(126));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot run /no/such/program"), "{said}");
    let said = falcon.fails(&["submit", "--priority", "1", "--", "true"]);
    assert!(
        said.contains("--policy priority; this one has fifo"),
        "{said}"
    );

    falcon.wait_for("idle", |scheduler| busy(scheduler) == 0);
    let status = falcon.status();
    let scheduler = &status["scheduler"];
    assert_eq!(scheduler["queued"], 0);
    assert!(scheduler["given"].as_u64() >= Some(503), "{scheduler}");
    assert_eq!(scheduler["workers"][0]["executors"], 4);
    let said = falcon.succeeds(&["top", "--count", "2", "--interval-ms", "20"]);
    assert_eq!(
        said.matches("executors: 4, of which 0 busy").count(),
        2,
        "{said}"
    );
    let said = falcon.fails(&["kill", "worker/9"]);
    assert!(said.contains("there are scheduler, worker/0"), "{said}");
}

#[test]
fn commands_run_as_tasks() {
    commands_run("commands", &[]);
}

/// Workers and the scheduler fail in the middle of a job, with a full queue; every task is done, with exactly one
/// result.
fn nothing_is_lost(name: &str, options: &[&str]) {
    let small = [
        "--executors",
        "2",
        "--slots",
        "16",
        "--user-tasks-max",
        "16",
    ];
    let falcon = Falcon::up(name, &[&small, options].concat());
    let mut second = falcon.worker(&["--executors", "2"]);
    let ran = falcon.file("ran");
    let go = falcon.file("go");
    // The first ones end; then all executors are busy and the queue is full until the failures are over.
    let waits = format!("until [ $INBAND_TASK -lt 8 ] || [ -e {go} ]; do sleep 0.05; done");
    let script = format!("echo $INBAND_TASK >> {ran}; {waits}; sleep 0.1; echo $INBAND_TASK");
    let job = falcon.start(&["submit", "--count", "64", "--", "sh", "-c", &script]);
    falcon.wait_for("full", |scheduler| {
        scheduler["queued"] == 16 && busy(scheduler) == 4
    });
    second.kill().expect("ours");
    second.wait().expect("it ends");
    falcon.wait_for("without it", |scheduler| {
        scheduler["workers"]
            .as_array()
            .is_some_and(|workers| workers.len() == 1)
    });
    falcon.wait_for("full again", |scheduler| scheduler["queued"] == 16);
    falcon.succeeds(&["kill", "scheduler"]);
    assert!(falcon.status()["scheduler"].is_null());
    falcon.succeeds(&["restart", "scheduler"]);
    falcon.succeeds(&["kill", "worker/0"]);
    falcon.succeeds(&["restart", "worker/0"]);
    std::fs::write(&go, "").expect("written");
    let output = job.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).expect("text");
    assert_eq!(numbers(&said), (0..64).collect(), "each result once");
    let ran = std::fs::read_to_string(ran).expect("they ran");
    let ran: BTreeSet<u32> = ran
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(ran, (0..64).collect());
    falcon.wait_for("empty", |scheduler| {
        scheduler["queued"] == 0 && busy(scheduler) == 0
    });
}

#[test]
fn nothing_is_lost_with_a_worker_or_the_scheduler() {
    nothing_is_lost("faults", &[]);
}

#[test]
fn ctrl_c_ends_a_client_that_waits_for_a_scheduler() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = silent.local_addr().expect("bound").to_string();
    let client = Command::new(PROGRAM)
        .args(["falcon", "submit", "--scheduler", &address, "--", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    silent.set_read_timeout(Some(TIMEOUT)).expect("set");
    silent.recv_from(&mut [0; 2048]).expect("it asks");
    signal(&client, Signal::SIGINT);
    let output = client.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.contains("interrupted; nothing was submitted"),
        "{said}"
    );
}

#[test]
fn what_runs_ends_with_its_client_or_worker() {
    let falcon = Falcon::up("ends", &["--executors", "2"]);
    let pid_file = falcon.file("pid");
    let script = format!("echo $$ > {pid_file}; exec sleep 600");
    let long = ["submit", "--", "sh", "-c", &script];

    // The worker is killed: its command dies with it, and is run again by the next one.
    let mut job = falcon.start(&long);
    let first = pid_in(&pid_file);
    std::fs::remove_file(&pid_file).expect("it is there");
    falcon.succeeds(&["kill", "worker/0"]);
    wait_until("ended with its worker", || !runs(first));
    falcon.succeeds(&["restart", "worker/0"]);
    let second = pid_in(&pid_file);
    assert_ne!(first, second);

    // Ctrl-C: running tasks continue; a second one ends them.
    signal(&job, Signal::SIGINT);
    let stderr = BufReader::new(job.stderr.take().expect("it is piped"));
    // On a busy machine it may have said that the scheduler did not answer.
    let mut lines = stderr.lines().map(|line| line.expect("text"));
    let says_so = lines.any(|line| line.contains("1 still run; Ctrl-C again ends them"));
    assert!(says_so, "it ends before its task");
    assert!(runs(second));
    signal(&job, Signal::SIGINT);
    assert_eq!(job.wait().expect("it ends").code(), Some(130));
    wait_until("ended with its client", || !runs(second));

    // The client is killed: running tasks continue, because they are not told; waiting ones do not start.
    let late = falcon.file("late");
    let go = falcon.file("go");
    let script = format!("while ! [ -e {go} ]; do sleep 0.05; done; echo >> {late}");
    let mut job = falcon.start(&["submit", "--count", "4", "--", "sh", "-c", &script]);
    falcon.wait_for("busy", |scheduler| {
        busy(scheduler) == 2 && queued(scheduler) >= 2
    });
    job.kill().expect("ours");
    job.wait().expect("it ends");
    std::fs::write(&go, "").expect("written");
    falcon.wait_for("idle", |scheduler| {
        scheduler["queued"] == 0 && busy(scheduler) == 0
    });
    let ran = std::fs::read_to_string(&late).expect("two ran");
    assert_eq!(ran.lines().count(), 2);
    assert_eq!(falcon.succeeds(&["submit", "--", "echo", "next"]), "next\n");

    // Down: nothing is left behind.
    std::fs::remove_file(&pid_file).expect("it is there");
    let mut job = falcon.start(&long);
    let third = pid_in(&pid_file);
    falcon.succeeds(&["down"]);
    assert!(!runs(third));
    job.kill().expect("ours");
    job.wait().expect("it ends");
    assert_eq!(processes_with(&falcon.data), Vec::<String>::new());
    let said = falcon.fails(&["status"]);
    assert!(said.contains("inband up falcon"), "{said}");
    // The keys are unchanged: others have a copy.
    let keys = std::fs::read(falcon.data.join("keys.toml")).expect("there are keys");
    falcon.up_again(&["--executors", "1"]);
    assert_eq!(
        std::fs::read(falcon.data.join("keys.toml")).expect("still"),
        keys
    );
}

/// Processes that name this directory on their command line.
fn processes_with(data: &Path) -> Vec<String> {
    let data = data.to_str().expect("of letters");
    let processes = std::fs::read_dir("/proc").expect("there are processes");
    let command_lines = processes.flatten().filter_map(|process| {
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    command_lines.filter(|line| line.contains(data)).collect()
}

#[test]
fn a_worker_that_is_told_to_end_ends_with_its_tasks() {
    let falcon = Falcon::up("drain", &["--executors", "1"]);
    falcon.succeeds(&["kill", "worker/0"]);
    let mut worker = falcon.worker(&["--executors", "1"]);
    let go = falcon.file("go");
    let script = format!("until [ -e {go} ]; do sleep 0.05; done; echo whole");
    let job = falcon.start(&["submit", "--", "sh", "-c", &script]);
    falcon.wait_for("busy", |scheduler| busy(scheduler) == 1);
    let mut waits = falcon.start(&["submit", "--", "echo", "waited"]);
    falcon.wait_for("full", |scheduler| queued(scheduler) >= 1);
    signal(&worker, Signal::SIGINT);
    falcon.wait_for("without it", |scheduler| {
        scheduler["workers"] == serde_json::json!([])
    });
    std::fs::write(&go, "").expect("written");
    let output = job.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"whole\n");
    assert!(worker.wait().expect("it ends").success());
    let ended = waits.try_wait().expect("ours");
    assert_eq!(ended, None, "it took no more");
    assert!(queued(&falcon.status()["scheduler"]) >= 1);
    falcon.succeeds(&["restart", "worker/0"]);
    let output = waits.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"waited\n");

    // The second Ctrl-C does not wait.
    let mut worker = falcon.worker(&["--executors", "1"]);
    falcon.succeeds(&["kill", "worker/0"]);
    falcon.wait_for("the new one alone", |_| falcon.workers() == 1);
    let pid_file = falcon.file("pid");
    let script = format!("echo $$ > {pid_file}; exec sleep 600");
    let mut job = falcon.start(&["submit", "--", "sh", "-c", &script]);
    let pid = pid_in(&pid_file);
    signal(&worker, Signal::SIGINT);
    falcon.wait_for("without it", |scheduler| {
        scheduler["workers"] == serde_json::json!([])
    });
    assert!(runs(pid));
    signal(&worker, Signal::SIGINT);
    assert!(worker.wait().expect("it ends").success());
    assert!(!runs(pid));
    job.kill().expect("ours");
    job.wait().expect("it ends");
}

#[test]
fn tasks_go_where_their_resource_is() {
    let names = ["--policy", "resources", "--resource-names", "gpu,fpga"];
    let falcon = Falcon::up(
        "resources",
        &[&names[..], &["--executors", "1", "--resource", "gpu"]].concat(),
    );
    let on_gpu = falcon.succeeds(&["submit", "--resource", "gpu", "--", "echo", "fast"]);
    assert_eq!(on_gpu, "fast\n");
    let said = falcon.fails(&["submit", "--resource", "tpu", "--", "true"]);
    assert!(said.contains("it has gpu, fpga"), "{said}");
    let waits = falcon.start(&["submit", "--resource", "fpga", "--", "echo", "found"]);
    falcon.wait_for("queued", |scheduler| {
        scheduler["queues"]["2"].as_u64() >= Some(1)
    });
    let mut worker = falcon.worker(&["--executors", "1", "--resource", "fpga"]);
    assert_eq!(
        waits.wait_with_output().expect("it ends").stdout,
        b"found\n"
    );
    let said = falcon.succeeds(&["status"]);
    assert!(
        said.contains("has gpu") && said.contains("has fpga"),
        "{said}"
    );
    signal(&worker, Signal::SIGTERM);
    assert!(worker.wait().expect("it ends").success());
}

#[test]
fn who_waits_is_told_of_a_silent_scheduler() {
    let falcon = Falcon::up("silent", &["--executors", "1"]);
    let file = falcon.file("go");
    let script = format!("until [ -e {file} ]; do sleep 0.05; done");
    let mut submit = falcon.start(&["submit", "--", "sh", "-c", &script]);
    falcon.wait_for("busy", |scheduler| busy(scheduler) == 1);
    let said = BufReader::new(submit.stderr.take().expect("it is read"));
    let mut lines = said.lines().map(|line| line.expect("text"));
    let address = falcon.address;
    let mut says = |what: &str| {
        let line = lines.next().expect("a line");
        assert!(
            line.contains(&format!("the scheduler at {address} {what}")),
            "{line}"
        );
    };
    falcon.succeeds(&["kill", "scheduler"]);
    says("does not answer");
    falcon.succeeds(&["restart", "scheduler"]);
    says("answers again");
    std::fs::write(&file, "").expect("written");
    assert!(submit.wait().expect("it ends").success());
}

#[test]
fn metrics_say_what_the_scheduler_says() {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, free_ports(1));
    let at = address.to_string();
    let falcon = Falcon::up("metrics", &["--executors", "3", "--metrics", &at]);
    falcon.wait_for("three that wait", |scheduler| {
        scheduler["workers"][0]["waiting"] == 3
    });
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("it is text");
        said
    };
    let said = ask("/metrics");
    for line in [
        "inband_falcon_executors{worker=\"0\"} 3",
        "inband_falcon_waiting{worker=\"0\"} 3",
        "inband_falcon_busy{worker=\"0\"} 0",
    ] {
        assert!(said.contains(line), "no {line} in {said}");
    }
    let given = format!(
        "inband_falcon_given_total{{scheduler=\"{}\"}} ",
        falcon.address
    );
    let given = said
        .split(&given)
        .nth(1)
        .and_then(|rest| rest.lines().next());
    let given: u64 = given.expect("a number").parse().expect("a number");
    assert!(given >= 200, "{given}: the self-check");
    assert!(ask("/").starts_with("HTTP/1.1 404"));
}

#[test]
fn what_cannot_work_is_refused_with_a_word_of_help() {
    let data = std::env::temp_dir().join(format!("ib-falcon-refused-{}", std::process::id()));
    let refused = |options: &[&str], why: &str| {
        let mut command = Command::new(PROGRAM);
        command
            .args(["falcon", "up", "--data"])
            .arg(&data)
            .args(options);
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(why),
            "{options:?}: {said}"
        );
    };
    refused(
        &["--user-tasks-max", "999", "--slots", "64"],
        "999 is more than the --slots 64",
    );
    refused(&["--slots", "100"], "100 slots are not a power of two");
    refused(&["--policy", "random"], "there are fifo, priority");
    refused(&["--executors", "2000"], "more than 1024");
    refused(
        &["--executors", "65", "--workers", "1"],
        "--workers allows 1",
    );
    refused(&["--resource", "gpu"], "knows no resource \"gpu\"");
    refused(&["--resource-names", "gpu"], "--policy resources");
    refused(
        &["--listen", "192.0.2.1:7480"],
        "is it an address of this host",
    );
    let _ = std::fs::remove_dir_all(&data);
}

#[test]
fn who_has_no_key_is_not_heard() {
    let falcon = Falcon::up("keys", &["--executors", "1"]);
    let address = falcon.address.to_string();
    let mut stranger = Command::new(PROGRAM);
    stranger.args(["falcon", "submit", "--scheduler", &address, "--", "true"]);
    let output = stranger.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("does it have the same key?"), "{said}");
    falcon.wait_for("counted", |scheduler| {
        scheduler["counters"]["bad_key"].as_u64() > Some(0)
    });
    let mut member = Command::new(PROGRAM);
    let key_file = falcon.file("keys.toml");
    member.args([
        "falcon",
        "submit",
        "--scheduler",
        &address,
        "--key-file",
        &key_file,
    ]);
    let output = member
        .args(["--", "echo", "heard"])
        .output()
        .expect("it runs");
    assert_eq!(output.stdout, b"heard\n", "{output:?}");
}

/// Anyone who reaches a process without keys can run commands on the workers.
#[test]
fn nobody_leaves_loopback_without_a_key_unless_told() {
    let command = |args: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("falcon").args(args).stdin(Stdio::null());
        command
    };
    let anywhere = format!("0.0.0.0:{}", free_ports(1));
    let here = format!("127.0.0.1:{}", free_ports(1));
    let refused = [
        vec!["scheduler", "--listen", &anywhere],
        vec![
            "worker",
            "--scheduler",
            "192.0.2.1:7480",
            "--listen",
            "127.0.0.1",
        ],
        vec!["worker", "--scheduler", &here, "--listen", "0.0.0.0"],
    ];
    for args in refused {
        // Without the check it would run until told to stop.
        let output = Command::new("timeout")
            .args(["5", PROGRAM, "falcon"])
            .args(&args)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_clear = said.contains("give --key-file FILE") && said.contains("--no-key");
        assert!(!output.status.success() && is_clear, "{args:?}: {said}");
    }
    for args in [
        vec!["scheduler", "--listen", &here],
        vec!["scheduler", "--listen", &anywhere, "--no-key"],
    ] {
        let mut scheduler = command(&args);
        let mut scheduler = scheduler.stderr(Stdio::piped()).spawn().expect("it starts");
        let said = BufReader::new(scheduler.stderr.take().expect("it is piped"));
        // Read to the end: it also announces that it stops.
        let mut lines = said.lines().map(|line| line.expect("text"));
        let until_ready: Vec<String> = lines
            .by_ref()
            .take_while(|line| !line.contains("listens at"))
            .collect();
        let is_warned = until_ready.iter().any(|line| line.contains("no key"));
        signal(&scheduler, Signal::SIGTERM);
        assert!(scheduler.wait().expect("it ends").success());
        assert!(is_warned, "{until_ready:?}");
    }
}

#[test]
fn in_the_kernel() {
    if lab_works() {
        commands_run("xdp-commands", &["--dataplane", "xdp"]);
        nothing_is_lost("xdp-faults", &["--dataplane", "xdp"]);
    }
}

/// The interpreter into which `scripts/wheel --test` has installed the package.
fn python_with_package() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/wheel-test/bin/python");
    if !python.exists() {
        inband_testing::not_run("the Python package is not built; run scripts/wheel --test");
        return None;
    }
    Some(python)
}

const PYTHON: &str = "
import os, sys
from inband import Executor

def square(n):
    return n * n, os.getpid()

with Executor(sys.argv[1], key_file=sys.argv[2]) as executor:
    results = list(executor.map(square, range(100)))
assert [square for square, _ in results] == [n * n for n in range(100)], results
assert os.getpid() not in {pid for _, pid in results}
print('squared')
";

#[test]
fn python_maps_over_a_cluster() {
    let Some(python) = python_with_package() else {
        return;
    };
    let interpreter = python.to_str().expect("of letters");
    let falcon = Falcon::up("python", &["--executors", "2", "--python", interpreter]);
    let key_file = falcon.file("keys.toml");
    let mut script = Command::new(&python);
    script.args(["-c", PYTHON, &falcon.address.to_string(), &key_file]);
    let output = script.output().expect("it runs");
    assert_eq!(output.stdout, b"squared\n", "{output:?}");
    // Address and key file from the environment.
    script = Command::new(&python);
    let short = "from inband import Executor; print(Executor().submit(sum, [1, 2]).result(60))";
    script
        .args(["-c", short])
        .env("INBAND_FALCON", falcon.address.to_string())
        .env("INBAND_FALCON_KEY_FILE", &key_file);
    let output = script.output().expect("it runs");
    assert_eq!(output.stdout, b"3\n", "{output:?}");
}
