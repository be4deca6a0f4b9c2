//! What a process stores: records in a journal that is synced before any packet leaves, or nothing.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use inband_host::config::Durability;
use inband_netpaxos::cluster::JOURNAL;
use inband_storage::{Disk, Journal, JournalConfig, JournalError};
use serde::de::DeserializeOwned;
use serde::Serialize;

use super::process::START_EMPTY;

/// A longer journal is replaced by a snapshot, if its process can make one.
const JOURNAL_LEN_MAX_BYTES: u64 = 64 << 20;

/// Returns whether there is a journal.
pub fn exists(data: &Path) -> bool {
    data.join(JOURNAL).exists()
}

/// Checks that a directory has no earlier log, before a process begins a new one there.
pub fn check_empty(data: &Path, has_log: bool) -> Result<()> {
    ensure!(
        !has_log,
        "--new: {} has a log: leave out --new to go on with it, or give an empty directory; to begin an empty log, write another log_id to cluster.json, and give --new --accept-loss at all storage servers and learners",
        data.display()
    );
    Ok(())
}

/// Removes the journal of a log that is gone.
pub fn remove(data: &Path) -> Result<()> {
    remove_dir(&data.join(JOURNAL))
}

/// Removes a directory, if there is one.
pub fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// A process's journal, if it has one. See the [module](self).
pub struct Kept {
    journal: Option<Journal>,
    /// Length after the last snapshot.
    begun_with_bytes: u64,
}

impl Kept {
    /// Opens the journal in a process's directory. Returns it and its records, oldest first.
    pub fn open<T: DeserializeOwned>(
        data: &Path,
        durability: Durability,
    ) -> Result<(Kept, Vec<T>)> {
        let dir = data.join(JOURNAL);
        if durability == Durability::Memory {
            ensure!(
                !exists(data),
                "--durability memory: {} has a log on disk; give --durability sync to go on with it, or an empty directory",
                data.display()
            );
            return Ok((Kept::of(None), Vec::new()));
        }
        let disk = Box::new(Disk::open(&dir)?);
        let mut records = Vec::new();
        let mut unreadable = None;
        let mut replay = |record: &[u8]| match postcard::from_bytes(record) {
            Ok(record) => records.push(record),
            Err(error) => unreadable = Some(error),
        };
        let journal =
            Journal::open(disk, JournalConfig::default(), &mut replay).map_err(|error| {
                let is_damaged = matches!(error, JournalError::Damaged { .. });
                let error = anyhow::Error::new(error).context(format!("{}", dir.display()));
                match is_damaged {
                    true => error.context(START_EMPTY),
                    false => error,
                }
            })?;
        if let Some(error) = unreadable {
            return Err(error).with_context(|| {
                format!("{}: a record was written by another version", dir.display())
            });
        }
        Ok((Kept::of(Some(journal)), records))
    }

    fn of(journal: Option<Journal>) -> Kept {
        Kept {
            journal,
            begun_with_bytes: 0,
        }
    }

    /// Appends a record.
    pub fn append<T: Serialize>(&mut self, record: &T) -> Result<()> {
        if let Some(journal) = &mut self.journal {
            journal.append(&postcard::to_stdvec(record)?);
        }
        Ok(())
    }

    /// Makes all appended records durable before it returns.
    pub fn commit(&mut self) -> Result<()> {
        match &mut self.journal {
            Some(journal) => Ok(journal.commit()?),
            None => Ok(()),
        }
    }

    /// Returns whether it is time for [`Kept::begin_again`]: as much has been appended as the last snapshot had, at least.
    pub fn is_long(&self) -> bool {
        let limit_bytes = JOURNAL_LEN_MAX_BYTES.max(2 * self.begun_with_bytes);
        let journal = self.journal.as_ref();
        journal.is_some_and(|journal| journal.len_bytes() > limit_bytes)
    }

    /// Replaces the journal by these records.
    pub fn begin_again<T: Serialize>(&mut self, records: &[T]) -> Result<()> {
        let encoded = records.iter().map(postcard::to_stdvec);
        let encoded = encoded.collect::<Result<Vec<_>, _>>()?;
        if let Some(journal) = &mut self.journal {
            journal.snapshot(|append| encoded.iter().for_each(|record| append(record)))?;
            self.begun_with_bytes = journal.len_bytes();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_not_long_right_after_a_snapshot_however_long_that_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut kept, records) =
            Kept::open::<Vec<u8>>(dir.path(), Durability::Sync).expect("a new journal");
        assert!(records.is_empty());
        let record = vec![0_u8; 1_300];
        let count = 1 + JOURNAL_LEN_MAX_BYTES as usize / record.len();
        let snapshot = vec![record.clone(); count];
        kept.begin_again(&snapshot).expect("written");
        assert!(!kept.is_long());
        for _ in 0..count + count / 4 {
            kept.append(&record).expect("appended");
        }
        kept.commit().expect("synced");
        assert!(kept.is_long());
    }
}
