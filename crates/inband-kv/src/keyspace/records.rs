//! The records that a burst reads and writes, in memory.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::db::HASH_LEN_BYTES;

/// Approximate memory overhead of a cached record.
const CACHED_RECORD_OVERHEAD_BYTES: usize = 80;

/// Stored keys already start with their hash.
#[derive(Default)]
struct PrefixHasher(u64);

impl Hasher for PrefixHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(hash) = bytes.first_chunk::<HASH_LEN_BYTES>() {
            self.0 = u64::from_le_bytes(*hash);
        }
    }

    fn write_usize(&mut self, _len: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Stored records by stored key; `None`: known to be absent.
type RecordMap = HashMap<Box<[u8]>, Option<Box<[u8]>>, BuildHasherDefault<PrefixHasher>>;

/// Two generations: when the young one is full it becomes the old one and the old one is dropped.
#[derive(Default)]
pub(super) struct RecordCache {
    young: RecordMap,
    old: RecordMap,
    pub(super) young_bytes: usize,
    /// Limit for both generations together.
    bytes_max: usize,
}

impl RecordCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            ..Self::default()
        }
    }

    /// Returns the slot of a record, filled by `load` on a cache miss.
    pub(super) fn place<E>(
        &mut self,
        stored_key: &[u8],
        load: impl FnOnce() -> Result<Option<Box<[u8]>>, E>,
    ) -> Result<&mut Option<Box<[u8]>>, E> {
        if !self.young.contains_key(stored_key) {
            let (key, record) = match self.old.remove_entry(stored_key) {
                Some(known) => known,
                None => (stored_key.into(), load()?),
            };
            self.young_bytes += cached_len(&key, &record);
            self.young.insert(key, record);
        }
        Ok(self
            .young
            .get_mut(stored_key)
            .expect("it was there or was just inserted"))
    }

    /// Returns a record that was loaded or written in this burst.
    pub(super) fn get(&self, stored_key: &[u8]) -> Option<&[u8]> {
        self.young.get(stored_key)?.as_deref()
    }

    /// Call only when everything is written: until then the cache holds the only copy.
    pub(super) fn trim(&mut self) {
        if self.young_bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }
}

/// The stored keys that a burst wrote, in one buffer.
#[derive(Default)]
pub(super) struct DirtyKeys {
    bytes: Vec<u8>,
    pub(super) ranges: Vec<(usize, usize)>,
}

impl DirtyKeys {
    pub(super) fn push(&mut self, stored_key: &[u8]) {
        self.ranges
            .push((self.bytes.len(), self.bytes.len() + stored_key.len()));
        self.bytes.extend_from_slice(stored_key);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.ranges
            .iter()
            .map(|(start, end)| &self.bytes[*start..*end])
    }

    /// Each key once, in order.
    pub(super) fn sorted(&mut self) -> impl Iterator<Item = &[u8]> {
        let bytes = &self.bytes;
        self.ranges
            .sort_unstable_by_key(|(start, end)| &bytes[*start..*end]);
        self.ranges
            .dedup_by_key(|(start, end)| &bytes[*start..*end]);
        self.ranges.iter().map(|(start, end)| &bytes[*start..*end])
    }
}

fn cached_len(key: &[u8], record: &Option<Box<[u8]>>) -> usize {
    key.len() + record.as_ref().map_or(0, |r| r.len()) + CACHED_RECORD_OVERHEAD_BYTES
}
