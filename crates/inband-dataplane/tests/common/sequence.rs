//! A sequence of packets and of the host's own steps, derived from bytes of a generator or a fuzzer. The fuzzer
//! includes this file, so that its findings can be replayed on the kernel.
//!
//! A record of 16 bytes defines a step. Most numbers are small offsets from the current registers, so that most packets
//! are relevant; a few have wild values or are damaged.

use inband_paxos::dataplane::registers::{AcceptorView, CountView, LeaderView, SlotView};
use inband_paxos::dataplane::soft::{Geometry, Registers};
use inband_paxos::dataplane::wire::{
    digest, emit, flag, Header, Type, HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES, VALUE_LEN_MAX_BYTES,
};

/// Bytes per step.
pub const RECORD_LEN_BYTES: usize = 16;
/// The bytes that define a step.
pub type Record = [u8; RECORD_LEN_BYTES];

/// Sizes of the host under test.
pub const GEOMETRY: Geometry = Geometry {
    partitions: 3,
    ring_slots: 64,
};
/// The host's node id.
pub const NODE: u8 = 2;
/// The epoch at the start.
pub const FIRST_EPOCH: u64 = 3;
/// The acceptors, which are also the senders of packets.
pub const MEMBERS: [u8; 5] = [3, 4, 5, 6, 7];

const FIRST_PROMISE: u64 = 100;
/// Output packets kept, to be sent again.
const ANSWERS_KEPT: usize = 16;
/// Types, weighted by repetition.
const TYPES: [Type; 24] = {
    use Type::*;
    [
        Request, Request, Request, Request, Phase2A, Phase2A, Phase2A, Phase2A, Phase2A, Phase1A,
        Phase1A, Phase2B, Phase2B, Phase2B, Phase2B, Learn, Nack, Position, Trim, Trim, Phase1B,
        Busy, Reply, Alive,
    ]
};
/// Lengths at which the code that copies values changes paths.
const VALUE_LENGTHS_BYTES: [usize; 20] = [
    0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 119, 120, 121, 128, 1375, 1376,
];

#[derive(Debug, Clone)]
pub enum Step {
    /// A packet (UDP payload) arrives.
    Packet(Vec<u8>),
    /// The host's process changes the registers.
    Host(usize, HostStep),
}

/// A change that the host's process makes to a partition's registers, in absolute numbers, so that it can be applied
/// identically to several backends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum HostStep {
    RaisePromise(u64),
    Activate(LeaderView),
    Deactivate,
    Recovering,
    Seal(u64),
    Open,
    Members { epoch: u64, count: usize },
    NextEpoch { epoch: u64, leader: LeaderView },
    Adopt { floor: u64, slot: SlotView },
    Restart,
}

impl HostStep {
    pub fn apply(&self, partition: usize, to: &Registers) {
        let slot_of = |instance: u64| {
            partition * GEOMETRY.ring_slots + instance as usize % GEOMETRY.ring_slots
        };
        match self {
            HostStep::RaisePromise(round) => drop(to.acceptor.raise_promise(partition, *round)),
            HostStep::Activate(view) => to.leader.activate(partition, *view),
            HostStep::Deactivate => to.leader.deactivate(partition),
            HostStep::Recovering => to.acceptor.seal(partition, 0),
            HostStep::Seal(epoch) => to.acceptor.seal(partition, *epoch),
            HostStep::Open => to.acceptor.open(partition),
            HostStep::Members { epoch, count } => to.quorum.configure(*epoch, &MEMBERS[..*count]),
            HostStep::NextEpoch { epoch, leader } => {
                to.acceptor.seal(partition, *epoch);
                to.acceptor.open(partition);
                to.quorum.configure(*epoch, &MEMBERS);
                to.leader.activate(partition, *leader);
            }
            HostStep::Adopt { floor, slot } => {
                if slot_of(slot.instance) < to.ring.slots().count() {
                    to.acceptor.adopt(partition, 0, *floor, slot.instance);
                    assert!(to.ring.replace(slot_of(slot.instance), slot));
                }
            }
            HostStep::Restart => restart(partition, to),
        }
    }
}

