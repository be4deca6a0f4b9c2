//! The database as other threads see it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{IteratorMode, DB};
use xxhash_rust::xxh3::{xxh3_64, Xxh3};

use super::state::{State, STATE_KEY};
use super::StoreError;
use crate::db::{open_database_to_read, COLUMN_FAMILIES};
use crate::keyspace::leading_number;

/// The database as other threads see it: the server of checkpoints, the digest. While its lock is
/// held the database is not replaced.
#[derive(Clone)]
pub struct SharedDb(Arc<Mutex<Arc<DB>>>);

impl SharedDb {
    pub(super) fn new(db: Arc<DB>) -> Self {
        Self(Arc::new(Mutex::new(db)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Arc<DB>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Write a checkpoint into `dir`, which must not exist; the instance it is at.
    pub fn checkpoint(&self, dir: &Path) -> Result<u64, StoreError> {
        let db = self.lock();
        Checkpoint::new(&**db)?.create_checkpoint(dir)?;
        drop(db);
        // Instances may have been applied meanwhile: only the copy knows what is in it.
        let copy = open_database_to_read(dir)?;
        Ok(State::load(&copy)?.applied)
    }

    /// Applied instance and a hash over everything replicated, at one moment.
    pub fn digest(&self) -> Result<(u64, u64), StoreError> {
        digest(&self.lock())
    }

    /// Make everything written so far survive a crash of the host.
    pub fn sync(&self) -> Result<(), StoreError> {
        Ok(self.lock().flush_wal(true)?)
    }
}

/// Applied instance and a hash over all column families, at one moment.
fn digest(db: &DB) -> Result<(u64, u64), StoreError> {
    let snapshot = db.snapshot();
    let mut hash = Xxh3::new();
    let mut applied = 0;
    for name in COLUMN_FAMILIES {
        hash.update(&xxh3_64(name.as_bytes()).to_be_bytes());
        let family = db
            .cf_handle(name)
            .ok_or(StoreError::ColumnFamilyMissing(name))?;
        for item in snapshot.iterator_cf(family, IteratorMode::Start) {
            let (key, record) = item?;
            if *key == *STATE_KEY {
                applied = record.get(8..).map_or(0, leading_number);
            }
            for bytes in [&key, &record] {
                hash.update(&(bytes.len() as u64).to_be_bytes());
                hash.update(bytes);
            }
        }
    }
    Ok((applied, hash.digest()))
}
