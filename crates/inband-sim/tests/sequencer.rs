//! The smallest world: it is played, a deliberate fault in it is noticed, and a line registers it.
#![allow(missing_docs)]

use inband_sim::asking::Fault;
use inband_sim::sequencer::{Invariant, Options, Sequencer};
use inband_sim::{command, run, run_with_trace, Seeds, SYSTEMS};

const FAULTY: Options = Options {
    same_incarnation: true,
};

#[test]
fn numbers_are_given_once_and_a_forgotten_incarnation_is_noticed() {
    let seeds = Seeds {
        first: 1,
        count: Some(100),
        jobs: 2,
    };
    let sound = seeds.play::<Sequencer>(&Options::default(), || false, |_| ());
    assert_eq!((sound.seeds, sound.failures), (100, 0));
    for fault in Fault::ALL {
        assert!(sound.stats.faults.of(fault.name()) > 50, "{fault}");
    }
    assert!(sound.stats.of("numbers given") > 10_000);
    let violations = (1..=50).filter_map(|seed| run::<Sequencer>(seed, &FAULTY).violation);
    let found: Vec<Invariant> = violations.map(|violation| violation.invariant).collect();
    assert!(found.len() > 25 && found.iter().all(|i| *i == Invariant::Unique));
}

#[test]
fn a_seed_is_one_schedule_with_a_trace() {
    let first = run_with_trace::<Sequencer>(3, &FAULTY, 1000);
    assert_eq!(first, run_with_trace::<Sequencer>(3, &FAULTY, 1000));
    let kinds = ["Client(0) -> Role", "Role => Client(1)", "FAULT "];
    for kind in kinds {
        assert!(first.trace.iter().any(|line| line.contains(kind)), "{kind}");
    }
    // A violation brings its trace along.
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
