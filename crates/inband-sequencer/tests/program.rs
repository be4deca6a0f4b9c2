//! Runs the program: a sequencer, its status, and clients that must get different numbers.

use inband_testing::process::{run, text, Process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_inband-sequencer");

#[test]
fn a_sequencer_gives_numbers_and_says_so() {
    let sequencer = Process::up(PROGRAM, &["--logs", "2"]);
    let to = ["next", "--sequencer", &sequencer.address];
    let next = |args: &[&str]| run(PROGRAM, &[&to, args].concat());
    assert_eq!(text(&next(&["1"])), "1..1\n");
    assert_eq!(text(&next(&["1", "--count", "10"])), "2..11\n");
    assert_eq!(text(&next(&[])), "1..1\n");
    let status = text(&sequencer.status());
    assert!(status.contains("log 1    11 numbers given"), "{status}");
    let refused = next(&["2", "--timeout-ms", "100"]);
    assert!(!refused.status.success() && text(&refused).contains("below its --logs"));
}
