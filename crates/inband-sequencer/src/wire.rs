//! Packets: the header of `wire.h` in host order.

use std::mem::offset_of;

use inband_ground::wire::{
    checked, u16_at, u64_at, unpadded, Common, ParseError, HEADER_LEN_BYTES,
};

use crate::c;

/// A client asks for numbers.
pub const NEXT: u8 = c::IB_SEQUENCER_NEXT as u8;
/// The answer.
pub const NUMBER: u8 = c::IB_SEQUENCER_NUMBER as u8;
/// Most numbers of one request.
pub const COUNT_MAX: u64 = c::IB_SEQUENCER_COUNT_MAX as u64;

/// The header in host order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Header {
    pub kind: u8,
    pub log: u16,
    pub node: u16,
    pub incarnation: u64,
    pub number: u64,
    pub count: u64,
    pub request: u64,
}

macro_rules! offset {
    ($field:ident) => {
        offset_of!(c::ib_sequencer_header, $field)
    };
}

/// Read a UDP payload.
pub fn parse(packet: &[u8]) -> Result<Header, ParseError> {
    let (kind, value) = checked(packet)?;
    unpadded(packet, value)?;
    if kind != NEXT && kind != NUMBER {
        return Err(ParseError::Type(kind));
    }
    Ok(Header {
        kind,
        log: u16_at(packet, offset!(log)),
        node: u16_at(packet, offset!(node)),
        incarnation: u64_at(packet, offset!(incarnation)),
        number: u64_at(packet, offset!(number)),
        count: u64_at(packet, offset!(count)),
        request: u64_at(packet, offset!(request)),
    })
}

/// The packet, to be signed.
pub fn emit(header: &Header) -> [u8; HEADER_LEN_BYTES] {
    let mut packet = [0; HEADER_LEN_BYTES];
    let common = Common {
        kind: header.kind,
        flags: 0,
        partition: header.log,
        node: header.node,
        value_len_bytes: 0,
    };
    common.put(&mut packet);
    for (at, word) in [
        (offset!(incarnation), header.incarnation),
        (offset!(number), header.number),
        (offset!(count), header.count),
        (offset!(request), header.request),
    ] {
        packet[at..at + 8].copy_from_slice(&word.to_be_bytes());
    }
    packet
}
