//! Packets: the header of `wire.h` in host order, and the value behind it.

use super::c;
use inband_ground::wire::{checked, u16_at, u32_at, u64_at, unpadded, Common};

pub use inband_ground::wire::{
    checksum, digest, ParseError, HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES, VALUE_LEN_MAX_BYTES,
};

/// Message types; see `wire.h` for who sends which to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Type {
    Request = c::IB_PAXOS_REQUEST as u8,
    Phase1A = c::IB_PAXOS_PHASE1A as u8,
    Phase1B = c::IB_PAXOS_PHASE1B as u8,
    Phase2A = c::IB_PAXOS_PHASE2A as u8,
    Phase2B = c::IB_PAXOS_PHASE2B as u8,
    Nack = c::IB_PAXOS_NACK as u8,
    Busy = c::IB_PAXOS_BUSY as u8,
    Learn = c::IB_PAXOS_LEARN as u8,
    Position = c::IB_PAXOS_POSITION as u8,
    Trim = c::IB_PAXOS_TRIM as u8,
    Reply = c::IB_PAXOS_REPLY as u8,
    Alive = c::IB_PAXOS_ALIVE as u8,
}

impl Type {
    /// Every type, in wire order.
    pub const ALL: [Type; 12] = [
        Type::Request,
        Type::Phase1A,
        Type::Phase1B,
        Type::Phase2A,
        Type::Phase2B,
        Type::Nack,
        Type::Busy,
        Type::Learn,
        Type::Position,
        Type::Trim,
        Type::Reply,
        Type::Alive,
    ];

    fn from_wire(byte: u8) -> Option<Type> {
        Type::ALL.into_iter().find(|t| *t as u8 == byte)
    }

    /// Requests that are padded to full size, so that the answer fits (`msg.h`).
    pub fn is_padded(self) -> bool {
        matches!(self, Type::Phase1A | Type::Learn)
    }
}

/// Flag bits; see `wire.h`.
#[allow(missing_docs)]
pub mod flag {
    use crate::dataplane::c;
    pub const NOOP: u16 = c::IB_PAXOS_F_NOOP as u16;
    pub const OPEN: u16 = c::IB_PAXOS_F_OPEN as u16;
    pub const VALUE_MASK: u16 = c::IB_PAXOS_F_VALUE_MASK as u16;
    pub const SLOT: u16 = c::IB_PAXOS_F_SLOT as u16;
    pub const VOTE: u16 = c::IB_PAXOS_F_VOTE as u16;
    pub const REPEAT: u16 = c::IB_PAXOS_F_REPEAT as u16;
    pub const RECOVERY: u16 = c::IB_PAXOS_F_RECOVERY as u16;
    pub const ANSWER: u16 = c::IB_PAXOS_F_ANSWER as u16;
    pub const LEADER: u16 = c::IB_PAXOS_F_LEADER as u16;
    pub const PEER: u16 = c::IB_PAXOS_F_PEER as u16;
    pub const RECOVERING: u16 = c::IB_PAXOS_F_RECOVERING as u16;
    pub const BELOW_FLOOR: u16 = c::IB_PAXOS_F_BELOW_FLOOR as u16;
}

/// The header in host order. Field meanings and units are those of `struct ib_paxos_header`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Header {
    pub kind: Type,
    pub flags: u16,
    pub partition: u16,
    pub node: u16,
    pub epoch: u32,
    pub instance: u64,
    pub floor: u64,
    pub round: u64,
    pub vround: u64,
    pub client_id: u64,
    pub client_seq: u64,
    pub client_low: u64,
    pub digest: u64,
}

impl Header {
    /// A header with everything else zero.
    pub fn new(kind: Type, node: u16, epoch: u32) -> Header {
        Header {
            kind,
            flags: 0,
            partition: 0,
            node,
            epoch,
            instance: 0,
            floor: 0,
            round: 0,
            vround: 0,
            client_id: 0,
            client_seq: 0,
            client_low: 0,
            digest: 0,
        }
    }

