//! Packets of FLAIR: the header of `flair/wire.h` in host order, the key and the data behind it.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::c;
use crate::dataplane::NO_CLIENT;
use inband_ground::wire::{
    checked, u16_at, u32_at, u64_at, unpadded, Common, HEADER_LEN_BYTES, VALUE_LEN_MAX_BYTES,
};

pub use inband_ground::wire::{digest, ParseError};

/// Digest of a packet without data.
pub const NO_DATA_DIGEST: u64 = c::IB_FLAIR_NO_DATA_DIGEST;

/// Message types; see `flair/wire.h` for who sends which to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Type {
    Read = c::IB_FLAIR_READ as u8,
    Write = c::IB_FLAIR_WRITE as u8,
    ReadReply = c::IB_FLAIR_READ_REPLY as u8,
    WriteReply = c::IB_FLAIR_WRITE_REPLY as u8,
    Heartbeat = c::IB_FLAIR_HEARTBEAT as u8,
    Install = c::IB_FLAIR_INSTALL as u8,
    Nack = c::IB_FLAIR_NACK as u8,
}

impl Type {
    /// Every type, in wire order.
    pub const ALL: [Type; 7] = [
        Type::Read,
        Type::Write,
        Type::ReadReply,
        Type::WriteReply,
        Type::Heartbeat,
        Type::Install,
        Type::Nack,
    ];

    fn from_wire(byte: u8) -> Option<Type> {
        Type::ALL.into_iter().find(|t| *t as u8 == byte)
    }
}

/// Flag bits; see `flair/wire.h`.
#[allow(missing_docs)]
pub mod flag {
    use super::c;
    pub const DELETE: u16 = c::IB_FLAIR_F_DELETE as u16;
    pub const OPEN: u16 = c::IB_FLAIR_F_OPEN as u16;
    pub const LEADER_AVOIDANCE: u16 = c::IB_FLAIR_F_LEADER_AVOIDANCE as u16;
    pub const STABLE: u16 = c::IB_FLAIR_F_STABLE as u16;
    pub const REFUSED: u16 = c::IB_FLAIR_F_REFUSED as u16;
    pub const MISSING: u16 = c::IB_FLAIR_F_MISSING as u16;
    pub const REFRESH: u16 = c::IB_FLAIR_F_REFRESH as u16;
    pub const NEUTRALISE: u16 = c::IB_FLAIR_F_NEUTRALISE as u16;
    pub const ANSWER: u16 = c::IB_FLAIR_F_ANSWER as u16;
}

/// The header in host order. Field meanings and units are those of `struct ib_flair_header`; in
/// HEARTBEAT and INSTALL some have another, for which there are functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Header {
    pub kind: Type,
    pub flags: u16,
    pub set: u16,
    pub node: u16,
    pub term: u32,
    /// Noted by the switch, which gets it from the packet's source address.
    pub client: SocketAddrV4,
    pub session: u64,
    pub seq: u64,
    pub log_index: u64,
    pub key_hash: u64,
    pub client_id: u64,
    pub client_seq: u64,
    pub followers: u8,
    pub replica: u8,
    pub window: u16,
    pub digest: u64,
}

impl Header {
    /// A header with everything else zero, and the digest of no data.
    pub fn new(kind: Type, set: u16, node: u16) -> Header {
        Header {
            kind,
            flags: 0,
            set,
            node,
            term: 0,
            client: NO_CLIENT,
            session: 0,
            seq: 0,
            log_index: 0,
            key_hash: 0,
            client_id: 0,
            client_seq: 0,
            followers: 0,
            replica: 0,
            window: 0,
            digest: NO_DATA_DIGEST,
        }
    }

    /// Are all of these flags set?
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// HEARTBEAT, INSTALL: the switch's incarnation.
    pub fn incarnation(&self) -> u64 {
        self.seq
    }

    /// HEARTBEAT, INSTALL: the switch's own time in nanoseconds; in a HEARTBEAT the one it told last,
    /// sent back, 0 if it has told none.
    pub fn switch_time_ns(&self) -> u64 {
        self.client_seq
    }

    /// HEARTBEAT, INSTALL: how much of the reads each replica gets.
    pub fn weights(&self) -> [u8; 8] {
        self.key_hash.to_le_bytes()
    }

    /// Set [`weights`](Self::weights); replicas that all have 0 get the same.
    pub fn set_weights(&mut self, weights: [u8; 8]) {
        self.key_hash = u64::from_le_bytes(weights);
    }

    /// HEARTBEAT, INSTALL: bitmap of the replicas that reads may go to.
    pub fn replicas(&self) -> u8 {
        self.window as u8
    }

    /// INSTALL: how long the session lives after a heartbeat, in nanoseconds.
    pub fn step_down_ns(&self) -> u64 {
        self.client_id
    }
}

macro_rules! offset {
    ($field:ident) => {
        std::mem::offset_of!(c::ib_flair_header, $field)
    };
}

