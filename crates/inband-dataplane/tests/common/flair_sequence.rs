//! A sequence of packets to a FLAIR switch, derived from bytes of a generator or a fuzzer. The fuzzer includes this
//! file, so that its findings can be replayed on the kernel.
//!
//! A record of 16 bytes defines a packet. Most refer to earlier output of the switch: replies to packets that it sent,
//! or heartbeats with its last time. A few have wild values or are damaged.

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_flair::dataplane::wire::{digest, emit, flag, key_hash, parse, Header, Type};
use inband_flair::dataplane::FlairGeometry;
use inband_paxos::dataplane::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES, VALUE_LEN_MAX_BYTES};

/// Bytes per step.
pub const RECORD_LEN_BYTES: usize = 16;
/// The bytes that define a step.
pub type Record = [u8; RECORD_LEN_BYTES];

/// Sizes of the switch under test.
pub const GEOMETRY: FlairGeometry = FlairGeometry {
    sets: 2,
    groups: 64,
};
/// The switch's node id.
pub const NODE: u8 = 2;
pub const INCARNATION: u64 = 77;
/// Keys; the first two belong to one group.
pub const KEYS: [&str; 5] = ["a", "e", "b", "c", "a longer key of 24 bytes."];

/// Output packets kept, to be answered or sent again.
const KEPT: usize = 16;
/// The node id of senders.
const REPLICA: u16 = 9;

/// A packet with its arrival data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Step {
    pub packet: Vec<u8>,
    pub from: SocketAddrV4,
    pub now_ns: u64,
    pub random: u32,
}

/// The state of a sequence.
pub struct Sequence {
    now_ns: u64,
    /// Packets that the switch has sent to replicas.
    kept: Vec<Vec<u8>>,
    /// For each set, the session and the time in the switch's last answer.
    told: [(u64, u64); GEOMETRY.sets],
}

impl Default for Sequence {
    fn default() -> Sequence {
        Sequence {
            now_ns: 1000,
            kept: Vec::new(),
            told: [(0, 0); GEOMETRY.sets],
        }
    }
}

impl Sequence {
    /// Decodes a record.
    pub fn step(&mut self, record: &Record) -> Step {
        self.now_ns += match record[3] {
            byte @ 0..200 => u64::from(byte) / 16,
            200..254 => 0,
            _ => 5_000,
        };
        let mut packet = match (record[0], self.kept.len()) {
            (80..190, kept @ 1..) => reply(&self.kept[usize::from(record[1]) % kept], record),
            (190..222, _) => self.heartbeat(record),
            (222..230, _) => self.install(record),
            (230..240, kept @ 1..) => self.kept[usize::from(record[1]) % kept].clone(),
            _ => request(record),
        };
        damage(record, &mut packet);
        let port = 1000 + u16::from(record[10] % 4);
        Step {
            packet,
            from: SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 9 + record[10] % 3), port),
            now_ns: self.now_ns,
            random: u32::from_le_bytes([record[12], record[6], record[11], record[8]]),
        }
    }

    /// Notes a packet that left the switch, for later steps.
    pub fn answered(&mut self, packet: &[u8]) {
        let Ok((header, ..)) = parse(packet) else {
            return;
        };
        if header.has(flag::ANSWER) {
            self.told[usize::from(header.set)] = (header.session, header.switch_time_ns());
        } else if matches!(header.kind, Type::Read | Type::Write) {
            self.kept.truncate(KEPT - 1);
            self.kept.insert(0, packet.to_vec());
        }
    }

    /// The common part of a HEARTBEAT and an INSTALL.
    fn control(&self, kind: Type, record: &Record) -> Header {
        let mut header = Header::new(kind, set(record), REPLICA);
        header.seq = INCARNATION + u64::from(record[9] == 0);
        header.key_hash = u64::from_le_bytes(std::array::from_fn(|i| match record[12 - i] {
            byte @ 0..64 => byte,
            _ => 0,
        }));
        header.followers = record[4];
        header.window = u16::from(record[5]) | u16::from(record[6] == 1) << 8;
        header.replica = record[7] % 8;
        header.client_id = u64::from(record[8]) * 64 + 100;
        if record[10] & 3 == 0 {
            header.flags |= flag::LEADER_AVOIDANCE;
        }
        header
    }

    fn heartbeat(&self, record: &Record) -> Vec<u8> {
        let mut header = self.control(Type::Heartbeat, record);
        let (session, told_ns) = self.told[usize::from(record[2]) % GEOMETRY.sets];
        header.session = near(session, record[11]);
        header.client_seq = match record[1] {
            0..200 => told_ns,
            200..215 => self.now_ns,
            215..225 => 0,
            byte => (self.now_ns + 8).wrapping_sub(u64::from(byte) - 225),
        };
        bytes(&header, b"", b"")
    }

    fn install(&self, record: &Record) -> Vec<u8> {
        let mut header = self.control(Type::Install, record);
        let (session, _) = self.told[usize::from(record[2]) % GEOMETRY.sets];
        header.session = near(session + 1, record[11]);
        header.term = u32::from(record[1]);
        header.log_index = u64::from(record[1]) * 3;
        match record[1] {
            0..8 => header.client_id = u64::MAX - 9 + u64::from(record[1]),
            8..16 => header.flags |= flag::NEUTRALISE,
            _ => {}
        }
        bytes(&header, b"", b"")
    }
}

