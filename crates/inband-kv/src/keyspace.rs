//! The keys and values of a store while a burst is applied.
//!
//! Writes go into an in-memory record cache, so that later commands see them, and into the write batch when the store
//! is written. The cache keeps them at least until that write has ended; after that the same cache serves hot keys
//! without asking RocksDB.

mod layers;
mod records;

use std::collections::BTreeSet;

use rocksdb::{Direction, IteratorMode, WriteBatch, DB};
use xxhash_rust::xxh3::xxh3_64;

use crate::awaited_keys::AwaitedKeys;
use crate::changes::{ChangeKind, Changes};
use crate::db::{Columns, HASH_LEN_BYTES};
use crate::events::{EventClass, EventClasses};
use crate::limits::{APPENDED_LEN_BYTES_MAX_V1, KEY_LEN_BYTES_MAX, STORED_VALUE_LEN_BYTES_MAX};
use crate::partition::partition_of;
use crate::script_cache::Scripts;
use crate::store::{LogRole, Position};
use crate::subscriptions::Subscriptions;
use crate::types::Kind;
use layers::Layers;
use records::RecordCache;

/// Length of the expiry time, in front of a record and in front of a key in the expiry index.
pub const TIME_LEN_BYTES: usize = 8;

/// Flag in a record's time field: a version follows.
const HAS_VERSION: u64 = 1 << 63;
/// Length of the header of a record with a version.
const HEADER_LEN_BYTES: usize = 16;
/// The highest byte of a version is the kind of the value.
const KIND_SHIFT: u32 = 56;
/// Writes are fewer than this, so a counter that was moved up to the time stays behind it.
const TOKENS_PER_MS: u64 = 1024;
/// Times beyond the year 2248 do not count, so that tokens are exact as double-precision numbers, too.
const TOKEN_BY_TIME_MAX: u64 = 1 << 53;

/// Greater than every stored key: longer, and all bits set.
static ABOVE_ALL_KEYS: [u8; HASH_LEN_BYTES + KEY_LEN_BYTES_MAX + 1] =
    [0xff; HASH_LEN_BYTES + KEY_LEN_BYTES_MAX + 1];

/// What commands use that is in memory only, and no part of the replicated state.
#[derive(Debug, Clone, Default)]
pub struct Transient {
    pub scripts: Scripts,
    pub awaited: AwaitedKeys,
    pub subscriptions: Subscriptions,
    pub changes: Changes,
}

/// State that outlives a burst.
pub struct Keyspace {
    cache: RecordCache,
    /// Exact number of stored keys, including expired keys not yet deleted (as in Redis).
    pub keys: u64,
    /// No key expires before this; `u64::MAX` if no key expires.
    pub earliest_expiry_ms: u64,
    layers: Layers,
    /// Everything below this was deleted from the expiry index and never returns, because time does not go backwards.
    /// Seeking from here avoids walking over RocksDB's tombstones.
    index_start: Vec<u8>,
    stored_key: Vec<u8>,
    /// Records get versions: programs that do not support them can no longer follow this log.
    pub has_versions: bool,
    /// The highest kind of value that was ever stored: programs that do not know it cannot open the store.
    pub last_kind: Kind,
    /// Number of records written with a version, and of tokens issued; moved up to the time by each token.
    pub writes: u64,
    /// Which events are published.
    pub events: EventClasses,
    /// Bytes of values put since the store was opened.
    put_bytes: u64,
    /// How many of these bytes have been written, or are being written.
    begun_bytes: u64,
    /// Where in the log the changes are made.
    pub at: Position,
    role: LogRole,
    transient: Transient,
}

/// A live record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it expires; 0: never.
    pub expire_at_ms: u64,
    /// Changes whenever the record is written; 0 if it was written before there were versions.
    pub version: u64,
    pub kind: Kind,
    pub value: &'a [u8],
}

