//! [`AcceptorState`] of an acceptor whose votes are only in memory: in the registers of a soft switch, or of the packet
//! programs in the kernel.

use std::ops::Deref;

use inband_ground::auth::Digest;
use inband_paxos::dataplane::registers::SlotView;
use inband_paxos::dataplane::soft::{Geometry, Registers};

use crate::acceptor::{AcceptorError, AcceptorState, Holds, Merged, Piece, Position, StoredVote};
use crate::configuration::Epoch;

/// Size of a vote besides its value, when measuring a piece.
const VOTE_LEN_BYTES: usize = 64;

/// `R` provides the registers: a reference, or something that shares their ownership.
#[derive(Debug, Clone)]
pub struct RegisterState<R> {
    registers: R,
    geometry: Geometry,
    digest: Digest,
    holds: Option<Holds>,
}

impl<R: Deref<Target = Registers>> RegisterState<R> {
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

impl<R: Deref<Target = Registers>> AcceptorState for RegisterState<R> {
    fn partitions(&self) -> usize {
        self.geometry.partitions
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn position(&self, partition: usize) -> Position {
        let view = self.registers.acceptor.acceptor(partition);
        Position {
            promise: view.promise,
            floor: view.floor,
            highest: view.highest,
        }
    }

    fn epoch(&self) -> Epoch {
        self.registers.acceptor.acceptor(0).epoch as Epoch
    }

    fn is_voting(&self) -> bool {
        self.registers.acceptor.acceptor(0).voting
    }

    fn holds(&self) -> Option<Holds> {
        self.holds
    }

    fn seal(&mut self, epoch: Epoch) -> Result<(), AcceptorError> {
        for partition in 0..self.geometry.partitions {
            self.registers.acceptor.seal(partition, u64::from(epoch));
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
            let slot = self.registers.ring.slot(index);
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
        let acceptor = &self.registers.acceptor;
        let (floor, highest) = (position.floor, position.highest);
        acceptor.adopt(partition, position.promise, floor, highest);
        let nothing = SlotView::default();
        for instance in floor..floor + self.geometry.ring_slots as u64 {
            let vote = merged.votes.get(&instance).map(view);
            let index = self.index(partition, instance);
            let slot = vote.as_ref().unwrap_or(&nothing);
            if !self.registers.ring.replace(index, slot) {
                return Err(self.taken(partition, instance));
            }
        }
        acceptor.adopted(partition, highest);
        Ok(())
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
            self.registers.acceptor.open(partition);
        }
        Ok(())
    }
}
