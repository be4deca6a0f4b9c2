//! An acceptor that forgets nothing: the `sync` mode of durability (protocol.md, 6).
//!
//! [`AcceptorJournal`] stands before the soft switch. It sees which registers a packet changed, and
//! holds back every answer of the acceptor, repeats included, until all changes made so far are on
//! the disk. Sans-I/O: a driver takes the records, writes and syncs them, and says so. One sync
//! covers all packets that came before it.
//!
//! A vote has to be on the disk before its PHASE2B leaves, so such an acceptor runs in user space;
//! the leader and the quorum counter of the same host may stay in the kernel.
//!
//! While the disk takes nothing the acceptor does not vote: it drops every packet. What it had been
//! told before stays held back, so no answer ever shows what is not on the disk.

mod disk;
mod record;

use crate::dataplane::registers::AcceptorView;
use crate::dataplane::soft::{Geometry, Registers, SoftSwitch, Verdict};
use crate::dataplane::wire::{flag, Header, Type, PACKET_LEN_MAX_BYTES};

pub use disk::{AcceptorDisk, AcceptorStart, DiskLimits, StartError, Synced};
pub use record::{RestoreError, Restored};

use crate::outbox::Dest;
use crate::timing::Micros;

/// How long an acceptor waits before it tries again to write to a disk that failed.
const RETRY_US: Micros = 500_000;

/// See the module.
#[derive(Debug)]
pub struct AcceptorJournal {
    geometry: Geometry,
    /// Changes of registers so far; those that records were made of; those that are on the disk.
    changed: u64,
    recorded: u64,
    synced: u64,
    partitions: Vec<usize>,
    is_in_partitions: Vec<bool>,
    slots: Vec<(usize, usize)>,
    holds: Option<Holds>,
    /// Its record is not written yet.
    holds_changed: bool,
    /// The disk is to have everything anew.
    all: bool,
    held: Vec<Held>,
    held_bytes: Vec<u8>,
    /// How many of the answers held have left.
    left: usize,
    retry_at: Option<Micros>,
    refused: u64,
}

/// For which epoch the votes of an acceptor are complete, as its control plane says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holds {
    /// The epoch it began with these votes.
    pub epoch: u32,
    /// The epoch whose votes were merged into them; 0: it began empty.
    pub base: u32,
}

/// What a reconfiguration has changed of an acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconfigured {
    /// Registers of partitions.
    Registers,
    /// Slots too.
    Slots,
}

/// An answer, and how many changes must be on the disk before it may leave.
#[derive(Debug)]
struct Held {
    after: u64,
    dest: Dest,
    /// Where in the bytes it ends.
    end: usize,
}

/// What of the acceptor a packet can change.
#[derive(PartialEq, Eq)]
struct Watch {
    acceptor: AcceptorView,
    rounds: [u64; 3],
}

impl AcceptorJournal {
    /// For a switch of these sizes whose registers are as the disk has them.
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

    /// Is a packet for the acceptor of its host?
    pub fn is_for_acceptor(header: &Header) -> bool {
        match header.kind {
            Type::Phase1A | Type::Phase2A => true,
            Type::Learn => !header.has(flag::PEER),
            Type::Trim => !header.has(flag::LEADER),
            Type::Position => !header.has(flag::LEADER) && !header.has(flag::ANSWER),
            _ => false,
        }
    }

    /// Let the switch handle a packet for the acceptor, `buffer[..len_bytes]`, whose header this is.
    /// Keeps the answer. True if the packet is for the host's state machines after all.
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
            Verdict::Back => match u8::try_from(header.node) {
                Ok(node) => Dest::Node(node),
                Err(_) => return false, // nobody we know
            },
            Verdict::ToLearners => Dest::Learners,
            Verdict::Pass => return true,
            Verdict::Drop | Verdict::ToAcceptors | Verdict::Up => return false,
        };
        self.held_bytes.extend_from_slice(&buffer[..len_bytes]);
        self.held.push(Held {
            after: self.changed,
            dest,
            end: self.held_bytes.len(),
        });
        false
    }

    /// Partition and slot that a packet is about; those of a wrong packet, which changes nothing, are
    /// those of a right one.
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

    /// What the journal began with.
    pub(crate) fn set_holds(&mut self, holds: Option<Holds>) {
        self.holds = holds;
    }

    /// For which epoch the votes are complete.
    pub fn holds(&self) -> Option<Holds> {
        self.holds
    }

    /// A reconfiguration has changed the acceptor: it is to be written, as if packets had done it.
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

    /// Is there something to write and sync now, or to try again?
    pub fn wants_sync(&self, now: Micros) -> bool {
        match self.retry_at {
            Some(at) => now >= at,
            None => self.synced < self.changed,
        }
    }

    /// When to sync, if only time has to pass for it.
    pub fn due(&self) -> Micros {
        self.retry_at.unwrap_or(Micros::MAX)
    }

    /// Hand out records of all changes that none was made of yet. Returns how many changes there
    /// are up to here, for [`AcceptorJournal::synced`].
    ///
    /// # Panics
    /// If a slot stays taken: nobody but this host's thread takes slots.
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

    /// Hand out records of all that counts: registers, and slots that are not below the floor.
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

    /// Is everything to be written anew?
    pub(crate) fn wants_all(&self) -> bool {
        self.all
    }

    /// The first `changes` changes are on the disk, all that were recorded.
    pub fn synced(&mut self, changes: u64) {
        assert!(
            changes <= self.recorded,
            "what was not written is not synced"
        );
        self.synced = self.synced.max(changes);
        self.all = false;
        self.retry_at = None;
    }

    /// The disk did not take what was recorded; it is written again at the next try. No votes until
    /// then. True if this is news.
    pub fn failed(&mut self, now: Micros) -> bool {
        self.retry_at.replace(now + RETRY_US).is_none()
    }

    /// Send the answers that may leave, in order.
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

    /// Packets dropped because the disk takes nothing.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Does the acceptor vote? Not while the disk takes nothing.
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
