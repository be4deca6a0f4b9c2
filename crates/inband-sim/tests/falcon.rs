//! Falcon: random schedules are survived.
#![allow(missing_docs)]

#[path = "common/worlds.rs"]
mod worlds;

use std::collections::BTreeMap;

use inband_sim::falcon::{run, Fault, Options, Report, Stats};

/// Seeds played by every test run.
const SEEDS: u64 = 300;
#[test]
fn random_schedules_are_survived() {
    let options = Options::default();
    let reports = worlds::survive(
        SEEDS,
        |seed| run(seed, &options),
        |report| (report.seed, report.violation.is_some()),
        "inband sim --falcon --seed X --trace",
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
        "clients skipped",
        "results twice",
        "given up",
        "schedulers lost",
        "refused by full queues",
        "submits repeated",
        "workers killed by tasks",
        "workers refused",
        "workers drained",
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
