//! Recovery mode: classic Paxos over the minions' storage servers, in one instance.

use std::collections::BTreeMap;

use super::{Learner, Out};
use crate::control::{Control, To};
use crate::quorum::{choose, Generations, Vote};
use crate::request::Value;
use crate::wire::node;

const MS: u64 = 1_000_000;
/// First retransmission interval, doubled at each retransmission: storage that is slow must not be made slower.
const REPEAT_NS: u64 = 4 * MS;
const REPEAT_DOUBLINGS_MAX: u32 = 6;
/// How long learner 1 waits for another learner that has a higher round, and learner k k times as long; doubled at every
/// further attempt, until one learner's two round trips end before another begins.
const YIELD_NS: u64 = 5 * MS;
const YIELD_DOUBLINGS_MAX: u32 = 8;

const COUNTER_SHIFT: u32 = 40;
const INCARNATION_SHIFT: u32 = 8;
const COUNTER_MAX: u64 = (1 << (u64::BITS - COUNTER_SHIFT)) - 1;

#[derive(Debug)]
pub(super) struct Recovery {
    round: u64,
    phase: Phase,
    again_at: u64,
    repeats: u32,
    /// How often another learner's round was higher.
    yields: u32,
    /// Another learner's round is higher: the next one starts at `again_at`.
    is_refused: bool,
}

#[derive(Debug)]
enum Phase {
    /// By minion: generation and vote.
    Prepare(BTreeMap<u8, (u16, Vote)>),
    Accept(Value, BTreeMap<u8, u16>),
}

impl Recovery {
    pub fn again_at(&self) -> u64 {
        self.again_at
    }

    /// Discards what storages have done in earlier generations.
    pub fn retain(&mut self, known: &Generations) {
        match &mut self.phase {
            Phase::Prepare(promises) => {
                promises.retain(|minion, (generation, _)| *generation == known.of(*minion));
            }
            Phase::Accept(_, accepted) => {
                accepted.retain(|minion, generation| *generation == known.of(*minion));
            }
        }
    }
}

impl Learner {
    /// Returns a new round of this instance: counter | incarnation | node, so that no round is used twice. `None`: it has no
    /// incarnation yet, or no higher round exists.
    fn next_round(&mut self, now: u64, instance: u64) -> Option<u64> {
        let incarnation = self.incarnation()?;
        let at = self.at(now, instance);
        let counter = at.counter + 1;
        if counter > COUNTER_MAX {
            return None;
        }
        at.counter = counter;
        self.counts.rounds += 1;
        let round = counter << COUNTER_SHIFT
            | u64::from(incarnation) << INCARNATION_SHIFT
            | u64::from(node::learner(self.config.number));
        Some(round)
    }

    pub(super) fn recover(&mut self, now: u64, instance: u64, out: &mut Out) {
        let Some(round) = self.next_round(now, instance) else {
            if let Some(recovery) = &mut self.at(now, instance).recovery {
                recovery.again_at = now + (YIELD_NS << YIELD_DOUBLINGS_MAX);
            }
            return;
        };
        let yields = match &self.at(now, instance).recovery {
            Some(recovery) => recovery.yields,
            None => 0,
        };
        self.at(now, instance).recovery = Some(Recovery {
            round,
            phase: Phase::Prepare(BTreeMap::new()),
            again_at: now + REPEAT_NS,
            repeats: 0,
            yields,
            is_refused: false,
        });
        self.send(To::Storages, &Control::Prepare { instance, round }, out);
    }

    /// Retransmits if answers are late.
    pub(super) fn repeat(&mut self, now: u64, instance: u64, out: &mut Out) {
        let Some(recovery) = &mut self.at(now, instance).recovery else {
            return;
        };
        if now < recovery.again_at {
            return;
        }
        if recovery.is_refused {
            return self.recover(now, instance, out);
        }
        recovery.repeats = (recovery.repeats + 1).min(REPEAT_DOUBLINGS_MAX);
        recovery.again_at = now + (REPEAT_NS << recovery.repeats);
        let round = recovery.round;
        let again = match &recovery.phase {
            Phase::Prepare(_) => Control::Prepare { instance, round },
            Phase::Accept(value, _) => Control::Accept {
                instance,
                round,
                value: value.clone(),
            },
        };
        self.send(To::Storages, &again, out);
        self.send(To::Learners, &Control::Learn { instance }, out);
    }

    fn recovery_of(&mut self, instance: u64, round: u64) -> Option<&mut Recovery> {
        let recovery = self.instances.get_mut(&instance)?.recovery.as_mut()?;
        (recovery.round == round).then_some(recovery)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn on_promise(
        &mut self,
        now: u64,
        minion: u8,
        generation: u16,
        instance: u64,
        round: u64,
        vote: Vote,
        out: &mut Out,
    ) {
        let sizes = self.config.sizes;
        if generation != self.known.of(minion) {
            return;
        }
        let Some(recovery) = self.recovery_of(instance, round) else {
            return;
        };
        let Phase::Prepare(promises) = &mut recovery.phase else {
            return;
        };
        promises.insert(minion, (generation, vote));
        if promises.len() < sizes.quorum() {
            return;
        }
        let votes: Vec<&Vote> = promises.values().map(|(_, vote)| vote).collect();
        let value = choose(sizes, &votes);
        recovery.phase = Phase::Accept(value.clone(), BTreeMap::new());
        // As slow as the answers to Prepare were.
        recovery.again_at = now + (REPEAT_NS << recovery.repeats);
        let accept = Control::Accept {
            instance,
            round,
            value,
        };
        self.send(To::Storages, &accept, out);
    }

    pub(super) fn on_accepted(
        &mut self,
        now: u64,
        minion: u8,
        generation: u16,
        instance: u64,
        round: u64,
        out: &mut Out,
    ) {
        let sizes = self.config.sizes;
        if generation != self.known.of(minion) {
            return;
        }
        let Some(recovery) = self.recovery_of(instance, round) else {
            return;
        };
        let Phase::Accept(value, accepted) = &mut recovery.phase else {
            return;
        };
        accepted.insert(minion, generation);
        if accepted.len() < sizes.quorum() {
            return;
        }
        let value = value.clone();
        self.counts.recovered += 1;
        let decided = Control::Decided {
            instance,
            value: value.clone(),
        };
        self.send(To::Learners, &decided, out);
        self.send(To::Storages, &decided, out);
        self.decide(now, instance, value, out);
    }

    pub(super) fn on_refused(&mut self, now: u64, instance: u64, round: u64, promised: u64) {
        let number = u64::from(self.config.number);
        if let Some(at) = self.instances.get_mut(&instance) {
            at.counter = at.counter.max(promised >> COUNTER_SHIFT);
        }
        if let Some(recovery) = self.recovery_of(instance, round) {
            if recovery.is_refused {
                return;
            }
            recovery.is_refused = true;
            recovery.again_at = now + ((YIELD_NS * number) << recovery.yields);
            recovery.yields = (recovery.yields + 1).min(YIELD_DOUBLINGS_MAX);
        }
    }
}
