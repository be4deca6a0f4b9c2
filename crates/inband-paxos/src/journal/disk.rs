//! The storage of an acceptor's journal: its initial state, and one sync for many packets.

use crate::dataplane::soft::{Geometry, Registers};
use inband_storage::{Journal, JournalConfig, JournalError, Storage, StorageError};

use super::record::{RestoreError, Restored, ABANDON, BEGIN, END, RESET};
use super::AcceptorJournal;
use crate::timing::Micros;

/// The journal is rewritten with only its live contents when it is this many times as long as they are.
const COMPACT_GROWTH: u64 = 4;

/// Why an acceptor in `sync` mode did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the acceptor's journal: {0}")]
    Storage(#[from] StorageError),
    /// The journal does not match the configuration.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The journal has a record of another version.
    #[error("the acceptor's journal has a record of a kind that this version does not know; was it written by a later one? Go back to that version")]
    UnknownRecord,
    /// The configuration is older than the journal.
    #[error("the acceptor's journal is of epoch {journal}, the configuration of epoch {config}; is this an old configuration file?")]
    Epoch {
        /// The journal's epoch.
        journal: u64,
        /// The configuration's epoch.
        config: u32,
    },
}

impl StartError {
    /// Returns whether the error will recur until the host or its configuration is changed.
    pub fn is_lasting(&self) -> bool {
        match self {
            StartError::Storage(_) => false,
            StartError::Restore(_) | StartError::UnknownRecord | StartError::Epoch { .. } => true,
        }
    }
}

/// When an acceptor's journal rolls over to a new file, and when it is rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimits {
    /// Sizes of the journal's files.
    pub journal: JournalConfig,
    /// A journal shorter than this is not rewritten.
    pub compact_min_bytes: u64,
}

impl Default for DiskLimits {
    fn default() -> DiskLimits {
        DiskLimits {
            journal: JournalConfig::default(),
            compact_min_bytes: 64 << 20,
        }
    }
}

/// The initial state of an acceptor in `sync` mode.
#[derive(Debug)]
pub struct AcceptorStart {
    /// Whether it may vote. If not, it is *recovering* until the next epoch.
    pub voting: bool,
    /// Registers and votes of this epoch; `None`: there are none yet.
    pub restored: Option<Restored>,
    /// Why it has lost something, if it has.
    pub damage: Option<JournalError>,
}

/// An acceptor's journal on its storage.
pub struct AcceptorDisk {
    journal: Journal,
    compact_min_bytes: u64,
    compact_at_bytes: u64,
    failures: u64,
    failure: Option<String>,
}

/// The result of a sync attempt.
#[derive(Debug)]
pub enum Synced {
    /// Answers may be sent.
    Done,
    /// Answers may be sent again, after a disk failure.
    Again,
    /// The disk failed: the acceptor stops voting.
    Failed(StorageError),
    FailedAgain(StorageError),
}

/// Replays a journal. Also returns whether all its records are known.
fn replay(
    storage: Box<dyn Storage>,
    config: JournalConfig,
) -> Result<(Journal, Restored, bool), JournalError> {
    let mut restored = Restored::default();
    let mut known = true;
    let journal = Journal::open(storage, config, &mut |record| {
        known &= restored.replay(record).is_some();
    })?;
    Ok((journal, restored, known))
}

impl AcceptorDisk {
    /// Opens the journal in `storage`, which must be used for nothing else and must support being opened twice.
    /// `has_entered`: according to a note outside of this storage, the acceptor has entered `epoch` or a later one
    /// before.
    pub fn open(
        storage: &mut dyn FnMut() -> Result<Box<dyn Storage>, StorageError>,
        limits: DiskLimits,
        geometry: Geometry,
        epoch: u32,
        has_entered: bool,
    ) -> Result<(AcceptorDisk, AcceptorStart), StartError> {
        let (disk, start) = Self::resume(storage, limits, geometry)?;
        let of = start.restored.as_ref().map_or(0, Restored::epoch);
        let AcceptorStart {
            restored, damage, ..
        } = start;
        let start = match restored {
            _ if of > u64::from(epoch) => {
                return Err(StartError::Epoch {
                    journal: of,
                    config: epoch,
                })
            }
            Some(restored) if of == u64::from(epoch) => AcceptorStart {
                voting: restored.voting(),
                restored: Some(restored),
                damage,
            },
            // An empty journal of an acceptor that has been in this epoch is a lost journal.
            _ => AcceptorStart {
                voting: damage.is_none() && !has_entered,
                restored: None,
                damage,
            },
        };
        Ok((disk, start))
    }

