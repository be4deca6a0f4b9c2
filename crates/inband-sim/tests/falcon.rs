//! Falcon survives random schedules.

use crate::common::worlds;
use inband_sim::falcon::{run, Falcon, Fault, Options};
use inband_sim::run_with_trace;

/// Seeds per test run.
const SEEDS: u64 = 300;

#[test]
fn random_schedules_are_survived() {
    let summary = worlds::survive::<Falcon>(1, SEEDS, &Options::default());
    let names = [
        "packet lost",
        "packet duplicated",
        "packet delayed",
        "packet damaged",
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
    worlds::must_have_happened(&summary.stats, &names, 5);
    worlds::must_have_happened(&summary.stats, &Fault::ALL.map(Fault::name), 5);
}

#[test]
fn a_seed_is_one_schedule() {
    for seed in 1..=10 {
        let options = Options::default();
        let first = run_with_trace::<Falcon>(seed, &options, 1000);
        let again = run_with_trace::<Falcon>(seed, &options, 1000);
        assert_eq!(first, again, "seed {seed}");
        assert_eq!(first.trace_hash, run(seed, &options).trace_hash);
    }
}