/// The operations of a command on the keys and values that it involves.
pub trait Keys {
    fn now_ms(&self) -> u64;
    /// Returns the record of `key`, if it has not expired.
    fn get(&mut self, key: &[u8]) -> Result<Option<Record<'_>>, rocksdb::Error>;
    /// Stores a value of this kind; `expire_at_ms` 0: it never expires.
    fn put_as(
        &mut self,
        kind: Kind,
        key: &[u8],
        expire_at_ms: u64,
        value: &[u8],
    ) -> Result<(), rocksdb::Error>;
    /// Stores a string.
    fn put(&mut self, key: &[u8], expire_at_ms: u64, value: &[u8]) -> Result<(), rocksdb::Error> {
        self.put_as(Kind::String, key, expire_at_ms, value)
    }
    /// Returns a number that is larger than all that were issued before for keys of the same partition.
    fn issue_token(&mut self, key: &[u8]) -> u64;
    /// Deletes a key. Returns whether it existed and was live.
    fn delete(&mut self, key: &[u8]) -> Result<bool, rocksdb::Error>;
    /// Returns the number of keys, including expired keys not yet deleted (as in Redis).
    fn count(&self) -> u64;
    fn flush(&mut self);
    /// Calls `visit` with every live key until it returns `false`.
    fn each(&mut self, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), rocksdb::Error>;
    /// Returns the longest value that a command may grow a value to.
    fn grown_len_bytes_max(&self) -> usize;
    /// Bytes of values put so far. Only the difference between two calls within one command is meaningful.
    fn put_bytes(&self) -> u64;
    /// The scripts that this replica knows.
    fn scripts(&self) -> &Scripts;
    /// Returns whether messages to this channel belong to the partitions of the command.
    fn has_channel(&self, channel: &[u8]) -> bool;
    /// Hands a message to this replica's subscribers. Returns their number, which differs between replicas. The message
    /// counts as bytes put.
    fn publish(&mut self, channel: &[u8], payload: &[u8]) -> usize;
    /// Which events are published.
    fn events(&self) -> EventClasses;
    fn set_events(&mut self, classes: EventClasses);
    /// Publishes what has happened to a key.
    fn notify(&mut self, class: EventClass, event: &str, key: &[u8]);
    /// This replica's subscribers, and the messages that they have not got yet.
    fn subscriptions(&self) -> &Subscriptions;
    /// Messages of this many bytes count as bytes put.
    fn count_published(&mut self, bytes: u64);
}

impl Keyspace {
    /// Returns the keyspace of `db`, which holds `keys` keys. The cache takes at most `cache_bytes_max`.
    pub fn open(
        db: &DB,
        columns: Columns<'_>,
        keys: u64,
        cache_bytes_max: usize,
        role: LogRole,
        transient: Transient,
    ) -> Result<Self, rocksdb::Error> {
        let first = db
            .iterator_cf(columns.expiry, IteratorMode::Start)
            .next()
            .transpose()?;
        Ok(Self {
            cache: RecordCache::new(cache_bytes_max),
            layers: Layers::default(),
            keys,
            earliest_expiry_ms: first.map_or(u64::MAX, |(key, _)| leading_number(&key)),
            index_start: Vec::new(),
            stored_key: Vec::new(),
            has_versions: false,
            last_kind: Kind::String,
            writes: 0,
            events: EventClasses::default(),
            put_bytes: 0,
            begun_bytes: 0,
            at: Position::default(),
            role,
            transient,
        })
    }

    /// Keeps a change for those who watch the keys.
    fn note(&self, kind: ChangeKind, key: &[u8], value: Option<&[u8]>) {
        let (log, changes) = (self.role.log, &self.transient.changes);
        changes.note(log, self.at, kind, key, value);
    }

    /// Publishes what has happened to a key.
    fn notify(&self, class: EventClass, event: &str, key: &[u8]) {
        let subscriptions = &self.transient.subscriptions;
        if !self.events.is_any() || !subscriptions.is_any() {
            return;
        }
        for (channel, payload) in self.events.messages(class, event, key) {
            subscriptions.publish(&channel, payload);
        }
    }

