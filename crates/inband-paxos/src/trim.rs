//! Trim: replicas tell each other what they have applied; the floor is what a majority of them
//! holds durably (design, *must* 7).
//!
//! Every replica computes the floor for itself, since any of them may be alone in being heard, and
//! tells acceptors and leaders. A floor is true for ever, so repeating or reordering it is harmless.

use std::collections::BTreeMap;

use inband_dataplane::wire::{flag, Header, Type};

use crate::outbox::{Dest, Outbox};
use crate::timing::{Micros, Timing};

/// See the module.
#[derive(Debug)]
pub struct Trim {
    node: u8,
    partition: u16,
    epoch: u32,
    replicas: Vec<u8>,
    timing: Timing,
    /// A change of this many instances is told at once, not at the next period.
    step: u64,
    applied: u64,
    peers: BTreeMap<u8, u64>,
    floor: u64,
    told_applied: u64,
    told_floor: u64,
    alive_at: Micros,
    trim_at: Micros,
}

impl Trim {
    /// `replicas` are all replicas of the configuration, this node among them if it is one.
    pub fn new(
        node: u8,
        partition: u16,
        epoch: u32,
        replicas: Vec<u8>,
        ring_slots: u64,
        timing: Timing,
    ) -> Trim {
        Trim {
            node,
            partition,
            epoch,
            replicas,
            timing,
            step: (ring_slots / 16).max(1),
            applied: 0,
            peers: BTreeMap::new(),
            floor: 0,
            told_applied: 0,
            told_floor: 0,
            alive_at: 0,
            trim_at: 0,
        }
    }

    /// This replica has durably applied everything up to `instance`.
    pub fn applied(&mut self, instance: u64) {
        self.applied = self.applied.max(instance);
        self.floor = self.majority_holds();
    }

    /// A peer's ALIVE.
    pub fn on_alive(&mut self, header: &Header) {
        let Ok(node) = u8::try_from(header.node) else {
            return;
        };
        if node != self.node && self.replicas.contains(&node) {
            let known = self.peers.entry(node).or_default();
            *known = (*known).max(header.instance);
            self.floor = self.majority_holds();
        }
    }

    /// Everything below is held durably by a majority of the replicas.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    fn majority_holds(&self) -> u64 {
        let mut held: Vec<u64> = self
            .replicas
            .iter()
            .map(|r| {
                if *r == self.node {
                    self.applied
                } else {
                    self.peers.get(r).copied().unwrap_or(0)
                }
            })
            .collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        held.get(held.len() / 2).map_or(0, |applied| applied + 1)
    }

    /// The most advanced replica heard of.
    pub fn highest_applied(&self) -> u64 {
        self.peers
            .values()
            .copied()
            .max()
            .unwrap_or(0)
            .max(self.applied)
    }

    /// What each peer has applied, as last heard.
    pub fn peers(&self) -> &BTreeMap<u8, u64> {
        &self.peers
    }

    /// Tell what has changed. `round` is the highest active round known here.
    pub fn on_tick(&mut self, now: Micros, round: u64, out: &mut Outbox) {
        if !self.replicas.contains(&self.node) {
            return;
        }
        if now >= self.alive_at || self.applied >= self.told_applied + self.step {
            self.alive_at = now + self.timing.alive_us;
            self.told_applied = self.applied;
            let mut header = self.header(Type::Alive);
            header.instance = self.applied;
            header.round = round;
            out.send(Dest::Learners, &header, &[]);
            out.send(Dest::Leaders, &header, &[]);
        }
        let floor = self.floor;
        if floor >= self.told_floor + self.step || now >= self.trim_at {
            self.told_floor = floor;
            self.trim_at = now + self.timing.trim_repeat_us;
            let mut header = self.header(Type::Trim);
            header.floor = floor;
            out.send(Dest::Acceptors, &header, &[]);
            header.flags = flag::LEADER;
            out.send(Dest::Leaders, &header, &[]);
        }
    }

    fn header(&self, kind: Type) -> Header {
        let mut header = Header::new(kind, u16::from(self.node), self.epoch);
        header.partition = self.partition;
        header
    }

    /// When `on_tick` should run next.
    pub fn due(&self) -> Micros {
        if !self.replicas.contains(&self.node) {
            return Micros::MAX;
        }
        let step_done = self.applied >= self.told_applied + self.step
            || self.floor >= self.told_floor + self.step;
        if step_done {
            return 0;
        }
        self.alive_at.min(self.trim_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_what_a_majority_holds() {
        let mut trim = Trim::new(1, 0, 1, vec![1, 2, 3], 64, Timing::default());
        trim.applied(100);
        assert_eq!(trim.floor(), 1);
        let mut header = Header::new(Type::Alive, 2, 1);
        header.instance = 70;
        trim.on_alive(&header);
        assert_eq!(trim.floor(), 71);
        header.node = 9; // no replica
        header.instance = 90;
        trim.on_alive(&header);
        assert_eq!(trim.floor(), 71);
    }
}
