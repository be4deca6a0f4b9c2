//! Falcon: random schedules are survived.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use inband_sim::falcon::{run, Fault, Options, Report, Stats};
use inband_sim::Seeds;

/// Seeds played by every test run.
const SEEDS: u64 = 300;
/// Threads that play them.
const JOBS: usize = 2;

/// Long runs are stopped by the first violation if the environment says so (scripts/mutants).
fn play(options: &Options) -> Vec<Report> {
    let stops = std::env::var_os("INBAND_SIM_STOP_AT_VIOLATION").is_some();
    let is_over = AtomicBool::new(false);
    let seeds = Seeds {
        first: 1,
        count: Some(SEEDS),
        jobs: JOBS,
    };
    let mut reports = Vec::new();
    seeds.play(
        |seed| run(seed, options),
        || is_over.load(Ordering::Relaxed),
        |report| {
            if report.violation.is_some() && stops {
                is_over.store(true, Ordering::Relaxed);
            }
            reports.push(report);
        },
    );
    reports.sort_by_key(|report| report.seed);
    reports
}

#[test]
fn random_schedules_are_survived() {
    let reports = play(&Options::default());
    let mut failed = 0;
    for report in &reports {
        if report.violation.is_some() {
            println!("{report}");
            failed += 1;
        }
    }
    assert_eq!(
        failed, 0,
        "violations; inband sim --falcon --seed X --trace plays one again"
    );
    must_be_unkind(&reports);
}

/// A world in which nothing happens proves nothing.
fn must_be_unkind(reports: &[Report]) {
    let mut all = Stats::default();
    for report in reports {
        all += &report.stats;
    }
    let links = all.links;
    let mut counts: BTreeMap<&str, u64> = [
        ("packets lost", links.lost),
        ("packets duplicated", links.duplicated),
        ("packets held up", links.held_up),
        ("packets damaged", links.damaged),
    ]
    .into();
    for (name, count) in [&all.faults, &all.reasons, &all.hosts, &all.ends]
        .into_iter()
        .flatten()
    {
        *counts.entry(name).or_default() += count;
    }
    println!(
        "{} events, {} fault events; {counts:#?}",
        all.events,
        all.fault_events()
    );
    let expected = [
        "packets lost",
        "packets duplicated",
        "packets held up",
        "packets damaged",
        "falcon_given",
        "falcon_given_again",
        "falcon_parked",
        "falcon_woken",
        "falcon_queued",
        "falcon_asked",
        "falcon_queue_full",
        "falcon_user_full",
        "falcon_overtaken",
        "falcon_other_incarnation",
        "falcon_not_registered",
        "falcon_bad_digest",
        "falcon_bad_task",
        "revoked",
        "clients silent",
        "results twice",
        "given up",
        "schedulers lost",
        "refused by full queues",
        "submits repeated",
        "workers killed by tasks",
        "workers refused",
        "done",
        "failed by itself",
        "cancelled",
        "too late",
        "one before failed",
        "executors lost",
    ];
    for name in expected.into_iter().chain(Fault::names()) {
        let count = counts.get(name).copied().unwrap_or(0);
        assert!(count >= 5, "{name}: {count} times only");
    }
}

#[test]
fn a_seed_is_one_schedule() {
    for seed in 1..=10 {
        let options = Options {
            trace_events: 1000,
            ..Options::default()
        };
        assert_eq!(run(seed, &options), run(seed, &options), "seed {seed}");
    }
}
