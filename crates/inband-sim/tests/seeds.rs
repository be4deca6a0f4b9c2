//! Random schedules: safety after every event, then everything must finish.

use crate::common::worlds;
use std::sync::atomic::{AtomicU64, Ordering};

use inband_sim::paxos::{counts, FaultKind, Options, Paxos};
use inband_sim::{run_with_trace, Seeds};

/// Seeds per test run; `make soak` runs thousands. The last of the mutants that only these seeds catch is caught by the
/// 58th.
const SEEDS: u64 = 300;
/// Simulated time with faults of each.
const FAULTY_US: u64 = 250_000;

#[test]
fn random_schedules_are_survived() {
    let options = Options {
        faulty_us: FAULTY_US,
        ..Options::default()
    };
    let summary = worlds::survive::<Paxos>(1, SEEDS, &options);
    assert_eq!(summary.seeds, SEEDS);
    assert!(summary.stats.of(counts::WITH_STORE) >= SEEDS / 40);
    assert!(
        summary.stats.fault_events() > 300_000,
        "too little goes wrong"
    );
    let packets = summary.stats.links.faults().map(|(name, _)| name);
    worlds::must_have_happened(&summary.stats, &packets, 5);
    worlds::must_have_happened(&summary.stats, &FaultKind::ALL.map(FaultKind::name), 5);
}

/// The whole trace, not only its hash; `inband/tests/cli.rs` compares two processes.
#[test]
fn a_seed_is_one_schedule() {
    let options = Options {
        faulty_us: 100_000,
        ..Options::default()
    };
    let mut hashes = Vec::new();
    for seed in 1..=12 {
        let first = run_with_trace::<Paxos>(seed, &options, usize::MAX);
        assert!(first.trace.len() > 200);
        let again = run_with_trace::<Paxos>(seed, &options, usize::MAX);
        assert!(
            first == again,
            "seed {seed} is played differently each time"
        );
        hashes.push(first.trace_hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 12, "seeds differ");
}

#[test]
fn threads_change_nothing() {
    let options = Options {
        faulty_us: 50_000,
        ..Options::default()
    };
    let hashes = |jobs| {
        let seeds = Seeds {
            first: 100,
            count: Some(16),
            jobs,
        };
        let mut hashes = Vec::new();
        seeds.play::<Paxos>(&options, || false, |r| hashes.push((r.seed, r.trace_hash)));
        hashes.sort_unstable();
        hashes
    };
    assert_eq!(hashes(1), hashes(3));
}

#[test]
fn a_campaign_ends_when_told() {
    let seeds = Seeds {
        first: 1,
        count: None,
        jobs: 1,
    };
    let options = Options {
        faulty_us: 1_000,
        ..Options::default()
    };
    let played = AtomicU64::new(0);
    let stop = || played.load(Ordering::Relaxed) >= 3;
    let summary = seeds.play::<Paxos>(&options, stop, |_| {
        played.fetch_add(1, Ordering::Relaxed);
    });
    assert!(summary.seeds >= 3);
}
