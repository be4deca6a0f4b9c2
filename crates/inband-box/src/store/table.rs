//! Writing the table.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::{
    chunks_of, header, item, Item, Layout, Meta, Reader, Region, CHUNK_WORDS, FIRST_BYTES,
    ITEM_WORDS, MAGIC, NEXT_BYTES, NEXT_WORDS,
};

/// The table has no room for an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the table is full")]
pub struct Full;

/// The writer's view of the table.
pub struct Table {
    region: Arc<Region>,
    layout: Layout,
    reader: Reader,
    /// Free chunks; the last one is taken first.
    free: Vec<u32>,
    /// Maximum number of chunks in use: nodes with more chunks must agree with those that have fewer.
    limit_chunks: usize,
    used_chunks: usize,
    items: u64,
    /// Items that expire, by time, with their first chunk.
    expiring: BTreeSet<(u64, usize)>,
    digest: u64,
    copy: Option<TableCopy>,
}

/// A copy of all items as of its start, made while the table changes. The items of a bucket that is about to change are
/// copied first.
struct TableCopy {
    /// The items after a header: moving a large copy would stall the node.
    items: Vec<u8>,
    /// Buckets before this one are copied.
    next: usize,
    /// A bit per bucket: whether a later one is copied already.
    early: Vec<u64>,
}

impl TableCopy {
    fn take(&mut self, number: usize, bucket: usize, reader: &Reader) {
        let (word, bit) = (number / 64, 1 << (number % 64));
        if number < self.next || self.early[word] & bit != 0 {
            return;
        }
        self.early[word] |= bit;
        reader.each_in(bucket, |key, item| encode(&key, &item, &mut self.items));
    }
}

impl Table {
    /// Creates an empty table.
    ///
    /// # Errors
    /// If there is no memory for it.
    ///
    /// # Panics
    /// If it has no chunk, or more than 2^32.
    pub fn new(chunks: u64) -> io::Result<Table> {
        let words = Layout::of(chunks as usize, (0, 0)).words();
        Ok(Table::in_region(Region::zeroed(words)?, chunks))
    }

    /// Creates an empty table in zeroed memory, which may be that of a BPF map.
    ///
    /// # Panics
    /// As [`Table::new`], or if the memory is too small ([`super::map_elements`]).
    pub fn in_region(region: Region, chunks: u64) -> Table {
        assert!((1..=u64::from(u32::MAX)).contains(&chunks), "{chunks}");
        let hash_key: (u64, u64) = rand::random();
        let layout = Layout::of(chunks as usize, hash_key);
        assert!(layout.words() <= region.words().len(), "too little memory");
        let region = Arc::new(region);
        let set = |at: usize, value: u64| region.words()[at].store(value, Ordering::Relaxed);
        set(header::BUCKETS_LOG2, layout.buckets_log2.into());
        set(header::CHUNKS, chunks);
        set(header::HASH_KEY, hash_key.0);
        set(header::HASH_KEY + 1, hash_key.1);
        region.words()[header::MAGIC].store(MAGIC, Ordering::Release);
        Table {
            reader: Reader::of_writer(region.clone(), layout),
            region,
            layout,
            free: (0..chunks as u32).rev().collect(),
            limit_chunks: chunks as usize,
            used_chunks: 0,
            items: 0,
            expiring: BTreeSet::new(),
            digest: 0,
            copy: None,
        }
    }

    /// Returns a reader for the writer's thread, which also finds items while all are replaced.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns a reader for other threads.
    pub fn reader_of_others(&self) -> Reader {
        self.reader.of_others()
    }

