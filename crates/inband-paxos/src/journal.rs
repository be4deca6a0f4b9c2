//! An acceptor that loses nothing: the `sync` mode of durability (protocol.md, 6).
//!
//! [`AcceptorJournal`] is in front of the soft switch. It sees which registers a packet changed, and holds back every
//! answer of the acceptor, retransmissions included, until all changes made so far are on disk. Sans-I/O: a driver
//! takes the records, writes and syncs them, and reports that. One sync covers all packets before it.
//!
//! A vote must be on disk before its PHASE2B is sent, so such an acceptor runs in user space; the leader and the quorum
//! counter of the same host may stay in the kernel.
//!
//! While the disk accepts no writes the acceptor does not vote: it drops every packet. Answers to earlier packets stay
//! held back, so no answer ever shows what is not on disk.

mod disk;
mod record;

use crate::dataplane::registers::AcceptorView;
use crate::dataplane::soft::{Geometry, Registers, SoftSwitch, Verdict};
use crate::dataplane::wire::{flag, Header, Type, PACKET_LEN_MAX_BYTES};

pub use disk::{AcceptorDisk, AcceptorStart, DiskLimits, StartError, Synced};
pub use record::{RestoreError, Restored};

use crate::outbox::Dest;
use crate::timing::Micros;

/// How long an acceptor waits before it retries a write to a failed disk.
const RETRY_US: Micros = 500_000;

#[derive(Debug)]
pub struct AcceptorJournal {
    geometry: Geometry,
    /// Number of register changes so far; those with records; those on disk.
    changed: u64,
    recorded: u64,
    synced: u64,
    partitions: Vec<usize>,
    is_in_partitions: Vec<bool>,
    slots: Vec<(usize, usize)>,
    holds: Option<Holds>,
    /// Its record has not been written yet.
    holds_changed: bool,
    /// The whole state must be written again.
    all: bool,
    held: Vec<Held>,
    held_bytes: Vec<u8>,
    /// How many of the held answers have been sent.
    left: usize,
    retry_at: Option<Micros>,
    refused: u64,
}

/// The epoch for which an acceptor's votes are complete, according to its control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holds {
    /// The epoch that it entered with these votes.
    pub epoch: u32,
    /// The epoch whose votes were merged into them; 0: it started empty.
    pub base: u32,
}

/// What a reconfiguration has changed in an acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconfigured {
    /// Partition registers.
    Registers,
    /// Slots as well.
    Slots,
}

/// An answer, and how many changes must be on disk before it may be sent.
#[derive(Debug)]
struct Held {
    after: u64,
    dest: Dest,
    /// Its end offset in the bytes.
    end: usize,
}

/// The part of the acceptor's state that a packet can change.
#[derive(PartialEq, Eq)]
struct Watch {
    acceptor: AcceptorView,
    rounds: [u64; 3],
}

impl AcceptorJournal {
    /// For a switch of these sizes whose registers match the disk.
    pub fn new(geometry: Geometry) -> AcceptorJournal {
        AcceptorJournal {
            geometry,
            changed: 0,
            recorded: 0,
            synced: 0,
            partitions: Vec::new(),
            is_in_partitions: vec![false; geometry.partitions],
            slots: Vec::new(),
            holds: None,
            holds_changed: false,
            all: false,
            held: Vec::new(),
            held_bytes: Vec::new(),
            left: 0,
            retry_at: None,
            refused: 0,
        }
    }

    /// Returns whether a packet is for this host's acceptor.
    pub fn is_for_acceptor(header: &Header) -> bool {
        match header.kind {
            Type::Phase1A | Type::Phase2A => true,
            Type::Learn => !header.has(flag::PEER),
            Type::Trim => !header.has(flag::LEADER),
            Type::Position => !header.has(flag::LEADER) && !header.has(flag::ANSWER),
            _ => false,
        }
    }

    /// Lets the switch handle a packet for the acceptor, `buffer[..len_bytes]`, with this header. Keeps the answer.
    /// Returns true if the packet is for the host's state machines after all.
    pub fn handle(
        &mut self,
        switch: &SoftSwitch,
        header: &Header,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
    ) -> bool {
        if self.retry_at.is_some() {
            self.refused += 1;
            return false;
        }
        let (partition, slot) = self.place(header);
        let before = watch(switch.registers(), partition, slot);
        let (verdict, _reason, len_bytes) = switch.handle(buffer, len_bytes);
        let after = watch(switch.registers(), partition, slot);
        if before != after {
            self.note(partition, slot, &before, &after);
        }
        let dest = match verdict {
            Verdict::Reply => match u8::try_from(header.node) {
                Ok(node) => Dest::Node(node),
                Err(_) => return false, // nobody we know
            },
            Verdict::ToLearners => Dest::Learners,
            Verdict::Pass => return true,
            Verdict::Drop | Verdict::ToAcceptors | Verdict::Deliver => return false,
        };
        self.held_bytes.extend_from_slice(&buffer[..len_bytes]);
        self.held.push(Held {
            after: self.changed,
            dest,
            end: self.held_bytes.len(),
        });
        false
    }

