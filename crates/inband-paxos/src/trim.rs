//! Trim: replicas tell each other what they have applied; the floor is what a majority of them holds durably
//! (protocol.md, 7).
//!
//! Every replica computes the floor itself, because any of them may be the only one that is heard, and sends it to
//! acceptors and leaders. A floor stays valid forever, so duplicates and reordering are harmless.

use std::collections::BTreeMap;

use crate::dataplane::wire::{flag, Header, Type};

use crate::outbox::{Dest, Outbox};
use crate::timing::{next_beat, Micros, Timing};

/// The longest interval, in beats, between repetitions of a floor that does not move.
const REPEAT_AFTER_BEATS_MAX: u32 = 16;

#[derive(Debug)]
pub struct Trim {
    node: u8,
    partition: u16,
    epoch: u32,
    replicas: Vec<u8>,
    timing: Timing,
    /// A change of this many instances is sent at once, not at the next period.
    step: u64,
    applied: u64,
    peers: BTreeMap<u8, u64>,
    floor: u64,
    told_applied: u64,
    told_floor: u64,
    beat_at: Micros,
    /// Beats since the floor was last sent, and after how many it is sent again.
    beats: u32,
    repeat_after_beats: u32,
}

impl Trim {
    /// `replicas` are all replicas of the configuration, including this node if it is one.
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
            beat_at: 0,
            beats: 0,
            repeat_after_beats: 1,
        }
    }

    /// Enters a later epoch. What a majority of the earlier epoch's replicas holds stays below the floor.
    pub fn enter_epoch(&mut self, epoch: u32, replicas: &[u8]) {
        self.epoch = epoch;
        self.replicas = replicas.to_vec();
        self.peers.retain(|peer, _| replicas.contains(peer));
        self.floor = self.floor.max(self.majority_holds());
        // The epoch's acceptors and leaders may not know it.
        self.told_floor = 0;
        self.beat_at = 0;
    }

    /// This replica has durably applied everything up to `instance`.
    pub fn applied(&mut self, instance: u64) {
        self.applied = self.applied.max(instance);
        self.floor = self.floor.max(self.majority_holds());
    }

    /// A peer has durably applied everything up to `applied`.
    pub fn on_alive(&mut self, node: u16, applied: u64) {
        let Ok(node) = u8::try_from(node) else {
            return;
        };
        if node != self.node && self.replicas.contains(&node) {
            let known = self.peers.entry(node).or_default();
            *known = (*known).max(applied);
            self.floor = self.floor.max(self.majority_holds());
        }
    }

    /// A majority of the replicas durably holds everything below this instance.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// One above the highest instance that a majority holds. There are few replicas: no sorting, which would allocate
    /// memory for every burst.
    fn majority_holds(&self) -> u64 {
        let holds = |replica: &u8| {
            if *replica == self.node {
                self.applied
            } else {
                self.peers.get(replica).copied().unwrap_or(0)
            }
        };
        let majority = self.replicas.len() / 2 + 1;
        let by_majority = |held: &u64| {
            let holders = self.replicas.iter().filter(|r| holds(r) >= *held);
            holders.count() >= majority
        };
        let held = self.replicas.iter().map(holds).filter(by_majority).max();
        held.map_or(0, |held| held + 1)
    }

    /// Returns the last instance that this replica holds durably.
    pub fn held_here(&self) -> u64 {
        self.applied
    }

    /// Returns the highest instance that any known replica has applied.
    pub fn highest_applied(&self) -> u64 {
        self.peers
            .values()
            .copied()
            .max()
            .unwrap_or(0)
            .max(self.applied)
    }

    /// Returns what each peer has applied, as last reported.
    pub fn peers(&self) -> &BTreeMap<u8, u64> {
        &self.peers
    }

    fn is_replica(&self) -> bool {
        self.replicas.contains(&self.node)
    }

    /// Returns what this replica reports to its peers as applied; 0 if it is not a replica. Marks it as reported.
    pub fn tell_applied(&mut self) -> u64 {
        if !self.is_replica() {
            return 0;
        }
        self.told_applied = self.applied;
        self.applied
    }

    /// Returns what this replica has applied, if it has moved by a step and must be reported to peers at once. Marks it
    /// as reported.
    pub fn step_to_tell(&mut self) -> Option<u64> {
        let has_moved = self.applied >= self.told_applied + self.step;
        (self.is_replica() && has_moved).then(|| self.tell_applied())
    }

    /// Sends a floor that has moved by a step at once, and repeats it: less and less often if nothing changes.
    pub fn on_tick(&mut self, now: Micros, out: &mut Outbox) {
        if !self.is_replica() {
            return;
        }
        let is_beat = now >= self.beat_at;
        if is_beat {
            self.beat_at = next_beat(now, self.timing.trim_repeat_us);
            self.beats += 1;
        }
        let floor = self.floor;
        let is_new = floor != self.told_floor;
        let is_repeat = self.beats >= self.repeat_after_beats;
        if floor >= self.told_floor + self.step || (is_beat && (is_new || is_repeat)) {
            self.repeat_after_beats = if is_new {
                1
            } else {
                (self.repeat_after_beats * 2).min(REPEAT_AFTER_BEATS_MAX)
            };
            self.beats = 0;
            self.told_floor = floor;
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

    /// Returns when `on_tick` should run next.
    pub fn due(&self) -> Micros {
        if !self.is_replica() {
            return Micros::MAX;
        }
        let step_done = self.applied >= self.told_applied + self.step
            || self.floor >= self.told_floor + self.step;
        if step_done {
            return 0;
        }
        self.beat_at
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
        trim.on_alive(2, 70);
        assert_eq!(trim.floor(), 71);
        trim.on_alive(9, 90); // not a replica
        assert_eq!(trim.floor(), 71);
    }

    #[test]
    fn a_floor_stays_when_replicas_change() {
        let mut trim = Trim::new(1, 0, 1, vec![1, 2, 3], 64, Timing::default());
        trim.applied(100);
        trim.on_alive(2, 70);
        trim.enter_epoch(2, &[1, 3, 4]);
        assert_eq!(trim.floor(), 71);
        trim.on_alive(2, 90); // no longer a replica
        assert_eq!((trim.floor(), trim.highest_applied()), (71, 100));
        trim.on_alive(4, 80);
        assert_eq!(trim.floor(), 81);
    }

    #[test]
    fn a_floor_that_stays_is_told_less_and_less_often() {
        let timing = Timing::default();
        let mut trim = Trim::new(1, 0, 1, vec![1], 64, timing);
        let mut out = Outbox::new();
        let mut told_at = |trim: &mut Trim, beats: std::ops::Range<u64>| {
            let told = |beat: &u64| {
                out.clear();
                trim.on_tick(beat * timing.trim_repeat_us, &mut out);
                !out.is_empty()
            };
            beats.filter(told).collect::<Vec<u64>>()
        };
        assert_eq!(told_at(&mut trim, 0..40), [0, 2, 6, 14, 30]);
        trim.applied(1);
        assert_eq!(told_at(&mut trim, 40..50), [40, 41, 43, 47]);
    }
}
