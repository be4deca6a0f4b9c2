//! [`AcceptorState`] of an acceptor whose votes are only in memory: in the registers of a soft switch, of the packet
//! programs in the kernel, or of another device ([`AcceptorRegisters`]).

use std::ops::Deref;

use inband_ground::auth::Digest;
use inband_paxos::dataplane::registers::{AcceptorView, SlotView};
use inband_paxos::dataplane::soft::{Geometry, Registers};

use crate::acceptor::{AcceptorError, AcceptorState, Holds, Merged, Piece, Position, StoredVote};
use crate::configuration::Epoch;

/// Size of a vote besides its value, when measuring a piece.
const VOTE_LEN_BYTES: usize = 64;

/// The registers of an acceptor, beneath its packets. Slots have indexes `partition * ring_slots + instance %
/// ring_slots`.
pub trait AcceptorRegisters {
    /// Returns the registers of a partition; those of an acceptor that does not vote if they are lost.
    fn view(&self, partition: usize) -> AcceptorView;

    /// Returns whether the registers, and so all votes, are gone for good.
    fn is_lost(&self) -> bool {
        false
    }

    /// Stops voting, and raises the epoch to at least `epoch`. On return, slots have every vote of a lower epoch that
    /// will ever be cast.
    fn seal(&self, partition: usize, epoch: u64) -> Result<(), AcceptorError>;

    /// Raises promise, floor and highest, before the slots of a sealed acceptor are replaced.
    fn adopt(
        &self,
        partition: usize,
        promise: u64,
        floor: u64,
        highest: u64,
    ) -> Result<(), AcceptorError>;

    /// The slots of a sealed acceptor have been replaced: there is no vote above `highest`.
    fn adopted(&self, partition: usize, highest: u64) -> Result<(), AcceptorError>;

    /// Starts voting in the epoch for which the acceptor was sealed.
    fn open(&self, partition: usize) -> Result<(), AcceptorError>;

    /// Reads a slot of a sealed acceptor; `None` if it stays taken by a packet.
    fn slot(&self, index: usize) -> Result<Option<SlotView>, AcceptorError>;

    /// Replaces a slot of a sealed acceptor; `false` if it stays taken by a packet.
    fn replace(&self, index: usize, slot: &SlotView) -> Result<bool, AcceptorError>;
}

impl AcceptorRegisters for Registers {
    fn view(&self, partition: usize) -> AcceptorView {
        self.acceptor.acceptor(partition)
    }

    fn seal(&self, partition: usize, epoch: u64) -> Result<(), AcceptorError> {
        self.acceptor.seal(partition, epoch);
        Ok(())
    }

    fn adopt(
        &self,
        partition: usize,
        promise: u64,
        floor: u64,
        highest: u64,
    ) -> Result<(), AcceptorError> {
        self.acceptor.adopt(partition, promise, floor, highest);
        Ok(())
    }

    fn adopted(&self, partition: usize, highest: u64) -> Result<(), AcceptorError> {
        self.acceptor.adopted(partition, highest);
        Ok(())
    }

    fn open(&self, partition: usize) -> Result<(), AcceptorError> {
        self.acceptor.open(partition);
        Ok(())
    }

    fn slot(&self, index: usize) -> Result<Option<SlotView>, AcceptorError> {
        Ok(self.ring.slot(index))
    }

    fn replace(&self, index: usize, slot: &SlotView) -> Result<bool, AcceptorError> {
        Ok(self.ring.replace(index, slot))
    }
}

/// `R` provides the registers: a reference, or something that shares their ownership.
#[derive(Debug, Clone)]
pub struct RegisterState<R> {
    registers: R,
    geometry: Geometry,
    digest: Digest,
    holds: Option<Holds>,
}

impl<R: Deref<Target: AcceptorRegisters>> RegisterState<R> {
    /// Creates an acceptor that has just started without state, in a cluster without keys: it does not vote.
    pub fn new(registers: R, geometry: Geometry) -> RegisterState<R> {
        RegisterState::restored(registers, geometry, Digest::PLAIN, None)
    }

    /// Returns an acceptor whose votes may have outlived the process: they are complete for `holds`.
    pub fn restored(
        registers: R,
        geometry: Geometry,
        digest: Digest,
        holds: Option<Holds>,
    ) -> RegisterState<R> {
        RegisterState {
            registers,
            geometry,
            digest,
            holds,
        }
    }

