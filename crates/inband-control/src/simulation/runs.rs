//! Random runs of the simulated cluster.

use super::cluster::{Breaks, Cluster, Weather};

const STORM: Weather = Weather {
    loss_ppm: 50_000,
    repeat_ppm: 50_000,
    late_ppm: 20_000,
    fault_us: 150_000,
};

/// Faults for a while, then none: afterwards all acceptors vote and values are chosen.
fn run(seed: u64, breaks: Breaks, values_only: bool) -> Result<Cluster, String> {
    let acceptors = if seed % 4 == 3 { 5 } else { 3 };
    let mut cluster = Cluster::new(seed, acceptors, breaks);
    cluster.checker.values_only = values_only;
    cluster.weather = Some(STORM);
    let fail = |cluster: &Cluster| {
        let violation = cluster.checker.violation.clone();
        let what = violation.unwrap_or_else(|| "nothing goes on".into());
        format!("seed {seed}: {what}\n{}", cluster.describe())
    };
    if !cluster.run_for(10_000_000) {
        return Err(fail(&cluster));
    }
    cluster.calm();
    let until = cluster.now + 60_000_000;
    let settled = |c: &Cluster| c.all_vote() && c.state.pending.is_none();
    if !cluster.run_until(until, settled) {
        return Err(fail(&cluster));
    }
    let chosen = cluster.checker.chosen();
    let until = cluster.now + 10_000_000;
    if !cluster.run_until(until, |c| c.checker.chosen() > chosen + 20) {
        return Err(fail(&cluster));
    }
    Ok(cluster)
}

#[test]
fn one_value_an_instance_through_all_epochs() {
    let (mut epochs, mut wiped, mut abandoned) = (0, 0, 0);
    for seed in 0..200 {
        let cluster = run(seed, Breaks::default(), false).unwrap_or_else(|what| panic!("{what}"));
        epochs += cluster.state.highest_epoch;
        wiped += cluster.wiped;
        abandoned += cluster.abandoned;
    }
    println!("{epochs} epochs, {wiped} memories lost, {abandoned} abandoned");
}

/// Some seed detects the broken rule: through chosen values, or, if that is what the rule is for, through a loss of
/// progress.
fn caught(breaks: Breaks, by: &str) {
    let fails = |seed| {
        run(seed, breaks, true)
            .err()
            .filter(|what| what.contains(by))
    };
    let what = (0..1000).find_map(fails).expect("the checks notice");
    println!("{what}");
}

const VALUES: &str = "is chosen, and";
const STANDSTILL: &str = "nothing goes on";

#[test]
fn forgetful_acceptors_do_not_count() {
    let mut breaks = Breaks::default();
    breaks.coordinator.forgetful_count = true;
    caught(breaks, VALUES);
}

#[test]
fn the_sealed_majority_is_fixed() {
    let mut breaks = Breaks::default();
    breaks.coordinator.sealed_not_fixed = true;
    caught(breaks, VALUES);
}

#[test]
fn a_majority_installs_before_the_epoch_opens() {
    let mut breaks = Breaks::default();
    breaks.coordinator.opens_early = true;
    caught(breaks, STANDSTILL);
}

#[test]
fn survivors_install_too() {
    let mut breaks = Breaks::default();
    breaks.member.survivors_keep_their_votes = true;
    caught(breaks, VALUES);
}

#[test]
fn nobody_votes_in_an_epoch_it_has_forgotten() {
    let mut breaks = Breaks::default();
    breaks.member.votes_after_restart = true;
    caught(breaks, VALUES);
}