    /// Returns the header of a record that is written now.
    fn header(&self, kind: Kind, expire_at_ms: u64) -> ([u8; HEADER_LEN_BYTES], usize) {
        let mut header = [0; HEADER_LEN_BYTES];
        if !self.has_versions {
            header[..TIME_LEN_BYTES].copy_from_slice(&expire_at_ms.to_be_bytes());
            return (header, TIME_LEN_BYTES);
        }
        let time = expire_at_ms | HAS_VERSION;
        header[..TIME_LEN_BYTES].copy_from_slice(&time.to_be_bytes());
        // 0 and 1 have a special meaning, see `engine::version_of`.
        let version = (kind as u64) << KIND_SHIFT | (self.writes + 1);
        header[TIME_LEN_BYTES..].copy_from_slice(&version.to_be_bytes());
        (header, HEADER_LEN_BYTES)
    }

    /// Puts everything that has changed since the last write began into `batch`, each key once. In key order: what
    /// RocksDB touches in its memtable for one key is then in the CPU's cache for the next.
    pub fn write(&mut self, columns: Columns<'_>, batch: &mut WriteBatch) {
        let newest = &mut self.layers.newest;
        if newest.flushed {
            batch.delete_range_cf(columns.data, &[][..], &ABOVE_ALL_KEYS[..]);
            batch.delete_range_cf(columns.expiry, &[][..], &ABOVE_ALL_KEYS[..]);
        }
        for stored_key in newest.dirty.sorted() {
            match self.cache.get(stored_key) {
                Some(record) => batch.put_cf(columns.data, stored_key, record),
                None => batch.delete_cf(columns.data, stored_key),
            }
        }
        for (key, is_added) in &newest.index {
            match is_added {
                true => batch.put_cf(columns.expiry, key, []),
                false => batch.delete_cf(columns.expiry, key),
            }
        }
    }

    /// Calls `visit` with every stored key from `start` on, in order, and its record, written or not, live or expired,
    /// until it returns `false`.
    pub fn visit_from(
        &self,
        db: &DB,
        columns: Columns<'_>,
        start: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), rocksdb::Error> {
        let ends_at = |key: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool| {
            let record = self.cache.get(key);
            record.is_some_and(|record| !visit(key, record))
        };
        let mut unwritten = self.layers.dirty_from(start).peekable();
        if !self.layers.hide_database() {
            let mode = IteratorMode::From(start, Direction::Forward);
            for item in db.iterator_cf(columns.data, mode) {
                let (stored_key, record) = item?;
                while let Some(key) = unwritten.next_if(|key| **key < *stored_key) {
                    if ends_at(key, visit) {
                        return Ok(());
                    }
                }
                let is_replaced = unwritten.peek().is_some_and(|key| **key == *stored_key);
                if !is_replaced && !visit(&stored_key, &record) {
                    return Ok(());
                }
            }
        }
        for key in unwritten {
            if ends_at(key, visit) {
                break;
            }
        }
        Ok(())
    }

    /// Drops records that need not be kept if there are too many: after a burst, and after keys were read between bursts.
    pub fn trim_cache(&mut self) {
        self.cache.trim(self.layers.dirty());
    }

    /// Bytes of records in memory.
    #[cfg(any(test, feature = "testing"))]
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Bytes of values that have been put since the last write began.
    pub fn unwritten_bytes(&self) -> u64 {
        self.put_bytes - self.begun_bytes
    }

    /// What was put into the last batch is being written. The write before it has ended.
    pub fn write_begins(&mut self) {
        self.layers.write_begins();
        self.begun_bytes = self.put_bytes;
    }

    /// That write has ended.
    pub fn write_ended(&mut self) {
        self.layers.write_ended();
        self.trim_cache();
    }
}

