//! The command line as a tool among others.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use common::port;
use nix::sys::signal::Signal;

fn sim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inband"));
    command.arg("sim").args(args);
    command
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

/// What it does is tested in `inband-sim`.
#[test]
fn the_simulator_is_reached_by_both_names() {
    for args in [
        &["falcon", "--seeds", "1"][..],
        &["--falcon", "--seeds", "1"],
    ] {
        let output = sim(args).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            said.contains("1 seeds in") && said.contains("tasks run"),
            "{said}"
        );
    }
}
