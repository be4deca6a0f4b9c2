//! The database as other threads see it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{IteratorMode, Snapshot, WriteBatch, DB};
use xxhash_rust::xxh3::{xxh3_64, Xxh3};

use super::state::{State, STATE_KEY};
use super::StoreError;
use crate::db::{open_database_to_read, write_options, COLUMN_FAMILIES};
use crate::keyspace::leading_number;

/// The database as other threads see it: the server of checkpoints, the digest.
#[derive(Clone)]
pub struct SharedDb {
    /// While this lock is held the database is not replaced.
    db: Arc<Mutex<Arc<DB>>>,
    /// Held while a burst is written and while a snapshot is taken: with unordered writes RocksDB
    /// alone would let a snapshot see half a burst.
    write: Arc<Mutex<()>>,
}

impl SharedDb {
    pub(super) fn new(db: Arc<DB>) -> Self {
        Self {
            db: Arc::new(Mutex::new(db)),
            write: Arc::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Arc<DB>> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Write a burst to `db`, which is the shared one.
    pub(super) fn write(&self, db: &DB, batch: WriteBatch) -> Result<(), rocksdb::Error> {
        let _whole = self.write.lock().unwrap_or_else(PoisonError::into_inner);
        db.write_opt(batch, &write_options())
    }

    fn snapshot<'db>(&self, db: &'db DB) -> Snapshot<'db> {
        let _whole = self.write.lock().unwrap_or_else(PoisonError::into_inner);
        db.snapshot()
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
        let db = self.lock();
        let snapshot = self.snapshot(&db);
        digest(&db, &snapshot)
    }

    /// Make everything written so far survive a crash of the host.
    pub fn sync(&self) -> Result<(), StoreError> {
        Ok(self.lock().flush_wal(true)?)
    }
}

/// Applied instance and a hash over all column families, at one moment.
fn digest(db: &DB, snapshot: &Snapshot<'_>) -> Result<(u64, u64), StoreError> {
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
