//! Runs seeds of a world for a test.

use std::sync::atomic::{AtomicBool, Ordering};

use inband_sim::{Seeds, Stats, Summary, System};

const JOBS: usize = 2;
/// If set in the environment, a campaign stops at the first violation; `scripts/mutants` sets it.
const STOP_AT_VIOLATION: &str = "INBAND_SIM_STOP_AT_VIOLATION";

/// Runs `count` seeds; no invariant may be violated.
pub fn survive<S: System>(first: u64, count: u64, options: &S::Options) -> Summary {
    let stops = std::env::var_os(STOP_AT_VIOLATION).is_some();
    let is_over = AtomicBool::new(false);
    let seeds = Seeds {
        first,
        count: Some(count),
        jobs: JOBS,
    };
    let mut failed = Vec::new();
    let summary = seeds.play::<S>(
        options,
        || is_over.load(Ordering::Relaxed),
        |report| {
            if report.violation.is_some() {
                println!("{}\n{report}", report.trace.join("\n"));
                failed.push(report.seed);
                is_over.store(stops, Ordering::Relaxed);
            }
        },
    );
    let name = S::NAME;
    assert!(
        failed.is_empty(),
        "seeds {failed:?} of {name} violate an invariant; inband sim {name} --seed X --trace replays one"
    );
    summary
}

/// Runs up to `count` seeds with a deliberate fault, until `enough` violate an invariant; returns which ones.
pub fn broken<S: System>(
    count: u64,
    enough: u64,
    options: &S::Options,
) -> (Summary, Vec<S::Invariant>) {
    let seeds = Seeds {
        first: 1,
        count: Some(count),
        jobs: JOBS,
    };
    let is_over = AtomicBool::new(false);
    let mut broken = Vec::new();
    let summary = seeds.play::<S>(
        options,
        || is_over.load(Ordering::Relaxed),
        |report| {
            broken.extend(report.violation.as_ref().map(|found| found.invariant));
            is_over.store(broken.len() as u64 >= enough, Ordering::Relaxed);
        },
    );
    (summary, broken)
}

/// A world in which nothing happens proves nothing: each of these must have happened at least this often.
pub fn must_have_happened(stats: &Stats, names: &[&'static str], least: u64) {
    println!("{stats:#?}");
    for name in names {
        let packets = stats.links.faults().into_iter();
        let packets = packets.filter_map(|(of, count)| (of == *name).then_some(count));
        let count = packets.sum::<u64>() + stats.faults.of(name) + stats.of(name);
        assert!(count >= least, "{name}: {count} times only");
    }
}
