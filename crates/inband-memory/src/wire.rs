//! Packets: the header of `wire.h` in host byte order.

use std::mem::offset_of;

use inband_ground::wire::{
    checked, checksum, u16_at, u32_at, u64_at, unpadded, Common, ParseError, HEADER_LEN_BYTES,
};

use crate::c;
use crate::lines::{Chunk, CHUNK_LINES, LINE_LEN_BYTES};

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $c:ident,)+) => {
        $($(#[$doc])* pub const $name: u8 = c::$c as u8;)+

        /// Returns a type's name, for traces.
        pub fn type_name(kind: u8) -> &'static str {
            match kind {
                $($name => stringify!($name),)+
                _ => "?",
            }
        }
    };
}

types! {
    /// A client asks for a session; with `slot` 0, whether the switch is active.
    HELLO = IB_MEMORY_HELLO,
    /// The answer to HELLO.
    WELCOME = IB_MEMORY_WELCOME,
    /// A client reads lines.
    READ_REQUEST = IB_MEMORY_READ_REQUEST,
    /// A client writes lines.
    WRITE_REQUEST = IB_MEMORY_WRITE_REQUEST,
    /// The answer to READ_REQUEST, with the lines.
    READ_REPLY = IB_MEMORY_READ_REPLY,
    /// The answer to WRITE_REQUEST: the lines are written.
    WRITE_REPLY = IB_MEMORY_WRITE_REPLY,
    /// There is no such session, or the switch is not active.
    REFUSED = IB_MEMORY_REFUSED,
    /// Asks a server for lines.
    READ = IB_MEMORY_READ,
    /// The answer to READ.
    READ_ANSWER = IB_MEMORY_READ_ANSWER,
    /// Tells a server to store lines, all with one timestamp.
    WRITE = IB_MEMORY_WRITE,
    /// Tells a server to store lines, each with its own timestamp.
    WRITE_BACK = IB_MEMORY_WRITE_BACK,
    /// A server has stored the lines, or has newer ones.
    ACK = IB_MEMORY_ACK,
    /// Asks a server to promise an epoch.
    GRANT = IB_MEMORY_GRANT,
    /// The answer to GRANT; also refuses packets of an earlier epoch.
    EPOCH = IB_MEMORY_EPOCH,
}

/// EPOCH: this is the answer to GRANT.
pub const F_TO_GRANT: u16 = c::IB_MEMORY_F_TO_GRANT as u16;
/// HELLO: become active.
pub const F_ACTIVATE: u16 = c::IB_MEMORY_F_ACTIVATE as u16;
/// WELCOME, REFUSED: ask another switch.
pub const F_NOT_ACTIVE: u16 = c::IB_MEMORY_F_NOT_ACTIVE as u16;

const TIMESTAMP_LEN_BYTES: usize = c::IB_MEMORY_TIMESTAMP_LEN_BYTES as usize;

/// The header in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Header {
    pub kind: u8,
    pub flags: u16,
    pub node: u16,
    pub epoch: u64,
    pub session: u64,
    pub request: u64,
    pub chunk: u64,
    pub timestamp: u64,
    pub lines: u32,
    pub digest: u32,
    pub slot: u32,
    pub phase: u32,
}

impl Header {
    /// A request to grant the node an epoch. Answers repeat the nonce, which is of this start of the node's process.
    pub fn grant(node: u8, epoch: u64, nonce: u64) -> Header {
        Header {
            kind: GRANT,
            node: node.into(),
            epoch,
            session: nonce,
            ..Header::default()
        }
    }
}

macro_rules! offset {
    ($field:ident) => {
        offset_of!(c::ib_memory_header, $field)
    };
}

/// Parses a UDP payload into the header and the value. Does not check the value's digest.
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8]), ParseError> {
    let (kind, value) = checked(packet)?;
    if ![READ_REQUEST, READ, ACK].contains(&kind) {
        unpadded(packet, value)?;
    }
    if !(HELLO..=EPOCH).contains(&kind) {
        return Err(ParseError::Type(kind));
    }
    let header = Header {
        kind,
        flags: u16_at(packet, offset!(flags)),
        node: u16_at(packet, offset!(node)),
        epoch: u64_at(packet, offset!(epoch)),
        session: u64_at(packet, offset!(session)),
        request: u64_at(packet, offset!(request)),
        chunk: u64_at(packet, offset!(chunk)),
        timestamp: u64_at(packet, offset!(timestamp)),
        lines: u32_at(packet, offset!(lines)),
        digest: u32_at(packet, offset!(digest)),
        slot: u32_at(packet, offset!(slot)),
        phase: u32_at(packet, offset!(phase)),
    };
    Ok((header, value))
}