/// Resets a partition to its state after the host has started: empty, and voting.
pub fn restart(partition: usize, registers: &Registers) {
    let slots = partition * GEOMETRY.ring_slots..(partition + 1) * GEOMETRY.ring_slots;
    for slot in slots {
        if slot < registers.ring.slots().count() {
            registers.ring.restore(slot, &SlotView::default());
        }
        if slot < registers.counts.count() {
            registers.counts.restore(slot, CountView::default());
        }
    }
    let view = AcceptorView {
        promise: FIRST_PROMISE,
        floor: 1,
        highest: 0,
        epoch: FIRST_EPOCH,
        voting: true,
    };
    registers.acceptor.restore(partition, view);
    registers.leader.deactivate(partition);
    registers.quorum.configure(FIRST_EPOCH, &MEMBERS);
}

/// Resets all partitions to this state.
pub fn restart_all(registers: &Registers) {
    for partition in 0..GEOMETRY.partitions {
        restart(partition, registers);
    }
}

/// The state of a sequence.
#[derive(Default)]
pub struct Sequence {
    answers: Vec<Vec<u8>>,
    /// Leaders' rounds are never reused.
    last_round: u64,
}

impl Sequence {
    /// Decodes a record, given these registers.
    pub fn step(&mut self, record: &Record, now: &Registers) -> Step {
        match record[0] {
            0..192 => Step::Packet(packet(record, now)),
            192..240 => match self.answers.len() {
                0 => Step::Packet(packet(record, now)),
                kept => {
                    let mut packet = self.answers[usize::from(record[1]) % kept].clone();
                    packet[std::mem::offset_of!(
                        inband_paxos::dataplane::c::ib_paxos_header,
                        node
                    ) + 1] = member(record[2]);
                    damage(record, &mut packet);
                    Step::Packet(packet)
                }
            },
            240..=255 => {
                let partition = usize::from(record[1]) % GEOMETRY.partitions;
                Step::Host(partition, self.host_step(record, partition, now))
            }
        }
    }

    /// Notes a packet that left the host; a later step may send it again.
    pub fn answered(&mut self, packet: &[u8]) {
        self.answers.truncate(ANSWERS_KEPT - 1);
        self.answers.insert(0, packet.to_vec());
    }

    fn host_step(&mut self, record: &Record, partition: usize, now: &Registers) -> HostStep {
        let acceptor = now.acceptor.acceptor(partition);
        let (what, how) = (record[2] % 16, u64::from(record[3]));
        let next_epoch = acceptor.epoch + 1;
        match what {
            0 | 1 => HostStep::RaisePromise(acceptor.promise.saturating_add(how % 3)),
            2..=4 => HostStep::Activate(self.leader(&acceptor, acceptor.epoch, how)),
            5 => HostStep::Deactivate,
            6 => HostStep::Recovering,
            7 => HostStep::Seal(next_epoch),
            8 | 9 => HostStep::Open,
            10 | 11 => HostStep::Members {
                epoch: acceptor.epoch,
                count: 1 + how as usize % MEMBERS.len(),
            },
            12 => HostStep::NextEpoch {
                epoch: next_epoch,
                leader: self.leader(&acceptor, next_epoch, how),
            },
            13 if !acceptor.voting => HostStep::Adopt {
                floor: acceptor.floor,
                slot: adopted(&acceptor, record),
            },
            14 | 15 if how < 32 => HostStep::Restart,
            _ => HostStep::RaisePromise(acceptor.promise),
        }
    }

    fn leader(&mut self, acceptor: &AcceptorView, epoch: u64, how: u64) -> LeaderView {
        self.last_round = self.last_round.max(acceptor.promise.min(u64::MAX >> 1)) + 1;
        let floor = acceptor.floor.max(1);
        // Some have one instance left: a host without an acceptor rarely fills a window otherwise.
        let next = match how {
            0xf0.. => floor.saturating_add(GEOMETRY.ring_slots as u64 - 1),
            _ => acceptor.highest.max(floor).saturating_add(how % 4),
        };
        LeaderView {
            round: self.last_round,
            next,
            floor,
            epoch,
        }
    }
}

