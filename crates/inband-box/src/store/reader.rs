//! Reading the table.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use super::{
    header, item, Item, Layout, Meta, Region, CHUNK_WORDS, FIRST_BYTES, HEADER_WORDS, ITEM_WORDS,
    MAGIC, NEXT_BYTES, NEXT_WORDS,
};
use crate::limits::{KEY_LEN_BYTES_MAX, VALUE_LEN_BYTES_MAX};

/// After this many torn copies a reader yields to the writer.
const SPINS_MAX: u64 = 64;
/// How often a waiting reader checks whether a snapshot has been installed.
const REPLACING_POLL: Duration = Duration::from_millis(1);

/// Reads a table of this process or of another one.
#[derive(Clone)]
pub struct Reader {
    region: Arc<Region>,
    layout: Layout,
    /// The writer's own reader, which also reads while all items are replaced.
    is_writer: bool,
}

/// How often a bucket changed while it was read.
pub type Tries = u64;

/// The copied data is inconsistent, so the bucket has changed.
struct Torn;

impl Reader {
    /// Opens a table in a memory file.
    pub fn open(file: OwnedFd) -> io::Result<Reader> {
        let size = nix::sys::stat::fstat(&file)?.st_size as usize;
        let region = Region::map(file, size / size_of::<u64>())?;
        let is_table = region.words().len() > HEADER_WORDS
            && region.words()[header::MAGIC].load(Ordering::Acquire) == MAGIC;
        let not_one = || io::Error::other("the file is not a table");
        if !is_table {
            return Err(not_one());
        }
        let word = |at: usize| region.words()[at].load(Ordering::Relaxed);
        let layout = Layout {
            buckets_log2: word(header::BUCKETS_LOG2) as u32,
            chunks: word(header::CHUNKS) as usize,
            hash_key: (word(header::HASH_KEY), word(header::HASH_KEY + 1)),
        };
        let fits = (4..48).contains(&layout.buckets_log2)
            && layout.chunks < 1 << 48
            && layout.words() <= region.words().len();
        fits.then_some(Reader {
            region: Arc::new(region),
            layout,
            is_writer: false,
        })
        .ok_or_else(not_one)
    }

    pub(super) fn of_writer(region: Arc<Region>, layout: Layout) -> Reader {
        Reader {
            region,
            layout,
            is_writer: true,
        }
    }

