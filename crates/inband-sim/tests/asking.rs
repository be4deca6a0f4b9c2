//! What every world built on `asking.rs` does, shown with the smallest: a seed is one schedule, and one line registers
//! the world.

use inband_sim::sequencer::{Options, Sequencer};
use inband_sim::{command, run, run_with_trace, SYSTEMS};

const FAULTY: Options = Options {
    same_incarnation: true,
};

#[test]
fn a_seed_is_one_schedule_with_a_trace() {
    let first = run_with_trace::<Sequencer>(3, &FAULTY, 1000);
    assert_eq!(first, run_with_trace::<Sequencer>(3, &FAULTY, 1000));
    let kinds = ["Client(0) -> Role", "Role => Client(1)", "FAULT "];
    for kind in kinds {
        assert!(first.trace.iter().any(|line| line.contains(kind)), "{kind}");
    }
    // A violation comes with its trace.
    assert!(first.violation.is_some());
    assert!(!run::<Sequencer>(3, &FAULTY).trace.is_empty());
}

#[test]
fn it_is_registered() {
    let play = |args: &[&str]| {
        let args = ["inband-sim", "sequencer"].iter().chain(args);
        command::main(SYSTEMS, args.map(Into::into).collect())
    };
    play(&["--seeds", "3"]).expect("it is sound");
    let failed = play(&["--seeds", "9", "--same-incarnation"]).expect_err("it is not");
    assert!(
        failed.to_string().contains("violate an invariant"),
        "{failed}"
    );
}
