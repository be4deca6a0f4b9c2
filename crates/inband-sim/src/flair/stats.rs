//! What happened, in numbers.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use inband_flair::replica::Counters;

use super::links::LinkStats;

/// A run, or many, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Sessions that became active.
    pub activations: u64,
    /// Replicas that came back without memory.
    pub restarts: u64,
    /// Switches that came back without memory.
    pub resets: u64,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What switches did, by reason.
    pub reasons: BTreeMap<&'static str, u64>,
    /// What replicas did.
    pub replicas: Counters,
    /// What links did.
    pub links: LinkStats,
    /// Reads that were sent to a replica that was down.
    pub reads_of_the_dead: u64,
}

type Counts = BTreeMap<&'static str, u64>;

fn add_counts(sum: &mut Counts, more: &Counts) {
    for (name, count) in more {
        *sum.entry(name).or_default() += count;
    }
}

impl Stats {
    /// Everything that went wrong: packets, hosts, links.
    pub fn fault_events(&self) -> u64 {
        let LinkStats {
            lost,
            duplicated,
            held_up,
        } = self.links;
        let faults: u64 = self.faults.values().sum();
        lost + duplicated + held_up + faults
    }
}

impl AddAssign<&Stats> for Stats {
    fn add_assign(&mut self, more: &Stats) {
        self.events += more.events;
        self.activations += more.activations;
        self.restarts += more.restarts;
        self.resets += more.resets;
        add_counts(&mut self.faults, &more.faults);
        add_counts(&mut self.reasons, &more.reasons);
        add_replica(&mut self.replicas, more.replicas);
        self.links.lost += more.links.lost;
        self.links.duplicated += more.links.duplicated;
        self.links.held_up += more.links.held_up;
        self.reads_of_the_dead += more.reads_of_the_dead;
    }
}

/// Of one replica more.
pub(super) fn add_replica(sum: &mut Counters, more: Counters) {
    sum.reads_leader += more.reads_leader;
    sum.reads_follower += more.reads_follower;
    sum.reads_advanced += more.reads_advanced;
    sum.reads_refused += more.reads_refused;
    sum.writes += more.writes;
    sum.writes_dropped += more.writes_dropped;
    sum.refreshes += more.refreshes;
    sum.bad_packets += more.bad_packets;
}
