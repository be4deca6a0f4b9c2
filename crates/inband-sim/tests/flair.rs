//! FLAIR: random schedules are survived, broken rules are noticed, known schedules end well.
#![allow(missing_docs)]

#[path = "common/worlds.rs"]
mod worlds;

use std::collections::BTreeMap;

use inband_sim::flair::{run, Fault, Mutation, Options, Report, Rule, Stats};

/// Seeds played by every test run.
const SEEDS: u64 = 300;
#[test]
fn random_schedules_are_survived() {
    let options = Options::default();
    let reports = worlds::survive(
        SEEDS,
        |seed| run(seed, &options),
        |report| (report.seed, report.violation.is_some()),
        "inband sim --flair --seed X --trace",
    );
    must_be_unkind(&reports);
}

/// A world in which nothing happens proves nothing.
fn must_be_unkind(reports: &[Report]) {
    let sum = |of: fn(&Stats) -> u64| reports.iter().map(|r| of(&r.stats)).sum::<u64>();
    let numbers = [
        ("activations", sum(|s| s.activations)),
        ("replicas that came back empty", sum(|s| s.restarts)),
        ("switches that came back empty", sum(|s| s.resets)),
        ("reads of followers", sum(|s| s.replicas.reads_follower)),
        ("reads that advanced", sum(|s| s.replicas.reads_advanced)),
        ("reads refused", sum(|s| s.replicas.reads_refused)),
        ("reads of leaders", sum(|s| s.replicas.reads_leader)),
        ("writes dropped", sum(|s| s.replicas.writes_dropped)),
        ("refreshes", sum(|s| s.replicas.refreshes)),
        ("packets lost", sum(|s| s.links.lost)),
        ("packets duplicated", sum(|s| s.links.duplicated)),
        ("packets held up", sum(|s| s.links.held_up)),
    ];
    let mut counts: BTreeMap<&str, u64> = numbers.into();
    for report in reports {
        for (name, count) in report.stats.faults.iter().chain(&report.stats.reasons) {
            *counts.entry(name).or_default() += count;
        }
        for (name, count) in &report.ends {
            *counts.entry(name).or_default() += count;
        }
    }
    println!("{} events; {counts:#?}", sum(|s| s.events));
    let reasons = [
        "flair_no_session",
        "flair_other_incarnation",
        "flair_neutralised",
        "flair_read_overtaken",
        "flair_reply_old_session",
        "flair_reply_no_session",
        "flair_write_overtaken",
        "flair_refresh_stable",
    ];
    let others = ["read", "written", "unknown"];
    let expected = numbers.map(|(name, _)| name).into_iter();
    let expected = expected.chain(Fault::names()).chain(reasons).chain(others);
    for name in expected {
        let count = counts.get(name).copied().unwrap_or(0);
        // Who is named to hold an entry has it, unless it has restarted since.
        let least = if name == "reads refused" { 1 } else { 5 };
        assert!(count >= least, "{name}: {count} times only");
    }
}

#[test]
fn a_seed_is_one_schedule() {
    for seed in 1..=10 {
        let options = Options::default();
        assert_eq!(run(seed, &options), run(seed, &options), "seed {seed}");
    }
}

/// Of those that chance finds; the others take a schedule of their own (flair_schedules.rs).
#[test]
fn broken_rules_are_noticed() {
    let by_chance = [
        (Mutation::SeqNotCompared, Rule::Linearizable),
        (Mutation::OldSwitchForgotten, Rule::OneSwitchServes),
        (Mutation::NotConfirmed, Rule::OneSwitchServes),
    ];
    for (mutation, rule) in by_chance {
        let options = Options {
            mutation: Some(mutation),
            ..Options::default()
        };
        let noticed = (1..=SEEDS).find_map(|seed| run(seed, &options).violation.map(|v| (seed, v)));
        let (seed, violation) = noticed.expect("a rule is missing");
        println!("{mutation:?}: seed {seed}: {violation}");
        assert_eq!(violation.rule, rule, "for another reason: {violation}");
    }
}
