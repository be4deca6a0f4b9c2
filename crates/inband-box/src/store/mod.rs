//! The table: keys and values in shared memory. One thread writes; any number of threads and processes read without
//! locks.
//!
//! The layout is `dataplane/box/table.h`, because the packet program reads the table, too, if its memory is a BPF map.
//! A key's bucket is chosen by the highest bits of a keyed hash. A bucket is a sequence word and a list of items; an item
//! is a list of 256-byte chunks. The writer makes a bucket's sequence odd while it changes anything reachable from it. A
//! reader copies what it finds and retries if the sequence has changed meanwhile, so it never sees half a change. While
//! a snapshot replaces all items, readers wait: `header::REPLACED` is the sequence word of the whole table. All chunks
//! have the same size, so what fits depends on the contents alone: nodes with the same contents refuse the same
//! commands.

mod reader;
mod region;
mod table;

pub use reader::{Reader, Tries};
pub use region::Region;
pub use table::{digest_of_copy, Full, Table};

use crate::c;
use crate::limits::KEY_LEN_BYTES_MAX;

const _: () = assert!(KEY_LEN_BYTES_MAX == c::IB_BOX_KEY_LEN_MAX_BYTES as usize);

const CHUNK_WORDS: usize = c::IB_BOX_CHUNK_WORDS as usize;
pub const CHUNK_BYTES: usize = CHUNK_WORDS * 8;
/// Words of an item before its key, in its first chunk.
const ITEM_WORDS: usize = c::IB_BOX_ITEM_WORDS as usize;
/// Bytes of key and value in an item's first chunk.
const FIRST_BYTES: usize = (CHUNK_WORDS - ITEM_WORDS) * 8;
/// Words of each further chunk before its bytes.
const NEXT_WORDS: usize = c::IB_BOX_NEXT_WORDS as usize;
/// Bytes of key and value in each further chunk.
const NEXT_BYTES: usize = (CHUNK_WORDS - NEXT_WORDS) * 8;

/// Words of the table before its buckets.
const HEADER_WORDS: usize = CHUNK_WORDS;
/// Words of a bucket: sequence, first item.
const BUCKET_WORDS: usize = c::IB_BOX_BUCKET_WORDS as usize;

/// Words of the header.
mod header {
    use crate::c;

    pub const MAGIC: usize = c::IB_BOX_T_MAGIC as usize;
    pub const APPLIED: usize = c::IB_BOX_T_APPLIED as usize;
    pub const TIME_MS: usize = c::IB_BOX_T_TIME_MS as usize;
    pub const ITEMS: usize = c::IB_BOX_T_ITEMS as usize;
    pub const CHUNKS_USED: usize = c::IB_BOX_T_CHUNKS_USED as usize;
    /// Odd while all items are replaced.
    pub const REPLACED: usize = c::IB_BOX_T_REPLACED as usize;
    pub const BUCKETS_LOG2: usize = c::IB_BOX_T_BUCKETS_LOG2 as usize;
    pub const CHUNKS: usize = c::IB_BOX_T_CHUNKS as usize;
    /// Two words.
    pub const HASH_KEY: usize = c::IB_BOX_T_HASH_KEY as usize;
}

const MAGIC: u64 = c::IB_BOX_TABLE_MAGIC;

/// Words of an item's first chunk; a further chunk has only the first two. A link is the number of a chunk plus one; 0:
/// the end.
mod item {
    use crate::c;

    /// The next chunk.
    pub const NEXT: usize = c::IB_BOX_I_NEXT as usize;
    /// Written by readers: the local time of the last read in seconds; 0: not read yet. A reader may write it after the
    /// chunk has become part of another item, so no chunk stores anything else there.
    pub const READ_S: usize = c::IB_BOX_I_READ_S as usize;
    pub const HASH: usize = c::IB_BOX_I_HASH as usize;
    /// Bytes of the value; in the high half, bytes of the key.
    pub const LENGTHS: usize = c::IB_BOX_I_LENGTHS as usize;
    /// The first of the four words of [`super::Meta`]: the client's flags; in the high half, our marks.
    pub const FLAGS: usize = c::IB_BOX_I_FLAGS as usize;
    /// The next item of the bucket.
    pub const LINK: usize = c::IB_BOX_I_LINK as usize;
}

/// What the table stores about a key besides its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    pub flags: u32,
    /// [`STALE`], [`WON`], [`BINARY_KEY`].
    pub marks: u32,
    /// Changes with each change of the item.
    pub cas: u64,
    /// In replicated time; 0: never.
    pub expires_ms: u64,
    /// In replicated time.
    pub stored_ms: u64,
}

impl Meta {
    /// Returns its words, as in the table from [`item::FLAGS`] on, and in a copy.
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

/// Mark: invalidated by `md` with `I`.
pub const STALE: u32 = 1;
/// Mark: a client has been told to fetch the value anew.
pub const WON: u32 = 2;
/// Mark: the key was given in base64.
pub const BINARY_KEY: u32 = 4;

/// An item, copied from the table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Item {
    /// Everything but the value.
    pub meta: Meta,
    pub value: Vec<u8>,
    /// The local time in seconds of the last read on this node; 0: never.
    pub read_s: u64,
}

/// Returns the number of chunks that an item needs.
pub fn chunks_of(key_len_bytes: usize, value_len_bytes: usize) -> usize {
    let rest = (key_len_bytes + value_len_bytes).saturating_sub(FIRST_BYTES);
    1 + rest.div_ceil(NEXT_BYTES)
}

/// Returns the number of chunks of a table with this many bytes, including its buckets.
pub fn chunks_in(bytes: u64) -> u64 {
    bytes / (CHUNK_BYTES + BUCKET_WORDS * 8) as u64
}

/// Returns the number of elements that a map for a table with this many chunks must have.
pub fn map_elements(chunks: u64) -> u64 {
    (Layout::of(chunks as usize, (0, 0)).words() / CHUNK_WORDS) as u64
}

/// Positions in the region.
#[derive(Debug, Clone, Copy)]
struct Layout {
    buckets_log2: u32,
    chunks: usize,
    /// Secret, so that nobody can choose keys that share a bucket.
    hash_key: (u64, u64),
}

impl Layout {
    fn of(chunks: usize, hash_key: (u64, u64)) -> Layout {
        // So that the buckets fill whole chunks.
        let buckets_min = CHUNK_WORDS / BUCKET_WORDS;
        Layout {
            buckets_log2: chunks.max(buckets_min).next_power_of_two().ilog2(),
            chunks,
            hash_key,
        }
    }

    /// Hashes a key to the number from which its bucket is chosen.
    fn hash_of(&self, key: &[u8]) -> u64 {
        let (k0, k1) = self.hash_key;
        let hash_key = c::ib_box_hash_key { k0, k1 };
        // SAFETY: the function reads the key of this length.
        unsafe { c::ib_box_hash(&raw const hash_key, key.as_ptr(), key.len() as u32) }
    }

    fn words(&self) -> usize {
        self.chunk(self.chunks)
    }

    fn buckets(&self) -> usize {
        1 << self.buckets_log2
    }

    fn bucket(&self, hash: u64) -> usize {
        let number = hash >> (64 - self.buckets_log2);
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

    /// Returns the position of the chunk that a link names.
    fn linked(&self, link: u64) -> Option<usize> {
        let number = (link as usize).checked_sub(1)?;
        (number < self.chunks).then(|| self.chunk(number))
    }
}

#[cfg(test)]
mod tests;
