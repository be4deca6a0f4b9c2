//! Packets: the header of `wire.h` in host order, and the value behind it.

use super::c;
use inband_ground::wire::{checked, unpadded, Message};

pub use inband_ground::wire::{
    checksum, digest, ParseError, HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES, VALUE_LEN_MAX_BYTES,
};

inband_ground::message_types!(
    /// Message types; see `wire.h` for who sends which to whom.
    Type {
        Request = c::IB_PAXOS_REQUEST,
        Phase1A = c::IB_PAXOS_PHASE1A,
        Phase1B = c::IB_PAXOS_PHASE1B,
        Phase2A = c::IB_PAXOS_PHASE2A,
        Phase2B = c::IB_PAXOS_PHASE2B,
        Nack = c::IB_PAXOS_NACK,
        Busy = c::IB_PAXOS_BUSY,
        Learn = c::IB_PAXOS_LEARN,
        Position = c::IB_PAXOS_POSITION,
        Trim = c::IB_PAXOS_TRIM,
        Reply = c::IB_PAXOS_REPLY,
        Alive = c::IB_PAXOS_ALIVE,
    }
);

impl Type {
    /// Requests that are padded to full size so that the answer fits (`msg.h`).
    pub fn is_padded(self) -> bool {
        matches!(self, Type::Phase1A | Type::Learn)
    }
}

inband_ground::flag_bits!(
    /// Flag bits; see `wire.h`.
    flag {
        NOOP = c::IB_PAXOS_F_NOOP,
        OPEN = c::IB_PAXOS_F_OPEN,
        VALUE_MASK = c::IB_PAXOS_F_VALUE_MASK,
        SLOT = c::IB_PAXOS_F_SLOT,
        VOTE = c::IB_PAXOS_F_VOTE,
        REPEAT = c::IB_PAXOS_F_REPEAT,
        RECOVERY = c::IB_PAXOS_F_RECOVERY,
        ANSWER = c::IB_PAXOS_F_ANSWER,
        LEADER = c::IB_PAXOS_F_LEADER,
        PEER = c::IB_PAXOS_F_PEER,
        RECOVERING = c::IB_PAXOS_F_RECOVERING,
        BELOW_FLOOR = c::IB_PAXOS_F_BELOW_FLOOR,
    }
);

inband_ground::header!(
    /// The header in host order. Field meanings and units are those of `struct ib_paxos_header`.
    Header of c::ib_paxos_header, Type, partition {
        epoch: u32,
        instance: u64,
        floor: u64,
        round: u64,
        vround: u64,
        client_id: u64,
        client_seq: u64,
        client_low: u64,
        digest: u64,
    }
);

impl Header {
    /// Creates a header with all other fields zero.
    pub fn new(kind: Type, node: u16, epoch: u32) -> Header {
        Header {
            node,
            epoch,
            ..Header::of(kind)
        }
    }
}

/// Splits a UDP payload into header and value, with the same checks as `ib_paxos_parse`, for packets that reach user
/// space.
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8]), ParseError> {
    let (byte, value) = checked(packet)?;
    let kind = Type::from_wire(byte)?;
    if !kind.is_padded() {
        unpadded(packet, value)?;
    }
    Ok((Header::read(kind, packet), value))
}

/// Appends the packet to `out`, with the value's checksum; requests whose answer carries a value are padded to full
/// size.
///
/// # Panics
/// If the value is longer than [`VALUE_LEN_MAX_BYTES`]: callers check user input.
pub fn emit(header: &Header, value: &[u8], out: &mut Vec<u8>) {
    emit_padded_to(PACKET_LEN_MAX_BYTES, header, value, out);
}

/// The same for a network with this maximum packet length: no packet is padded beyond it.
pub fn emit_padded_to(
    packet_len_max_bytes: usize,
    header: &Header,
    value: &[u8],
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let packet = header.append(&[value], out);
    let at = std::mem::offset_of!(c::ib_paxos_header, checksum);
    packet[at..at + 4].copy_from_slice(&checksum(value).to_be_bytes());
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
