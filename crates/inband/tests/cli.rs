//! The command line as a tool among others.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::port;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

fn sim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inband"));
    command.arg("sim").args(args);
    command
}

fn output(args: &[&str]) -> Output {
    sim(args).output().expect("it runs")
}

#[test]
fn a_command_whose_output_nobody_reads_ends_as_other_tools_do() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_inband"))
        .args(["sim", "--seeds", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(output.status.signal(), Some(Signal::SIGPIPE as i32));
}

/// As `inband ... | head -0`: what it prints is read by nobody.
fn with_output_unread(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inband"));
    command
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    drop(child.stdout.take());
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_cluster_starts_and_stops_though_nobody_reads_what_is_said() {
    for service in [&[][..], &["flair"], &["falcon"]] {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        let data = data.to_str().expect("of letters");
        let address = format!("127.0.0.1:{}", port(8));
        let metrics = port(16).to_string();
        let mut up = vec!["up", "--detach", "--dataplane", "udp", "--data", data];
        match service {
            ["falcon"] => up.extend(["--listen", &address, "--executors", "1"]),
            ["flair"] => up.extend(["--resp", &address]),
            _ => up.extend(["--resp", &address, "--metrics-port", &metrics]),
        }
        for args in [&up[..], &["down", "--data", data]] {
            let args = [service, args].concat();
            let output = with_output_unread(&args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("panicked"), "{args:?}: {said}");
            assert!(output.status.success(), "{args:?}: {output:?}");
        }
    }
}

#[test]
fn what_cannot_be_printed_on_a_full_disk_is_a_failure() {
    let mut options = std::fs::OpenOptions::new();
    let full = options.write(true).open("/dev/full").expect("it is there");
    let output = sim(&["--rules"]).stdout(full).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !said.contains("panicked") && !output.status.success(),
        "{said}"
    );
    assert!(
        said.contains("writing to standard output: No space left"),
        "{said}"
    );
}

#[test]
fn two_processes_play_a_seed_alike() {
    let trace = || output(&["--seed", "7", "--trace", "--last", "100000"]);
    let first = trace();
    assert!(first.status.success());
    assert!(first.stdout.len() > 100_000);
    assert!(first.stdout == trace().stdout, "byte for byte");
    let other = output(&["--seed", "8", "--trace", "--last", "100000"]);
    assert!(first.stdout != other.stdout);
}

#[test]
fn the_simulator_ends_in_time_and_at_ctrl_c_with_a_summary() {
    let summary = |output: Output| String::from_utf8(output.stdout).expect("text");
    let started = Instant::now();
    let in_time = output(&["--minutes", "0.02", "--jobs", "2"]);
    assert!(in_time.status.success());
    assert!(started.elapsed() < Duration::from_secs(30));
    let said = summary(in_time);
    assert!(said.contains("fault events/min per core"), "{said}");
    let mut child = sim(&["--seeds", "100000", "--seed", "5000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    // Ctrl-C before it has said what to do at one would end it without a summary.
    let signals = format!("/proc/{}/task", child.id());
    let threads = || std::fs::read_dir(&signals).map_or(0, Iterator::count);
    while threads() < 2 {
        assert!(child.try_wait().expect("it is ours").is_none());
        std::thread::yield_now();
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it is ours");
    let interrupted = child.wait_with_output().expect("it ends");
    assert_eq!(interrupted.status.code(), Some(130));
    let said = summary(interrupted);
    assert!(said.contains("0 failed"), "{said}");
}

#[test]
fn the_simulator_names_its_rules() {
    let said = String::from_utf8(output(&["--rules"]).stdout).expect("text");
    for rule in ["Agreement", "ExactlyOnce", "ReadsLinearizable", "Liveness"] {
        assert!(said.contains(rule), "{said}");
    }
}

#[test]
fn the_world_of_flair_is_simulated_alike() {
    let said = |args: &[&str]| {
        let output = output(&[&["--flair"], args].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let trace = || said(&["--seed", "7", "--trace", "--last", "100000"]);
    let first = trace();
    assert!(first.len() > 100_000 && first.contains("serves session"));
    assert!(first == trace(), "byte for byte");
    let summary = said(&["--seeds", "3"]);
    assert!(
        summary.contains("3 seeds in") && summary.contains("fault events/min per core"),
        "{summary}"
    );
    let by_leaders = said(&["--seeds", "3", "--reads", "leader"]);
    assert!(
        by_leaders.contains("; 0 reads of followers"),
        "{by_leaders}"
    );
    assert!(said(&["--rules"]).contains("OneSwitchServes"));
}
