//! The keys of a store. Copying is cheap: the copy shares all memory with the original, and later changes copy small
//! pieces (copy on write). So a replica can write the snapshot of a large store while it serves.
//!
//! Keys are in 65,536 buckets by hash, and sorted by hash and key within a bucket, so equal contents serialize equally.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

/// Groups of buckets; a copy shares whole groups.
const GROUPS: usize = 256;
const BUCKETS_OF_GROUP: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    hash: u64,
    key_len_bytes: usize,
    /// The key followed by the data.
    bytes: Arc<[u8]>,
}

type Bucket = Arc<Vec<Record>>;
type Group = Vec<Bucket>;

#[derive(Debug, Clone)]
pub struct Keys {
    /// A group without keys may be an empty vector.
    groups: Vec<Arc<Group>>,
    len: usize,
}

impl Record {
    fn new(hash: u64, key: &[u8], data: &[u8]) -> Record {
        Record {
            hash,
            key_len_bytes: key.len(),
            bytes: [key, data].concat().into(),
        }
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len_bytes]
    }

    fn data(&self) -> &[u8] {
        &self.bytes[self.key_len_bytes..]
    }
}

impl PartialEq for Keys {
    fn eq(&self, other: &Keys) -> bool {
        // Compares contents: a group without keys may or may not have buckets.
        self.len == other.len && self.records().eq(other.records())
    }
}

impl Eq for Keys {}

fn place_of(hash: u64) -> (usize, usize) {
    let bucket = (hash >> 48) as usize;
    (bucket / BUCKETS_OF_GROUP, bucket % BUCKETS_OF_GROUP)
}

fn find(bucket: &[Record], hash: u64, key: &[u8]) -> Result<usize, usize> {
    bucket.binary_search_by(|record| (record.hash, record.key()).cmp(&(hash, key)))
}

impl Default for Keys {
    fn default() -> Keys {
        Keys {
            groups: vec![Arc::default(); GROUPS],
            len: 0,
        }
    }
}

impl Keys {
    /// In order of hash and key.
    fn records(&self) -> impl Iterator<Item = &Record> {
        let buckets = self.groups.iter().flat_map(|group| group.iter());
        buckets.flat_map(|bucket| bucket.iter())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let hash = xxh3_64(key);
        let (group, bucket) = place_of(hash);
        let bucket = self.groups[group].get(bucket)?;
        let at = find(bucket, hash, key).ok()?;
        Some(bucket[at].data())
    }

    /// Returns the bucket, unshared.
    fn own(&mut self, hash: u64) -> &mut Vec<Record> {
        let (group, bucket) = place_of(hash);
        let group = Arc::make_mut(&mut self.groups[group]);
        if group.is_empty() {
            // Separate allocations, because they are about to be filled.
            group.resize_with(BUCKETS_OF_GROUP, Arc::default);
        }
        Arc::make_mut(&mut group[bucket])
    }

    pub fn insert(&mut self, key: &[u8], data: &[u8]) {
        let hash = xxh3_64(key);
        let record = Record::new(hash, key, data);
        let bucket = self.own(hash);
        match find(bucket, hash, key) {
            Ok(at) => bucket[at] = record,
            Err(at) => {
                bucket.insert(at, record);
                self.len += 1;
            }
        }
    }

    /// Returns false if the key did not exist.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if self.get(key).is_none() {
            return false;
        }
        let hash = xxh3_64(key);
        let bucket = self.own(hash);
        if let Ok(at) = find(bucket, hash, key) {
            bucket.remove(at);
            self.len -= 1;
        }
        true
    }
}

/// Iterates over all keys, bucket by bucket, and releases each bucket when done.
#[derive(Debug)]
pub struct Drain {
    keys: Keys,
    group: usize,
    bucket: usize,
    at: usize,
}

impl Drain {
    pub fn new(keys: Keys) -> Drain {
        Drain {
            keys,
            group: 0,
            bucket: 0,
            at: 0,
        }
    }

    /// Passes records to `take` until it returns false. Returns false when there are no more.
    pub fn take(&mut self, mut take: impl FnMut(&[u8], &[u8]) -> bool) -> bool {
        while let Some(group) = self.keys.groups.get_mut(self.group) {
            while let Some(bucket) = group.get(self.bucket) {
                while let Some(record) = bucket.get(self.at) {
                    self.at += 1;
                    if !take(record.key(), record.data()) {
                        return true;
                    }
                }
                (self.bucket, self.at) = (self.bucket + 1, 0);
            }
            *group = Arc::default();
            (self.group, self.bucket) = (self.group + 1, 0);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> [u8; 4] {
        number.to_le_bytes()
    }

    fn all(keys: &Keys) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (mut all, mut drain) = (Vec::new(), Drain::new(keys.clone()));
        // One record per call.
        while drain.take(|key, data| {
            all.push((key.to_vec(), data.to_vec()));
            false
        }) {}
        all
    }

    #[test]
    fn a_copy_stays_what_it_was() {
        let mut keys = Keys::default();
        (0..10_000).for_each(|n| keys.insert(&key(n), b"old"));
        let copy = keys.clone();
        (5_000..15_000).for_each(|n| keys.insert(&key(n), b"new"));
        (0..1_000).for_each(|n| assert!(keys.remove(&key(n))));
        assert!(!keys.remove(&key(0)));
        assert_eq!((copy.len(), keys.len()), (10_000, 14_000));
        let mut found = all(&copy);
        found.sort();
        let mut expected: Vec<_> = (0..10_000)
            .map(|n| (key(n).to_vec(), b"old".to_vec()))
            .collect();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(keys.get(&key(999)), None);
        assert_eq!(keys.get(&key(1_000)), Some(&b"old"[..]));
        assert_eq!(keys.get(&key(14_999)), Some(&b"new"[..]));
        assert_eq!(all(&keys).len(), 14_000);
    }

    #[test]
    fn equal_contents_are_written_equally() {
        let (mut keys, mut others) = (Keys::default(), Keys::default());
        (0..5_000).for_each(|n| keys.insert(&key(n), b"data"));
        (0..6_000)
            .rev()
            .for_each(|n| others.insert(&key(n), b"data"));
        (5_000..6_000).for_each(|n| assert!(others.remove(&key(n))));
        assert_eq!(all(&keys), all(&others));
        assert_eq!(keys, others);
        (0..5_000).for_each(|n| assert!(keys.remove(&key(n))));
        assert_eq!(keys, Keys::default());
        others.insert(&key(0), b"other");
        (1..5_000).for_each(|n| assert!(others.remove(&key(n))));
        keys.insert(&key(0), b"data");
        assert_ne!(keys, others);
    }
}
