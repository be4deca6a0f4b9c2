//! What happened, in numbers.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use super::links::LinkStats;

/// By name.
pub(super) type Counts = BTreeMap<&'static str, u64>;

/// A run, or many, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Faults by name.
    pub faults: Counts,
    /// What schedulers did, by reason.
    pub reasons: Counts,
    /// What clients and executors did.
    pub hosts: Counts,
    /// How tasks ended.
    pub ends: Counts,
    /// What links did.
    pub links: LinkStats,
}

impl Stats {
    /// Everything that went wrong: packets, hosts, links.
    pub fn fault_events(&self) -> u64 {
        let LinkStats {
            lost,
            duplicated,
            held_up,
            damaged,
        } = self.links;
        let faults: u64 = self.faults.values().sum();
        lost + duplicated + held_up + damaged + faults
    }

    /// Count something of clients and executors.
    pub(super) fn host(&mut self, name: &'static str, count: u64) {
        *self.hosts.entry(name).or_default() += count;
    }
}

fn add(sum: &mut Counts, more: &Counts) {
    for (name, count) in more {
        *sum.entry(name).or_default() += count;
    }
}

impl AddAssign<&Stats> for Stats {
    fn add_assign(&mut self, more: &Stats) {
        self.events += more.events;
        add(&mut self.faults, &more.faults);
        add(&mut self.reasons, &more.reasons);
        add(&mut self.hosts, &more.hosts);
        add(&mut self.ends, &more.ends);
        self.links.lost += more.links.lost;
        self.links.duplicated += more.links.duplicated;
        self.links.held_up += more.links.held_up;
        self.links.damaged += more.links.damaged;
    }
}