/// Split a UDP payload into header, key and data. The same checks as `ib_flair_check`, except those
/// of numbers that depend on the switch.
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8], &[u8]), ParseError> {
    let (byte, value) = checked(packet)?;
    let kind = Type::from_wire(byte).ok_or(ParseError::Type(byte))?;
    unpadded(packet, value)?;
    let key_len_bytes = usize::from(u16_at(packet, offset!(key_len_bytes)));
    let (key, data) = value
        .split_at_checked(key_len_bytes)
        .ok_or(ParseError::Length {
            claimed: key_len_bytes,
            packet: packet.len(),
        })?;
    let client = Ipv4Addr::from(u32_at(packet, offset!(client_address)));
    let header = Header {
        kind,
        flags: u16_at(packet, offset!(flags)),
        set: u16_at(packet, offset!(set)),
        node: u16_at(packet, offset!(node)),
        term: u32_at(packet, offset!(term)),
        client: SocketAddrV4::new(client, u16_at(packet, offset!(client_port))),
        session: u64_at(packet, offset!(session)),
        seq: u64_at(packet, offset!(seq)),
        log_index: u64_at(packet, offset!(log_index)),
        key_hash: u64_at(packet, offset!(key_hash)),
        client_id: u64_at(packet, offset!(client_id)),
        client_seq: u64_at(packet, offset!(client_seq)),
        followers: packet[offset!(followers)],
        replica: packet[offset!(replica)],
        window: u16_at(packet, offset!(window)),
        digest: u64_at(packet, offset!(digest)),
    };
    Ok((header, key, data))
}

/// Append the packet to `out`.
///
/// # Panics
/// If key and data are longer than [`VALUE_LEN_MAX_BYTES`] together: callers check what users give
/// them.
pub fn emit(header: &Header, key: &[u8], data: &[u8], out: &mut Vec<u8>) {
    let value_len_bytes = key.len() + data.len();
    assert!(
        value_len_bytes <= VALUE_LEN_MAX_BYTES,
        "key and data fit one packet"
    );
    let start = out.len();
    out.resize(start + HEADER_LEN_BYTES, 0);
    let h = &mut out[start..];
    let common = Common {
        kind: header.kind as u8,
        flags: header.flags,
        partition: header.set,
        node: header.node,
        value_len_bytes: value_len_bytes as u16,
    };
    common.put(h);
    let mut put = |at: usize, bytes: &[u8]| h[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset!(term), &header.term.to_be_bytes());
    put(offset!(client_address), &header.client.ip().octets());
    put(offset!(session), &header.session.to_be_bytes());
    put(offset!(seq), &header.seq.to_be_bytes());
    put(offset!(log_index), &header.log_index.to_be_bytes());
    put(offset!(key_hash), &header.key_hash.to_be_bytes());
    put(offset!(client_id), &header.client_id.to_be_bytes());
    put(offset!(client_seq), &header.client_seq.to_be_bytes());
    put(offset!(client_port), &header.client.port().to_be_bytes());
    put(offset!(followers), &[header.followers]);
    put(offset!(replica), &[header.replica]);
    put(offset!(key_len_bytes), &(key.len() as u16).to_be_bytes());
    put(offset!(window), &header.window.to_be_bytes());
    put(offset!(digest), &header.digest.to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(data);
}

/// The hash of a key. A replica refuses a packet whose `key_hash` is not that of its key: the switch
/// has believed it.
pub fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// The group of a key by its hash, below `groups`; for a power of two, the hash's highest bits.
pub fn group_of(key_hash: u64, groups: usize) -> usize {
    // SAFETY: a pure function of two numbers.
    unsafe { c::ib_flair_group_of_hash(key_hash, groups as u32) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kind: Type) -> Header {
        Header {
            kind,
            flags: flag::OPEN | flag::STABLE,
            set: 3,
            node: 9,
            term: 77,
            client: SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 4567),
            session: 1 << 40,
            seq: 5,
            log_index: u64::MAX - 3,
            key_hash: key_hash(b"key"),
            client_id: 13,
            client_seq: 14,
            followers: 0b1010_0001,
            replica: 7,
            window: 15,
            digest: digest(b"data"),
        }
    }

    #[test]
    fn every_type_survives_the_wire() {
        for kind in Type::ALL {
            let mut packet = Vec::new();
            emit(&sample(kind), b"key", b"data", &mut packet);
            let parsed = parse(&packet).unwrap();
            assert_eq!(parsed, (sample(kind), &b"key"[..], &b"data"[..]));
        }
    }

    #[test]
    fn malformed_packets_are_named() {
        let mut packet = Vec::new();
        emit(&sample(Type::Write), b"key", b"data", &mut packet);
        assert_eq!(parse(&packet[..95]), Err(ParseError::Truncated(95)));
        let mut longer_key = packet.clone();
        longer_key[offset!(key_len_bytes) + 1] = 8;
        let claimed = ParseError::Length {
            claimed: 8,
            packet: 103,
        };
        assert_eq!(parse(&longer_key), Err(claimed));
        let mut other_system = packet.clone();
        other_system[5] = 1;
        assert_eq!(parse(&other_system), Err(ParseError::Type(1)));
        packet.push(0);
        assert!(matches!(parse(&packet), Err(ParseError::Length { .. })));
    }

    #[test]
    fn the_groups_of_a_power_of_two_are_the_highest_bits() {
        for key in 0..1000u32 {
            let hash = key_hash(&key.to_le_bytes());
            assert_eq!(group_of(hash, 4096), (hash >> 52) as usize);
            assert_eq!(group_of(hash, 1), 0);
            assert!(group_of(hash, 3) < 3);
        }
        assert_eq!(group_of(u64::MAX, 65536), 65535);
    }

    #[test]
    fn no_data_has_the_digest_that_the_switch_writes() {
        assert_eq!(digest(b""), NO_DATA_DIGEST);
    }
}
