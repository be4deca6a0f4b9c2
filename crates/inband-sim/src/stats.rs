//! Statistics of one run, or of many.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use crate::queue::Time;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// Returns the count; 0 if there is none.
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// All counts, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(name, count)| (*name, *count))
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, more: &Counts) {
        for (name, count) in more.iter() {
            self.add(name, count);
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (name, count)) in self.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {name}")?;
        }
        Ok(())
    }
}

/// Counts of what happened to packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    pub sent: u64,
    /// Lost, by a link or because their host was down.
    pub lost: u64,
    pub duplicated: u64,
    /// Took much longer than others.
    pub held_up: u64,
    /// Arrived after a packet that was sent later between the same two hosts; not every system counts this.
    pub overtaken: u64,
    /// Arrived with a flipped bit.
    pub damaged: u64,
    /// Held for a host whose links were held or whose process was stopped.
    pub held: u64,
    /// Sent again by an attacker.
    pub replayed: u64,
}

impl LinkStats {
    /// Returns the faults of links, with their names.
    pub fn faults(&self) -> [(&'static str, u64); 7] {
        [
            ("packet lost", self.lost),
            ("packet delayed", self.held_up),
            ("packet duplicated", self.duplicated),
            ("packet reordered", self.overtaken),
            ("packet damaged", self.damaged),
            ("packet held", self.held),
            ("packet replayed", self.replayed),
        ]
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    pub events: u64,
    /// Simulated time from the end of faults until everything had finished; of several runs, the longest.
    pub settled_after: Time,
    /// What happened to packets.
    pub links: LinkStats,
    pub faults: Counts,
    /// What hosts did, and how requests ended.
    pub counts: Counts,
}

impl Stats {
    /// Returns the number of injected faults. Packets that were only overtaken do not count.
    pub fn fault_events(&self) -> u64 {
        let packets: u64 = self.links.faults().iter().map(|(_, count)| count).sum();
        self.faults.total() + packets - self.links.overtaken
    }

    pub fn count(&mut self, name: &'static str, count: u64) {
        self.counts.add(name, count);
    }

    pub fn of(&self, name: &str) -> u64 {
        self.counts.of(name)
    }
}

impl AddAssign<&Stats> for Stats {
    fn add_assign(&mut self, more: &Stats) {
        self.events += more.events;
        self.settled_after = self.settled_after.max(more.settled_after);
        let (sum, links) = (&mut self.links, &more.links);
        sum.sent += links.sent;
        sum.lost += links.lost;
        sum.duplicated += links.duplicated;
        sum.held_up += links.held_up;
        sum.overtaken += links.overtaken;
        sum.damaged += links.damaged;
        sum.held += links.held;
        sum.replayed += links.replayed;
        self.faults += &more.faults;
        self.counts += &more.counts;
    }
}
