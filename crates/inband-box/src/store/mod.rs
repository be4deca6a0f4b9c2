//! The table: keys and values in shared memory. One thread writes; any number of threads and processes read without locks.
//!
//! A key's bucket is chosen by multiply-shift hashing. A bucket is a sequence word and a list of items; an item is a list of
//! chunks of 256 bytes. The writer makes a bucket's sequence odd while it changes anything that can be reached from it. A
//! reader copies what it finds and reads once more if the sequence has changed meanwhile, so it never sees half a change.
//! While a snapshot replaces all items, readers wait: `header::REPLACED` is the sequence word of the whole table.
//! Chunks are of one size, so what fits depends on the contents alone: nodes with the same contents refuse the same command.

mod reader;
mod region;
mod table;

pub use reader::{Reader, Tries};
pub use region::Region;
pub use table::{Full, Table};

/// Words of a chunk.
const CHUNK_WORDS: usize = 32;
/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = CHUNK_WORDS * 8;
/// Words of an item before its key, in its first chunk.
const ITEM_WORDS: usize = 9;
/// Bytes of key and value in an item's first chunk.
const FIRST_BYTES: usize = (CHUNK_WORDS - ITEM_WORDS) * 8;
/// Words of each further chunk before its bytes.
const NEXT_WORDS: usize = 2;
/// Bytes of key and value in each further chunk.
const NEXT_BYTES: usize = (CHUNK_WORDS - NEXT_WORDS) * 8;

/// Words of the table before its buckets.
const HEADER_WORDS: usize = 16;
/// Of a bucket: sequence, first item.
const BUCKET_WORDS: usize = 2;

/// Words of the header.
mod header {
    pub const MAGIC: usize = 0;
    pub const BUCKETS_LOG2: usize = 1;
    pub const CHUNKS: usize = 2;
    pub const MULTIPLIER: usize = 3;
    pub const APPLIED: usize = 4;
    pub const TIME_MS: usize = 5;
    pub const ITEMS: usize = 6;
    pub const CHUNKS_USED: usize = 7;
    /// Odd while all items are replaced. On a cache line that nothing else changes.
    pub const REPLACED: usize = 8;
}

/// "IBBOXTB1".
const MAGIC: u64 = 0x4942_424f_5854_4231;

/// Words of an item's first chunk. In a further one the first two mean nothing else. A link is the number of a chunk plus one; 0: the end.
mod item {
    /// The next chunk.
    pub const NEXT: usize = 0;
    /// Written by readers: the local time of the last read in seconds, 0: not read yet. A reader may write it after the
    /// chunk has become any chunk of another item, so no chunk keeps anything else there.
    pub const READ_S: usize = 1;
    pub const HASH: usize = 2;
    /// Bytes of the value, and in the high half of the key.
    pub const LENGTHS: usize = 3;
    /// The first of the four words of [`super::Meta`]: the client's flags, and in the high half ours.
    pub const FLAGS: usize = 4;
    /// The next item of the bucket.
    pub const LINK: usize = 8;
}

/// What the table knows of a key besides its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// The client's.
    pub flags: u32,
    /// [`STALE`], [`WON`], [`BINARY_KEY`].
    pub marks: u32,
    /// Changes with each change of the item.
    pub cas: u64,
    /// By replicated time; 0: never.
    pub expires_ms: u64,
    /// By replicated time.
    pub stored_ms: u64,
}

impl Meta {
    /// As it lies in the table from [`item::FLAGS`] on, and in a copy.
    fn words(&self) -> [u64; 4] {
        let flags = u64::from(self.marks) << 32 | u64::from(self.flags);
        [flags, self.cas, self.expires_ms, self.stored_ms]
    }

    fn of_words([flags, cas, expires_ms, stored_ms]: [u64; 4]) -> Meta {
        Meta {
            flags: flags as u32,
            marks: (flags >> 32) as u32,
            cas,
            expires_ms,
            stored_ms,
        }
    }
}

/// Mark: `md` with `I` has invalidated it.
pub const STALE: u32 = 1;
/// Mark: a client has been told to fetch it anew.
pub const WON: u32 = 2;
/// Mark: its key was given in base64.
pub const BINARY_KEY: u32 = 4;

/// An item, copied from the table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Item {
    /// All but its value.
    pub meta: Meta,
    /// The value.
    pub value: Vec<u8>,
    /// The local time in seconds when it was read last on this node; 0: never.
    pub read_s: u64,
}

/// Chunks that an item needs.
pub fn chunks_of(key_len_bytes: usize, value_len_bytes: usize) -> usize {
    let rest = (key_len_bytes + value_len_bytes).saturating_sub(FIRST_BYTES);
    1 + rest.div_ceil(NEXT_BYTES)
}

/// Chunks of a table of so many bytes, its buckets included.
pub fn chunks_in(bytes: u64) -> u64 {
    bytes / (CHUNK_BYTES + BUCKET_WORDS * 8) as u64
}

/// A key as one number; the bucket is chosen from it.
fn hash_of(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Where things are in the region.
#[derive(Debug, Clone, Copy)]
struct Layout {
    buckets_log2: u32,
    chunks: usize,
    multiplier: u64,
}

impl Layout {
    fn of(chunks: usize, multiplier: u64) -> Layout {
        Layout {
            buckets_log2: chunks.max(2).next_power_of_two().ilog2(),
            chunks,
            multiplier: multiplier | 1,
        }
    }

    fn words(&self) -> usize {
        self.chunk(self.chunks)
    }

    fn buckets(&self) -> usize {
        1 << self.buckets_log2
    }

    fn bucket(&self, hash: u64) -> usize {
        let number = hash.wrapping_mul(self.multiplier) >> (64 - self.buckets_log2);
        self.bucket_at(number as usize)
    }

    fn bucket_at(&self, number: usize) -> usize {
        HEADER_WORDS + number * BUCKET_WORDS
    }

    fn number_of(&self, bucket: usize) -> usize {
        (bucket - HEADER_WORDS) / BUCKET_WORDS
    }

    fn chunk(&self, number: usize) -> usize {
        HEADER_WORDS + self.buckets() * BUCKET_WORDS + number * CHUNK_WORDS
    }

    /// Where the chunk is that a link names.
    fn linked(&self, link: u64) -> Option<usize> {
        let number = (link as usize).checked_sub(1)?;
        (number < self.chunks).then(|| self.chunk(number))
    }
}

#[cfg(test)]
mod tests;
