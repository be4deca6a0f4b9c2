//! A run in numbers, or many.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use crate::queue::Time;

/// How often what happened, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    /// So many more.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// How often; 0 if never.
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Of all names together.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// By name.
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

/// What happened to packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Sent.
    pub sent: u64,
    /// Lost, by a link or because their host was down.
    pub lost: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Took much longer than others.
    pub held_up: u64,
    /// Arrived after one that was sent later, between the same two hosts; where the system counts that.
    pub overtaken: u64,
    /// Arrived with a flipped bit.
    pub damaged: u64,
    /// Kept back for a host whose links were held or whose process was stopped.
    pub held: u64,
    /// Sent again by an attacker.
    pub replayed: u64,
}

impl LinkStats {
    /// What happened to packets on purpose, and how often.
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

/// What happened, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Simulated time from the end of faults until everything had finished; of several runs the longest.
    pub settled_after: Time,
    /// What happened to packets.
    pub links: LinkStats,
    /// Faults, by name.
    pub faults: Counts,
    /// What hosts did, and how requests ended.
    pub counts: Counts,
}

impl Stats {
    /// Everything that went wrong on purpose. Not what was only overtaken.
    pub fn fault_events(&self) -> u64 {
        let packets: u64 = self.links.faults().iter().map(|(_, count)| count).sum();
        self.faults.total() + packets - self.links.overtaken
    }

    /// So many more of this.
    pub fn count(&mut self, name: &'static str, count: u64) {
        self.counts.add(name, count);
    }

    /// How often this happened.
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
