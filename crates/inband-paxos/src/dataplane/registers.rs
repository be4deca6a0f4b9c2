//! Registers as user space reads and writes them, while packet programs use them on other CPUs.
//!
//! Every access is a whole 64-bit atomic word. Promises are raised by compare-and-swap with a full
//! fence before slots are read (protocol.md, 1).

use std::sync::atomic::{fence, AtomicU64, Ordering};

use super::c;
use inband_ground::registers::{field, registers, Shared};

/// Attempts to read a consistent slot before giving up.
const SLOT_READ_TRIES_MAX: u32 = 1_000_000;
/// After this many attempts on a taken slot, yield the CPU to its holder.
const SLOT_READ_SPINS: u32 = 1_000;

/// A view of the leader's registers of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct LeaderView {
    pub round: u64,
    pub next: u64,
    pub floor: u64,
    pub epoch: u64,
}

registers!(
    /// Leader registers, one per partition.
    LeaderRegisters of c::ib_leader_regs
);

impl LeaderRegisters {
    /// Reads the registers; `round` first, so a new round never comes with an old `next`.
    pub fn leader(&self, partition: usize) -> LeaderView {
        let read = |word: &AtomicU64| word.load(Ordering::SeqCst);
        LeaderView {
            round: read(field!(self, partition, c::ib_leader_regs, round)),
            next: read(field!(self, partition, c::ib_leader_regs, next)),
            floor: read(field!(self, partition, c::ib_leader_regs, floor)),
            epoch: read(field!(self, partition, c::ib_leader_regs, epoch)),
        }
    }

    /// Starts stamping. `view.round` must never have been used before by any node.
    pub fn activate(&self, partition: usize, view: LeaderView) {
        assert!(view.round != 0 && view.next >= view.floor && view.next > 0);
        self.deactivate(partition);
        let write = |word: &AtomicU64, value| word.store(value, Ordering::SeqCst);
        write(field!(self, partition, c::ib_leader_regs, next), view.next);
        write(
            field!(self, partition, c::ib_leader_regs, floor),
            view.floor,
        );
        write(
            field!(self, partition, c::ib_leader_regs, epoch),
            view.epoch,
        );
        write(
            field!(self, partition, c::ib_leader_regs, round),
            view.round,
        );
    }

    /// Sets the registers to the given values: for tests with a leader that receives no packets meanwhile.
    pub fn restore(&self, partition: usize, view: LeaderView) {
        let write = |word: &AtomicU64, value| word.store(value, Ordering::SeqCst);
        write(field!(self, partition, c::ib_leader_regs, next), view.next);
        write(
            field!(self, partition, c::ib_leader_regs, floor),
            view.floor,
        );
        write(
            field!(self, partition, c::ib_leader_regs, epoch),
            view.epoch,
        );
        write(
            field!(self, partition, c::ib_leader_regs, round),
            view.round,
        );
    }

    /// Stops stamping. Packets in flight may still leave with the old round.
    pub fn deactivate(&self, partition: usize) {
        field!(self, partition, c::ib_leader_regs, round).store(0, Ordering::SeqCst);
    }
}

/// A view of the acceptor's registers of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct AcceptorView {
    pub promise: u64,
    pub floor: u64,
    pub highest: u64,
    pub epoch: u64,
    pub voting: bool,
}

registers!(
    /// Acceptor registers, one per partition.
    AcceptorRegisters of c::ib_acceptor_regs
);

impl AcceptorRegisters {
    pub fn acceptor(&self, partition: usize) -> AcceptorView {
        let read = |word: &AtomicU64| word.load(Ordering::SeqCst);
        AcceptorView {
            promise: read(field!(self, partition, c::ib_acceptor_regs, promise)),
            floor: read(field!(self, partition, c::ib_acceptor_regs, floor)),
            highest: read(field!(self, partition, c::ib_acceptor_regs, highest)),
            epoch: read(field!(self, partition, c::ib_acceptor_regs, epoch)),
            voting: read(field!(self, partition, c::ib_acceptor_regs, voting)) != 0,
        }
    }

    /// Enters an epoch with an empty ring: everything below `floor` is in the replicas' state. With `voting` false the
    /// acceptor is *recovering*: it answers POSITION and nothing else.
    pub fn start(&self, partition: usize, epoch: u64, floor: u64, voting: bool) {
        let write = |word: &AtomicU64, value| word.store(value, Ordering::SeqCst);
        write(field!(self, partition, c::ib_acceptor_regs, voting), 0);
        write(field!(self, partition, c::ib_acceptor_regs, floor), floor);
        write(
            field!(self, partition, c::ib_acceptor_regs, highest),
            floor.saturating_sub(1),
        );
        write(field!(self, partition, c::ib_acceptor_regs, epoch), epoch);
        write(
            field!(self, partition, c::ib_acceptor_regs, voting),
            u64::from(voting),
        );
    }