/// A vote for an acceptor to adopt.
fn adopted(acceptor: &AcceptorView, record: &Record) -> SlotView {
    let value = value(record);
    SlotView {
        instance: acceptor
            .floor
            .saturating_add(u64::from(record[6]) % GEOMETRY.ring_slots as u64),
        promise: acceptor.promise,
        vround: acceptor.promise,
        digest: digest(&value),
        client_id: 1,
        client_seq: 2,
        client_low: 3,
        flags: u16::from(record[5]),
        value,
    }
}

fn member(byte: u8) -> u8 {
    MEMBERS[usize::from(byte) % MEMBERS.len()]
}

/// A number close to `base`, or sometimes a distant one.
fn near(base: u64, byte: u8) -> u64 {
    match byte {
        0x80 => 0,
        0x7f => u64::MAX,
        0x7e => base.saturating_add(GEOMETRY.ring_slots as u64),
        0x7d => base.wrapping_add(1 << 40),
        _ => base.saturating_add_signed(i64::from(byte as i8) / 8),
    }
}

fn value(record: &Record) -> Vec<u8> {
    let byte = usize::from(record[11]);
    let len_bytes = match byte {
        0..128 => byte % 64,
        128..192 => (byte - 128) * VALUE_LEN_MAX_BYTES / 63,
        _ => VALUE_LENGTHS_BYTES[byte % VALUE_LENGTHS_BYTES.len()],
    };
    // Adjacent bytes differ, so that a copy to a wrong offset is noticed.
    (0..len_bytes)
        .map(|at| record[12].wrapping_add(at as u8))
        .collect()
}

fn flags(record: &Record) -> u16 {
    match record[4] {
        0..128 => 0,
        128..208 => 1 << (record[5] % 16),
        byte => u16::from_be_bytes([byte << 3 | record[5] >> 5, record[5]]),
    }
}

fn packet(record: &Record, now: &Registers) -> Vec<u8> {
    let kind = TYPES[usize::from(record[0]) % TYPES.len()];
    let partition = usize::from(record[1]) % GEOMETRY.partitions;
    let acceptor = now.acceptor.acceptor(partition);
    let epoch = match kind {
        Type::Phase2B => now.quorum.words(0)[0],
        _ => acceptor.epoch,
    };
    let mut header = Header::new(kind, u16::from(member(record[2])), epoch as u32);
    header.partition = match record[1] {
        0xff => u16::MAX,
        0xfe => GEOMETRY.partitions as u16,
        _ => partition as u16,
    };
    match record[2] {
        0xff => header.node = 0,
        0xfe => header.node = 255,
        0xfd => header.node = u16::MAX,
        0xf8..0xfd => header.node = u16::from(record[2]),
        _ => {}
    }
    match record[3] {
        0..224 => {}
        byte @ 224..240 => header.epoch = header.epoch.wrapping_add(u32::from(byte % 3)) - 1,
        byte => header.epoch = u32::from(byte % 16),
    }
    header.flags = flags(record);
    if kind == Type::Phase1A && record[15] & 1 == 1 {
        header.flags |= flag::SLOT;
    }
    header.instance = near(acceptor.highest.max(acceptor.floor), record[6]);
    header.floor = near(acceptor.floor, record[7]);
    header.round = near(acceptor.promise, record[8]);
    header.vround = u64::from(record[9]);
    header.client_id = u64::from(record[10] % 16);
    header.client_seq = u64::from(record[10] / 16);
    header.client_low = u64::from(record[9] / 16);
    let value = value(record);
    header.digest = digest(&value);
    let mut packet = Vec::new();
    emit(&header, &value, &mut packet);
    damage(record, &mut packet);
    packet
}

/// Damages some packets.
fn damage(record: &Record, packet: &mut Vec<u8>) {
    let (how, at) = (record[13], usize::from(record[14]));
    match how {
        0..236 => {}
        236..240 => packet.truncate(at),
        240..244 => packet.truncate(packet.len() - 1),
        244..248 => packet.resize((packet.len() + 1 + at).min(PACKET_LEN_MAX_BYTES), 0xaa),
        _ => packet[at % HEADER_LEN_BYTES] ^= 1 << (how % 8),
    }
}
