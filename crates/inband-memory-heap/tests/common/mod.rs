//! Programs under `inband memory run`.

// Each test program uses only a part of this module.
#![allow(dead_code)]

pub mod workloads;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a program may take; on a busy machine the slowest takes several seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the path of a file in the directory of the project's executables.
pub fn beside(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this test is a file");
    // target/release/deps/TEST
    this.ancestors().nth(2).expect("two parents").join(name)
}

/// Returns the library as built for this test; the one beside the executables may be older.
pub fn library() -> PathBuf {
    beside("deps/libinband_memory_heap.so")
}

/// Returns a command that runs one of the project's programs, freshly built.
fn program(name: &'static str, built: &OnceLock<PathBuf>, words: &[&str]) -> Command {
    let mut command = Command::new(built.get_or_init(|| inband_testing::build(name)));
    command.args(words);
    command
}

/// Returns the command `inband memory` with these arguments.
pub fn memory(words: &[&str]) -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    program("inband-memory", &BUILT, words)
}

/// Returns the command `inband` with these arguments. `inband up memory` starts the `inband-memory` in the same
/// directory.
pub fn inband(words: &[&str]) -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    drop(memory(&[]));
    program("inband", &BUILT, words)
}

/// Returns the command `inband memory run` with local memory and these options; the caller adds the program.
pub fn run(options: &[&str]) -> Command {
    let mut command = memory(&["run", "--local", "--library"]);
    command.arg(library()).args(options).arg("--");
    command
}

/// Runs a command to its end.
pub fn end(mut command: Command, input: Stdio) -> Output {
    command
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // Both pipes are read concurrently, so that the program does not block on either.
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

/// Reads until all writers have closed the pipe.
pub fn read(pipe: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    bytes
}

/// Runs a command that must succeed, and returns its output.
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
