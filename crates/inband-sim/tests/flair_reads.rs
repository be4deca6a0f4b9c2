//! The other read modes that FLAIR is compared with survive random schedules, and their reads are linearizable.

use crate::common::worlds;
use inband_flair::reads::Reads;
use inband_sim::flair::{Flair, Options};
use inband_sim::Stats;

/// Seeds per mode.
const SEEDS: u64 = 300;

fn play(reads: Reads) -> Stats {
    let options = Options {
        reads,
        ..Options::default()
    };
    worlds::survive::<Flair>(1, SEEDS, &options).stats
}

fn reads_of(stats: &Stats) -> [u64; 3] {
    ["reads of leaders", "reads of followers", "reads refused"].map(|name| stats.of(name))
}

#[test]
fn reads_at_the_leader_are_linearizable() {
    for reads in [Reads::Leader, Reads::Majority] {
        let [leader, follower, _] = reads_of(&play(reads));
        println!("{reads}: {leader} reads at leaders");
        // Switches of a session that names no followers send everything to the leader.
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
    // If no read was refused, no lease was ever taken away.
    assert!(leader > 1_000 && follower > 1_000 && refused > 1_000);
}