    /// Returns the same for an acceptor whose control plane decides when it votes: it has what the journal holds, and
    /// does not vote yet.
    pub fn resume(
        storage: &mut dyn FnMut() -> Result<Box<dyn Storage>, StorageError>,
        limits: DiskLimits,
        geometry: Geometry,
    ) -> Result<(AcceptorDisk, AcceptorStart), StartError> {
        let (opened, damage) = match replay(storage()?, limits.journal) {
            Ok(opened) => (opened, None),
            Err(JournalError::Storage(error)) => return Err(error.into()),
            Err(damage) => {
                Journal::discard(storage()?.as_mut())?;
                let opened = replay(storage()?, limits.journal).map_err(|error| match error {
                    JournalError::Storage(error) => error,
                    damaged => unreachable!("a new journal: {damaged}"),
                })?;
                (opened, Some(damage))
            }
        };
        let (mut journal, mut restored, known) = opened;
        if restored.is_begun() {
            journal.append(ABANDON);
            journal.commit()?;
            let _ = restored.replay(ABANDON);
        }
        if !known {
            return Err(StartError::UnknownRecord);
        }
        restored.check(geometry)?;
        let start = AcceptorStart {
            voting: false,
            restored: (restored.epoch() != 0).then_some(restored),
            damage,
        };
        let disk = AcceptorDisk {
            journal,
            compact_min_bytes: limits.compact_min_bytes,
            compact_at_bytes: limits.compact_min_bytes,
            failures: 0,
            failure: None,
        };
        Ok((disk, start))
    }

    /// The acceptor enters the epoch with these registers and an empty ring. On return the journal records that, and
    /// the note outside of it may be updated.
    pub fn enter(
        &mut self,
        acceptor: &AcceptorJournal,
        registers: &Registers,
    ) -> Result<(), StorageError> {
        self.journal.snapshot(|append| {
            append(RESET);
            acceptor.record_all(registers, append);
        })
    }

    /// Replaces all contents: after a power failure either all of the new contents are there, or none.
    fn rewrite(
        &mut self,
        acceptor: &AcceptorJournal,
        registers: &Registers,
    ) -> Result<(), StorageError> {
        self.journal.snapshot(|append| {
            append(BEGIN);
            acceptor.record_all(registers, append);
            append(END);
        })
    }

    /// Writes and syncs all changes.
    pub fn sync(
        &mut self,
        now: Micros,
        acceptor: &mut AcceptorJournal,
        registers: &Registers,
    ) -> Synced {
        let changes;
        let written = if acceptor.wants_all() {
            changes = acceptor.record(registers, &mut |_| {});
            self.rewrite(acceptor, registers)
        } else {
            changes = acceptor.record(registers, &mut |record| {
                self.journal.append(record);
            });
            self.journal.commit()
        };
        if let Err(error) = written {
            self.failures += 1;
            self.failure = Some(error.to_string());
            return match acceptor.failed(now) {
                true => Synced::Failed(error),
                false => Synced::FailedAgain(error),
            };
        }
        let again = acceptor.is_stalled();
        acceptor.synced(changes);
        self.failure = None;
        self.compact(acceptor, registers);
        match again {
            true => Synced::Again,
            false => Synced::Done,
        }
    }

    /// Rewrites the journal if it is much longer than its live contents. All changes must be committed.
    fn compact(&mut self, acceptor: &AcceptorJournal, registers: &Registers) {
        if self.journal.len_bytes() < self.compact_at_bytes {
            return;
        }
        let done = self
            .journal
            .snapshot(|append| acceptor.record_all(registers, append));
        self.compact_at_bytes = match done {
            Ok(()) => COMPACT_GROWTH * self.journal.len_bytes(),
            // For example because the disk is full. The journal is still valid; retry when it has grown.
            Err(_) => {
                self.failures += 1;
                self.journal.len_bytes() + self.compact_min_bytes / COMPACT_GROWTH
            }
        }
        .max(self.compact_min_bytes);
    }

    /// Length of the journal in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.journal.len_bytes()
    }

    /// Returns why the acceptor does not vote now, if the last write failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the number of disk failures.
    pub fn failures(&self) -> u64 {
        self.failures
    }
}
