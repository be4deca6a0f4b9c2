//! The omniscient observer of one log: it sees every acceptor's registers after every step, and knows what is chosen
//! before any learner does.

use std::collections::BTreeMap;

use inband_paxos::dataplane::registers::AcceptorView;
use inband_paxos::dataplane::soft::Registers;

use crate::paxos::app::value_key;
use crate::paxos::invariant::{Broken, Invariant};
use crate::paxos::limits::INSTANCES_MAX;
use crate::paxos::trace::round_name;

/// A slot as last seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    instance: u64,
    promise: u64,
    vround: u64,
    value: u64,
}

impl Seen {
    /// `None` if the slot stays locked.
    fn of(registers: &Registers, index: usize) -> Option<Seen> {
        let now = registers.ring.slot(index)?;
        let (digest, flags) = (now.digest, now.flags);
        Some(Seen {
            instance: now.instance,
            promise: now.promise,
            vround: now.vround,
            value: value_key(digest, now.client_id, now.client_seq, now.client_low, flags),
        })
    }
}

/// An acceptor as last seen.
#[derive(Debug, Default)]
struct Acceptor {
    view: AcceptorView,
    slots: Vec<Seen>,
    /// By slot: its sequence number when last read. It changes with every change of the slot.
    sequences: Vec<Option<u64>>,
    /// The highest promise ever given for the partition, whether or not it was forgotten since.
    promise_ever: u64,
    /// With a journal: votes that are not yet on disk, and their epochs.
    unsynced: Vec<(u64, Seen)>,
    /// With a journal: the state on disk, if it votes.
    synced: Option<Synced>,
}

/// An acceptor's state on disk.
#[derive(Debug, Default)]
struct Synced {
    view: AcceptorView,
    slots: Vec<Seen>,
}

/// Epoch and round of a vote. An acceptor that begins an epoch with a vote of an earlier one holds it in both. A vote
/// that an epoch's sealed majority does not hold counts for nothing in later epochs, whatever its round.
type Ballot = (u64, u64);

/// All votes ever cast for one instance.
#[derive(Debug, Default)]
struct Instance {
    /// By round.
    values: BTreeMap<u64, u64>,
    /// Bitmap of acceptors by ballot.
    voters: BTreeMap<Ballot, u64>,
    /// The chosen value and the lowest ballot that chose it.
    chosen: Option<(u64, Ballot)>,
}

fn ballot_name((epoch, round): Ballot) -> String {
    format!("{} of epoch {epoch}", round_name(round))
}

#[derive(Debug)]
pub struct Observer {
    partition: usize,
    nodes: Vec<u8>,
    /// Bitmap of acceptors by epoch.
    members: BTreeMap<u64, u64>,
    ring_slots: usize,
    acceptors: Vec<Acceptor>,
    instances: Vec<Instance>,
    chosen_highest: u64,
    /// The latest epoch that an acceptor has begun with the state of the previous one.
    open_epoch: u64,
}

impl Observer {
    /// `nodes`: all that have an acceptor.
    pub fn new(partition: usize, nodes: &[u8], ring_slots: usize) -> Observer {
        assert!(nodes.len() <= 64, "a bit for each");
        Observer {
            members: BTreeMap::new(),
            partition,
            nodes: nodes.to_vec(),
            ring_slots,
            acceptors: nodes.iter().map(|_| Acceptor::default()).collect(),
            instances: Vec::new(),
            chosen_highest: 0,
            open_epoch: 0,
        }
    }

    /// Sets the acceptors of an epoch.
    pub fn epoch_begins(&mut self, epoch: u32, acceptors: &[u8]) {
        let is_member = |node: &u8| acceptors.contains(node);
        let bits = self.nodes.iter().enumerate();
        let bits = bits.filter(|(_, node)| is_member(node));
        let bitmap = bits.map(|(at, _)| 1 << at).fold(0, |a, b| a | b);
        self.members.insert(u64::from(epoch), bitmap);
    }

    /// An acceptor does not vote: it is sealed, or is being given a state. Its registers count for nothing until it
    /// votes again.
    pub fn sealed(&mut self, node: u8, registers: &Registers) {
        let Some(at) = self.nodes.iter().position(|n| *n == node) else {
            return;
        };
        let first = self.partition * self.ring_slots;
        let slots = (first..first + self.ring_slots).map(|slot| Seen::of(registers, slot));
        let acceptor = &mut self.acceptors[at];
        acceptor.slots = slots.map(Option::unwrap_or_default).collect();
        acceptor.view = registers.acceptor.acceptor(self.partition);
        acceptor.sequences.clear();
        // What it is given is on disk only when it begins to vote with that.
        acceptor.synced = acceptor.synced.take().map(|_| Synced::default());
    }

