//! What a store keeps for this replica alone, for recovery after a crash: the queue of cross-partition commands, and
//! the effects or the time of the one being executed.

use inband_host::log::Ticket;
use rocksdb::{IteratorMode, WriteBatch, DB};

use super::{LogRole, Store, StoreError};
use crate::db::Columns;
use crate::keyspace::leading_number;

/// First byte of the stored key of a queued entry.
const ENTRY_KEY: u8 = b'e';
/// First byte of the stored key of a redo record.
const REDO_KEY: u8 = b'r';
/// First byte of the stored key of the time of a read-only entry.
const TIME_KEY: u8 = b't';
/// Key of the last removed entries.
const REMOVED_KEY: &[u8] = b"removed";

/// A queued cross-partition command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    pub number: u64,
    /// Replicated time of its log.
    pub time_ms: u64,
    pub command: Vec<u8>,
    /// Set if this process submitted it: the value that contains it.
    pub ticket: Option<Ticket>,
}

/// A local record that is not needed any more.
#[derive(Debug)]
struct Removal {
    key: [u8; 9],
    /// Partitions that the entry changed.
    changed: Vec<usize>,
}

/// Local records that are not needed any more. They are removed with the next write once the changes that replace them
/// are as durable as configured.
#[derive(Debug, Default)]
pub(super) struct Removals {
    ready: Vec<Removal>,
    /// Kept until the changes that replace them are written in all stores.
    unwritten: Vec<Removal>,
    /// The same, while those changes are being written.
    writing: Vec<Removal>,
    /// Kept until those changes survive a power failure.
    unsynced: Vec<Removal>,
    /// The same, while a sync is running.
    syncing: Vec<Removal>,
    waits_for_sync: bool,
    /// Of the queue, by partition: the last removed entry that changed it.
    last: Vec<u64>,
}

impl Removals {
    pub(super) fn load(db: &DB, columns: Columns<'_>, role: LogRole) -> Result<Self, StoreError> {
        let mut last = vec![0; if role.is_queue() { role.partitions } else { 0 }];
        if let Some(record) = db.get_cf(columns.local, REMOVED_KEY)? {
            for (word, last) in record.chunks(8).zip(&mut last) {
                *last = leading_number(word);
            }
        }
        Ok(Self {
            last,
            ..Self::default()
        })
    }

    fn push(&mut self, key: [u8; 9], changed: &[usize]) {
        let changed = changed.to_vec();
        self.unwritten.push(Removal { key, changed });
    }

    /// Everything applied in the stores of this replica is being written.
    pub(super) fn write_begins(&mut self) {
        self.writing.append(&mut self.unwritten);
    }

    fn write_ended(&mut self) {
        match self.waits_for_sync {
            true => self.unsynced.append(&mut self.writing),
            false => self.ready.append(&mut self.writing),
        }
    }

    pub(super) fn write(&mut self, columns: Columns<'_>, batch: &mut WriteBatch) {
        if self.ready.is_empty() {
            return;
        }
        for removal in self.ready.drain(..) {
            batch.delete_cf(columns.local, removal.key);
            let entry = leading_number(&removal.key[1..]);
            for partition in removal.changed {
                self.last[partition] = self.last[partition].max(entry);
            }
        }
        if !self.last.is_empty() {
            let record: Vec<u8> = self.last.iter().flat_map(|n| n.to_be_bytes()).collect();
            batch.put_cf(columns.local, REMOVED_KEY, record);
        }
    }
}

/// A record and its entry number.
type LocalRecord = (u64, Box<[u8]>);

fn local_key(kind: u8, entry: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&entry.to_be_bytes());
    key
}

/// Returns the entry of a redo record; `None` if the key belongs to another record.
pub(super) fn redo_entry(key: &[u8]) -> Option<u64> {
    let is_redo = key.first() == Some(&REDO_KEY) && key.len() == local_key(REDO_KEY, 0).len();
    is_redo.then(|| leading_number(&key[1..]))
}

/// Returns the logs in a redo record, each with its batch.
pub(super) fn redo_parts(record: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut rest = record;
    std::iter::from_fn(move || {
        let (log, tail) = rest.split_first_chunk()?;
        let (len, tail) = tail.split_first_chunk()?;
        let (data, tail) = tail.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        rest = tail;
        Some((u32::from_be_bytes(*log) as usize, data))
    })
}

impl Store {
    /// Appends a command to the queue.
    pub(super) fn queue_command(
        &mut self,
        columns: Columns<'_>,
        batch: &mut WriteBatch,
        command: &[u8],
        ticket: Option<Ticket>,
    ) {
        let entry = QueueEntry {
            number: self.state.next_id,
            time_ms: self.state.time_ms,
            command: command.to_vec(),
            ticket,
        };
        self.state.next_id += 1;
        let record = [&entry.time_ms.to_be_bytes()[..], command].concat();
        batch.put_cf(columns.local, local_key(ENTRY_KEY, entry.number), record);
        self.queued.push(entry);
    }

    /// Takes the entries queued since the last call.
    pub(crate) fn take_queued(&mut self) -> Vec<QueueEntry> {
        std::mem::take(&mut self.queued)
    }

