//! Random schedules: safety after every event, then everything must finish.

mod common;

use common::survives;
use inband_sim::paxos::{run, Campaign, FaultKind, Options};

/// Seeds played by every test run.
const SEEDS: u64 = 1_000;
/// Simulated time with faults of each.
const FAULTY_US: u64 = 250_000;
/// Threads that play them.
const JOBS: usize = 2;

#[test]
fn random_schedules_are_survived() {
    let campaign = Campaign {
        first: 1,
        count: Some(SEEDS),
        jobs: JOBS,
        options: Options {
            faulty_us: FAULTY_US,
            ..Options::default()
        },
    };
    let summary = survives(&campaign);
    println!("{summary:#?}");
    assert_eq!(summary.seeds, SEEDS);
    assert!(summary.with_store >= SEEDS / 40);
    assert!(
        summary.stats.fault_events() > 1_000_000,
        "the world has become too kind"
    );
    let packets = summary.stats.packet_faults();
    let kinds = FaultKind::ALL.map(|kind| (kind.name(), summary.stats.faults.of(kind)));
    for (name, count) in packets.into_iter().chain(kinds) {
        assert!(count >= 20, "{name} happened {count} times only");
    }
}

/// The whole trace, not only its hash; `inband/tests/cli.rs` compares two processes.
#[test]
fn a_seed_is_one_schedule() {
    let options = Options {
        faulty_us: 100_000,
        trace_events: usize::MAX,
        ..Options::default()
    };
    let mut hashes = Vec::new();
    for seed in 1..=12 {
        let first = run(seed, &options);
        assert!(first.trace.len() > 200);
        let again = run(seed, &options);
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
    let hashes = |jobs| {
        let campaign = Campaign {
            first: 100,
            count: Some(16),
            jobs,
            options: Options {
                faulty_us: 50_000,
                ..Options::default()
            },
        };
        let mut hashes = Vec::new();
        campaign.play(|| false, |r| hashes.push((r.seed, r.trace_hash)));
        hashes.sort_unstable();
        hashes
    };
    assert_eq!(hashes(1), hashes(3));
}

#[test]
fn a_campaign_ends_when_told() {
    let campaign = Campaign {
        first: 1,
        count: None,
        jobs: 1,
        options: Options {
            faulty_us: 1_000,
            ..Options::default()
        },
    };
    let played = std::sync::atomic::AtomicU64::new(0);
    let stop = || played.load(std::sync::atomic::Ordering::Relaxed) >= 3;
    let summary = campaign.play(stop, |_| {
        played.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(summary.seeds >= 3);
}
