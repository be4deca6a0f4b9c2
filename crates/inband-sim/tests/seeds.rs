//! Random schedules: safety after every event, then everything must finish.

use inband_sim::{run, run_many, Options};

/// Seeds played by every test run.
const SEEDS: u64 = 210;
/// Simulated time with faults of each.
const FAULTY_US: u64 = 350_000;

#[test]
fn random_schedules_are_survived() {
    let options = Options {
        faulty_us: FAULTY_US,
        ..Options::default()
    };
    let mut failures = Vec::new();
    let summary = run_many(1, SEEDS, &options, |report| {
        if report.violation.is_some() {
            println!("{}", report.trace.join("\n"));
            failures.push(report.to_string());
        }
    });
    println!(
        "{} seeds, {} events, {} fault events, {} instances applied, {} commands acknowledged, \
         {} reads, settled within {} ms",
        summary.seeds,
        summary.events,
        summary.fault_events,
        summary.applied,
        summary.succeeded,
        summary.reads,
        summary.settled_after_max_us / 1000
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(
        summary.fault_events > 100_000,
        "the world has become too kind"
    );
}

#[test]
fn a_seed_is_one_schedule() {
    let options = Options {
        faulty_us: 200_000,
        ..Options::default()
    };
    let mut hashes = Vec::new();
    for seed in 1..=12 {
        let first = run(seed, &options);
        assert_eq!(
            first,
            run(seed, &options),
            "seed {seed} is played differently each time"
        );
        hashes.push(first.trace_hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 12, "seeds differ");
}