    /// Returns all entries in the queue, in order.
    pub(crate) fn queue(&self) -> Result<Vec<QueueEntry>, StoreError> {
        let records = self.local_records(ENTRY_KEY)?;
        let entry = |(number, record): LocalRecord| QueueEntry {
            number,
            time_ms: leading_number(&record),
            command: record.get(8..).unwrap_or(&[]).to_vec(),
            ticket: None,
        };
        Ok(records.into_iter().map(entry).collect())
    }

    fn local_records(&self, kind: u8) -> Result<Vec<LocalRecord>, StoreError> {
        let mut records = Vec::new();
        let local = Columns::of(&self.db)?.local;
        for item in self.db.iterator_cf(local, IteratorMode::Start) {
            let (key, record) = item?;
            if key.first() == Some(&kind) && key.len() == local_key(kind, 0).len() {
                records.push((leading_number(&key[1..]), record));
            }
        }
        Ok(records)
    }

    /// An entry was executed in all its partitions. `changed`: the partitions that it changed.
    pub(crate) fn forget_entry(&mut self, entry: u64, changed: &[usize]) {
        self.removals.push(local_key(ENTRY_KEY, entry), changed);
    }

    /// Notes the time at which a read-only entry was executed; written with that execution.
    pub(crate) fn note_time(&mut self, entry: u64, time_ms: u64) -> Result<(), StoreError> {
        let local = Columns::of(&self.db)?.local;
        let key = local_key(TIME_KEY, entry);
        self.unwritten.put_cf(local, key, time_ms.to_be_bytes());
        Ok(())
    }

    /// Returns the time at which a read-only entry was executed here, if it was noted and is written.
    pub(crate) fn noted_time_ms(&self, entry: u64) -> Result<Option<u64>, StoreError> {
        let local = Columns::of(&self.db)?.local;
        let record = self.db.get_cf(local, local_key(TIME_KEY, entry))?;
        Ok(record.map(|record| leading_number(&record)))
    }

    /// Returns the entries whose times are noted here.
    pub(crate) fn noted_times(&self) -> Result<Vec<u64>, StoreError> {
        let records = self.local_records(TIME_KEY)?;
        Ok(records.into_iter().map(|(entry, _)| entry).collect())
    }

    /// The time of an entry is not needed any more.
    pub(crate) fn forget_time(&mut self, entry: u64) {
        self.removals.push(local_key(TIME_KEY, entry), &[]);
    }

    /// What was applied in the stores of this replica when the last write began has been written in all of them.
    pub(crate) fn all_begun_written(&mut self) {
        self.removals.write_ended();
    }

    /// Everything applied in the stores of this replica has been written.
    pub(crate) fn all_written(&mut self) {
        self.removals.write_begins();
        self.removals.write_ended();
    }

    /// Whether local records are kept until the changes survive a power failure.
    pub(crate) fn keep_local_records_until_synced(&mut self, is_needed: bool) {
        self.removals.waits_for_sync = is_needed;
    }

    /// A sync of all stores of this replica has begun.
    pub(crate) fn sync_begins(&mut self) {
        self.removals.syncing.append(&mut self.removals.unsynced);
    }

    /// The sync has succeeded: everything written before it began survives a power failure.
    pub(crate) fn sync_ends(&mut self) {
        self.removals.ready.append(&mut self.removals.syncing);
    }

    /// By partition, the last removed entry of the queue that changed it.
    pub(crate) fn last_removed(&self) -> &[u64] {
        &self.removals.last
    }

    /// Records the effects of an entry on other stores, as `(log, batch)`, in the batch for this one.
    pub(crate) fn put_redo<'b>(
        &self,
        entry: u64,
        others: impl Iterator<Item = (usize, &'b WriteBatch)>,
        batch: &mut WriteBatch,
    ) -> Result<(), StoreError> {
        let mut record = Vec::new();
        for (log, other) in others {
            record.extend_from_slice(&(log as u32).to_be_bytes());
            record.extend_from_slice(&(other.data().len() as u32).to_be_bytes());
            record.extend_from_slice(other.data());
        }
        let local = Columns::of(&self.db)?.local;
        batch.put_cf(local, local_key(REDO_KEY, entry), record);
        Ok(())
    }

    /// Returns the recorded effects of an entry on the store of `log`.
    pub(crate) fn redo(&self, entry: u64, log: usize) -> Result<Option<WriteBatch>, StoreError> {
        let local = Columns::of(&self.db)?.local;
        let Some(record) = self.db.get_cf(local, local_key(REDO_KEY, entry))? else {
            return Ok(None);
        };
        let part = redo_parts(&record).find(|(of, _)| *of == log);
        Ok(part.map(|(_, data)| WriteBatch::from_data(data)))
    }

    /// Returns the entries with redo records here.
    pub(crate) fn redo_entries(&self) -> Result<Vec<u64>, StoreError> {
        let records = self.local_records(REDO_KEY)?;
        Ok(records.into_iter().map(|(entry, _)| entry).collect())
    }

    /// A redo record is not needed any more.
    pub(crate) fn forget_redo(&mut self, entry: u64) {
        self.removals.push(local_key(REDO_KEY, entry), &[]);
    }
}
