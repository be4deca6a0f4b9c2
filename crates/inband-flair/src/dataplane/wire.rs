//! FLAIR packets: the header of `flair/wire.h` in host order, followed by the key and the data.

use std::net::SocketAddrV4;

use super::c;
use inband_ground::wire::{u16_at, Message};

pub use inband_ground::wire::{digest, ParseError};

/// Digest of a packet without data.
pub const NO_DATA_DIGEST: u64 = c::IB_FLAIR_NO_DATA_DIGEST;

inband_ground::message_types!(
    /// Message types; see `flair/wire.h` for who sends which to whom.
    Type {
        Read = c::IB_FLAIR_READ,
        Write = c::IB_FLAIR_WRITE,
        ReadReply = c::IB_FLAIR_READ_REPLY,
        WriteReply = c::IB_FLAIR_WRITE_REPLY,
        Heartbeat = c::IB_FLAIR_HEARTBEAT,
        Install = c::IB_FLAIR_INSTALL,
        Nack = c::IB_FLAIR_NACK,
    }
);

inband_ground::flag_bits!(
    /// Flag bits; see `flair/wire.h`.
    flag {
        DELETE = c::IB_FLAIR_F_DELETE,
        OPEN = c::IB_FLAIR_F_OPEN,
        LEADER_AVOIDANCE = c::IB_FLAIR_F_LEADER_AVOIDANCE,
        STABLE = c::IB_FLAIR_F_STABLE,
        REFUSED = c::IB_FLAIR_F_REFUSED,
        MISSING = c::IB_FLAIR_F_MISSING,
        REFRESH = c::IB_FLAIR_F_REFRESH,
        NEUTRALISE = c::IB_FLAIR_F_NEUTRALISE,
        ANSWER = c::IB_FLAIR_F_ANSWER,
    }
);

inband_ground::header!(
    /// The header in host order. Fields have the meanings and units of `struct ib_flair_header`. HEARTBEAT and INSTALL
    /// give some fields another meaning; the methods below access these.
    Header of c::ib_flair_header, Type, set {
        term: u32,
        /// Written by the switch: the source address of the client's packet.
        client: SocketAddrV4 = client_address client_port,
        session: u64,
        seq: u64,
        log_index: u64,
        key_hash: u64,
        client_id: u64,
        client_seq: u64,
        followers: u8,
        replica: u8,
        window: u16,
        digest: u64,
    }
);

impl Header {
    /// Creates a header with all other fields zero and the digest of empty data.
    pub fn new(kind: Type, set: u16, node: u16) -> Header {
        Header {
            set,
            node,
            digest: NO_DATA_DIGEST,
            ..Header::of(kind)
        }
    }

    /// HEARTBEAT, INSTALL: the switch's incarnation.
    pub fn incarnation(&self) -> u64 {
        self.seq
    }

    /// HEARTBEAT, INSTALL: the switch's time in nanoseconds. A HEARTBEAT from the leader echoes the last time that the
    /// switch sent; 0 if there is none.
    pub fn switch_time_ns(&self) -> u64 {
        self.client_seq
    }

    /// HEARTBEAT, INSTALL: each replica's share of the reads.
    pub fn weights(&self) -> [u8; 8] {
        self.key_hash.to_le_bytes()
    }

    /// Sets [`weights`](Self::weights). If all are 0, the replicas get equal shares.
    pub fn set_weights(&mut self, weights: [u8; 8]) {
        self.key_hash = u64::from_le_bytes(weights);
    }

    /// HEARTBEAT, INSTALL: bitmap of the replicas that reads may go to.
    pub fn replicas(&self) -> u8 {
        self.window as u8
    }

    /// INSTALL: how long the session stays active after a heartbeat, in nanoseconds.
    pub fn step_down_ns(&self) -> u64 {
        self.client_id
    }
}

macro_rules! offset {
    ($field:ident) => {
        std::mem::offset_of!(c::ib_flair_header, $field)
    };
}

/// Splits a UDP payload into header, key and data. Makes the same checks as `ib_flair_check`, except those that depend
/// on the switch's configuration.
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8], &[u8]), ParseError> {
    let (header, value) = Header::split(packet)?;
    let key_len_bytes = usize::from(u16_at(packet, offset!(key_len_bytes)));
    let (key, data) = value
        .split_at_checked(key_len_bytes)
        .ok_or(ParseError::Length {
            claimed: key_len_bytes,
            packet: packet.len(),
        })?;
    Ok((header, key, data))
}

/// Appends the packet to `out`.
///
/// # Panics
/// If key and data together exceed the maximum length of a value. Callers check user input before.
pub fn emit(header: &Header, key: &[u8], data: &[u8], out: &mut Vec<u8>) {
    let packet = header.append(&[key, data], out);
    let key_len_bytes = (key.len() as u16).to_be_bytes();
    packet[offset!(key_len_bytes)..][..2].copy_from_slice(&key_len_bytes);
}

/// Returns the hash of a key. A replica must reject a packet whose `key_hash` is not that of its key, because the
/// switch routed the packet by `key_hash`.
pub fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Returns the group of a key hash, below `groups`. If `groups` is a power of two, the group is the hash's highest
/// bits.
pub fn group_of(key_hash: u64, groups: usize) -> usize {
    // SAFETY: a pure function of two numbers.
    unsafe { c::ib_flair_group_of_hash(key_hash, groups as u32) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

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
