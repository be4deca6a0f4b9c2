//! The state machine that executes the log: it takes records, changes the store, and returns results. Every node has
//! one; at the same zxid all of them are equal.

use std::collections::BTreeMap;
use std::mem;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::command::{decode, Command, Mode, StreamError};
use crate::limits::VALUE_LEN_BYTES_MAX;
use crate::membership::Membership;
use crate::registers::ORIGIN_ROLE;
use crate::role::Record;
use crate::sessions::Sessions;
use crate::snapshot::Snapshot;
use crate::store::{digest_of_copy, Full, Item, Meta, Reader, Table, BINARY_KEY, STALE, WON};

/// Expiry times up to this are relative to now, larger ones are dates, as in memcached.
const RELATIVE_S_MAX: i32 = 60 * 60 * 24 * 30;
/// Version of the snapshot format.
const SNAPSHOT_VERSION: u32 = 2;

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Opened,
    /// The item is stored under this cas.
    Stored {
        cas: u64,
    },
    Exists,
    /// There is no such item.
    NotFound,
    /// The item exists, or does not, contrary to the command's mode.
    NotStored,
    /// The item was removed, marked as stale, or given another time.
    Done,
    /// The item now has this numeric value.
    Number {
        value: u64,
        /// The item's metadata after the command.
        now: Meta,
        /// The metadata before the command set its times.
        before: Meta,
    },
    /// The value is not a number.
    NotANumber,
    /// The item that was asked for.
    Fetched(Box<Fetched>),
    /// The table is full; nothing has changed.
    Full,
    /// The command could not be decoded: a bug in the gateway.
    Unreadable(StreamError),
}

/// The result of a [`Command::Fetch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The item after the command.
    pub item: Item,
    /// The metadata before the command set its times.
    pub before: Meta,
    /// This client should fetch the value anew.
    pub has_won: bool,
    /// Another client has been told to fetch it before.
    pub was_won: bool,
}

/// The result of executing a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Whether it was the next record of its session, and so was executed.
    pub is_executed: bool,
    /// Results of this node's own commands that end in the record, in order; or of the SET that a leader's role has made
    /// the record from.
    pub outcomes: Vec<Outcome>,
}

/// Why a machine cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The cluster's tables are larger than this node's.
    #[error("the cluster's tables have {cluster} chunks, this node's has {own}: start it with the --memory of the others")]
    Smaller { cluster: u64, own: u64 },
    /// The snapshot is damaged.
    #[error("the snapshot of the leader's table is damaged, or of another version of inband: run the same version at all nodes, and start this one again")]
    Damaged,
}

/// The command stream of a gateway's session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stream {
    /// The beginning of a command that continues in the next record.
    partial: Vec<u8>,
    /// The stream cannot be decoded from here on.
    is_broken: bool,
}

/// The replicated state, apart from the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    applied: u64,
    /// Epoch of the last record.
    epoch: u64,
    time_ms: u64,
    cas: u64,
    flush_at_ms: Option<u64>,
    limit_chunks: Option<u64>,
    /// `None` until a record has said it.
    membership: Option<Membership>,
    sessions: Sessions,
    /// The stream of each node's current session.
    streams: BTreeMap<u8, Stream>,
}

impl State {
    fn digest(&self) -> u64 {
        xxh3_64(&postcard::to_stdvec(self).expect("it can be encoded"))
    }
}

pub struct Machine {
    table: Table,
    state: State,
    /// The node and session whose results are returned.
    own: (u8, u64),
    /// Zxid of the snapshot in progress.
    snapshot_zxid: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct SnapshotHeader {
    version: u32,
    state: State,
    /// Digest of the machine.
    digest: u64,
}

/// When an item expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expiry {
    Never,
    At(u64),
    Past,
}

impl Expiry {
    fn of(exptime_s: i32, now_ms: u64) -> Expiry {
        let ms = u64::try_from(exptime_s).unwrap_or(0) * 1000;
        match exptime_s {
            0 => Expiry::Never,
            ..0 => Expiry::Past,
            1..=RELATIVE_S_MAX => Expiry::At(now_ms + ms),
            _ if ms <= now_ms => Expiry::Past,
            _ => Expiry::At(ms),
        }
    }

    /// Returns the time as stored in the table, which removes items whose time is past at once.
    fn in_ms(self) -> u64 {
        match self {
            Expiry::Never => 0,
            Expiry::At(ms) => ms,
            Expiry::Past => 1,
        }
    }
}