/// Appends the packet, with its digest but unsigned. A request for lines is as long as its answer, because not every
/// frame can grow on its way.
pub fn emit(header: &Header, value: &[u8], packet: &mut Vec<u8>) {
    let start = packet.len();
    packet.resize(start + HEADER_LEN_BYTES, 0);
    packet.extend_from_slice(value);
    fill(header, &mut packet[start..]);
    if [READ_REQUEST, READ].contains(&header.kind) {
        packet.resize(packet.len() + answer_len_bytes(header), 0);
    }
}

/// Returns the number of bytes of timestamps and lines that answer a read.
pub fn answer_len_bytes(header: &Header) -> usize {
    let lines = (header.lines as u16).count_ones() as usize;
    lines * (TIMESTAMP_LEN_BYTES + LINE_LEN_BYTES)
}

/// Writes the header in front of a value that is already in place.
fn fill(header: &Header, packet: &mut [u8]) {
    let (head, value) = packet.split_at_mut(HEADER_LEN_BYTES);
    let common = Common {
        kind: header.kind,
        flags: header.flags,
        partition: 0,
        node: header.node,
        value_len_bytes: value.len() as u16,
    };
    common.put(head);
    for (at, word) in [
        (offset!(epoch), header.epoch),
        (offset!(session), header.session),
        (offset!(request), header.request),
        (offset!(chunk), header.chunk),
        (offset!(timestamp), header.timestamp),
    ] {
        head[at..at + 8].copy_from_slice(&word.to_be_bytes());
    }
    let digest = if value.is_empty() { 0 } else { checksum(value) };
    for (at, word) in [
        (offset!(lines), header.lines),
        (offset!(digest), digest),
        (offset!(slot), header.slot),
        (offset!(phase), header.phase),
    ] {
        head[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
}

/// Returns the lines of a bitmap in ascending order.
pub fn lines_of(bitmap: u16) -> impl Iterator<Item = usize> {
    (0..CHUNK_LINES).filter(move |n| bitmap >> n & 1 == 1)
}

/// Appends a packet whose value is these lines of a chunk.
pub fn emit_lines(header: &Header, from: &Chunk, packet: &mut Vec<u8>) {
    let start = packet.len();
    packet.resize(start + HEADER_LEN_BYTES, 0);
    for n in lines_of(header.lines as u16) {
        packet.extend_from_slice(&from[n]);
    }
    fill(header, &mut packet[start..]);
}

/// Stores the timestamps and lines of a READ_REPLY or READ_ANSWER at their indices. Returns false, and changes nothing,
/// if the value is damaged or does not have the length that its lines need.
pub fn take_read(
    header: &Header,
    value: &[u8],
    timestamps: &mut [u64; CHUNK_LINES],
    into: &mut Chunk,
) -> bool {
    let bitmap = header.lines as u16;
    let count = bitmap.count_ones() as usize;
    if value.len() != count * (TIMESTAMP_LEN_BYTES + LINE_LEN_BYTES)
        || count == 0
        || checksum(value) != header.digest
    {
        return false;
    }
    let (stamps, lines) = value.split_at(count * TIMESTAMP_LEN_BYTES);
    for (at, n) in lines_of(bitmap).enumerate() {
        timestamps[n] = u64_at(stamps, at * TIMESTAMP_LEN_BYTES);
        into[n].copy_from_slice(&lines[at * LINE_LEN_BYTES..][..LINE_LEN_BYTES]);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_as_it_was() {
        let header = Header {
            kind: READ_ANSWER,
            flags: 3,
            node: 2,
            epoch: 1 << 24,
            session: u64::MAX - 1,
            request: 5,
            chunk: 6,
            timestamp: 7,
            lines: 0b101,
            digest: 0,
            slot: 9,
            phase: 10,
        };
        let mut value = Vec::new();
        for word in [11u64, 12] {
            value.extend_from_slice(&word.to_be_bytes());
        }
        value.extend_from_slice(&[1; 64]);
        value.extend_from_slice(&[2; 64]);
        let mut packet = Vec::new();
        emit(&header, &value, &mut packet);
        let (parsed, parsed_value) = parse(&packet).unwrap();
        assert_eq!(parsed_value, value);
        let digest = checksum(&value);
        assert_eq!(parsed, Header { digest, ..header });
        let (mut timestamps, mut chunk) = ([0; 16], [[0; 64]; 16]);
        assert!(take_read(&parsed, &value, &mut timestamps, &mut chunk));
        assert_eq!([timestamps[0], timestamps[1], timestamps[2]], [11, 0, 12]);
        assert_eq!([chunk[0][0], chunk[1][0], chunk[2][63]], [1, 0, 2]);
        value[20] ^= 1;
        assert!(!take_read(&parsed, &value, &mut timestamps, &mut chunk));
        assert!(!take_read(
            &parsed,
            &value[8..],
            &mut timestamps,
            &mut chunk
        ));
    }
}
