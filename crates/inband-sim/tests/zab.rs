//! The world of consensus in a box: it is played, and deliberate faults in it are noticed.

use crate::common::worlds;
use inband_sim::zab::{Fault, Invariant, Mistake, Options, Zab};
use inband_sim::{run, run_with_trace, World};

/// Seeds played by every test run; `make soak` plays thousands. Of the mutants that only these notice, the last is noticed in
/// the 64th.
const SEEDS: u64 = 300;

#[test]
fn nothing_committed_is_lost_and_reads_are_as_declared() {
    let sound = worlds::survive::<Zab>(1, SEEDS, &Options::default());
    assert_eq!((sound.seeds, sound.failures), (SEEDS, 0));
    for fault in Fault::ALL {
        assert!(sound.stats.faults.of(fault.name()) > SEEDS / 4, "{fault}");
    }
    assert!(sound.stats.of("leaders") > 2 * SEEDS, "leaders");
    assert!(sound.stats.of("writes") > 50 * SEEDS, "writes");
    assert!(sound.stats.of("strong reads") > 50 * SEEDS, "strong reads");
    assert!(sound.stats.of("local reads") > 10 * SEEDS, "local reads");
    assert!(
        sound.stats.of("nodes that kept their log") > SEEDS / 2,
        "kept"
    );
    assert!(sound.stats.of("checkpoints") > SEEDS / 2, "checkpoints");
    for what in ["snapshots installed", "nodes that began again"] {
        assert!(sound.stats.of(what) > SEEDS / 20, "{what}");
    }
    assert!(sound.stats.of("damaged logs") > 0, "damaged logs");
}

#[test]
fn a_node_that_sends_but_hears_nothing_deposes_no_leader() {
    const MS: u64 = 1_000_000;
    for seed in 1..=20 {
        let mut world = World::<Zab>::quiet(seed);
        world.run_for(60 * MS);
        let leader = world.leader().expect("a leader after 60 ms");
        let led = world.epochs_led();
        let deaf = leader % world.nodes() + 1;
        world.deafen(deaf);
        world.run_for(150 * MS);
        let since = world.epochs_led() - led;
        assert_eq!(since, 0, "seed {seed}: node {deaf} deposed {since} leaders");
        assert!(world.violation.is_none(), "{:?}", world.violation);
    }
}

#[test]
fn what_is_done_wrong_is_noticed() {
    for (mistake, count, at_least, expected) in [
        (Mistake::StaleRead, 400, 3, Some(Invariant::Linearizable)),
        (Mistake::ForgottenSession, 30, 2, None),
    ] {
        let mistakes = Options {
            mistake: Some(mistake),
        };
        let (summary, broken) = worlds::broken::<Zab>(count, &mistakes);
        eprintln!("{mistake:?}: {} of {count}: {broken:?}", summary.failures);
        assert!(summary.failures >= at_least, "{mistake:?}: {summary:?}");
        if let Some(expected) = expected {
            assert!(broken.contains(&expected), "{mistake:?}: {broken:?}");
        }
    }
}

#[test]
fn a_seed_is_one_schedule_with_a_trace() {
    let options = Options::default();
    let first = run_with_trace::<Zab>(3, &options, 400_000);
    assert_eq!(first, run_with_trace::<Zab>(3, &options, 400_000));
    for kind in ["Propose", "Ack", "Commit", "ELECT", "FAULT ", "leads epoch"] {
        assert!(first.trace.iter().any(|line| line.contains(kind)), "{kind}");
    }
    assert!(run::<Zab>(3, &options).trace.is_empty());
}