    /// An acceptor was given the state with which it begins its epoch. Its promises of an earlier epoch concerned
    /// rounds of that epoch, which has ended.
    pub fn installed(&mut self, node: u8, registers: &Registers) -> Result<(), Broken> {
        let Some(at) = self.nodes.iter().position(|n| *n == node) else {
            return Ok(());
        };
        let view = registers.acceptor.acceptor(self.partition);
        let first = self.partition * self.ring_slots;
        let slots = (first..first + self.ring_slots).map(|slot| Seen::of(registers, slot));
        let slots: Vec<Seen> = slots.map(Option::unwrap_or_default).collect();
        for slot in slots.iter().filter(|slot| slot.vround != 0) {
            self.count(at, view.epoch, *slot)?;
        }
        self.open_epoch = self.open_epoch.max(view.epoch);
        let acceptor = &mut self.acceptors[at];
        (acceptor.view, acceptor.slots) = (view, slots);
        acceptor.sequences.clear();
        acceptor.promise_ever = view.promise;
        Ok(())
    }

    /// An acceptor lost its memory. It must still keep its earlier promises.
    pub fn forgot(&mut self, node: u8) {
        if let Some(at) = self.nodes.iter().position(|n| *n == node) {
            let acceptor = &mut self.acceptors[at];
            acceptor.view = AcceptorView::default();
            acceptor.slots.clear();
            acceptor.sequences.clear();
        }
    }

    /// An acceptor with a journal lost power: what was not on its disk never happened.
    pub fn lost_power(&mut self, node: u8) {
        self.forgot(node);
        if let Some(at) = self.nodes.iter().position(|n| *n == node) {
            self.acceptors[at].unsynced.clear();
        }
    }

    /// An acceptor with a journal has started with these registers. It must not have forgotten anything that was on its
    /// disk. From now on its actions count once they are synced.
    pub fn restored(&mut self, node: u8, registers: &Registers) -> Result<(), Broken> {
        self.recovered(node, registers)?;
        let Some(at) = self.nodes.iter().position(|n| *n == node) else {
            return Ok(());
        };
        let epoch = self.acceptors[at].view.epoch;
        let slots = self.acceptors[at].slots.clone();
        for slot in slots.iter().filter(|slot| slot.vround != 0) {
            self.count(at, epoch, *slot)?;
        }
        self.synced(node)
    }

    /// The same for one that does not vote yet: its votes may be of an earlier epoch.
    pub fn recovered(&mut self, node: u8, registers: &Registers) -> Result<(), Broken> {
        let Some(at) = self.nodes.iter().position(|n| *n == node) else {
            return Ok(());
        };
        let view = registers.acceptor.acceptor(self.partition);
        let first = self.partition * self.ring_slots;
        let slots = (first..first + self.ring_slots).map(|slot| Seen::of(registers, slot));
        let slots: Vec<Seen> = slots.map(Option::unwrap_or_default).collect();
        let synced = self.acceptors[at].synced.take().unwrap_or_default();
        let before = synced.view;
        if view.promise < before.promise || view.floor < before.floor || view.epoch < before.epoch {
            return Err(Invariant::DiskKept.broken(format!(
                "acceptor {node} forgot: it had {before:?} on its disk and starts with {view:?}"
            )));
        }
        for (was, is) in synced.slots.iter().zip(&slots) {
            let other = is.vround == was.vround && is.vround != 0 && is.value != was.value;
            let lower = is.promise < was.promise || is.vround < was.vround;
            if was.instance >= view.floor && (is.instance != was.instance || lower || other) {
                return Err(Invariant::DiskKept.broken(format!(
                    "acceptor {node} forgot: it had {was:?} on its disk and starts with {is:?}"
                )));
            }
        }
        let acceptor = &mut self.acceptors[at];
        (acceptor.view, acceptor.slots) = (view, slots);
        acceptor.sequences.clear();
        acceptor.synced = Some(Synced::default());
        Ok(())
    }

    /// The journal of an acceptor was damaged.
    pub fn lost_disk(&mut self, node: u8) {
        if let Some(at) = self.nodes.iter().position(|n| *n == node) {
            self.acceptors[at].synced = Some(Synced::default());
        }
    }

