//! The ways to read that FLAIR is measured against: random schedules are survived, and reads linearizable.
#![allow(missing_docs)]

use inband_flair::reads::Reads;
use inband_sim::flair::{run, Options, Report};

/// Seeds played of each way.
const SEEDS: u64 = 300;

fn play(reads: Reads) -> Vec<Report> {
    let options = Options {
        reads,
        ..Options::default()
    };
    let reports: Vec<Report> = (1..=SEEDS).map(|seed| run(seed, &options)).collect();
    for report in &reports {
        let Report {
            seed,
            layout,
            violation,
            ..
        } = report;
        assert_eq!(violation, &None, "seed {seed}, {layout:?}");
    }
    reports
}

fn reads_of(reports: &[Report]) -> [u64; 3] {
    let counters = reports.iter().map(|report| report.stats.replicas);
    counters.fold([0; 3], |[leader, follower, refused], c| {
        [
            leader + c.reads_leader,
            follower + c.reads_follower,
            refused + c.reads_refused,
        ]
    })
}

#[test]
fn reads_at_the_leader_are_linearizable() {
    for reads in [Reads::Leader, Reads::Majority] {
        let [leader, follower, _] = reads_of(&play(reads));
        println!("{reads}: {leader} reads at leaders");
        // Switches of a session without a follower that they may ask send everything to the leader.
        assert!(
            leader > 10_000 && follower == 0,
            "{reads}: {leader}, {follower}"
        );
    }
}

#[test]
fn reads_by_followers_leases_are_linearizable() {
    let [leader, follower, refused] = reads_of(&play(Reads::FollowerLeases));
    println!("{leader} reads at leaders, {follower} at followers, {refused} refused");
    // Where nobody is refused no lease was ever taken away.
    assert!(leader > 1_000 && follower > 1_000 && refused > 1_000);
}