    /// Partition and slot of a packet; an invalid packet, which changes nothing, maps to those of a valid one.
    fn place(&self, header: &Header) -> (usize, usize) {
        let Geometry {
            partitions,
            ring_slots,
        } = self.geometry;
        let partition = usize::from(header.partition) % partitions;
        (
            partition,
            self.index(partition, header.instance % ring_slots as u64),
        )
    }

    fn index(&self, partition: usize, slot: u64) -> usize {
        partition * self.geometry.ring_slots + slot as usize
    }

    fn note(&mut self, partition: usize, slot: usize, before: &Watch, after: &Watch) {
        self.changed += 1;
        if before.acceptor != after.acceptor
            && !std::mem::replace(&mut self.is_in_partitions[partition], true)
        {
            self.partitions.push(partition);
        }
        if before.rounds != after.rounds && self.slots.last() != Some(&(partition, slot)) {
            self.slots.push((partition, slot));
        }
    }

    /// Sets the initial state of the journal.
    pub(crate) fn set_holds(&mut self, holds: Option<Holds>) {
        self.holds = holds;
    }

    /// Returns the epoch for which the votes are complete.
    pub fn holds(&self) -> Option<Holds> {
        self.holds
    }

    /// A reconfiguration has changed the acceptor: write the changes as if packets had made them.
    pub fn reconfigured(&mut self, what: Reconfigured, holds: Option<Holds>) {
        self.changed += 1;
        if holds.is_some() && self.holds != holds {
            (self.holds, self.holds_changed) = (holds, true);
        }
        self.all |= what == Reconfigured::Slots;
        for partition in 0..self.geometry.partitions {
            if !std::mem::replace(&mut self.is_in_partitions[partition], true) {
                self.partitions.push(partition);
            }
        }
    }

    /// Returns whether there is something to write and sync, or to retry, now.
    pub fn wants_sync(&self, now: Micros) -> bool {
        match self.retry_at {
            Some(at) => now >= at,
            None => self.synced < self.changed,
        }
    }

    /// Returns when to sync, if only time must pass before it.
    pub fn due(&self) -> Micros {
        self.retry_at.unwrap_or(Micros::MAX)
    }

    /// Appends records of all changes that have none yet. Returns the number of changes up to here, for
    /// [`AcceptorJournal::synced`].
    ///
    /// # Panics
    /// If a slot stays taken: only this host's thread takes slots.
    pub fn record(&mut self, registers: &Registers, append: &mut dyn FnMut(&[u8])) -> u64 {
        for partition in self.partitions.drain(..) {
            self.is_in_partitions[partition] = false;
            record::append_partition(registers, partition, append);
        }
        for (partition, slot) in self.slots.drain(..) {
            record::append_slot(registers, partition, slot, append);
        }
        if let (Some(holds), true) = (self.holds, std::mem::take(&mut self.holds_changed)) {
            record::append_holds(holds, append);
        }
        self.recorded = self.changed;
        self.recorded
    }

    /// Appends records of the whole live state: registers, and slots that are not below the floor.
    fn record_all(&self, registers: &Registers, append: &mut dyn FnMut(&[u8])) {
        let geometry = self.geometry;
        for partition in 0..geometry.partitions {
            record::append_partition(registers, partition, append);
            let first = partition * geometry.ring_slots;
            let floor = registers.acceptor.acceptor(partition).floor;
            for slot in first..first + geometry.ring_slots {
                let [instance, promise, vround] = registers.ring.rounds(slot);
                if instance >= floor && (promise, vround) != (0, 0) {
                    record::append_slot(registers, partition, slot, append);
                }
            }
        }
        if let Some(holds) = self.holds {
            record::append_holds(holds, append);
        }
    }

    /// Returns whether the whole state must be written again.
    pub(crate) fn wants_all(&self) -> bool {
        self.all
    }

    /// The first `changes` changes, which are all that were recorded, are on disk.
    pub fn synced(&mut self, changes: u64) {
        assert!(
            changes <= self.recorded,
            "what was not written is not synced"
        );
        self.synced = self.synced.max(changes);
        self.all = false;
        self.retry_at = None;
    }

    /// The disk rejected what was recorded; it is written again at the next attempt. No votes until then. Returns true
    /// for the first failure in a row.
    pub fn failed(&mut self, now: Micros) -> bool {
        self.retry_at.replace(now + RETRY_US).is_none()
    }

    /// Sends the answers that may be sent, in order.
    pub fn release(&mut self, send: &mut dyn FnMut(Dest, &[u8])) {
        let mut start = match self.left {
            0 => 0,
            left => self.held[left - 1].end,
        };
        for held in &self.held[self.left..] {
            if held.after > self.synced {
                return;
            }
            self.left += 1;
            send(held.dest, &self.held_bytes[start..held.end]);
            start = held.end;
        }
        self.held.clear();
        self.held_bytes.clear();
        self.left = 0;
    }

    /// Returns the number of packets dropped because the disk accepts no writes.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns whether the acceptor has stopped voting because the disk accepts no writes.
    pub fn is_stalled(&self) -> bool {
        self.retry_at.is_some()
    }
}

fn watch(registers: &Registers, partition: usize, slot: usize) -> Watch {
    Watch {
        acceptor: registers.acceptor.acceptor(partition),
        rounds: registers.ring.rounds(slot),
    }
}