    fn index(&self, partition: usize, instance: u64) -> usize {
        partition * self.geometry.ring_slots + self.slot(instance)
    }

    fn slot(&self, instance: u64) -> usize {
        (instance % self.geometry.ring_slots as u64) as usize
    }

    fn taken(&self, partition: usize, instance: u64) -> AcceptorError {
        AcceptorError::Taken {
            partition,
            slot: self.slot(instance),
        }
    }
}

fn stored(view: SlotView) -> StoredVote {
    StoredVote {
        instance: view.instance,
        promise: view.promise,
        vround: view.vround,
        digest: view.digest,
        client_id: view.client_id,
        client_seq: view.client_seq,
        client_low: view.client_low,
        flags: view.flags,
        value: view.value,
    }
}

fn view(vote: &StoredVote) -> SlotView {
    SlotView {
        instance: vote.instance,
        promise: vote.promise,
        vround: vote.vround,
        digest: vote.digest,
        client_id: vote.client_id,
        client_seq: vote.client_seq,
        client_low: vote.client_low,
        flags: vote.flags,
        value: vote.value.clone(),
    }
}

impl<R: Deref<Target: AcceptorRegisters>> AcceptorState for RegisterState<R> {
    fn partitions(&self) -> usize {
        self.geometry.partitions
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn position(&self, partition: usize) -> Position {
        let view = self.registers.view(partition);
        Position {
            promise: view.promise,
            floor: view.floor,
            highest: view.highest,
        }
    }

    fn epoch(&self) -> Epoch {
        self.registers.view(0).epoch as Epoch
    }

    fn is_voting(&self) -> bool {
        self.registers.view(0).voting
    }

    fn holds(&self) -> Option<Holds> {
        self.holds.filter(|_| !self.registers.is_lost())
    }

    fn seal(&mut self, epoch: Epoch) -> Result<(), AcceptorError> {
        for partition in 0..self.geometry.partitions {
            self.registers.seal(partition, u64::from(epoch))?;
        }
        Ok(())
    }

    fn export(
        &self,
        partition: usize,
        from: u64,
        len_bytes_max: usize,
    ) -> Result<Piece, AcceptorError> {
        let mut position = self.position(partition);
        let mut votes = Vec::new();
        let mut len_bytes = 0;
        let mut instance = from.max(position.floor).max(1);
        while instance <= position.highest && len_bytes < len_bytes_max {
            let index = self.index(partition, instance);
            let slot = self.registers.slot(index)?;
            let slot = slot.ok_or_else(|| self.taken(partition, instance))?;
            if slot.instance == instance {
                position.promise = position.promise.max(slot.promise);
                if slot.vround != 0 {
                    len_bytes += VOTE_LEN_BYTES + slot.value.len();
                    votes.push(stored(slot));
                }
            }
            instance += 1;
        }
        let next = (instance <= position.highest).then_some(instance);
        Ok(Piece {
            position,
            votes,
            next,
        })
    }

    fn install(&mut self, partition: usize, merged: &Merged) -> Result<(), AcceptorError> {
        let position = merged.position;
        let (floor, highest) = (position.floor, position.highest);
        self.registers
            .adopt(partition, position.promise, floor, highest)?;
        let nothing = SlotView::default();
        for instance in floor..floor + self.geometry.ring_slots as u64 {
            let vote = merged.votes.get(&instance).map(view);
            let index = self.index(partition, instance);
            let slot = vote.as_ref().unwrap_or(&nothing);
            if !self.registers.replace(index, slot)? {
                return Err(self.taken(partition, instance));
            }
        }
        self.registers.adopted(partition, highest)
    }

    fn installed(&mut self, holds: Holds) -> Result<(), AcceptorError> {
        self.holds = Some(holds);
        Ok(())
    }

    fn start_fresh(&mut self, epoch: Epoch, first: &[u64]) -> Result<(), AcceptorError> {
        self.seal(epoch)?;
        for (partition, first) in first.iter().enumerate().take(self.geometry.partitions) {
            let mut merged = Merged::default();
            merged.position.floor = *first;
            merged.position.highest = first.saturating_sub(1);
            self.install(partition, &merged)?;
        }
        self.holds = Some(Holds { epoch, base: 0 });
        self.open()
    }

    fn open(&mut self) -> Result<(), AcceptorError> {
        for partition in 0..self.geometry.partitions {
            self.registers.open(partition)?;
        }
        Ok(())
    }
}