    /// Returns the memory file, for readers in other processes ([`Reader::open`]); `None` if the memory is a BPF map's.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.region.file()
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.layout.chunks as u64
    }

    /// Limits the number of chunks that may be used.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn set_limit(&mut self, chunks: u64) {
        assert!(chunks <= self.chunks(), "{chunks} of {}", self.chunks());
        self.limit_chunks = chunks as usize;
    }

    /// Returns the number of items.
    pub fn len(&self) -> u64 {
        self.items
    }

    /// Returns whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Returns the number of chunks in use.
    pub fn used_chunks(&self) -> u64 {
        self.used_chunks as u64
    }

    /// Returns when the next item expires.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.expiring.first().map(|(time_ms, _)| *time_ms)
    }

    /// Returns a sum over all items, which is the same for equal tables.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Tells readers up to which record and time the table is current.
    pub fn publish(&self, applied: u64, time_ms: u64) {
        self.set(header::TIME_MS, time_ms);
        self.set(header::ITEMS, self.items);
        self.set(header::CHUNKS_USED, self.used_chunks as u64);
        self.region.words()[header::APPLIED].store(applied, Ordering::Release);
    }

    fn set(&self, at: usize, value: u64) {
        self.region.words()[at].store(value, Ordering::Relaxed);
    }

    fn load(&self, at: usize) -> u64 {
        self.region.words()[at].load(Ordering::Relaxed)
    }

    /// Returns the item of a key.
    pub fn get(&self, key: &[u8]) -> Option<Item> {
        self.reader.get(key)
    }

    /// Returns the metadata of a key's item.
    pub fn meta(&self, key: &[u8]) -> Option<Meta> {
        self.reader.at(key).map(|(_, meta)| meta)
    }

    /// Stores an item, replacing the key's current one. An error changes nothing.
    pub fn put(&mut self, key: &[u8], value: &[u8], meta: &Meta) -> Result<(), Full> {
        let needed = chunks_of(key.len(), value.len());
        // The replaced item is freed only afterwards, since readers may still be copying it.
        if self.used_chunks + needed > self.limit_chunks {
            return Err(Full);
        }
        let taken = self.free.split_off(self.free.len() - needed);
        let at = self.write(&taken, key, value, meta);
        let hash = self.layout.hash_of(key);
        let bucket = self.layout.bucket(hash);
        let old = self.reader.at(key).map(|(at, _)| at);
        let link = |at: usize| (at - self.layout.chunk(0)) as u64 / CHUNK_WORDS as u64 + 1;
        let next = match old {
            Some(old) => self.load(old + item::LINK),
            None => self.load(bucket + 1),
        };
        self.set(at + item::LINK, next);
        let place = match old {
            Some(old) => self.place_of(bucket, link(old)),
            None => bucket + 1,
        };
        let linked = link(at);
        self.change(bucket, |table| table.set(place, linked));
        if let Some(old) = old {
            self.forget(old);
        }
        self.remember(at, key, value, meta);
        self.used_chunks += needed;
        Ok(())
    }

    /// Changes the metadata of an item, if it exists. Returns whether it does.
    pub fn set_meta(&mut self, key: &[u8], meta: &Meta) -> bool {
        let Some((at, _)) = self.reader.at(key) else {
            return false;
        };
        let item = self.reader.get(key).expect("it was found");
        let bucket = self.layout.bucket(self.layout.hash_of(key));
        self.digest = self
            .digest
            .wrapping_sub(digest_of(key, &item.value, &item.meta));
        self.unschedule(at, item.meta.expires_ms);
        self.change(bucket, |table| table.write_meta(at, meta));
        self.remember_only(at, meta);
        self.digest = self.digest.wrapping_add(digest_of(key, &item.value, meta));
        true
    }

    /// Removes a key's item, if it exists. Returns whether it did.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let Some((at, _)) = self.reader.at(key) else {
            return false;
        };
        self.unlink(at);
        true
    }

    pub fn expire(&mut self, time_ms: u64) {
        while let Some((expires_ms, at)) = self.expiring.first().copied() {
            if expires_ms > time_ms {
                return;
            }
            self.unlink(at);
        }
    }

    pub fn clear(&mut self) {
        for number in 0..self.layout.buckets() {
            let bucket = self.layout.bucket_at(number);
            while let Some(at) = self.layout.linked(self.load(bucket + 1)) {
                self.unlink(at);
            }
        }
    }

    /// Begins a copy of all current items, after `header`. A copy in progress is discarded.
    pub fn begin_copy(&mut self, header: Vec<u8>) {
        self.copy = Some(TableCopy {
            items: header,
            next: 0,
            early: vec![0; self.layout.buckets().div_ceil(64)],
        });
    }

    /// Copies `buckets` more buckets. Returns the copy once it is complete.
    pub fn go_on_copying(&mut self, buckets: usize) -> Option<Vec<u8>> {
        let copy = self.copy.as_mut()?;
        let until = self.layout.buckets().min(copy.next + buckets);
        while copy.next < until {
            copy.take(copy.next, self.layout.bucket_at(copy.next), &self.reader);
            copy.next += 1;
        }
        let is_complete = copy.next == self.layout.buckets();
        self.copy.take_if(|_| is_complete).map(|copy| copy.items)
    }

    /// Returns whether a copy is in progress.
    pub fn is_copying(&self) -> bool {
        self.copy.is_some()
    }

    /// Replaces all items by those of a copy. Readers wait meanwhile. Returns false if the copy is damaged or does not
    /// fit; the table then has only some of its items.
    pub fn replace(&mut self, copy: &[u8]) -> bool {
        self.copy = None;
        let replaced = self.load(header::REPLACED);
        self.set(header::REPLACED, replaced + 1);
        // A reader that sees part of the change also sees the odd word.
        fence(Ordering::Release);
        self.clear();
        let mut rest = copy;
        let is_whole = loop {
            if rest.is_empty() {
                break true;
            }
            let Some((key, value, meta)) = decode(&mut rest) else {
                break false;
            };
            if self.put(key, value, &meta).is_err() {
                break false;
            }
        };
        self.region.words()[header::REPLACED].store(replaced + 2, Ordering::Release);
        is_whole
    }

    fn unlink(&mut self, at: usize) {
        let bucket = self.layout.bucket(self.load(at + item::HASH));
        let link = (at - self.layout.chunk(0)) as u64 / CHUNK_WORDS as u64 + 1;
        let place = self.place_of(bucket, link);
        let next = self.load(at + item::LINK);
        self.change(bucket, |table| table.set(place, next));
        self.forget(at);
    }

    /// Returns the position of the word that links to an item.
    fn place_of(&self, bucket: usize, link: u64) -> usize {
        let mut place = bucket + 1;
        loop {
            let here = self.load(place);
            if here == link {
                return place;
            }
            let at = self.layout.linked(here).expect("the item is in its bucket");
            place = at + item::LINK;
        }
    }

    /// Changes what is reachable from a bucket.
    fn change(&mut self, bucket: usize, change: impl FnOnce(&Table)) {
        if let Some(copy) = &mut self.copy {
            copy.take(self.layout.number_of(bucket), bucket, &self.reader);
        }
        let sequence = self.load(bucket);
        self.set(bucket, sequence + 1);
        // A reader that sees part of the change also sees the odd sequence.
        fence(Ordering::Release);
        change(self);
        self.region.words()[bucket].store(sequence + 2, Ordering::Release);
    }

    fn write(&self, taken: &[u32], key: &[u8], value: &[u8], meta: &Meta) -> usize {
        let at = self.layout.chunk(taken[0] as usize);
        let lengths = (key.len() as u64) << 32 | value.len() as u64;
        self.set(at + item::HASH, self.layout.hash_of(key));
        self.set(at + item::LENGTHS, lengths);
        self.set(at + item::READ_S, 0);
        self.write_meta(at, meta);
        let mut bytes = key.iter().chain(value).copied();
        for (n, chunk) in taken.iter().enumerate() {
            let at = self.layout.chunk(*chunk as usize);
            let next = taken.get(n + 1).map_or(0, |next| u64::from(*next) + 1);
            self.set(at + item::NEXT, next);
            let (from, room) = match n {
                0 => (ITEM_WORDS, FIRST_BYTES),
                _ => (NEXT_WORDS, NEXT_BYTES),
            };
            for word in 0..room / 8 {
                let mut eight = [0; 8];
                let mut len = 0;
                for (to, byte) in eight.iter_mut().zip(&mut bytes) {
                    *to = byte;
                    len += 1;
                }
                if len == 0 {
                    break;
                }
                self.set(at + from + word, u64::from_le_bytes(eight));
            }
        }
        at
    }

    fn write_meta(&self, at: usize, meta: &Meta) {
        for (n, word) in meta.words().into_iter().enumerate() {
            self.set(at + item::FLAGS + n, word);
        }
    }

    fn remember(&mut self, at: usize, key: &[u8], value: &[u8], meta: &Meta) {
        self.remember_only(at, meta);
        self.items += 1;
        self.digest = self.digest.wrapping_add(digest_of(key, value, meta));
    }

    fn remember_only(&mut self, at: usize, meta: &Meta) {
        if meta.expires_ms > 0 {
            self.expiring.insert((meta.expires_ms, at));
        }
    }

    fn unschedule(&mut self, at: usize, expires_ms: u64) {
        if expires_ms > 0 {
            self.expiring.remove(&(expires_ms, at));
        }
    }

    /// Frees an item that is no longer in any bucket.
    fn forget(&mut self, at: usize) {
        let (key, item) = self.reader.item_at(at);
        self.digest = self
            .digest
            .wrapping_sub(digest_of(&key, &item.value, &item.meta));
        self.unschedule(at, item.meta.expires_ms);
        self.items -= 1;
        let mut at = Some(at);
        while let Some(chunk) = at {
            let number = (chunk - self.layout.chunk(0)) / CHUNK_WORDS;
            self.free.push(number as u32);
            self.used_chunks -= 1;
            at = self.layout.linked(self.load(chunk + item::NEXT));
        }
    }
}