    /// Everything that an acceptor with a journal has done is now on its disk.
    pub fn synced(&mut self, node: u8) -> Result<(), Broken> {
        let Some(at) = self.nodes.iter().position(|n| *n == node) else {
            return Ok(());
        };
        let acceptor = &mut self.acceptors[at];
        acceptor.promise_ever = acceptor.promise_ever.max(acceptor.view.promise);
        acceptor.synced = Some(match acceptor.view.voting {
            true => Synced {
                view: acceptor.view,
                slots: acceptor.slots.clone(),
            },
            false => Synced::default(),
        });
        let votes = std::mem::take(&mut acceptor.unsynced);
        let mut votes = votes.into_iter();
        votes.try_for_each(|(epoch, vote)| self.count(at, epoch, vote))
    }

    /// Checks an acceptor after a step. `instance`: the only instance that the step concerned.
    pub fn look(
        &mut self,
        node: u8,
        registers: &Registers,
        instance: Option<u64>,
    ) -> Result<(), Broken> {
        let Some(at) = self.nodes.iter().position(|n| *n == node) else {
            return Ok(());
        };
        let before = self.acceptors[at].view;
        let view = registers.acceptor.acceptor(self.partition);
        if view.promise < before.promise
            || view.floor < before.floor
            || view.highest < before.highest
            || view.epoch < before.epoch
        {
            return Err(Invariant::PromiseKept.broken(format!(
                "acceptor {node}: registers fell from {before:?} to {view:?}"
            )));
        }
        let acceptor = &mut self.acceptors[at];
        acceptor.slots.resize(self.ring_slots, Seen::default());
        acceptor.sequences.resize(self.ring_slots, None);
        match instance {
            Some(instance) => {
                let slot = instance as usize & (self.ring_slots - 1);
                self.look_at_slot(at, slot, registers, &view)?;
            }
            None => {
                // Votes lie between the floor and the highest instance.
                let span = self.ring_slots as u64 - 1;
                let from = view.floor.max(view.highest.saturating_sub(span));
                for instance in from..=view.highest {
                    let slot = instance as usize & (self.ring_slots - 1);
                    self.look_at_slot(at, slot, registers, &view)?;
                }
            }
        }
        let acceptor = &mut self.acceptors[at];
        acceptor.view = view;
        if acceptor.synced.is_none() {
            acceptor.promise_ever = acceptor.promise_ever.max(view.promise);
        }
        Ok(())
    }

    fn look_at_slot(
        &mut self,
        at: usize,
        slot: usize,
        registers: &Registers,
        view: &AcceptorView,
    ) -> Result<(), Broken> {
        let node = self.nodes[at];
        let index = self.partition * self.ring_slots + slot;
        let sequence = Some(registers.ring.sequence(index));
        if self.acceptors[at].sequences[slot] == sequence {
            return Ok(());
        }
        self.acceptors[at].sequences[slot] = sequence;
        let Some(now) = Seen::of(registers, index) else {
            return Err(
                Invariant::NoPanic.broken(format!("acceptor {node}: slot {slot} stays taken"))
            );
        };
        let before = self.acceptors[at].slots[slot];
        let value = now.value;
        let same_vote = now.instance == before.instance && now.vround == before.vround;
        if same_vote && now.promise == before.promise && (value == before.value || now.vround == 0)
        {
            return Ok(());
        }
        if now.instance < before.instance {
            return Err(Invariant::RingKept.broken(format!(
                "acceptor {node}: a slot moved from {} to the lower {}",
                before.instance, now.instance
            )));
        }
        if now.instance > before.instance && before.instance != 0 && before.instance >= view.floor {
            return Err(Invariant::RingKept.broken(format!(
                "acceptor {node}: the slot of {} was reused for {} at floor {}",
                before.instance, now.instance, view.floor
            )));
        }
        if now.instance == before.instance
            && (now.promise < before.promise || now.vround < before.vround)
        {
            return Err(Invariant::PromiseKept.broken(format!(
                "acceptor {node}: slot of {} fell from promise {} and vote {} to {} and {}",
                now.instance,
                round_name(before.promise),
                round_name(before.vround),
                round_name(now.promise),
                round_name(now.vround)
            )));
        }
        self.acceptors[at].slots[slot] = now;
        if now.vround == 0 || (same_vote && value == before.value) {
            return Ok(());
        }
        let promised_slot = if now.instance == before.instance {
            before.promise
        } else {
            0
        };
        let acceptor = &self.acceptors[at];
        let promised = promised_slot
            .max(acceptor.promise_ever)
            .max(acceptor.view.promise);
        if now.vround < promised {
            return Err(Invariant::PromiseKept.broken(format!(
                "acceptor {node} voted for {} in round {}, below its promise {}",
                now.instance,
                round_name(now.vround),
                round_name(promised)
            )));
        }
        if !view.voting {
            return Err(Invariant::AmnesiacMute.broken(format!(
                "acceptor {node} voted for {} while recovering",
                now.instance
            )));
        }
        if now.instance > view.highest {
            return Err(Invariant::RingKept.broken(format!(
                "acceptor {node} voted for {} above its highest {}",
                now.instance, view.highest
            )));
        }
        if now.instance < self.acceptors[at].view.floor {
            return Err(Invariant::RingKept.broken(format!(
                "acceptor {node} voted for {} below its floor {}",
                now.instance, self.acceptors[at].view.floor
            )));
        }
        let acceptor = &mut self.acceptors[at];
        if acceptor.synced.is_some() {
            acceptor.unsynced.push((view.epoch, now));
            return Ok(());
        }
        self.count(at, view.epoch, now)
    }

