//! The ways to read that FLAIR is measured against: random schedules are survived, and reads linearizable.

use crate::common::worlds;
use inband_flair::reads::Reads;
use inband_sim::flair::{Flair, Options};
use inband_sim::Stats;

/// Seeds played of each way.
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
