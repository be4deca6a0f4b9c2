//! The log on disk, for `--durability sync`. A record is in a synced journal before it is acknowledged, including the
//! leader's own acknowledgement, and before it is applied. The journal mirrors the role's log: a record replaces
//! everything from its zxid on, unless it is the same record.

use std::collections::VecDeque;

use inband_storage::{Journal, JournalConfig, JournalError, Storage, StorageError};

use crate::role::{Mode, Put, Record, Role};
use crate::wire::{self, Type};

/// A checkpoint is due when the journal is longer than this.
pub const CHECKPOINT_BYTES: u64 = 64 << 20;

/// What a restarted node has.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The log after the table.
    pub records: VecDeque<Record>,
    /// Zxid up to which the log is known to be committed.
    pub committed: u64,
}

impl Replayed {
    fn last(&self) -> Option<u64> {
        self.records.back().map(|record| record.zxid)
    }

    fn take(&mut self, packet: &[u8]) -> Option<()> {
        let (header, value) = wire::parse(packet).ok()?;
        if header.kind != Type::Propose {
            return None;
        }
        self.committed = self.committed.max(header.committed);
        let record = wire::record_of(&header, value);
        let Some(last) = self.last() else {
            self.records.push_back(record);
            return Some(());
        };
        let at = record.zxid.checked_sub(self.records[0].zxid)? as usize;
        if record.zxid > last + 1 {
            // The log continues after an installed table.
            self.records.clear();
        } else if self
            .records
            .get(at)
            .is_some_and(|r| r.epoch == record.epoch)
        {
            return Some(());
        }
        self.records.truncate(at);
        self.records.push_back(record);
        Some(())
    }

    /// Drops the records that the table covers. Returns `None` if records are missing in between.
    fn behind(&mut self, table: u64) -> Option<()> {
        while self.records.front().is_some_and(|r| r.zxid <= table) {
            self.records.pop_front();
        }
        let follows = self.records.front().is_none_or(|r| r.zxid == table + 1);
        let last = self.last().unwrap_or(table);
        self.committed = self.committed.clamp(table, last);
        follows.then_some(())
    }

    /// Loads what is on disk into an empty role. `applied`: the zxid, epoch and time of the machine's last record,
    /// which is committed. Returns false if the role's ring is too short.
    #[must_use]
    pub fn restore(
        &self,
        role: &impl Role,
        promise: u64,
        (applied, epoch, time_ms): (u64, u64, u64),
    ) -> bool {
        role.raise_epoch(promise);
        if applied > 0 {
            role.install(applied, epoch, time_ms);
            role.set_applied(applied);
        }
        let mut rest = self.records.iter().filter(|r| r.zxid > applied);
        let fits = rest.all(|record| role.put(promise, record, applied) == Put::Taken);
        // Whether a leader has the same records is not known.
        role.raise_epoch(promise);
        fits
    }
}

/// A node's log on disk. See the [module](self).
pub struct LogOnDisk {
    journal: Journal,
    node: u8,
    /// The log of the epoch in `at` is on disk up to here.
    durable: u64,
    /// The role's epoch and mode when last checked.
    at: (u64, Mode),
    /// Epochs of the records on disk that may still be replaced, from zxid `base` on.
    base: u64,
    epochs: VecDeque<u64>,
}

impl LogOnDisk {
    /// Opens a node's journal, or creates one. `table`: the zxid of the table on disk; 0: there is none.
    ///
    /// # Errors
    /// [`JournalError::Damaged`]: synced data is missing, so the node must recover.
    pub fn open(
        storage: Box<dyn Storage>,
        node: u8,
        table: u64,
    ) -> Result<(LogOnDisk, Replayed), JournalError> {
        let mut replayed = Replayed::default();
        let mut is_whole = true;
        let journal = Journal::open(storage, JournalConfig::default(), &mut |packet: &[u8]| {
            is_whole &= replayed.take(packet).is_some();
        })?;
        is_whole &= replayed.behind(table).is_some();
        if !is_whole {
            return Err(JournalError::Damaged {
                file: "the log".to_owned(),
                what: format!("its records do not continue the table, which ends with {table}"),
            });
        }
        let replaceable = replayed
            .records
            .iter()
            .filter(|r| r.zxid > replayed.committed);
        let log = LogOnDisk {
            journal,
            node,
            durable: replayed.committed,
            at: (0, Mode::Idle),
            base: replayed.committed + 1,
            epochs: replaceable.map(|r| r.epoch).collect(),
        };
        Ok((log, replayed))
    }

