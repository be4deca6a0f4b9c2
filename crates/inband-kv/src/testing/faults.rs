//! Faults of a store's disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rocksdb::{Options, WriteBatch, DB};

use crate::db::COLUMN_FAMILIES;
use crate::store::StoreError;

/// What was written to a database since its tape was started, and how much of it survives a power failure.
#[derive(Debug, Clone, Default)]
pub struct Tape {
    pub writes: Vec<Vec<u8>>,
    /// How many of them are synced.
    pub synced: usize,
}

/// Writes the contents of a tape to the database in `path`, which must not be open.
pub fn replay(path: &Path, writes: &[Vec<u8>]) -> Result<(), StoreError> {
    let db = DB::open_cf(&Options::default(), path, COLUMN_FAMILIES)?;
    for batch in writes {
        db.write(WriteBatch::from_data(batch))?;
    }
    Ok(())
}

/// Makes writes of a store fail, as a crash would, or take long, and records what a power failure may lose.
#[derive(Debug, Default)]
pub struct Faults {
    left: Mutex<Option<u64>>,
    /// Writes wait until it is false.
    is_held: Mutex<bool>,
    held_changed: Condvar,
    /// Number of writes that wait.
    waiting: AtomicUsize,
    /// By database path; `None`: not recording.
    tapes: Mutex<Option<BTreeMap<PathBuf, Tape>>>,
}

impl Faults {
    fn left(&self) -> MutexGuard<'_, Option<u64>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tapes(&self) -> MutexGuard<'_, Option<BTreeMap<PathBuf, Tape>>> {
        self.tapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts recording writes.
    pub fn start_tape(&self) {
        *self.tapes() = Some(BTreeMap::new());
    }

    /// Returns what was written to the database in `path`.
    pub fn tape(&self, path: &Path) -> Tape {
        let tapes = self.tapes();
        let tape = tapes.as_ref().and_then(|tapes| tapes.get(path));
        tape.cloned().unwrap_or_default()
    }

    /// `batch` was written; with `sync`, it and everything before it survive a power failure.
    pub(crate) fn written(&self, path: &Path, batch: &[u8], sync: bool) {
        if let Some(tapes) = &mut *self.tapes() {
            let tape = tapes.entry(path.to_path_buf()).or_default();
            tape.writes.push(batch.to_vec());
            if sync {
                tape.synced = tape.writes.len();
            }
        }
    }

    /// Everything written survives a power failure.
    pub(crate) fn synced(&self) {
        for tape in self.tapes().iter_mut().flat_map(BTreeMap::values_mut) {
            tape.synced = tape.writes.len();
        }
    }

    /// Lets this many more writes succeed, and all later ones fail.
    pub fn fail_after(&self, writes: u64) {
        *self.left() = Some(writes);
    }

    /// Lets all writes that begin from now on wait, or continue.
    pub fn hold(&self, is_held: bool) {
        *self.is_held.lock().unwrap_or_else(PoisonError::into_inner) = is_held;
        self.held_changed.notify_all();
    }

    /// Returns how many writes are held.
    pub fn held(&self) -> usize {
        let is_held = self.is_held.lock().unwrap_or_else(PoisonError::into_inner);
        match *is_held {
            true => self.waiting.load(Ordering::SeqCst),
            false => 0,
        }
    }

    pub(crate) fn pass(&self) -> Result<(), StoreError> {
        let held = self.is_held.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waited = self.held_changed.wait_while(held, |is_held| *is_held);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        match &mut *self.left() {
            None => Ok(()),
            Some(0) => Err(StoreError::Fault),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}
