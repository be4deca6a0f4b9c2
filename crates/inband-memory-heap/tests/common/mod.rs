//! Programs under `inband memory run`.

// Each test program uses its part.
#![allow(dead_code)]

pub mod workloads;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest that a program may take; on a busy machine the slowest takes some seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A file beside the project's programs.
pub fn beside(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this test is a file");
    // target/release/deps/TEST
    this.ancestors().nth(2).expect("two parents").join(name)
}

/// The library as it was built for this test; the one beside the programs may be older.
pub fn library() -> PathBuf {
    beside("deps/libinband_memory_heap.so")
}

/// A program of the project, as it is now.
fn program(name: &'static str, built: &OnceLock<()>, words: &[&str]) -> Command {
    built.get_or_init(|| inband_testing::build(name));
    let mut command = Command::new(beside(name));
    command.args(words);
    command
}

/// `inband memory` with these words.
pub fn memory(words: &[&str]) -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    program("inband-memory", &BUILT, words)
}

/// `inband` with these words. `inband up memory` starts `inband-memory` from beside it.
pub fn inband(words: &[&str]) -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    drop(memory(&[]));
    program("inband", &BUILT, words)
}

/// `inband memory run` with local memory and these options, and what follows.
pub fn run(options: &[&str]) -> Command {
    let mut command = memory(&["run", "--local", "--library"]);
    command.arg(library()).args(options).arg("--");
    command
}

/// Run it to its end.
pub fn end(mut command: Command, input: Stdio) -> Output {
    command
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // Both pipes are read, so that it does not wait for the reader.
    let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let stdout = std::thread::spawn(move || read(&mut pipes.0));
    let stderr = std::thread::spawn(move || read(&mut pipes.1));
    let since = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is a child") {
            break status;
        }
        if since.elapsed() > TIMEOUT {
            child.kill().expect("it is a child");
            panic!("{command:?} runs for {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

/// Until its writers have closed it.
pub fn read(pipe: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    bytes
}

/// It succeeds; what it prints.
pub fn output(command: Command, input: Stdio) -> String {
    let words = format!("{command:?}");
    let output = end(command, input);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{words}: {}: {errors}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
