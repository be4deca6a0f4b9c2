//! The command line as a tool among others.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

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
