//! Packets: the frame common to the headers of all systems (`dataplane/ground/frame.h`).

use std::ops::RangeInclusive;

use crate::c;

pub mod header;

pub use header::Message;

pub const HEADER_LEN_BYTES: usize = c::IB_HEADER_LEN_BYTES as usize;
/// Maximum length of a value in one packet.
pub const VALUE_LEN_MAX_BYTES: usize = c::IB_VALUE_LEN_MAX_BYTES as usize;
/// Maximum length of a packet (UDP payload).
pub const PACKET_LEN_MAX_BYTES: usize = HEADER_LEN_BYTES + VALUE_LEN_MAX_BYTES;

/// How many partitions (or the system's equivalent) a host may have.
pub const PARTITIONS: RangeInclusive<usize> = 1..=c::IB_PARTITIONS_MAX as usize;

/// Why bytes are not a valid packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ParseError {
    #[error("{0} bytes are fewer than a header's {HEADER_LEN_BYTES}")]
    Truncated(usize),
    #[error("magic {0:#010x} is not Inband's")]
    Magic(u32),
    #[error("version {0} is not spoken here")]
    Version(u8),
    #[error("type {0} is unknown")]
    Type(u8),
    #[error("a value of {claimed} bytes does not go with a packet of {packet} bytes")]
    Length { claimed: usize, packet: usize },
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0u8; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(word(bytes, at))
}
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(word(bytes, at))
}
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(word(bytes, at))
}

macro_rules! offset {
    ($field:ident) => {
        std::mem::offset_of!(c::ib_header, $field)
    };
}

/// Makes the checks common to packets of all systems. Returns the type byte and the value, without padding.
pub fn checked(packet: &[u8]) -> Result<(u8, &[u8]), ParseError> {
    if packet.len() < HEADER_LEN_BYTES {
        return Err(ParseError::Truncated(packet.len()));
    }
    let magic = u32_at(packet, offset!(magic));
    if magic != c::IB_MAGIC {
        return Err(ParseError::Magic(magic));
    }
    let version = packet[offset!(version)];
    if !(c::IB_VERSION_MIN as u8..=c::IB_VERSION as u8).contains(&version) {
        return Err(ParseError::Version(version));
    }
    let claimed = usize::from(u16_at(packet, offset!(value_len_bytes)));
    let value = packet.get(HEADER_LEN_BYTES..HEADER_LEN_BYTES + claimed);
    let value = value.filter(|value| value.len() <= VALUE_LEN_MAX_BYTES);
    let value = value.ok_or(ParseError::Length {
        claimed,
        packet: packet.len(),
    })?;
    Ok((packet[offset!(type_)], value))
}

/// Checks that nothing follows the value.
pub fn unpadded(packet: &[u8], value: &[u8]) -> Result<(), ParseError> {
    if packet.len() == HEADER_LEN_BYTES + value.len() {
        return Ok(());
    }
    Err(ParseError::Length {
        claimed: value.len(),
        packet: packet.len(),
    })
}

/// The fields that the headers of all systems begin with.
pub struct Common {
    pub kind: u8,
    pub flags: u16,
    pub partition: u16,
    pub node: u16,
    pub value_len_bytes: u16,
}

impl Common {
    pub fn put(&self, header: &mut [u8]) {
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset!(magic), &c::IB_MAGIC.to_be_bytes());
        put(offset!(version), &[c::IB_VERSION as u8]);
        put(offset!(type_), &[self.kind]);
        put(offset!(flags), &self.flags.to_be_bytes());
        put(offset!(partition), &self.partition.to_be_bytes());
        put(offset!(node), &self.node.to_be_bytes());
        put(
            offset!(value_len_bytes),
            &self.value_len_bytes.to_be_bytes(),
        );
    }
}

/// Returns the checksum of a value (`checksum.h`). Every hop that stamps or stores the value checks it.
pub fn checksum(value: &[u8]) -> u32 {
    // SAFETY: the function reads `value.len()` bytes at the pointer.
    unsafe { c::ib_checksum_of(value.as_ptr(), value.len() as u32) }
}

/// The digest of a value, made by the proposer and checked by the learner. Detects accidental damage, not forgery.
pub fn digest(value: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(value)
}