pub fn stored_key(key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&xxh3_64(key).to_be_bytes());
    out.extend_from_slice(key);
}

/// Returns the number at the start of `bytes`, such as the time in front of a record; 0 if `bytes` is too short.
pub fn leading_number(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk::<TIME_LEN_BYTES>()
        .map_or(0, |time| u64::from_be_bytes(*time))
}

/// Decodes a stored record.
pub fn record(bytes: &[u8]) -> Record<'_> {
    let time = leading_number(bytes);
    let has_version = time & HAS_VERSION != 0;
    let rest = bytes.get(TIME_LEN_BYTES..).unwrap_or(&[]);
    let (version, value) = if has_version {
        let value = rest.get(HEADER_LEN_BYTES - TIME_LEN_BYTES..);
        (leading_number(rest), value.unwrap_or(&[]))
    } else {
        (0, rest)
    };
    Record {
        expire_at_ms: time & !HAS_VERSION,
        version,
        kind: Kind::of_byte((version >> KIND_SHIFT) as u8).unwrap_or_default(),
        value,
    }
}

/// Returns whether a record that expires at `expire_at_ms` is still live.
pub fn is_live(expire_at_ms: u64, now_ms: u64) -> bool {
    expire_at_ms == 0 || expire_at_ms > now_ms
}

/// The keyspace while one burst is applied.
pub struct View<'a> {
    /// The database below the layers: as of before the write under way, or after it.
    pub db: &'a DB,
    pub columns: Columns<'a>,
    pub keyspace: &'a mut Keyspace,
    /// Replicated time.
    pub now_ms: u64,
    /// Cluster time if this is a read that does not go through the log; else 0.
    pub clock_ms: u64,
    /// A record was read that has expired by `clock_ms` but not by replicated time, which may be behind.
    pub is_doubtful: bool,
}

