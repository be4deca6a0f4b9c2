//! FLAIR survives random schedules, and broken rules are detected.

use crate::common::worlds;
use inband_sim::flair::{run, Fault, Flair, Invariant, Mutation, Options};

/// Seeds per test run.
const SEEDS: u64 = 300;

#[test]
fn random_schedules_are_survived() {
    let summary = worlds::survive::<Flair>(1, SEEDS, &Options::default());
    let names = [
        "sessions activated",
        "replicas that came back empty",
        "replicas with another clock",
        "founders lost",
        "switches that came back empty",
        "reads of followers",
        "reads that advanced",
        "reads of leaders",
        "writes dropped",
        "refreshes",
        "packet lost",
        "packet duplicated",
        "packet delayed",
        "flair_no_session",
        "flair_other_incarnation",
        "flair_neutralised",
        "flair_read_overtaken",
        "flair_reply_old_session",
        "flair_reply_no_session",
        "flair_write_overtaken",
        "flair_refresh_stable",
        "read",
        "written",
        "unknown",
    ];
    worlds::must_have_happened(&summary.stats, &names, 5);
    worlds::must_have_happened(&summary.stats, &Fault::ALL.map(Fault::name), 5);
    // A replica that is named as holding an entry has it, unless it has restarted since.
    worlds::must_have_happened(&summary.stats, &["reads refused"], 1);
}

#[test]
fn a_seed_is_one_schedule() {
    for seed in 1..=10 {
        let options = Options::default();
        assert_eq!(run(seed, &options), run(seed, &options), "seed {seed}");
    }
}

/// Those that random schedules find; the others need directed ones (flair_schedules.rs).
#[test]
fn broken_rules_are_noticed() {
    let by_chance = [
        (Mutation::SeqNotCompared, Invariant::Linearizable),
        (Mutation::OldSwitchForgotten, Invariant::OneSwitchServes),
        (Mutation::NotConfirmed, Invariant::OneSwitchServes),
    ];
    for (mutation, rule) in by_chance {
        let options = Options {
            mutation: Some(mutation),
            ..Options::default()
        };
        let noticed = (1..=SEEDS).find_map(|seed| run(seed, &options).violation.map(|v| (seed, v)));
        let (seed, violation) = noticed.expect("a rule is missing");
        println!("{mutation:?}: seed {seed}: {violation}");
        assert_eq!(violation.invariant, rule, "for another reason: {violation}");
    }
}
