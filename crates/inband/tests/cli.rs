//! The command line as a tool among others.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::port;
use nix::sys::signal::Signal;

#[test]
fn a_command_whose_output_nobody_reads_ends_as_other_tools_do() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_inband"))
        .arg("doctor")
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
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_inband"));
    let output = doctor.arg("doctor").stdout(full).output().expect("it runs");
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

/// `inband`, alone in a directory, with programs `inband-hello` and `inband-fails` on PATH.
fn alone(arguments: &[&str]) -> Output {
    use std::os::unix::fs::symlink;
    let program = Path::new(env!("CARGO_BIN_EXE_inband"));
    let target = program.parent().expect("a directory");
    let dir = tempfile::tempdir_in(target).expect("a directory");
    // Links: a file that was just written cannot always be run while other threads fork.
    let alone = dir.path().join("inband");
    std::fs::hard_link(program, &alone).expect("a link");
    let path = dir.path().join("path");
    std::fs::create_dir(&path).expect("a directory");
    symlink("/bin/echo", path.join("inband-hello")).expect("a link");
    symlink("/bin/false", path.join("inband-fails")).expect("a link");
    let mut command = Command::new(alone);
    command.args(arguments).env("PATH", &path);
    command.output().expect("it runs")
}

#[test]
fn a_command_may_be_a_program_on_path() {
    let output = alone(&["hello", "--loud", "world"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--loud world\n");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(alone(&["fails"]).status.code(), Some(1));
}

#[test]
fn a_program_that_is_missing_is_named_with_what_builds_it() {
    let said = |command: &str| {
        let output = alone(&[command]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let bench = said("bench");
    assert!(bench.contains("there is no inband-bench in "), "{bench}");
    assert!(bench.contains("`make build`"), "{bench}");
    let torment = said("torment");
    assert!(
        torment.contains("`inband torment` is now `inband chaos`"),
        "{torment}"
    );
    assert!(
        torment.contains("there is no inband-chaos in "),
        "{torment}"
    );
    let typo = said("staus");
    assert!(typo.contains("\"staus\" is no command"), "{typo}");
}