fn encode(key: &[u8], item: &Item, into: &mut Vec<u8>) {
    let lengths = (key.len() as u64) << 32 | item.value.len() as u64;
    for word in std::iter::once(lengths).chain(item.meta.words()) {
        into.extend_from_slice(&word.to_le_bytes());
    }
    into.extend_from_slice(key);
    into.extend_from_slice(&item.value);
}

/// Decodes the first item of a copy.
fn decode<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8], Meta)> {
    let mut words = [0; 5];
    for word in &mut words {
        let (bytes, left) = rest.split_first_chunk()?;
        (*word, *rest) = (u64::from_le_bytes(*bytes), left);
    }
    let [lengths, meta @ ..] = words;
    let (key, left) = rest.split_at_checked((lengths >> 32) as usize)?;
    let (value, left) = left.split_at_checked(lengths as u32 as usize)?;
    *rest = left;
    Some((key, value, Meta::of_words(meta)))
}

/// Returns the digest of a table with the items of a copy; `None` if the copy is damaged.
pub fn digest_of_copy(copy: &[u8]) -> Option<u64> {
    let (mut rest, mut digest) = (copy, 0_u64);
    while !rest.is_empty() {
        let (key, value, meta) = decode(&mut rest)?;
        digest = digest.wrapping_add(digest_of(key, value, &meta));
    }
    Some(digest)
}

fn digest_of(key: &[u8], value: &[u8], meta: &Meta) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(value);
    for word in [
        u64::from(meta.flags),
        u64::from(meta.marks),
        meta.cas,
        meta.expires_ms,
        meta.stored_ms,
    ] {
        hash.update(&word.to_le_bytes());
    }
    hash.digest()
}
