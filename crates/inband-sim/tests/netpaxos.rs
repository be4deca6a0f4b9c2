//! The world of NetPaxos.

use crate::common::worlds;
use inband_sim::netpaxos::{Fault, NetPaxos, Options};
use inband_sim::{run, run_with_trace};

/// Seeds played by every test run. Every mutant that only these notice is noticed within the first 100.
const SEEDS: u64 = 1_000;
/// With a small window; `make soak` plays more.
const WINDOW_SEEDS: u64 = 300;
/// Enough to reach back from the end of a seed into the time with faults.
const TRACE_LINES: usize = 40_000;

#[test]
fn learners_never_disagree() {
    let sound = worlds::survive::<NetPaxos>(1, SEEDS, &Options::default());
    assert_eq!((sound.seeds, sound.failures), (SEEDS, 0));
    for fault in Fault::ALL {
        let struck = sound.stats.faults.of(fault.name());
        assert!(struck > SEEDS / 4, "{fault}: {struck}");
    }
    let names = [
        "decided fast",
        "recovered",
        "told",
        "conflicts",
        "holes",
        "duplicates",
        "votes refused",
        "gaps",
        "aligned",
        "storages fenced",
        "snapshots",
        "unknown outcomes",
        "delivered",
        "reads",
    ];
    worlds::must_have_happened(&sound.stats, &names, SEEDS);
}

/// Storage servers stop voting when the window is full, and go on when learners have reported.
#[test]
fn a_full_window_is_survived_however_many_numbers_it_refused() {
    let options = Options { window: Some(32) };
    let sound = worlds::survive::<NetPaxos>(1, WINDOW_SEEDS, &options);
    assert_eq!((sound.seeds, sound.failures), (WINDOW_SEEDS, 0));
    worlds::must_have_happened(&sound.stats, &["full windows"], WINDOW_SEEDS);
    worlds::must_have_happened(&sound.stats, &["renumbered"], WINDOW_SEEDS / 20);
}

#[test]
fn a_seed_is_one_schedule_with_a_trace() {
    let options = Options::default();
    let first = run_with_trace::<NetPaxos>(3, &options, TRACE_LINES);
    assert_eq!(first, run_with_trace::<NetPaxos>(3, &options, TRACE_LINES));
    for kind in ["Request", "Numbered", "Stored", "FAULT ", "delivers"] {
        assert!(first.trace.iter().any(|line| line.contains(kind)), "{kind}");
    }
    assert!(run::<NetPaxos>(3, &options).trace.is_empty());
}