fn bytes(header: &Header, key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    emit(header, key, data, &mut packet);
    packet
}

fn set(record: &Record) -> u16 {
    match record[2] {
        0xff => GEOMETRY.sets as u16,
        0xfe => u16::MAX,
        byte => u16::from(byte) % GEOMETRY.sets as u16,
    }
}

/// A number close to `base`, or rarely a distant one.
fn near(base: u64, byte: u8) -> u64 {
    match byte {
        0..240 => base,
        240..246 => base.wrapping_add(1),
        246..252 => base.saturating_sub(1),
        252 => 0,
        253 => u64::MAX,
        _ => base.wrapping_add(1000),
    }
}

fn data(record: &Record) -> Vec<u8> {
    let len_bytes = match record[11] {
        byte @ 0..200 => usize::from(byte) % 40,
        byte => (usize::from(byte) - 200) * (VALUE_LEN_MAX_BYTES - 40) / 55,
    };
    (0..len_bytes)
        .map(|at| record[12].wrapping_add(at as u8))
        .collect()
}

fn request(record: &Record) -> Vec<u8> {
    let kind = match record[1] {
        0..144 => Type::Read,
        144..246 => Type::Write,
        246..248 => Type::Nack,
        byte => Type::ALL[usize::from(byte) % Type::ALL.len()],
    };
    let node = match kind {
        Type::Nack => REPLICA,
        _ => u16::from(record[9] == 1),
    };
    let mut header = Header::new(kind, set(record), node);
    let key = KEYS[usize::from(record[4]) % KEYS.len()].as_bytes();
    header.key_hash = key_hash(key);
    if record[9] > 250 {
        // Flags that clients must not set.
        header.flags = u16::from_le_bytes([record[5], record[6]]);
        header.session = u64::from(record[7]);
        header.seq = u64::from(record[7]);
        header.node = u16::from(record[8]);
        header.replica = record[8] % 16;
    } else if record[9] < 8 {
        header.flags = flag::DELETE;
    }
    header.client_id = u64::from(record[8]);
    header.client_seq = u64::from(record[7]);
    let data = if kind == Type::Read {
        Vec::new()
    } else {
        data(record)
    };
    header.digest = digest(&data);
    bytes(&header, key, &data)
}

/// A replica's answer to a packet from the switch.
fn reply(packet: &[u8], record: &Record) -> Vec<u8> {
    let (mut header, key, _) = parse(packet).expect("the switch has sent it");
    header.node = REPLICA;
    header.session = near(header.session, record[7]);
    header.seq = near(header.seq, record[8]);
    let mut answer = data(record);
    if header.kind == Type::Read {
        header.kind = Type::ReadReply;
        header.flags |= match record[4] {
            0..16 => flag::REFUSED,
            16..32 => flag::MISSING,
            _ => 0,
        };
        answer.truncate(VALUE_LEN_MAX_BYTES - key.len());
    } else {
        header.kind = Type::WriteReply;
        header.flags = if record[4] < 32 { flag::REFRESH } else { 0 };
        header.log_index = u64::from(record[5]) + 1;
        header.followers = record[6];
        answer.clear();
    }
    header.digest = digest(&answer);
    bytes(&header, key, &answer)
}

/// Damages some packets.
fn damage(record: &Record, packet: &mut Vec<u8>) {
    let (how, at) = (record[13], usize::from(record[14]));
    match how {
        0..240 => {}
        240..243 => packet.truncate(at),
        243..246 => packet.truncate(packet.len() - 1),
        246..249 => packet.resize((packet.len() + 1 + at).min(PACKET_LEN_MAX_BYTES), 0xaa),
        _ => packet[at % HEADER_LEN_BYTES] ^= 1 << (how % 8),
    }
}
