//! The on-disk form of a commit: whole blocks, each of which identifies its commit.
//!
//! Blocks have the size that a disk writes atomically, and a commit starts with a new block. So a power failure during
//! a commit cannot damage an earlier one.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Size of a block; a multiple of every disk's sector.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Numbers of commits and records are between 0 and this, far more than any disk can hold. No journal writes others,
/// and none can be continued from them.
pub(crate) const NUMBER_END: u64 = 1 << 62;
const HEADER_BYTES: usize = 48;
const PAYLOAD_BYTES: usize = BLOCK_BYTES - HEADER_BYTES;
/// Seed of checksums; another format must use another seed.
const FORMAT_SEED: u64 = u64::from_le_bytes(*b"inbandJ1");

/// The header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Number of the commit.
    pub commit: u64,
    /// Number of the commit's first record.
    pub first_record: u64,
    /// Checksum of the payload of the whole commit.
    pub payload_checksum: u64,
    /// Length of the payload of the whole commit.
    pub payload_len_bytes: u64,
    /// Index of this block in the commit.
    pub index: u32,
    /// Number of blocks in the commit.
    pub count: u32,
}

/// Checksum of a structure whose first eight bytes hold the checksum.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(&bytes[8..], FORMAT_SEED)
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Appends the blocks of a commit to `blocks`.
pub(crate) fn encode(commit: u64, first_record: u64, payload: &[u8], blocks: &mut Vec<u8>) {
    let count = u32::try_from(payload.len().div_ceil(PAYLOAD_BYTES)).expect("a commit is < 16 TiB");
    let payload_checksum = xxh3_64(payload);
    for (index, part) in payload.chunks(PAYLOAD_BYTES).enumerate() {
        let start = blocks.len();
        blocks.extend_from_slice(&[0; 8]);
        blocks.extend_from_slice(&commit.to_le_bytes());
        blocks.extend_from_slice(&first_record.to_le_bytes());
        blocks.extend_from_slice(&payload_checksum.to_le_bytes());
        blocks.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        blocks.extend_from_slice(&(index as u32).to_le_bytes());
        blocks.extend_from_slice(&count.to_le_bytes());
        blocks.extend_from_slice(part);
        blocks.resize(start + BLOCK_BYTES, 0);
        let sum = checksum(&blocks[start..]);
        blocks[start..start + 8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Returns the header of a block; `None` if the block is incomplete or damaged.
pub(crate) fn header(block: &[u8]) -> Option<Header> {
    if block.len() != BLOCK_BYTES || word(block, 0) != checksum(block) {
        return None;
    }
    let header = Header {
        commit: word(block, 8),
        first_record: word(block, 16),
        payload_checksum: word(block, 24),
        payload_len_bytes: word(block, 32),
        index: half_word(block, 40),
        count: half_word(block, 44),
    };
    let numbers = 1..NUMBER_END;
    let known = numbers.contains(&header.commit) && numbers.contains(&header.first_record);
    known.then_some(header)
}

/// Returns the commit at the start of `blocks`: its header and payload; `None` if it is incomplete.
pub(crate) fn decode(blocks: &[u8]) -> Option<(Header, Vec<u8>)> {
    let first = header(blocks.get(..BLOCK_BYTES)?)?;
    let mut payload = Vec::new();
    for index in 0..first.count {
        let start = index as usize * BLOCK_BYTES;
        let block = blocks.get(start..start + BLOCK_BYTES)?;
        if header(block)? != (Header { index, ..first }) {
            return None;
        }
        payload.extend_from_slice(&block[HEADER_BYTES..]);
    }
    let len = usize::try_from(first.payload_len_bytes).ok()?;
    if first.index != 0 || len > payload.len() {
        return None;
    }
    payload.truncate(len);
    (xxh3_64(&payload) == first.payload_checksum).then_some((first, payload))
}