    /// Sets the registers to the given values, on an acceptor that receives no packets meanwhile.
    pub fn restore(&self, partition: usize, view: AcceptorView) {
        self.start(partition, view.epoch, view.floor, false);
        let write = |word: &AtomicU64, value| word.store(value, Ordering::SeqCst);
        write(
            field!(self, partition, c::ib_acceptor_regs, promise),
            view.promise,
        );
        write(
            field!(self, partition, c::ib_acceptor_regs, highest),
            view.highest,
        );
        write(
            field!(self, partition, c::ib_acceptor_regs, voting),
            u64::from(view.voting),
        );
    }

    /// Stops voting and raises the epoch to at least `epoch`, then fences: slots read afterwards hold every vote of a
    /// lower epoch that will ever be cast. A packet program that read the registers before this either holds its slot,
    /// or sees the change when it reads them again.
    pub fn seal(&self, partition: usize, epoch: u64) {
        field!(self, partition, c::ib_acceptor_regs, voting).store(0, Ordering::SeqCst);
        field!(self, partition, c::ib_acceptor_regs, epoch).fetch_max(epoch, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called before the slots of a sealed acceptor are replaced by merged ones, so that a concurrent reader never
    /// misses a slot above the floor.
    pub fn adopt(&self, partition: usize, promise: u64, floor: u64, highest: u64) {
        field!(self, partition, c::ib_acceptor_regs, promise).fetch_max(promise, Ordering::SeqCst);
        field!(self, partition, c::ib_acceptor_regs, floor).fetch_max(floor, Ordering::SeqCst);
        field!(self, partition, c::ib_acceptor_regs, highest).fetch_max(highest, Ordering::SeqCst);
    }

    /// Called after the slots of a sealed acceptor have been replaced: there is no vote above `highest` any more.
    pub fn adopted(&self, partition: usize, highest: u64) {
        field!(self, partition, c::ib_acceptor_regs, highest).store(highest, Ordering::SeqCst);
    }

    /// Starts voting in the epoch for which the acceptor was sealed.
    pub fn open(&self, partition: usize) {
        field!(self, partition, c::ib_acceptor_regs, voting).store(1, Ordering::SeqCst);
    }

    /// Raises the partition's promise to at least `round`, then fences: slots read afterwards hold every vote of a
    /// lower round that will ever count. Returns the promise now in force.
    pub fn raise_promise(&self, partition: usize, round: u64) -> u64 {
        let word = field!(self, partition, c::ib_acceptor_regs, promise);
        let before = word.fetch_max(round, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        before.max(round)
    }
}

/// A consistent view of one slot of an acceptor's ring.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct SlotView {
    pub instance: u64,
    pub promise: u64,
    pub vround: u64,
    pub digest: u64,
    pub client_id: u64,
    pub client_seq: u64,
    pub client_low: u64,
    pub flags: u16,
    pub value: Vec<u8>,
}

/// The acceptors' rings: slots, and separately the tails of long values.
pub struct Ring {
    slots: Shared<c::ib_slot>,
    /// Indexed like the slots.
    tails: Shared<c::ib_tail>,
}

impl Ring {
    /// Creates a ring over a program's two maps, which must have the same length.
    pub fn new(slots: Shared<c::ib_slot>, tails: Shared<c::ib_tail>) -> Ring {
        assert_eq!(slots.count(), tails.count(), "every slot has a tail");
        Ring { slots, tails }
    }

    /// Creates a ring in zeroed memory of this process.
    pub fn zeroed(count: usize) -> Ring {
        Ring::new(Shared::zeroed(count), Shared::zeroed(count))
    }

    /// Returns the slots, for the native roles.
    pub fn slots(&self) -> &Shared<c::ib_slot> {
        &self.slots
    }

    /// Returns the tails, for the native roles.
    pub fn tails(&self) -> &Shared<c::ib_tail> {
        &self.tails
    }

    pub fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes() + self.tails.memory_bytes()
    }

    /// Returns the words of a slot and its tail, each read atomically; consistent with each other only if there are no
    /// concurrent writes.
    pub fn words(&self, index: usize) -> Vec<u64> {
        [self.slots.words(index), self.tails.words(index)].concat()
    }

    /// Word `at` of a value.
    fn value_word(&self, index: usize, at: usize) -> &AtomicU64 {
        const IN_SLOT: usize = c::IB_SLOT_VALUE_BYTES as usize / 8;
        if at < IN_SLOT {
            let base = std::mem::offset_of!(c::ib_slot, value);
            self.slots.word(index, base + at * 8)
        } else {
            self.tails.word(index, (at - IN_SLOT) * 8)
        }
    }

    /// Copies a slot consistently: waits while it is taken and retries if it changed. `None` if it stayed taken for the
    /// maximum number of attempts.
    pub fn slot(&self, index: usize) -> Option<SlotView> {
        let sequence = field!(self.slots, index, c::ib_slot, sequence);
        for attempt in 0..SLOT_READ_TRIES_MAX {
            let before = sequence.load(Ordering::Acquire);
            if before & 1 == 1 {
                // A packet program holds a slot for nanoseconds, but a soft switch's thread may have been preempted by
                // this one.
                if attempt < SLOT_READ_SPINS {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
                continue;
            }
            let view = self.copy_slot(index);
            fence(Ordering::Acquire);
            if sequence.load(Ordering::Relaxed) == before {
                return Some(view);
            }
        }
        None
    }

    /// Increases whenever the slot changes; odd while it is taken.
    pub fn sequence(&self, index: usize) -> u64 {
        let sequence = field!(self.slots, index, c::ib_slot, sequence);
        sequence.load(Ordering::Acquire)
    }

    /// Instance of a slot, round promised for it and round of its vote: any change of the slot changes one of them.
    /// Consistent only if it receives no packets meanwhile.
    pub fn rounds(&self, index: usize) -> [u64; 3] {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        [
            read(field!(self.slots, index, c::ib_slot, vote.instance)),
            read(field!(self.slots, index, c::ib_slot, vote.promise)),
            read(field!(self.slots, index, c::ib_slot, vote.vround)),
        ]
    }

    fn copy_slot(&self, index: usize) -> SlotView {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let vote = std::mem::offset_of!(c::ib_slot, vote);
        let at = |offset: usize| read(self.slots.word(index, vote + offset));
        let packed = at(std::mem::offset_of!(c::ib_vote, value_len_bytes)).to_ne_bytes();
        let value_len_bytes = usize::from(u16::from_ne_bytes([packed[0], packed[1]]))
            .min(c::IB_VALUE_LEN_MAX_BYTES as usize);
        let mut value = Vec::with_capacity(value_len_bytes + 8);
        for i in 0..value_len_bytes.div_ceil(8) {
            value.extend_from_slice(&read(self.value_word(index, i)).to_ne_bytes());
        }
        value.truncate(value_len_bytes);
        SlotView {
            instance: at(std::mem::offset_of!(c::ib_vote, instance)),
            promise: at(std::mem::offset_of!(c::ib_vote, promise)),
            vround: at(std::mem::offset_of!(c::ib_vote, vround)),
            digest: at(std::mem::offset_of!(c::ib_vote, digest)),
            client_id: at(std::mem::offset_of!(c::ib_vote, client_id)),
            client_seq: at(std::mem::offset_of!(c::ib_vote, client_seq)),
            client_low: at(std::mem::offset_of!(c::ib_vote, client_low)),
            flags: u16::from_ne_bytes([packed[2], packed[3]]),
            value,
        }
    }

    /// Replaces a slot of a sealed acceptor, taking it as a packet program does: a program that took it before the seal
    /// finishes first. Returns false if it stayed taken for the maximum number of attempts.
    ///
    /// # Panics
    /// If the value is longer than a slot's room.
    pub fn replace(&self, index: usize, view: &SlotView) -> bool {
        let sequence = field!(self.slots, index, c::ib_slot, sequence);
        for attempt in 0..SLOT_READ_TRIES_MAX {
            let even = sequence.load(Ordering::SeqCst);
            let taken = even & 1 == 0
                && sequence
                    .compare_exchange(even, even + 1, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok();
            if taken {
                self.restore(index, view);
                sequence.store(even + 2, Ordering::SeqCst);
                return true;
            }
            if attempt < SLOT_READ_SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        false
    }

    /// Sets a slot to the given contents, while it receives no packets.
    ///
    /// # Panics
    /// If the value is longer than a slot's room.
    pub fn restore(&self, index: usize, view: &SlotView) {
        assert!(view.value.len() <= c::IB_VALUE_LEN_MAX_BYTES as usize);
        let vote = std::mem::offset_of!(c::ib_slot, vote);
        let put = |offset: usize, value: u64| {
            self.slots
                .word(index, offset)
                .store(value, Ordering::SeqCst)
        };
        put(
            vote + std::mem::offset_of!(c::ib_vote, instance),
            view.instance,
        );
        put(
            vote + std::mem::offset_of!(c::ib_vote, promise),
            view.promise,
        );
        put(vote + std::mem::offset_of!(c::ib_vote, vround), view.vround);
        put(vote + std::mem::offset_of!(c::ib_vote, digest), view.digest);
        put(
            vote + std::mem::offset_of!(c::ib_vote, client_id),
            view.client_id,
        );
        put(
            vote + std::mem::offset_of!(c::ib_vote, client_seq),
            view.client_seq,
        );
        put(
            vote + std::mem::offset_of!(c::ib_vote, client_low),
            view.client_low,
        );
        let [a, b] = (view.value.len() as u16).to_ne_bytes();
        let [d, e] = view.flags.to_ne_bytes();
        let [f, g, h, i] = super::wire::checksum(&view.value).to_ne_bytes();
        let packed = u64::from_ne_bytes([a, b, d, e, f, g, h, i]);
        put(
            vote + std::mem::offset_of!(c::ib_vote, value_len_bytes),
            packed,
        );
        for (i, chunk) in view.value.chunks(8).enumerate() {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.value_word(index, i)
                .store(u64::from_ne_bytes(word), Ordering::SeqCst);
        }
    }
}

/// One slot of a quorum counter's ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct CountView {
    pub instance: u64,
    pub epoch: u64,
    pub round: u64,
    pub digest: u64,
    /// Bitmap of the members that voted.
    pub members: u64,
    /// The value was passed to user space.
    pub done: bool,
}

registers!(
    /// Rings of quorum counters.
    CountRegisters of c::ib_count_slot
);

impl CountRegisters {
    /// Reads a count; consistent only if it receives no packets meanwhile.
    pub fn counted(&self, index: usize) -> CountView {
        let read = |word: &AtomicU64| word.load(Ordering::SeqCst);
        CountView {
            instance: read(field!(self, index, c::ib_count_slot, count.instance)),
            epoch: read(field!(self, index, c::ib_count_slot, count.epoch)),
            round: read(field!(self, index, c::ib_count_slot, count.round)),
            digest: read(field!(self, index, c::ib_count_slot, count.digest)),
            members: read(field!(self, index, c::ib_count_slot, count.members)),
            done: read(field!(self, index, c::ib_count_slot, count.done)) != 0,
        }
    }

    /// Sets a count to the given contents: for tests, while it receives no packets.
    pub fn restore(&self, index: usize, view: CountView) {
        let write = |word: &AtomicU64, value| word.store(value, Ordering::SeqCst);
        write(
            field!(self, index, c::ib_count_slot, count.instance),
            view.instance,
        );
        write(
            field!(self, index, c::ib_count_slot, count.epoch),
            view.epoch,
        );
        write(
            field!(self, index, c::ib_count_slot, count.round),
            view.round,
        );
        write(
            field!(self, index, c::ib_count_slot, count.digest),
            view.digest,
        );
        write(
            field!(self, index, c::ib_count_slot, count.members),
            view.members,
        );
        write(
            field!(self, index, c::ib_count_slot, count.done),
            u64::from(view.done),
        );
    }
}

registers!(
    /// The members of an epoch.
    QuorumRegisters of c::ib_quorum_config
);

impl QuorumRegisters {
    /// Sets the members of an epoch: acceptors' node ids, a majority of which decides. Must precede the counter's first
    /// packet of that epoch.
    pub fn configure(&self, epoch: u64, members: &[u8]) {
        assert!(!members.is_empty() && members.len() <= c::IB_ACCEPTORS_MAX as usize);
        let mut bits = [0u8; 256];
        for (i, node) in members.iter().enumerate() {
            bits[usize::from(*node)] = i as u8 + 1;
        }
        let base = std::mem::offset_of!(c::ib_quorum_config, member_bit);
        field!(self, 0, c::ib_quorum_config, epoch).store(0, Ordering::SeqCst);
        for (i, chunk) in bits.chunks_exact(8).enumerate() {
            let mut word = [0u8; 8];
            word.copy_from_slice(chunk);
            self.word(0, base + i * 8)
                .store(u64::from_ne_bytes(word), Ordering::SeqCst);
        }
        let majority = members.len() as u64 / 2 + 1;
        field!(self, 0, c::ib_quorum_config, majority).store(majority, Ordering::SeqCst);
        field!(self, 0, c::ib_quorum_config, epoch).store(epoch, Ordering::SeqCst);
    }
}
