//! The program: a sequencer, its status, and clients that get different numbers.
#![allow(missing_docs)]

use std::net::UdpSocket;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_inband-sequencer");

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

#[test]
fn a_sequencer_gives_numbers_and_says_so() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let up = ["up", "--logs", "2", "--listen", &address, "--data", data];
    let _running = Running(Command::new(PROGRAM).args(up).spawn().unwrap());
    let began = Instant::now();
    while !run(&["status", "--data", data]).status.success() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it does not start"
        );
    }
    let next = |args: &[&str]| run(&[&["next", "--sequencer", &address], args].concat());
    assert_eq!(text(&next(&["1"])), "1..1\n");
    assert_eq!(text(&next(&["1", "--count", "10"])), "2..11\n");
    assert_eq!(text(&next(&[])), "1..1\n");
    let status = text(&run(&["status", "--data", data]));
    assert!(status.contains("log 1    11 numbers given"), "{status}");
    // A log that it does not have, and a second one in its place.
    let refused = next(&["2", "--timeout-ms", "100"]);
    assert!(!refused.status.success() && text(&refused).contains("below its --logs"));
    assert!(!run(&up).status.success());
}

#[test]
fn beyond_loopback_it_wants_a_key() {
    let refused = run(&["up", "--listen", "192.0.2.1:7900"]);
    assert!(!refused.status.success() && text(&refused).contains("--no-key"));
}