    /// Returns up to where the log is on disk, as far as it is the leader's.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns whether a checkpoint is due. Beyond `CHECKPOINT_BYTES`, checkpoints become rarer the larger the table
    /// is.
    pub fn needs_checkpoint(&self, table_bytes: u64) -> bool {
        self.journal.len_bytes() > CHECKPOINT_BYTES.max(table_bytes)
    }

    /// Returns the first record up to `zxid` that is not on disk as the role has it. For checks: a node must not tell others
    /// that it has more.
    pub fn first_missing(&self, role: &impl Role, zxid: u64) -> Option<u64> {
        let is_missing = |at: &u64| {
            let record = role.read(*at);
            record.is_some_and(|record| self.epoch_of(*at) != Some(record.epoch))
        };
        (self.base..=zxid).find(is_missing)
    }

    fn epoch_of(&self, zxid: u64) -> Option<u64> {
        let at = zxid.checked_sub(self.base)?;
        self.epochs.get(at as usize).copied()
    }

    fn append(&mut self, record: &Record, epoch: u64, committed: u64) {
        let packet = wire::propose(record, self.node, epoch, committed);
        self.journal.append(&packet);
    }

    /// Writes the records of the role's current epoch to disk, with one sync. Returns [`LogOnDisk::durable`].
    pub fn write(&mut self, role: &impl Role) -> Result<u64, StorageError> {
        let view = role.view();
        let upto = match view.mode {
            Mode::Leading => view.last,
            _ => view.matched,
        };
        let mut durable = self.durable;
        if self.at != (view.epoch, view.mode) {
            // Records from `base` on may have been replaced in this epoch, also those that are committed by now; but not those
            // that the role has no more, since they are applied.
            self.at = (view.epoch, view.mode);
            durable = durable.min(self.base.max(view.first) - 1);
        }
        while durable < upto {
            let zxid = durable + 1;
            let Some(record) = role.read(zxid) else {
                break;
            };
            if self.epoch_of(zxid) != Some(record.epoch) {
                self.append(&record, view.epoch, view.committed);
                self.epochs.truncate((zxid - self.base) as usize);
                self.epochs.push_back(record.epoch);
            }
            durable = zxid;
        }
        self.journal.commit()?;
        self.durable = durable;
        // Committed records are never replaced.
        while self.base <= durable.min(view.committed) && !self.epochs.is_empty() {
            self.epochs.pop_front();
            self.base += 1;
        }
        Ok(durable)
    }

    /// Begins a journal segment that, together with a table of what is applied now, is complete. Returns the segment
    /// for [`LogOnDisk::forget`].
    pub fn begin_checkpoint(
        &mut self,
        applied: u64,
        role: &impl Role,
    ) -> Result<u64, StorageError> {
        let segment = self.journal.begin_segment()?;
        let view = role.view();
        let end = self.base + self.epochs.len() as u64;
        let node = self.node;
        self.journal.append_now(|append| {
            for zxid in applied + 1..end {
                let Some(record) = role.read(zxid) else {
                    break;
                };
                append(&wire::propose(&record, node, view.epoch, view.committed));
            }
        })?;
        Ok(segment)
    }

    /// Removes the journal before this segment. The table must be on disk.
    pub fn forget(&mut self, segment: u64) -> Result<(), StorageError> {
        self.journal.drop_before(segment)
    }

    /// Continues the log after a table of another node, which is on disk and installed.
    pub fn installed(&mut self, zxid: u64, role: &impl Role) -> Result<(), StorageError> {
        if self.base <= zxid {
            let known = (zxid + 1 - self.base).min(self.epochs.len() as u64);
            self.epochs.drain(..known as usize);
            self.base = zxid + 1;
        }
        if role.view().first > zxid {
            self.epochs.clear();
        }
        self.durable = self.durable.max(zxid);
        let segment = self.begin_checkpoint(zxid, role)?;
        self.forget(segment)
    }
}
