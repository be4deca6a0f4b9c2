//! Packets: the header of `wire.h` in host order.

use inband_ground::wire::{checked, unpadded, ParseError, HEADER_LEN_BYTES};

use crate::c;

inband_ground::message_types!(
    /// Message types.
    Type {
        Next = c::IB_SEQUENCER_NEXT,
        Number = c::IB_SEQUENCER_NUMBER,
    }
);

inband_ground::header!(
    /// The header in host order.
    Header of c::ib_sequencer_header, Type, log {
        incarnation: u64,
        number: u64,
        count: u64,
        request: u64,
    }
);

/// Read a UDP payload.
pub fn parse(packet: &[u8]) -> Result<Header, ParseError> {
    let (kind, value) = checked(packet)?;
    unpadded(packet, value)?;
    Ok(Header::read(Type::from_wire(kind)?, packet))
}

/// The packet, to be signed.
pub fn emit(header: &Header) -> [u8; HEADER_LEN_BYTES] {
    let mut packet = [0; HEADER_LEN_BYTES];
    header.write(&mut packet, 0);
    packet
}
