//! The two phases of a take-over.
//!
//! Phase 1: obtain a promise for the whole partition from a majority, then query every acceptor for every instance from
//! the highest floor to the highest vote, a window of instances at a time; a majority must answer for each, "no vote"
//! included. Phase 2: propose the highest vote found again, fill holes with a no-op, and activate the leader's
//! registers after them.

use std::collections::BTreeMap;

use super::{LeaderEvent, Leadership, State, BACKOFF_DOUBLINGS_MAX, PHASE_RETRY_US};
use crate::dataplane::registers::LeaderView;
use crate::dataplane::wire::{flag, Header, Type};
use crate::outbox::{Dest, Outbox};
use crate::quorum::{SlotPromises, Vote, Votes};
use crate::rounds::RoundSource;
use crate::timing::Micros;

/// Instances queried at once; more would overflow the acceptors' receive buffers.
const SCAN_WINDOW: usize = 64;

impl Leadership {
    /// PHASE1B, for the partition or one slot. The digests of values have been checked.
    pub fn on_promise(
        &mut self,
        now: Micros,
        header: &Header,
        value: &[u8],
        out: &mut Outbox,
    ) -> Option<LeaderEvent> {
        if header.round != self.round || header.epoch != self.config.epoch {
            return None;
        }
        let acceptors = &self.config.acceptors;
        match &mut self.state {
            State::Promising {
                voters,
                floor,
                highest,
            } if !header.has(flag::SLOT) => {
                voters.add(acceptors, header.node);
                *floor = (*floor).max(header.floor);
                *highest = (*highest).max(header.instance);
                if !voters.is_majority(acceptors) {
                    return None;
                }
                let floor = (*floor).max(self.config.first_instance);
                self.state = State::Scanning {
                    floor,
                    highest: *highest,
                    ask_next: floor,
                    slots: BTreeMap::new(),
                };
                self.tries = 0;
                self.go_on(now, out)
            }
            State::Scanning { slots, .. } if header.has(flag::SLOT) => {
                let promises = slots.get_mut(&header.instance)?;
                let vote = header.has(flag::VOTE).then(|| Vote {
                    vround: header.vround,
                    value_flags: header.flags & flag::VALUE_MASK,
                    client_id: header.client_id,
                    client_seq: header.client_seq,
                    client_low: header.client_low,
                    digest: header.digest,
                    value: value.to_vec(),
                });
                promises.add(acceptors, header.node, vote);
                if !promises.is_majority(acceptors) {
                    return None;
                }
                let best = promises.best().cloned();
                slots.remove(&header.instance);
                self.tries = 0;
                self.propose(header.instance, best, out);
                self.go_on(now, out)
            }
            _ => None,
        }
    }

    /// Phase 2 of one instance: the vote of the highest round found, or a no-op.
    fn propose(&self, instance: u64, best: Option<Vote>, out: &mut Outbox) {
        let mut header = self.header(Type::Phase2A);
        header.instance = instance;
        match best {
            Some(vote) => {
                header.flags = vote.value_flags;
                header.client_id = vote.client_id;
                header.client_seq = vote.client_seq;
                header.client_low = vote.client_low;
                header.digest = vote.digest;
                out.send(Dest::Acceptors, &header, &vote.value);
            }
            None => {
                header.flags = flag::NOOP;
                header.digest = self.config.digest.of(&[]);
                out.send(Dest::Acceptors, &header, &[]);
            }
        }
    }

    fn ask_slot(&self, instance: u64, out: &mut Outbox) {
        let mut header = self.header(Type::Phase1A);
        header.flags = flag::SLOT;
        header.instance = instance;
        out.send(Dest::Acceptors, &header, &[]);
    }

    pub(super) fn ask_slots_again(&mut self, now: Micros, out: &mut Outbox) {
        self.retry_at = now + self.phase_retry_us();
        if let State::Scanning { slots, .. } = &self.state {
            for instance in slots.keys() {
                self.ask_slot(*instance, out);
            }
        }
    }

    /// Returns how long to wait for answers before the query is retransmitted.
    fn phase_retry_us(&self) -> Micros {
        PHASE_RETRY_US << self.tries.min(BACKOFF_DOUBLINGS_MAX)
    }

    /// Queries further slots as the window allows; after the last answer, start to lead.
    fn go_on(&mut self, now: Micros, out: &mut Outbox) -> Option<LeaderEvent> {
        self.retry_at = now + PHASE_RETRY_US;
        let State::Scanning {
            floor,
            highest,
            ask_next,
            slots,
        } = &mut self.state
        else {
            return None;
        };
        let (floor, highest) = (*floor, *highest);
        let mut ask = Vec::new();
        while slots.len() < SCAN_WINDOW && *ask_next <= highest {
            slots.insert(*ask_next, SlotPromises::default());
            ask.push(*ask_next);
            *ask_next += 1;
        }
        let is_complete = slots.is_empty();
        for instance in ask {
            self.ask_slot(instance, out);
        }
        if !is_complete {
            return None;
        }
        let view = LeaderView {
            round: self.round,
            next: (highest + 1).max(floor),
            floor,
            epoch: u64::from(self.config.epoch),
        };
        self.state = State::Active;
        self.wanted_tries = 0;
        self.heard_round = self.round;
        self.takeovers += 1;
        self.decided_at = now;
        Some(LeaderEvent::Activate(view))
    }

    /// NACK of an acceptor: a higher round was promised, or a slot is trimmed.
    pub fn on_nack(
        &mut self,
        now: Micros,
        header: &Header,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) -> Option<LeaderEvent> {
        if header.epoch != self.config.epoch {
            return None;
        }
        if header.has(flag::BELOW_FLOOR) {
            let State::Scanning {
                floor,
                ask_next,
                slots,
                ..
            } = &mut self.state
            else {
                return None;
            };
            // Below the quorum's highest floor nothing is ever proposed (schedules.md, 1).
            *floor = (*floor).max(header.floor);
            *ask_next = (*ask_next).max(*floor);
            *slots = slots.split_off(floor);
            return self.go_on(now, out);
        }
        rounds.saw(header.round);
        if header.round <= self.round {
            return None;
        }
        match &self.state {
            State::Scanning { slots, .. } if header.has(flag::SLOT) => {
                // A learner is recovering this instance. There is no other leader: come back with a higher round.
                self.outbid |= slots.contains_key(&header.instance);
                None
            }
            State::Promising { .. } | State::Scanning { .. } if !header.has(flag::SLOT) => {
                // One acceptor may have been contacted by a host that cannot win. A majority decides.
                self.refused.add(&self.config.acceptors, header.node);
                if self.refused.blocks(&self.config.acceptors) {
                    self.be_more_patient(now);
                    self.give_way(now);
                }
                None
            }
            State::Active if !header.has(flag::SLOT) => {
                self.was_deposed(now, header.round);
                self.give_way(now);
                Some(LeaderEvent::Deactivate)
            }
            _ => None,
        }
    }

    /// Restarts phase 1, with a round above all seen.
    pub(super) fn restart_phase_1(
        &mut self,
        now: Micros,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) {
        rounds.saw(self.heard_round);
        self.round = rounds.make();
        self.refused = Votes::default();
        self.outbid = false;
        self.state = State::Promising {
            voters: Votes::default(),
            floor: 0,
            highest: 0,
        };
        self.ask_promises(now, out);
    }

    pub(super) fn ask_promises(&mut self, now: Micros, out: &mut Outbox) {
        self.retry_at = now + self.phase_retry_us();
        let header = self.header(Type::Phase1A);
        out.send(Dest::Acceptors, &header, &[]);
    }
}
