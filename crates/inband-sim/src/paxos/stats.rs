//! A run in numbers.

use std::ops::AddAssign;

use inband_paxos::timing::Micros;

use crate::paxos::fault_kind::FaultCounts;

/// What happened, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets lost, by the network or because their host was down.
    pub lost: u64,
    /// Packets that were held up for long.
    pub delayed: u64,
    /// Packets that arrived after one that was sent later, between the same two hosts.
    pub reordered: u64,
    /// Packets that arrived a second time.
    pub duplicated: u64,
    /// Packets that arrived with a flipped bit.
    pub damaged: u64,
    /// Of these, packets that were refused before they touched anything.
    pub refused: u64,
    /// Packets held back and released later.
    pub held: u64,
    /// Packets that the attacker sent again.
    pub replayed: u64,
    /// Faults begun: partitions, crashes, pauses, ...
    pub faults: FaultCounts,
    /// Hosts crashed.
    pub crashes: u64,
    /// Commands submitted.
    pub submitted: u64,
    /// Times a leader was activated.
    pub activations: u64,
    /// Checkpoints installed.
    pub checkpoints: u64,
    /// BUSY packets: a window was full.
    pub busy: u64,
    /// Changes of epoch begun.
    pub epochs: u64,
    /// Recoveries of single instances by learners.
    pub recoveries: u64,
    /// Simulated time from the last fault until everything was finished.
    pub settled_after_us: Micros,
}

impl Stats {
    /// What happened to packets on purpose, and how often.
    pub fn packet_faults(&self) -> [(&'static str, u64); 7] {
        [
            ("packet lost", self.lost),
            ("packet delayed", self.delayed),
            ("packet duplicated", self.duplicated),
            ("packet reordered", self.reordered),
            ("packet damaged", self.damaged),
            ("packet held", self.held),
            ("packet replayed", self.replayed),
        ]
    }

    /// Everything that went wrong on purpose. Not what was only overtaken.
    pub fn fault_events(&self) -> u64 {
        let packets = self.lost + self.delayed + self.duplicated + self.damaged;
        self.faults.total() + packets + self.held + self.replayed
    }
}

impl AddAssign for Stats {
    /// Of several runs; the time to settle is the longest.
    fn add_assign(&mut self, other: Stats) {
        self.events += other.events;
        self.packets += other.packets;
        self.lost += other.lost;
        self.delayed += other.delayed;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.damaged += other.damaged;
        self.refused += other.refused;
        self.held += other.held;
        self.replayed += other.replayed;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.submitted += other.submitted;
        self.activations += other.activations;
        self.checkpoints += other.checkpoints;
        self.busy += other.busy;
        self.epochs += other.epochs;
        self.recoveries += other.recoveries;
        self.settled_after_us = self.settled_after_us.max(other.settled_after_us);
    }
}
