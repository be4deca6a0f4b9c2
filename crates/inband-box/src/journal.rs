//! The log on disk, for `--durability sync`. A record is in a synced journal before it is acknowledged, the leader's own
//! acknowledgement included, and before it is applied. What the journal has is the role's log: a record replaces all from its
//! zxid on, unless it is the same.

use std::collections::VecDeque;

use inband_storage::{Journal, JournalConfig, JournalError, Storage, StorageError};

use crate::role::{Mode, Put, Record, Role};
use crate::wire::{self, Type};

/// A journal of so many bytes is due for a checkpoint.
pub const CHECKPOINT_BYTES: u64 = 64 << 20;

/// What a node that starts again has.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The log behind the table.
    pub records: VecDeque<Record>,
    /// So much of it is known to be committed.
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
            // Behind a table that was installed.
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

    /// Forget what a table has. `None`: something between is missing.
    fn behind(&mut self, table: u64) -> Option<()> {
        while self.records.front().is_some_and(|r| r.zxid <= table) {
            self.records.pop_front();
        }
        let follows = self.records.front().is_none_or(|r| r.zxid == table + 1);
        let last = self.last().unwrap_or(table);
        self.committed = self.committed.clamp(table, last);
        follows.then_some(())
    }

    /// Give an empty role what is on disk. `applied`: what the machine has, of this epoch and time; it is committed. False:
    /// the role's ring is too short.
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
        // Whether a leader has the same is not known.
        role.raise_epoch(promise);
        fits
    }
}

/// See the module.
pub struct LogOnDisk {
    journal: Journal,
    node: u8,
    /// The log of the epoch below is on disk up to here.
    durable: u64,
    /// The role's epoch and mode at the last look.
    at: (u64, Mode),
    /// Epochs of the records on disk that may still be replaced, from the zxid `base` on.
    base: u64,
    epochs: VecDeque<u64>,
}

impl LogOnDisk {
    /// Open a node's journal, or begin one. `table`: the zxid of the table on disk, 0: there is none.
    ///
    /// # Errors
    /// [`JournalError::Damaged`]: what was synced is not there any more, so the node must recover.
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
        let log = LogOnDisk {
            journal,
            node,
            durable: replayed.committed,
            at: (0, Mode::Idle),
            base: table + 1,
            epochs: replayed.records.iter().map(|r| r.epoch).collect(),
        };
        Ok((log, replayed))
    }

    /// Our log is on disk up to here, as far as it is the leader's.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Is a checkpoint due? Beyond `CHECKPOINT_BYTES`, the larger the table is, the rarer.
    pub fn needs_checkpoint(&self, table_bytes: u64) -> bool {
        self.journal.len_bytes() > CHECKPOINT_BYTES.max(table_bytes)
    }

    fn epoch_of(&self, zxid: u64) -> Option<u64> {
        let at = zxid.checked_sub(self.base)?;
        self.epochs.get(at as usize).copied()
    }

    fn append(&mut self, record: &Record, epoch: u64, committed: u64) {
        let packet = wire::propose(record, self.node, epoch, committed);
        self.journal.append(&packet);
    }

    /// Put what the role's log has of its present epoch on disk, with one sync. Returns [`LogOnDisk::durable`].
    pub fn write(&mut self, role: &impl Role) -> Result<u64, StorageError> {
        let view = role.view();
        let upto = match view.mode {
            Mode::Leading => view.last,
            _ => view.matched,
        };
        let mut durable = self.durable;
        if self.at != (view.epoch, view.mode) {
            // What follows may be replaced in this epoch.
            self.at = (view.epoch, view.mode);
            durable = durable.min(view.committed);
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
        // What is committed is never replaced.
        while self.base <= durable.min(view.committed) && !self.epochs.is_empty() {
            self.epochs.pop_front();
            self.base += 1;
        }
        Ok(durable)
    }

    /// Begin a part of the journal that, with a table of what is applied now, says all. It is for [`LogOnDisk::forget`].
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

    /// The table is on disk: what the journal has from before is not needed.
    pub fn forget(&mut self, segment: u64) -> Result<(), StorageError> {
        self.journal.drop_before(segment)
    }

    /// A table of another node is on disk, and installed: the log continues behind it.
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