impl Keys for View<'_> {
    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Record<'_>>, rocksdb::Error> {
        let (now_ms, clock_ms) = (self.now_ms, self.clock_ms);
        let (db, columns, keyspace) = (self.db, self.columns, &mut *self.keyspace);
        stored_key(key, &mut keyspace.stored_key);
        let record = place(db, columns, keyspace)?.as_deref().map(record);
        let record = record.filter(|r| is_live(r.expire_at_ms, now_ms));
        self.is_doubtful |= record.is_some_and(|r| !is_live(r.expire_at_ms, clock_ms));
        Ok(record)
    }

    fn put_as(
        &mut self,
        kind: Kind,
        key: &[u8],
        expire_at_ms: u64,
        value: &[u8],
    ) -> Result<(), rocksdb::Error> {
        self.keyspace.last_kind = self.keyspace.last_kind.max(kind);
        self.keyspace.transient.awaited.note_put(kind, key);
        stored_key(key, &mut self.keyspace.stored_key);
        self.keyspace.writes += u64::from(self.keyspace.has_versions);
        let (header, header_len) = self.keyspace.header(kind, expire_at_ms);
        let header = &header[..header_len];
        let place = place(self.db, self.columns, self.keyspace)?;
        let before = place.as_deref().map(|r| (record(r).expire_at_ms, r.len()));
        let was_live = before.is_some_and(|(ms, _)| is_live(ms, self.now_ms));
        let len = header_len + value.len();
        match place {
            Some(bytes) if bytes.len() == len => {
                bytes[..header_len].copy_from_slice(header);
                bytes[header_len..].copy_from_slice(value);
            }
            _ => *place = Some([header, value].concat().into()),
        }
        let (before_ms, before_len) = before.unwrap_or((0, 0));
        self.move_expiry(before_ms, expire_at_ms);
        let keyspace = &mut *self.keyspace;
        keyspace.keys += u64::from(before.is_none());
        keyspace.put_bytes += value.len() as u64;
        keyspace.cache.young_bytes = (keyspace.cache.young_bytes + len).saturating_sub(before_len);
        keyspace.layers.newest.dirty.push(&keyspace.stored_key);
        keyspace.note(
            ChangeKind::Put,
            key,
            (kind == Kind::String).then_some(value),
        );
        if !was_live && keyspace.events.is_any() {
            if before.is_some() {
                self.notify(EventClass::Expired, "expired", key);
            }
            self.notify(EventClass::New, "new", key);
        }
        Ok(())
    }

    fn issue_token(&mut self, _key: &[u8]) -> u64 {
        let by_time = self
            .now_ms
            .saturating_mul(TOKENS_PER_MS)
            .min(TOKEN_BY_TIME_MAX);
        let writes = &mut self.keyspace.writes;
        *writes = by_time.max(*writes + 1);
        *writes
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, rocksdb::Error> {
        stored_key(key, &mut self.keyspace.stored_key);
        self.delete_stored()
    }

    fn count(&self) -> u64 {
        self.keyspace.keys
    }

    fn flush(&mut self) {
        self.keyspace.cache.clear();
        self.keyspace.layers.newest.clear();
        self.keyspace.layers.newest.flushed = true;
        self.keyspace.keys = 0;
        self.keyspace.earliest_expiry_ms = u64::MAX;
        self.keyspace.note(ChangeKind::Flush, b"", None);
    }

    fn each(&mut self, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), rocksdb::Error> {
        let (now_ms, clock_ms) = (self.now_ms, self.clock_ms);
        let is_doubtful = &mut self.is_doubtful;
        let visit = &mut |stored_key: &[u8], bytes: &[u8]| {
            let expire_at_ms = record(bytes).expire_at_ms;
            if !is_live(expire_at_ms, now_ms) {
                return true;
            }
            *is_doubtful |= !is_live(expire_at_ms, clock_ms);
            visit(&stored_key[HASH_LEN_BYTES..])
        };
        self.keyspace.visit_from(self.db, self.columns, &[], visit)
    }

    fn grown_len_bytes_max(&self) -> usize {
        if self.keyspace.has_versions {
            STORED_VALUE_LEN_BYTES_MAX
        } else {
            APPENDED_LEN_BYTES_MAX_V1
        }
    }

    fn put_bytes(&self) -> u64 {
        self.keyspace.put_bytes
    }

    fn scripts(&self) -> &Scripts {
        &self.keyspace.transient.scripts
    }

    fn has_channel(&self, channel: &[u8]) -> bool {
        let role = self.keyspace.role;
        partition_of(channel, role.partitions) == role.log
    }

    fn publish(&mut self, channel: &[u8], payload: &[u8]) -> usize {
        self.count_published((channel.len() + payload.len()) as u64);
        self.subscriptions().publish(channel, payload)
    }

    fn events(&self) -> EventClasses {
        self.keyspace.events
    }

    fn set_events(&mut self, classes: EventClasses) {
        self.keyspace.events = classes;
    }

    fn notify(&mut self, class: EventClass, event: &str, key: &[u8]) {
        self.keyspace.notify(class, event, key);
    }

    fn subscriptions(&self) -> &Subscriptions {
        &self.keyspace.transient.subscriptions
    }

    fn count_published(&mut self, bytes: u64) {
        self.keyspace.put_bytes += bytes;
    }
}

/// The slot of the record of the key in `keyspace.stored_key`, live or expired.
fn place<'k>(
    db: &DB,
    columns: Columns<'_>,
    keyspace: &'k mut Keyspace,
) -> Result<&'k mut Option<Box<[u8]>>, rocksdb::Error> {
    let (key, is_hidden) = (&keyspace.stored_key, keyspace.layers.hide_database());
    keyspace.cache.place(key, || {
        if is_hidden {
            return Ok(None);
        }
        let record = db.get_pinned_cf(columns.data, key)?;
        Ok(record.map(|record| Box::from(&*record)))
    })
}