impl Machine {
    /// Creates a machine for node `own.0` with this empty table. It returns the results of session `own.1`.
    pub fn new(own: (u8, u64), table: Table) -> Machine {
        Machine {
            table,
            state: State::default(),
            own,
            snapshot_zxid: 0,
        }
    }

    /// Returns a reader for other threads.
    pub fn reader(&self) -> Reader {
        self.table.reader_of_others()
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the epoch of the last record.
    pub fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// Returns the zxid of the last record.
    pub fn applied(&self) -> u64 {
        self.state.applied
    }

    pub fn time_ms(&self) -> u64 {
        self.state.time_ms
    }

    /// Returns the membership, if a record has set it.
    pub fn membership(&self) -> Option<Membership> {
        self.state.membership
    }

    /// Returns whether something is scheduled for a later time, so that the leader must let time pass.
    pub fn needs_time(&self) -> bool {
        self.table.next_expiry_ms().is_some() || self.state.flush_at_ms.is_some()
    }

    /// Returns the last record of its own session that it has executed.
    pub fn own_seq(&self) -> u64 {
        match self.state.sessions.of(self.own.0) {
            Some((session, seq)) if session == self.own.1 => seq,
            _ => 0,
        }
    }

    /// Returns a digest, which is the same for equal machines.
    pub fn digest(&self) -> u64 {
        self.state.digest().wrapping_add(self.table.digest())
    }

    /// Executes the next record.
    ///
    /// # Errors
    /// The machine is then not at the record's zxid, and cannot go on.
    ///
    /// # Panics
    /// If the record is not the next one.
    pub fn apply(&mut self, record: &Record) -> Result<Applied, MachineError> {
        assert_eq!(record.zxid, self.state.applied + 1, "records in order");
        (self.state.applied, self.state.epoch) = (record.zxid, record.epoch);
        self.pass_time(record.time_ms);
        if let Some(membership) = Membership::of(record) {
            self.state.membership = Some(membership);
        }
        let applied = self.execute(record);
        self.table.publish(self.state.applied, self.state.time_ms);
        applied
    }

    fn pass_time(&mut self, time_ms: u64) {
        let time_ms = time_ms.max(self.state.time_ms);
        self.state.time_ms = time_ms;
        self.table.expire(time_ms);
        if self.state.flush_at_ms.is_some_and(|at| at <= time_ms) {
            self.state.flush_at_ms = None;
            self.table.clear();
        }
    }

    fn execute(&mut self, record: &Record) -> Result<Applied, MachineError> {
        let mut outcomes = Vec::new();
        let Some(from) = self.admit(record) else {
            return Ok(Applied::default());
        };
        if from.is_broken {
            return Ok(Applied {
                is_executed: true,
                outcomes,
            });
        }
        let mut stream = mem::take(&mut from.partial);
        stream.extend_from_slice(&record.value);
        let is_own =
            (record.origin, record.origin_session) == self.own || record.origin == ORIGIN_ROLE;
        let mut done_bytes = 0;
        let mut is_broken = false;
        loop {
            match decode(&stream[done_bytes..]) {
                Ok(Some((command, len_bytes))) => {
                    let outcome = self.command(&command, is_own)?;
                    done_bytes += len_bytes;
                    if is_own {
                        outcomes.push(outcome);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    is_broken = true;
                    if is_own {
                        outcomes.push(Outcome::Unreadable(error));
                    }
                    break;
                }
            }
        }
        let from = self.state.streams.entry(record.origin).or_default();
        from.is_broken = is_broken;
        if !is_broken {
            stream.drain(..done_bytes);
            from.partial = stream;
        }
        Ok(Applied {
            is_executed: true,
            outcomes,
        })
    }

    /// Returns the stream that a record continues, if the record must be executed.
    fn admit(&mut self, record: &Record) -> Option<&mut Stream> {
        let Record {
            origin,
            origin_session,
            origin_seq,
            ..
        } = *record;
        let sessions = &mut self.state.sessions;
        if origin == 0 || !sessions.admit(origin, origin_session, origin_seq) {
            return None;
        }
        let stream = self.state.streams.entry(origin).or_default();
        if origin_seq == 1 {
            *stream = Stream::default();
        }
        Some(stream)
    }

    fn command(&mut self, command: &Command, is_own: bool) -> Result<Outcome, MachineError> {
        let now_ms = self.state.time_ms;
        let expiry = |exptime_s: i32| Expiry::of(exptime_s, now_ms);
        Ok(match *command {
            Command::Open { chunks } => {
                self.limit(chunks)?;
                Outcome::Opened
            }
            Command::Store { .. } => self.store(command),
            Command::Delete { key, cas } => match self.table.meta(key) {
                None => Outcome::NotFound,
                Some(meta) if cas.is_some_and(|cas| cas != meta.cas) => Outcome::Exists,
                Some(_) => {
                    self.table.remove(key);
                    Outcome::Done
                }
            },
            Command::Invalidate {
                key,
                cas,
                exptime_s,
            } => match self.table.meta(key) {
                None => Outcome::NotFound,
                Some(meta) if cas.is_some_and(|cas| cas != meta.cas) => Outcome::Exists,
                Some(mut meta) => {
                    meta.marks = (meta.marks | STALE) & !WON;
                    meta.cas = self.next_cas();
                    self.set_meta(key, meta, exptime_s.map(expiry));
                    Outcome::Done
                }
            },
            Command::Touch { key, exptime_s } => match self.table.meta(key) {
                None => Outcome::NotFound,
                Some(meta) => {
                    self.set_meta(key, meta, Some(expiry(exptime_s)));
                    Outcome::Done
                }
            },
            Command::Arithmetic { .. } => self.arithmetic(command),
            Command::Fetch { .. } => self.fetch(command, is_own),
            Command::FlushAll { exptime_s } => {
                self.state.flush_at_ms = None;
                match expiry(exptime_s) {
                    Expiry::At(ms) => self.state.flush_at_ms = Some(ms),
                    Expiry::Never | Expiry::Past => self.table.clear(),
                }
                Outcome::Done
            }
        })
    }

    fn limit(&mut self, chunks: u64) -> Result<(), MachineError> {
        let limit = *self.state.limit_chunks.get_or_insert(chunks);
        let own = self.table.chunks();
        if limit > own {
            return Err(MachineError::Smaller {
                cluster: limit,
                own,
            });
        }
        self.table.set_limit(limit);
        Ok(())
    }

    fn next_cas(&mut self) -> u64 {
        self.state.cas += 1;
        self.state.cas
    }

    /// Changes the metadata of an existing item. An expiry in the past removes it.
    fn set_meta(&mut self, key: &[u8], mut meta: Meta, expiry: Option<Expiry>) -> Meta {
        if let Some(expiry) = expiry {
            meta.expires_ms = expiry.in_ms();
        }
        match expiry {
            Some(Expiry::Past) => self.table.remove(key),
            _ => self.table.set_meta(key, &meta),
        };
        meta
    }

    /// Stores an item. With a time in the past, any item of the key is removed instead.
    fn put(&mut self, key: &[u8], value: &[u8], meta: &Meta, expiry: Expiry) -> Result<(), Full> {
        let meta = Meta {
            expires_ms: expiry.in_ms(),
            stored_ms: self.state.time_ms,
            ..*meta
        };
        match expiry {
            Expiry::Past => {
                self.table.remove(key);
                Ok(())
            }
            _ => self.table.put(key, value, &meta),
        }
    }

    fn store(&mut self, command: &Command) -> Outcome {
        let &Command::Store {
            mode,
            key,
            value,
            flags,
            exptime_s,
            cas,
            may_be_stale,
            is_binary_key,
        } = command
        else {
            unreachable!("asked for a store");
        };
        let old = self.table.meta(key);
        let mut expiry = Expiry::of(exptime_s, self.state.time_ms);
        let mut meta = Meta {
            flags,
            marks: if is_binary_key { BINARY_KEY } else { 0 },
            ..Meta::default()
        };
        let mut joined = None;
        match (mode, old) {
            (Mode::Set | Mode::Add, None) | (Mode::Set | Mode::Replace, Some(_)) => {}
            (Mode::Add, Some(_)) => return Outcome::NotStored,
            (Mode::Cas, None) => return Outcome::NotFound,
            (Mode::Replace | Mode::Append | Mode::Prepend, None) => return Outcome::NotStored,
            (Mode::Cas, Some(old)) if cas != 0 && cas == old.cas => {}
            (Mode::Cas, Some(old)) if cas != 0 && may_be_stale && cas < old.cas => {
                expiry = match old.expires_ms {
                    0 => Expiry::Never,
                    ms => Expiry::At(ms),
                };
                meta.marks |= STALE | (old.marks & WON);
            }
            (Mode::Cas, Some(_)) => return Outcome::Exists,
            (Mode::Append | Mode::Prepend, Some(old)) => {
                if cas != 0 && cas != old.cas {
                    return Outcome::Exists;
                }
                let item = self.table.get(key).expect("it was found");
                let both = match mode {
                    Mode::Append => [&item.value[..], value].concat(),
                    _ => [value, &item.value[..]].concat(),
                };
                if both.len() > VALUE_LEN_BYTES_MAX {
                    return Outcome::NotStored;
                }
                joined = Some(both);
                expiry = match old.expires_ms {
                    0 => Expiry::Never,
                    ms => Expiry::At(ms),
                };
                meta.flags = old.flags;
                meta.marks = old.marks & BINARY_KEY;
            }
        }
        meta.cas = self.state.cas + 1;
        match self.put(key, joined.as_deref().unwrap_or(value), &meta, expiry) {
            Ok(()) => Outcome::Stored {
                cas: self.next_cas(),
            },
            Err(Full) => Outcome::Full,
        }
    }

    fn arithmetic(&mut self, command: &Command) -> Outcome {
        let &Command::Arithmetic {
            key,
            is_increment,
            delta,
            cas,
            create,
            exptime_s,
        } = command
        else {
            unreachable!("asked for arithmetic");
        };
        let now_ms = self.state.time_ms;
        let touched = exptime_s.map(|exptime_s| Expiry::of(exptime_s, now_ms));
        let (value, text, mut meta, expiry) = match self.table.get(key) {
            None => {
                let Some((initial, exptime_s)) = create else {
                    return Outcome::NotFound;
                };
                let expiry = Expiry::of(exptime_s, now_ms);
                (initial, initial.to_string(), Meta::default(), expiry)
            }
            Some(item) => {
                if item.value.is_empty() {
                    return Outcome::NotANumber;
                }
                if cas != 0 && cas != item.meta.cas {
                    return Outcome::Exists;
                }
                let Some(number) = parse_number(&item.value) else {
                    return Outcome::NotANumber;
                };
                let value = match is_increment {
                    true => number.wrapping_add(delta),
                    false => number.saturating_sub(delta),
                };
                // A value that was longer keeps its length, as in memcached.
                let text = format!("{value:<width$}", width = item.value.len());
                let mut meta = item.meta;
                if text.len() > item.value.len() {
                    // memcached creates a new item in this case, and so loses the marks.
                    meta.marks = 0;
                }
                let expiry = touched.unwrap_or(match item.meta.expires_ms {
                    0 => Expiry::Never,
                    ms => Expiry::At(ms),
                });
                (value, text, meta, expiry)
            }
        };
        let before = meta;
        meta.cas = self.state.cas + 1;
        meta.expires_ms = expiry.in_ms();
        if self.put(key, text.as_bytes(), &meta, expiry).is_err() {
            return Outcome::Full;
        }
        self.next_cas();
        Outcome::Number {
            value,
            now: meta,
            before,
        }
    }

    fn fetch(&mut self, command: &Command, is_own: bool) -> Outcome {
        let &Command::Fetch {
            key,
            create_exptime_s,
            exptime_s,
            recache_s,
            touches_first,
            is_binary_key,
            marks_read,
            takes_token,
        } = command
        else {
            unreachable!("asked for a fetch");
        };
        let now_ms = self.state.time_ms;
        // Only the node that was asked marks an item as read.
        let found = match is_own && marks_read {
            true => self.table.reader().get_and_mark(key, now_ms / 1000),
            false => self.table.get(key),
        };
        let touched = exptime_s.map(|exptime_s| Expiry::of(exptime_s, now_ms));
        let (mut item, expiry, is_new) = match found {
            Some(item) => (item, touched, false),
            None => {
                let Some(exptime_s) = create_exptime_s else {
                    return Outcome::NotFound;
                };
                let expiry = Expiry::of(exptime_s, now_ms);
                let item = Item {
                    meta: Meta {
                        marks: if is_binary_key { BINARY_KEY } else { 0 },
                        cas: self.state.cas + 1,
                        stored_ms: now_ms,
                        ..Meta::default()
                    },
                    ..Item::default()
                };
                (item, Some(expiry), true)
            }
        };
        let before = item.meta;
        let compared_ms = match (touches_first, expiry) {
            (true, Some(expiry)) => expiry.in_ms(),
            _ => before.expires_ms,
        };
        let recache = recache_s.map(|recache_s| Expiry::of(recache_s, now_ms).in_ms());
        let was_won = before.marks & WON != 0;
        let is_stale = before.marks & STALE != 0;
        let is_due = recache.is_some_and(|recache_ms| compared_ms != 0 && compared_ms < recache_ms);
        let has_won = is_new || (takes_token && !was_won && ((!is_new && is_due) || is_stale));
        if has_won {
            item.meta.marks |= WON;
        }
        if is_new {
            let expiry = expiry.unwrap_or(Expiry::Never);
            item.meta.expires_ms = expiry.in_ms();
            if self.put(key, &[], &item.meta, expiry).is_err() {
                // memcached reports a missing item in this case, too.
                return Outcome::NotFound;
            }
            self.next_cas();
            if is_own && marks_read {
                self.table.reader().get_and_mark(key, now_ms / 1000);
            }
        } else if item.meta != before || expiry.is_some() {
            item.meta = self.set_meta(key, item.meta, expiry);
        }
        Outcome::Fetched(Box::new(Fetched {
            item,
            before,
            has_won,
            was_won,
        }))
    }

    /// Begins a snapshot of the machine's current state. A snapshot in progress is discarded.
    pub fn begin_snapshot(&mut self) {
        let header = SnapshotHeader {
            version: SNAPSHOT_VERSION,
            state: self.state.clone(),
            digest: self.digest(),
        };
        let header = postcard::to_stdvec(&header).expect("it can be encoded");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&header);
        self.table.begin_copy(bytes);
        self.snapshot_zxid = self.state.applied;
    }

    /// Continues the snapshot in progress by `buckets` buckets of the table, and returns it once it is complete.
    /// Records may be applied in between: the snapshot shows the state at the time it was begun.
    pub fn go_on_with_snapshot(&mut self, buckets: usize) -> Option<Snapshot> {
        let bytes = self.table.go_on_copying(buckets)?;
        let zxid = self.snapshot_zxid;
        Some(Snapshot { zxid, bytes })
    }

    /// Returns whether a snapshot is in progress.
    pub fn has_begun_snapshot(&self) -> bool {
        self.table.is_copying()
    }

    /// Replaces the state by that of a snapshot. Readers wait meanwhile.
    ///
    /// # Errors
    /// If the snapshot is damaged, or does not fit. The machine cannot go on then.
    pub fn restore(&mut self, snapshot: &[u8]) -> Result<(), MachineError> {
        let damaged = || MachineError::Damaged;
        let (len_bytes, rest) = snapshot.split_first_chunk().ok_or_else(damaged)?;
        let len_bytes = u64::from_le_bytes(*len_bytes) as usize;
        let (header, items) = rest.split_at_checked(len_bytes).ok_or_else(damaged)?;
        let header: SnapshotHeader = postcard::from_bytes(header).map_err(|_| damaged())?;
        if header.version != SNAPSHOT_VERSION {
            return Err(damaged());
        }
        // Before anything of it is believed, such as how large the cluster's tables are.
        let items_digest = digest_of_copy(items).ok_or_else(damaged)?;
        if header.state.digest().wrapping_add(items_digest) != header.digest {
            return Err(damaged());
        }
        self.state.limit_chunks = None;
        if let Some(limit) = header.state.limit_chunks {
            self.limit(limit)?;
        }
        self.state = header.state;
        let is_whole = self.table.replace(items);
        self.table.publish(self.state.applied, self.state.time_ms);
        is_whole.then_some(()).ok_or_else(damaged)
    }
}

/// Parses the number at the beginning of a value, like `strtoull` with memcached's checks.
pub fn parse_number(text: &[u8]) -> Option<u64> {
    let is_space = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|b| !is_space(b))?;
    let (is_negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let count = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    let mut number = 0_u64;
    for digit in &digits[..count] {
        number = number.checked_mul(10)?.checked_add((digit - b'0').into())?;
    }
    let ends = digits.get(count).is_none_or(|b| is_space(b) || *b == 0);
    if count == 0 || !ends {
        return None;
    }
    let number = if is_negative {
        number.wrapping_neg()
    } else {
        number
    };
    let is_large = number > i64::MAX as u64;
    (!is_large || !text.contains(&b'-')).then_some(number)
}

#[cfg(test)]
mod tests;