    /// Are all of these flags set?
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

macro_rules! offset {
    ($field:ident) => {
        std::mem::offset_of!(c::ib_paxos_header, $field)
    };
}

/// Split a UDP payload into header and value. The same checks as `ib_paxos_parse`, for the packets that
/// reach user space.
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8]), ParseError> {
    let (byte, value) = checked(packet)?;
    let kind = Type::from_wire(byte).ok_or(ParseError::Type(byte))?;
    if !kind.is_padded() {
        unpadded(packet, value)?;
    }
    let header = Header {
        kind,
        flags: u16_at(packet, offset!(flags)),
        partition: u16_at(packet, offset!(partition)),
        node: u16_at(packet, offset!(node)),
        epoch: u32_at(packet, offset!(epoch)),
        instance: u64_at(packet, offset!(instance)),
        floor: u64_at(packet, offset!(floor)),
        round: u64_at(packet, offset!(round)),
        vround: u64_at(packet, offset!(vround)),
        client_id: u64_at(packet, offset!(client_id)),
        client_seq: u64_at(packet, offset!(client_seq)),
        client_low: u64_at(packet, offset!(client_low)),
        digest: u64_at(packet, offset!(digest)),
    };
    Ok((header, value))
}

/// Append the packet to `out`, with the value's checksum; requests whose answer carries a value are padded to full size.
///
/// # Panics
/// If the value is longer than [`VALUE_LEN_MAX_BYTES`]: callers check what users give them.
pub fn emit(header: &Header, value: &[u8], out: &mut Vec<u8>) {
    emit_padded_to(PACKET_LEN_MAX_BYTES, header, value, out);
}

/// The same for a network that takes no longer packets than this: none is padded beyond it.
pub fn emit_padded_to(
    packet_len_max_bytes: usize,
    header: &Header,
    value: &[u8],
    out: &mut Vec<u8>,
) {
    assert!(
        value.len() <= VALUE_LEN_MAX_BYTES,
        "a value fits one packet"
    );
    let start = out.len();
    out.resize(start + HEADER_LEN_BYTES, 0);
    let common = Common {
        kind: header.kind as u8,
        flags: header.flags,
        partition: header.partition,
        node: header.node,
        value_len_bytes: value.len() as u16,
    };
    let h = &mut out[start..];
    common.put(h);
    let mut put = |at: usize, bytes: &[u8]| h[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset!(epoch), &header.epoch.to_be_bytes());
    put(offset!(checksum), &checksum(value).to_be_bytes());
    put(offset!(instance), &header.instance.to_be_bytes());
    put(offset!(floor), &header.floor.to_be_bytes());
    put(offset!(round), &header.round.to_be_bytes());
    put(offset!(vround), &header.vround.to_be_bytes());
    put(offset!(client_id), &header.client_id.to_be_bytes());
    put(offset!(client_seq), &header.client_seq.to_be_bytes());
    put(offset!(client_low), &header.client_low.to_be_bytes());
    put(offset!(digest), &header.digest.to_be_bytes());
    out.extend_from_slice(value);
    if header.kind.is_padded() {
        let len_bytes = (out.len() - start).max(packet_len_max_bytes);
        out.resize(start + len_bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kind: Type) -> Header {
        Header {
            kind,
            flags: flag::OPEN | flag::SLOT,
            partition: 3,
            node: 9,
            epoch: 77,
            instance: 1 << 40,
            floor: 5,
            round: u64::MAX - 3,
            vround: 12,
            client_id: 13,
            client_seq: 14,
            client_low: 15,
            digest: 16,
        }
    }

    #[test]
    fn every_type_survives_the_wire() {
        for kind in Type::ALL {
            let mut packet = Vec::new();
            emit(&sample(kind), b"value", &mut packet);
            let (header, value) = parse(&packet).unwrap();
            assert_eq!((header, value), (sample(kind), &b"value"[..]));
        }
    }

    #[test]
    fn malformed_packets_are_named() {
        let mut packet = Vec::new();
        emit(&sample(Type::Phase2A), b"value", &mut packet);
        assert_eq!(parse(&packet[..95]), Err(ParseError::Truncated(95)));
        assert!(matches!(
            parse(&packet[..97]),
            Err(ParseError::Length { .. })
        ));
        for (at, error) in [
            (0usize, ParseError::Magic(0x004e_4244)),
            (4, ParseError::Version(0)),
            (5, ParseError::Type(0)),
        ] {
            let mut bad = packet.clone();
            bad[at] = 0;
            assert_eq!(parse(&bad), Err(error));
        }
        packet.push(0);
        assert!(matches!(parse(&packet), Err(ParseError::Length { .. })));
    }
}