impl View<'_> {
    /// Deletes the key in `keyspace.stored_key`.
    fn delete_stored(&mut self) -> Result<bool, rocksdb::Error> {
        let Some(bytes) = place(self.db, self.columns, self.keyspace)?.take() else {
            return Ok(false);
        };
        let expire_at_ms = record(&bytes).expire_at_ms;
        self.move_expiry(expire_at_ms, 0);
        let keyspace = &mut *self.keyspace;
        keyspace.keys -= 1;
        keyspace.cache.young_bytes = keyspace.cache.young_bytes.saturating_sub(bytes.len());
        keyspace.layers.newest.dirty.push(&keyspace.stored_key);
        let was_live = is_live(expire_at_ms, self.now_ms);
        let kind = match was_live {
            true => ChangeKind::Delete,
            false => ChangeKind::Expire,
        };
        let key = &keyspace.stored_key[HASH_LEN_BYTES..];
        keyspace.note(kind, key, None);
        if !was_live {
            keyspace.notify(EventClass::Expired, "expired", key);
        }
        Ok(was_live)
    }

    /// Deletes up to `limit` expired keys, earliest expiry first.
    pub fn delete_expired(&mut self, limit: usize) -> Result<(), rocksdb::Error> {
        if self.keyspace.earliest_expiry_ms > self.now_ms {
            return Ok(());
        }
        let due = self.due(limit)?;
        for index_key in due {
            self.keyspace.stored_key.clear();
            self.keyspace
                .stored_key
                .extend_from_slice(&index_key[TIME_LEN_BYTES..]);
            self.delete_stored()?;
            self.keyspace.index_start = index_key;
        }
        Ok(())
    }

    /// Up to `limit` entries of the expiry index that are due. Also updates the time of the next one.
    fn due(&mut self, limit: usize) -> Result<Vec<Vec<u8>>, rocksdb::Error> {
        let now_ms = self.now_ms;
        let keyspace = &mut *self.keyspace;
        let layers = &keyspace.layers;
        // Of each source as many as are returned if they are all from it, and the one after these.
        let mut first = BTreeSet::new();
        let is_after = |taken: usize, key: &[u8]| taken > limit || leading_number(key) > now_ms;
        for added in layers.added() {
            for (taken, key) in added.enumerate() {
                first.insert(key.to_vec());
                if is_after(taken + 1, key) {
                    break;
                }
            }
        }
        if !layers.hide_database() {
            let mode = IteratorMode::From(&keyspace.index_start, Direction::Forward);
            let mut taken = 0;
            for item in self.db.iterator_cf(self.columns.expiry, mode) {
                let (key, _) = item?;
                if layers.index(&key) == Some(false) {
                    continue;
                }
                taken += 1;
                let is_last = is_after(taken, &key);
                first.insert(key.into());
                if is_last {
                    break;
                }
            }
        }
        let mut first = first.into_iter().peekable();
        let mut due = Vec::new();
        while let Some(key) =
            first.next_if(|key| due.len() < limit && leading_number(key) <= now_ms)
        {
            due.push(key);
        }
        keyspace.earliest_expiry_ms = first.peek().map_or(u64::MAX, |key| leading_number(key));
        Ok(due)
    }

    /// Moves the key in `keyspace.stored_key` in the expiry index; 0: not in the index.
    fn move_expiry(&mut self, before_ms: u64, after_ms: u64) {
        if before_ms == after_ms {
            return;
        }
        let keyspace = &mut *self.keyspace;
        if before_ms != 0 {
            let key = [&before_ms.to_be_bytes()[..], &keyspace.stored_key].concat();
            keyspace.layers.newest.index.insert(key, false);
        }
        if after_ms != 0 {
            let key = [&after_ms.to_be_bytes()[..], &keyspace.stored_key].concat();
            keyspace.layers.newest.index.insert(key, true);
            keyspace.earliest_expiry_ms = keyspace.earliest_expiry_ms.min(after_ms);
        }
    }
}
