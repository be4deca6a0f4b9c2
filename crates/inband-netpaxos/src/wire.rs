//! Packets: the header of `wire.h` in host byte order.

use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_ground::wire::{checked, digest, unpadded, ParseError, HEADER_LEN_BYTES};

use crate::c;

inband_ground::message_types!(
    /// Message types.
    Type {
        Request = c::IB_NETPAXOS_REQUEST,
        Numbered = c::IB_NETPAXOS_NUMBERED,
        Reply = c::IB_NETPAXOS_REPLY,
        Control = c::IB_NETPAXOS_CONTROL,
    }
);

inband_ground::flag_bits!(flag {
    OPENS = c::IB_NETPAXOS_F_OPENS,
    REFUSED = c::IB_NETPAXOS_F_REFUSED,
});

inband_ground::header!(
    /// The header in host byte order.
    Header of c::ib_netpaxos_header, Type, log {
        client: u64,
        request: u64,
        low: u64,
        incarnation: u64,
        number: u64,
        instance: u64,
        reply_to: u64,
        digest: u64,
        log_id: u64,
    }
);

const LOG_ID_AT_BYTES: usize = offset_of!(c::ib_netpaxos_header, log_id);

/// Parses a UDP payload.
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8]), ParseError> {
    let (kind, value) = checked(packet)?;
    unpadded(packet, value)?;
    Ok((Header::read(Type::from_wire(kind)?, packet), value))
}

/// Like [`parse`], for processes that vote and count: returns `None` if the value was damaged on the way.
pub fn intact(packet: &[u8]) -> Option<(Header, &[u8])> {
    let (header, value) = parse(packet).ok()?;
    (header.digest == digest(value)).then_some((header, value))
}

/// Returns the packet, with its digest but unsigned.
pub fn emit(header: &Header, value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; HEADER_LEN_BYTES + value.len()];
    let header = Header {
        digest: digest(value),
        ..*header
    };
    header.write(&mut packet, value.len());
    packet[HEADER_LEN_BYTES..].copy_from_slice(value);
    packet
}

/// Returns the id of the log that a packet belongs to, or `None` if it is too short.
pub fn log_id_of(packet: &[u8]) -> Option<u64> {
    let id = packet.get(LOG_ID_AT_BYTES..)?.first_chunk()?;
    Some(u64::from_be_bytes(*id))
}

/// Makes a packet one of this log. Sign it afterwards.
///
/// # Panics
/// If it is shorter than a header.
pub fn set_log_id(packet: &mut [u8], log_id: u64) {
    packet[LOG_ID_AT_BYTES..][..8].copy_from_slice(&log_id.to_be_bytes());
}

/// Packs an address as in `reply_to`.
pub fn packed(address: SocketAddrV4) -> u64 {
    u64::from(address.ip().to_bits()) << 32 | u64::from(address.port()) << 16
}

/// Unpacks the address in `reply_to`.
pub fn unpacked(reply_to: u64) -> SocketAddrV4 {
    let address = Ipv4Addr::from_bits((reply_to >> 32) as u32);
    SocketAddrV4::new(address, (reply_to >> 16) as u16)
}

/// Node ids: minions are 1 to 7, followed by their storage servers, learners and serializers.
pub mod node {
    const STORAGE: u8 = 10;
    const LEARNER: u8 = 20;
    const SERIALIZER: u8 = 30;

    /// Returns the node id of a minion, from 1.
    pub fn minion(number: u8) -> u8 {
        number
    }

    /// Returns the node id of a minion's storage.
    pub fn storage(minion: u8) -> u8 {
        STORAGE + minion
    }

    /// Returns the node id of a learner, from 1.
    pub fn learner(number: u8) -> u8 {
        LEARNER + number
    }

    /// Returns the node id of a serializer, from 1.
    pub fn serializer(number: u8) -> u8 {
        SERIALIZER + number
    }

    fn number(node: u8, first: u8, count: u8) -> Option<u8> {
        let number = node.checked_sub(first)?;
        (1..=count).contains(&number).then_some(number)
    }

    /// Returns the minion with this node id, if there are that many.
    pub fn as_minion(node: u16, count: u8) -> Option<u8> {
        number(u8::try_from(node).ok()?, 0, count)
    }

    /// Returns the minion whose storage has this node id, if there are that many.
    pub fn as_storage(node: u8, count: u8) -> Option<u8> {
        number(node, STORAGE, count)
    }

    /// Returns the learner with this node id, if there are that many.
    pub fn as_learner(node: u8, count: u8) -> Option<u8> {
        number(node, LEARNER, count)
    }
}
