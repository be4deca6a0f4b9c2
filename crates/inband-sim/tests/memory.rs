//! The world of replicated memory survives random schedules and detects deliberate faults.

use crate::common::worlds;
use inband_sim::memory::{Fault, Invariant, Memory, Mistake, Options};
use inband_sim::{run, run_with_trace};

/// Seeds per test run; `make soak` runs thousands.
const SEEDS: u64 = 1_000;
/// Enough lines for the whole trace.
const TRACE: usize = 1_000_000;
/// Seeds with slow hosts, 10 s each.
const SLOW_SEEDS: u64 = 20;

#[test]
fn lines_are_linearizable_and_survive_what_fails() {
    let sound = worlds::survive::<Memory>(1, SEEDS, &Options::default());
    assert_eq!((sound.seeds, sound.failures), (SEEDS, 0));
    for fault in Fault::ALL {
        assert!(sound.stats.faults.of(fault.name()) > SEEDS / 4, "{fault}");
    }
    // Every reason of the roles occurs, except one that cannot: no world writes 2^39 times.
    for reason in [
        "memory_not_active",
        "memory_no_session",
        "memory_old_request",
        "memory_read_again",
        "memory_write_again",
        "memory_write_done_again",
        "memory_answer_late",
        "memory_answer_repeated",
        "memory_read_write_back",
        "memory_write_back_done",
        "memory_deposed",
        "memory_epoch_ahead",
        "epochs refused",
        "memory_bad_digest",
        "memory_bad_chunk",
        "out of range",
        "clients were away",
        "servers recovered",
        "unknown outcomes",
        "timed out",
    ] {
        assert!(sound.stats.of(reason) > SEEDS / 10, "{reason}");
    }
    assert!(sound.stats.of("reads") > 100 * SEEDS, "reads");
    assert!(sound.stats.of("writes") > 100 * SEEDS, "writes");
}

#[test]
fn what_is_done_wrong_is_noticed() {
    for (mistake, count, at_least) in [
        (Mistake::InventedEpoch, 30, 10),
        (Mistake::EmptyServerAnswers, 150, 5),
    ] {
        let mistakes = Options {
            mistake: Some(mistake),
            ..Options::default()
        };
        let (summary, broken) = worlds::broken::<Memory>(count, at_least, &mistakes);
        assert!(summary.failures >= at_least, "{mistake:?}: {summary:?}");
        let is_liveness = |i: &Invariant| *i == Invariant::Liveness;
        assert!(!broken.iter().any(is_liveness), "{mistake:?}: {broken:?}");
    }
}

#[test]
fn a_seed_is_one_schedule_with_a_trace() {
    let options = Options::default();
    let first = run_with_trace::<Memory>(3, &options, TRACE);
    assert_eq!(first, run_with_trace::<Memory>(3, &options, TRACE));
    for kind in [
        "WRITE_REQUEST",
        "READ_ANSWER",
        "GRANT",
        "FAULT ",
        "is active in epoch",
    ] {
        assert!(first.trace.iter().any(|line| line.contains(kind)), "{kind}");
    }
    assert!(run::<Memory>(3, &options).trace.is_empty());
}

/// Returns how often switches took over without a failure, in this many seeds.
fn take_overs(fixed_suspicion: bool) -> u64 {
    let options = Options {
        slow_hosts: true,
        fixed_suspicion,
        ..Options::default()
    };
    let played = worlds::survive::<Memory>(1, SLOW_SEEDS, &options);
    assert!(played.stats.of("waits for a CPU") > 100 * SLOW_SEEDS);
    played.stats.of("activations") - SLOW_SEEDS
}

#[test]
fn switches_of_slow_hosts_seldom_take_over() {
    let (adaptive, fixed) = (take_overs(false), take_overs(true));
    println!("{adaptive} take-overs in {SLOW_SEEDS} seeds, {fixed} with fixed suspicion");
    assert!(adaptive <= SLOW_SEEDS, "{adaptive}: more than one in 10 s");
    assert!(fixed > 4 * adaptive, "{fixed} and {adaptive}");
}