    /// An acceptor holds this vote in this epoch.
    fn count(&mut self, at: usize, epoch: u64, vote: Seen) -> Result<(), Broken> {
        let (instance, round, value) = (vote.instance, vote.vround, vote.value);
        let Some(members) = self.members.get(&epoch).copied() else {
            return Err(Invariant::EpochFenced.broken(format!(
                "acceptor {} votes in epoch {epoch}, which there is not",
                self.nodes[at]
            )));
        };
        if instance > INSTANCES_MAX {
            return Err(Invariant::RingKept.broken(format!(
                "instance {instance} is beyond anything this run can reach"
            )));
        }
        let index = instance as usize;
        if self.instances.len() <= index {
            self.instances.resize_with(index + 1, Instance::default);
        }
        let known = &mut self.instances[index];
        let ballot = (epoch, round);
        if *known.values.entry(round).or_insert(value) != value {
            return Err(Invariant::RoundsUnique.broken(format!(
                "two values for {instance} in one round, {}; the second at acceptor {}",
                round_name(round),
                self.nodes[at]
            )));
        }
        if let Some((chosen, first)) = known.chosen {
            if chosen != value && ballot > first {
                return Err(Invariant::Agreement.broken(format!(
                    "acceptor {} voted in {} against the value of {instance} chosen in {}",
                    self.nodes[at],
                    ballot_name(ballot),
                    ballot_name(first)
                )));
            }
        }
        if members & 1 << at == 0 {
            return Err(Invariant::EpochFenced.broken(format!(
                "acceptor {} votes for {instance} in epoch {epoch}, of which it is no member",
                self.nodes[at]
            )));
        }
        let voters = known.voters.entry(ballot).or_default();
        *voters |= 1 << at;
        if voters.count_ones() <= members.count_ones() / 2 {
            return Ok(());
        }
        // A vote that was handed to the next epoch may still reach a majority in the old one.
        let handed_over = || {
            let later = known.voters.range((epoch + 1, 0)..);
            later
                .into_iter()
                .any(|((_, r), _)| known.values[r] == value)
        };
        if known.chosen.is_none() && epoch < self.open_epoch && !handed_over() {
            return Err(Invariant::EpochFenced.broken(format!(
                "{instance} is chosen in {} after epoch {} was opened without it",
                ballot_name(ballot),
                self.open_epoch
            )));
        }
        if let Some((chosen, first)) = known.chosen {
            if chosen != value {
                return Err(Invariant::Agreement.broken(format!(
                    "{instance} was chosen twice, differently, in {} and {}",
                    ballot_name(first),
                    ballot_name(ballot)
                )));
            }
        }
        let first = known.chosen.map_or(ballot, |(_, b)| b.min(ballot));
        known.chosen = Some((value, first));
        self.chosen_highest = self.chosen_highest.max(instance);
        let mut later = known.voters.range(first..).map(|(ballot, _)| *ballot);
        match later.find(|(_, round)| known.values[round] != value) {
            Some(ballot) => Err(Invariant::Agreement.broken(format!(
                "{instance} was chosen in {} although {} carries another value",
                ballot_name(first),
                ballot_name(ballot)
            ))),
            None => Ok(()),
        }
    }

    /// A learner learned this value: it must already be chosen.
    pub fn learned(&self, node: u8, instance: u64, value: u64) -> Result<(), Broken> {
        match self.instances.get(instance as usize).and_then(|i| i.chosen) {
            Some((chosen, _)) if chosen == value => Ok(()),
            Some((_, ballot)) => Err(Invariant::Agreement.broken(format!(
                "replica {node} learned another value for {instance} than was chosen in {}",
                ballot_name(ballot)
            ))),
            None => Err(Invariant::Agreement.broken(format!(
                "replica {node} learned {instance}, which no majority voted for"
            ))),
        }
    }

    /// Returns the highest instance that is chosen.
    pub fn chosen_highest(&self) -> u64 {
        self.chosen_highest
    }
}
