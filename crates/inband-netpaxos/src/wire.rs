//! Packets: the header of `wire.h` in host order.

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
    /// The header in host order.
    Header of c::ib_netpaxos_header, Type, log {
        client: u64,
        request: u64,
        low: u64,
        incarnation: u64,
        number: u64,
        instance: u64,
        reply_to: u64,
        digest: u64,
    }
);

/// Read a UDP payload.
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8]), ParseError> {
    let (kind, value) = checked(packet)?;
    unpadded(packet, value)?;
    Ok((Header::read(Type::from_wire(kind)?, packet), value))
}

/// The same for those who vote and count: a value that was damaged on the way is no value.
pub fn intact(packet: &[u8]) -> Option<(Header, &[u8])> {
    let (header, value) = parse(packet).ok()?;
    (header.digest == digest(value)).then_some((header, value))
}

/// The packet, to be signed. The digest is made here.
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

/// An address, as `reply_to` holds it.
pub fn packed(address: SocketAddrV4) -> u64 {
    u64::from(address.ip().to_bits()) << 32 | u64::from(address.port()) << 16
}

/// The address in `reply_to`.
pub fn unpacked(reply_to: u64) -> SocketAddrV4 {
    let address = Ipv4Addr::from_bits((reply_to >> 32) as u32);
    SocketAddrV4::new(address, (reply_to >> 16) as u16)
}

/// Node ids: minions are 1 to 7, their storage servers, learners and serializers follow.
pub mod node {
    const STORAGE: u8 = 10;
    const LEARNER: u8 = 20;
    const SERIALIZER: u8 = 30;

    /// Of a minion, from 1.
    pub fn minion(number: u8) -> u8 {
        number
    }

    /// Of a minion's storage.
    pub fn storage(minion: u8) -> u8 {
        STORAGE + minion
    }

    /// Of a learner, from 1.
    pub fn learner(number: u8) -> u8 {
        LEARNER + number
    }

    /// Of a serializer, from 1.
    pub fn serializer(number: u8) -> u8 {
        SERIALIZER + number
    }

    fn number(node: u8, first: u8, count: u8) -> Option<u8> {
        let number = node.checked_sub(first)?;
        (1..=count).contains(&number).then_some(number)
    }

    /// The minion with this node id, of so many.
    pub fn as_minion(node: u16, count: u8) -> Option<u8> {
        number(u8::try_from(node).ok()?, 0, count)
    }

    /// The minion whose storage has this node id, of so many.
    pub fn as_storage(node: u8, count: u8) -> Option<u8> {
        number(node, STORAGE, count)
    }

    /// The learner with this node id, of so many.
    pub fn as_learner(node: u8, count: u8) -> Option<u8> {
        number(node, LEARNER, count)
    }
}
