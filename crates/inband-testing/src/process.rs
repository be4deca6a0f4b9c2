//! Runs programs with one role that only answers (`inband_host::role_process`).

use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// Timeout for a process to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a program to its end.
pub fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output();
    output.expect("it can be started")
}

/// Returns its output on stdout and stderr.
pub fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).expect("UTF-8")
}

/// A process that runs `PROGRAM up` at a free port of 127.0.0.1, until dropped.
pub struct Process {
    program: &'static str,
    child: Child,
    data: tempfile::TempDir,
    /// Where it listens.
    pub address: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts a process and returns once it answers `status`. Checks what all such programs refuse: a second process in
    /// the same directory, and listening beyond loopback without a key.
    pub fn up(program: &'static str, options: &[&str]) -> Process {
        let data = tempfile::tempdir().expect("a directory");
        let address = crate::port::free_address().to_string();
        let directory = data.path().to_str().expect("UTF-8").to_owned();
        let place = ["up", "--listen", &address, "--data", &directory];
        let up = [&place, options].concat();
        let child = Command::new(program).args(&up).spawn();
        let process = Process {
            program,
            child: child.expect("it can be started"),
            data,
            address: address.clone(),
        };
        let until = Instant::now() + START_TIMEOUT;
        while !process.status().status.success() {
            assert!(Instant::now() < until, "it does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!run(program, &up).status.success(), "a second one");
        let beyond = run(program, &["up", "--listen", "192.0.2.1:7900"]);
        assert!(!beyond.status.success() && text(&beyond).contains("--no-key"));
        process
    }

    pub fn status(&self) -> Output {
        let data = self.data.path().to_str().expect("UTF-8");
        run(self.program, &["status", "--data", data])
    }
}
