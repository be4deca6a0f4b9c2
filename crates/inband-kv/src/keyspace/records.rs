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
    /// Limit for both generations together, besides what is unwritten.
    bytes_max: usize,
    /// Unwritten when the young generation began.
    kept_bytes: usize,
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

    /// Returns a record that is unwritten, or was loaded in this burst.
    pub(super) fn get(&self, stored_key: &[u8]) -> Option<&[u8]> {
        self.young.get(stored_key)?.as_deref()
    }

    /// Begins a new generation if the young one is full. `unwritten` are the keys of records that exist only here: they
    /// stay in the young one.
    pub(super) fn trim<'k>(&mut self, unwritten: impl Iterator<Item = &'k [u8]>) {
        if self.young_bytes <= self.bytes_max / 2 + self.kept_bytes {
            return;
        }
        self.old = std::mem::take(&mut self.young);
        self.young_bytes = 0;
        for stored_key in unwritten {
            if let Some((key, record)) = self.old.remove_entry(stored_key) {
                self.young_bytes += cached_len(&key, &record);
                self.young.insert(key, record);
            }
        }
        self.kept_bytes = self.young_bytes;
    }

    /// Bytes of all records.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn bytes(&self) -> usize {
        let records = self.young.iter().chain(&self.old);
        records.map(|(key, record)| cached_len(key, record)).sum()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }
}

/// The stored keys that are written together, in one buffer.
#[derive(Default)]
pub(super) struct DirtyKeys {
    bytes: Vec<u8>,
    ranges: Vec<(usize, usize)>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> [u8; HASH_LEN_BYTES] {
        number.to_be_bytes()
    }

    fn load(cache: &mut RecordCache, number: u64) {
        let loaded = cache.place(&key(number), || Ok::<_, ()>(Some(Box::from(&[0; 100][..]))));
        assert!(loaded.is_ok());
    }

    /// However many records are read meanwhile, and the cache stays small.
    #[test]
    fn unwritten_records_stay() {
        let mut cache = RecordCache::new(4_000);
        let mut unwritten = DirtyKeys::default();
        for number in 0..50 {
            load(&mut cache, number);
            unwritten.push(&key(number));
            unwritten.push(&key(number));
            cache.trim(unwritten.iter());
        }
        for number in 100..1_000 {
            load(&mut cache, number);
            cache.trim(unwritten.iter());
            let len = cache.young.len() + cache.old.len();
            assert!(len < 50 + 30, "{len} records");
        }
        for number in 0..50 {
            assert!(cache.get(&key(number)).is_some(), "{number}");
        }
        // Once they are written, they leave like all others.
        for number in 1_000..1_100 {
            load(&mut cache, number);
            cache.trim([].into_iter());
        }
        assert!((0..50).all(|number| cache.get(&key(number)).is_none()));
        assert!(cache.young.len() + cache.old.len() < 30);
    }
}