    /// Returns a reader for threads other than the writer's.
    pub(super) fn of_others(&self) -> Reader {
        Reader {
            is_writer: false,
            ..self.clone()
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.region.words()[at]
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Returns the zxid of the last applied record. What a later read finds is at least as new.
    pub fn applied(&self) -> u64 {
        self.word(header::APPLIED).load(Ordering::Acquire)
    }

    pub fn time_ms(&self) -> u64 {
        self.load(header::TIME_MS)
    }

    /// Returns the number of items, and of the chunks they occupy.
    pub fn used(&self) -> (u64, u64) {
        (self.load(header::ITEMS), self.load(header::CHUNKS_USED))
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.layout.chunks as u64
    }

    /// Returns the item of a key.
    pub fn get(&self, key: &[u8]) -> Option<Item> {
        self.get_counting(key, &mut 0)
    }

    /// Like [`Reader::get`], and counts torn copies in `tries`.
    pub fn get_counting(&self, key: &[u8], tries: &mut Tries) -> Option<Item> {
        let found = self.find(key, tries, |at| self.copy(at, key.len()));
        found.map(|(_, item)| item)
    }

    /// Returns the item of a key and marks it as read at this local time, in seconds. The mark is local to this node.
    pub fn get_and_mark(&self, key: &[u8], now_s: u64) -> Option<Item> {
        let (at, item) = self.find(key, &mut 0, |at| self.copy(at, key.len()))?;
        // The chunk may have become part of another item meanwhile; no chunk uses this word for anything else.
        self.word(at + item::READ_S)
            .store(now_s.max(1), Ordering::Relaxed);
        Some(item)
    }

    fn find<T>(
        &self,
        key: &[u8],
        tries: &mut Tries,
        copy: impl Fn(usize) -> Result<T, Torn>,
    ) -> Option<(usize, T)> {
        let hash = self.layout.hash_of(key);
        let bucket = self.layout.bucket(hash);
        loop {
            let replaced = self.word(header::REPLACED).load(Ordering::Acquire);
            if replaced % 2 == 1 && !self.is_writer {
                std::thread::sleep(REPLACING_POLL);
                continue;
            }
            let before = self.word(bucket).load(Ordering::Acquire);
            if before % 2 == 0 {
                let found = self.walk(bucket, hash, key).and_then(|at| match at {
                    Some(at) => copy(at).map(|copied| Some((at, copied))),
                    None => Ok(None),
                });
                // Everything copied so far was loaded before the next load.
                fence(Ordering::Acquire);
                if self.load(bucket) == before && self.load(header::REPLACED) == replaced {
                    if let Ok(found) = found {
                        return found;
                    }
                }
            }
            *tries += 1;
            match *tries % SPINS_MAX {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Finds the item of a key.
    fn walk(&self, bucket: usize, hash: u64, key: &[u8]) -> Result<Option<usize>, Torn> {
        let mut link = self.load(bucket + 1);
        for _ in 0..self.layout.chunks {
            if link == 0 {
                return Ok(None);
            }
            let at = self.layout.linked(link).ok_or(Torn)?;
            if self.load(at + item::HASH) == hash && self.has_key(at, key)? {
                return Ok(Some(at));
            }
            link = self.load(at + item::LINK);
        }
        Err(Torn)
    }

    fn has_key(&self, at: usize, key: &[u8]) -> Result<bool, Torn> {
        if (self.load(at + item::LENGTHS) >> 32) as usize != key.len() {
            return Ok(false);
        }
        let mut stored = Vec::with_capacity(KEY_LEN_BYTES_MAX + 8);
        self.bytes(at, key.len(), &mut stored)?;
        Ok(stored == key)
    }

    fn copy(&self, at: usize, key_len_bytes: usize) -> Result<Item, Torn> {
        let len_bytes = self.load(at + item::LENGTHS) as u32 as usize;
        if len_bytes > VALUE_LEN_BYTES_MAX {
            return Err(Torn);
        }
        let mut value = Vec::with_capacity(key_len_bytes + len_bytes + 8);
        self.bytes(at, key_len_bytes + len_bytes, &mut value)?;
        value.drain(..key_len_bytes);
        Ok(Item {
            meta: self.meta(at),
            value,
            read_s: self.load(at + item::READ_S),
        })
    }

    fn meta(&self, at: usize) -> Meta {
        Meta::of_words(std::array::from_fn(|n| self.load(at + item::FLAGS + n)))
    }

    /// Copies the first bytes of key and value.
    fn bytes(&self, at: usize, len_bytes: usize, into: &mut Vec<u8>) -> Result<(), Torn> {
        let (mut at, mut from, mut room) = (at, ITEM_WORDS, FIRST_BYTES);
        loop {
            let left = len_bytes - into.len();
            let words = left.min(room).div_ceil(8);
            debug_assert!(from + words <= CHUNK_WORDS);
            for word in &self.region.words()[at + from..at + from + words] {
                into.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            if left <= room {
                into.truncate(len_bytes);
                return Ok(());
            }
            at = self.layout.linked(self.load(at + item::NEXT)).ok_or(Torn)?;
            (from, room) = (NEXT_WORDS, NEXT_BYTES);
        }
    }

    /// Visits every item of a bucket. For the writer: nothing changes meanwhile.
    pub(super) fn each_in(&self, bucket: usize, mut visit: impl FnMut(Vec<u8>, Item)) {
        let mut link = self.load(bucket + 1);
        while let Some(at) = self.layout.linked(link) {
            let (key, item) = self.item_at(at);
            visit(key, item);
            link = self.load(at + item::LINK);
        }
    }

    /// Finds a key's item, for the writer.
    pub(super) fn at(&self, key: &[u8]) -> Option<(usize, Meta)> {
        self.find(key, &mut 0, |at| Ok(self.meta(at)))
    }

    /// Returns the item in a chunk, for the writer.
    pub(super) fn item_at(&self, at: usize) -> (Vec<u8>, Item) {
        let key_len_bytes = (self.load(at + item::LENGTHS) >> 32) as usize;
        let mut key = Vec::with_capacity(KEY_LEN_BYTES_MAX + 8);
        let item = self
            .bytes(at, key_len_bytes, &mut key)
            .and_then(|()| self.copy(at, key_len_bytes));
        let Ok(item) = item else {
            unreachable!("the writer finds whole items");
        };
        (key, item)
    }
}
