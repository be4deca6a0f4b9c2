//! The databases as seen by other threads.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rocksdb::checkpoint::Checkpoint;
use rocksdb::properties::ESTIMATE_NUM_KEYS;
use rocksdb::{IteratorMode, SnapshotWithThreadMode, DB};
use xxhash_rust::xxh3::{xxh3_64, Xxh3};

use super::local;
use super::state::{State, STATE_KEY};
use super::{Position, Store, StoreError};
use crate::db::{family, EXPIRY, LOCAL, META, REPLICATED_FAMILIES};
use crate::export::{export, ExportError, Summary};
use crate::keyspace::{leading_number, Transient};
use crate::limits::UNWRITTEN_WAIT_MS_MAX;
use crate::script_cache::Scripts;
use crate::types::Kind;

/// Polling interval while waiting for writes.
const UNWRITTEN_LOOK: Duration = Duration::from_millis(1);

/// The databases as seen by other threads, such as the checkpoint server and the digest. While their lock is held, none
/// is replaced.
#[derive(Clone, Default)]
pub struct SharedDbs(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// One per log.
    dbs: Mutex<Vec<Arc<DB>>>,
    /// Held while bursts are applied.
    turn: Mutex<Turn>,
    /// Number of checkpoints being made.
    cuts: AtomicUsize,
    /// Number of threads that wait for applied instances to be written.
    waiting: AtomicUsize,
    transient: Transient,
    #[cfg(any(test, feature = "testing"))]
    faults: super::super::testing::Faults,
}

/// State between two turns of the machine.
#[derive(Default)]
pub(crate) struct Turn {
    /// Some applied instances are unwritten.
    pub(crate) has_unwritten: bool,
    /// The machine is gone: what is unwritten stays so.
    pub(crate) is_over: bool,
    /// Why nothing is written at present, and what to do.
    pub(crate) held_back: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A database at one point in time.
pub(crate) type Snapshot<'d> = SnapshotWithThreadMode<'d, DB>;

/// What an export needs to know of a log.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) time_ms: u64,
    pub(crate) done_entry: u64,
    pub(crate) last_kind: Kind,
}

/// Increments the counter while it exists.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl SharedDbs {
    /// Approximate number of keys with an expiry time: RocksDB's estimate.
    pub(crate) fn expiring_keys(&self) -> u64 {
        let dbs = lock(&self.0.dbs);
        let keys = |db: &Arc<DB>| {
            let expiry = family(db, EXPIRY).ok()?;
            let estimate = db.property_int_value_cf(expiry, ESTIMATE_NUM_KEYS);
            estimate.ok()?
        };
        dbs.iter().filter_map(keys).sum()
    }

    /// The scripts that this replica knows.
    pub(crate) fn scripts(&self) -> &Scripts {
        &self.0.transient.scripts
    }

    pub(crate) fn transient(&self) -> &Transient {
        &self.0.transient
    }

    /// Returns the active databases, one per log.
    pub(crate) fn dbs(&self) -> MutexGuard<'_, Vec<Arc<DB>>> {
        lock(&self.0.dbs)
    }

    /// Keeps other threads out while only some stores have applied a command.
    pub(crate) fn turn(&self) -> MutexGuard<'_, Turn> {
        lock(&self.0.turn)
    }

    /// Returns whether applied instances must be written at once.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.0.waiting.load(Ordering::SeqCst) > 0
    }

    /// Waits until everything applied is written. Nothing more is applied while the result is held. After the machine's
    /// end this fails if anything was unwritten: it may have been acknowledged.
    fn written_turn(&self) -> Result<MutexGuard<'_, Turn>, StoreError> {
        let _waiting = Counted::new(&self.0.waiting);
        let deadline = Instant::now() + Duration::from_millis(UNWRITTEN_WAIT_MS_MAX);
        loop {
            let turn = self.turn();
            if !turn.has_unwritten {
                return Ok(turn);
            }
            if turn.is_over {
                return Err(StoreError::Ended);
            }
            if Instant::now() > deadline {
                let why = turn.held_back.clone();
                return Err(StoreError::Unwritten { why });
            }
            drop(turn);
            std::thread::sleep(UNWRITTEN_LOOK);
        }
    }

    /// A checkpoint is being made: local records must be kept, see [`checkpoint`](Self::checkpoint).
    pub(super) fn is_being_cut(&self) -> bool {
        self.0.cuts.load(Ordering::SeqCst) > 0
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn faults(&self) -> &super::super::testing::Faults {
        &self.0.faults
    }

    pub fn logs(&self) -> usize {
        self.dbs().len()
    }

    /// Writes a checkpoint of each log into its directory of `dirs`, which must not exist. Returns their positions.
    ///
    /// The logs continue meanwhile, so each checkpoint has its own position. They are nevertheless consistent with each
    /// other: a cross-partition command that is in a lower partition's checkpoint and not in a higher one's has left
    /// its redo record in the lower one, because the higher one is made first and no local record is removed in
    /// between; and commands still to be executed are in the queue for the same reason.
    pub fn checkpoint(&self, dirs: &[PathBuf]) -> Result<Vec<Position>, StoreError> {
        let dbs = self.dbs();
        let _cut = Counted::new(&self.0.cuts);
        let partitions = crate::partition::partitions_of_logs(dbs.len());
        let queue = partitions..dbs.len();
        for log in (0..partitions).rev().chain(queue) {
            Checkpoint::new(&*dbs[log])?.create_checkpoint(&dirs[log])?;
        }
        drop(dbs);
        // Instances may have been applied meanwhile: only the copies show what they contain.
        dirs.iter().map(|dir| Store::position_in(dir)).collect()
    }

    /// Returns the active databases, kept open while the handles exist.
    pub(crate) fn handles(&self) -> Vec<Arc<DB>> {
        self.dbs().clone()
    }

    /// Snapshots of `dbs` at one point in time, between two bursts, with everything that has been applied.
    pub(crate) fn freeze<'d>(&self, dbs: &'d [Arc<DB>]) -> Result<Vec<Snapshot<'d>>, StoreError> {
        let _turn = self.written_turn()?;
        Ok(dbs.iter().map(|db| db.snapshot()).collect())
    }

    pub(crate) fn states(
        dbs: &[Arc<DB>],
        snapshots: &[Snapshot<'_>],
    ) -> Result<Vec<Counters>, StoreError> {
        let state = |(db, snapshot): (&Arc<DB>, &Snapshot<'_>)| {
            let record = snapshot.get_cf(family(db, META)?, STATE_KEY)?;
            let state = record.map(|record| State::decode(&record)).transpose()?;
            Ok(state.map_or(Counters::default(), |state| Counters {
                time_ms: state.time_ms,
                done_entry: state.done_entry,
                last_kind: state.last_kind,
            }))
        };
        dbs.iter().zip(snapshots).map(state).collect()
    }

    /// Returns a cross-partition command that only some of its partitions have executed, if there is one.
    pub(crate) fn half_applied(
        dbs: &[Arc<DB>],
        snapshots: &[Snapshot<'_>],
        states: &[Counters],
    ) -> Result<Option<u64>, StoreError> {
        for (db, snapshot) in dbs.iter().zip(snapshots) {
            for item in snapshot.iterator_cf(family(db, LOCAL)?, IteratorMode::Start) {
                let (key, record) = item?;
                let Some(entry) = local::redo_entry(&key) else {
                    continue;
                };
                let logs = local::redo_parts(&record).map(|(log, _)| log);
                let is_behind = |log: usize| states.get(log).is_some_and(|s| s.done_entry < entry);
                if logs.into_iter().any(is_behind) {
                    return Ok(Some(entry));
                }
            }
        }
        Ok(None)
    }

    /// Applied instances and a hash over the whole replicated state, at one point in time.
    pub fn digest(&self) -> Result<(Vec<u64>, u64), StoreError> {
        let dbs = self.handles();
        let snapshots = self.freeze(&dbs)?;
        let mut applied = Vec::new();
        let mut hashes = Vec::new();
        for (db, snapshot) in dbs.iter().zip(&snapshots) {
            let (at, hash) = digest(db, snapshot)?;
            applied.push(at);
            hashes.push(hash);
        }
        let hash = match hashes[..] {
            [only] => only,
            _ => xxh3_64(
                &hashes
                    .iter()
                    .flat_map(|h| h.to_be_bytes())
                    .collect::<Vec<_>>(),
            ),
        };
        Ok((applied, hash))
    }

    /// Writes all keys, as of one point in time; see [`crate::export`].
    pub fn export(&self, to: impl Write) -> Result<Summary, ExportError> {
        export(self, to)
    }

    /// Makes everything applied so far survive a crash of the host.
    pub fn sync_applied(&self) -> Result<(), StoreError> {
        drop(self.written_turn()?);
        self.sync()
    }

    /// Makes everything written so far survive a crash of the host.
    pub fn sync(&self) -> Result<(), StoreError> {
        for db in self.dbs().iter() {
            db.flush_wal(true)?;
        }
        #[cfg(any(test, feature = "testing"))]
        self.0.faults.synced();
        Ok(())
    }
}

/// Applied instance and a hash over all replicated column families.
fn digest(db: &DB, snapshot: &SnapshotWithThreadMode<'_, DB>) -> Result<(u64, u64), StoreError> {
    let mut hash = Xxh3::new();
    let mut applied = 0;
    for name in REPLICATED_FAMILIES {
        hash.update(&xxh3_64(name.as_bytes()).to_be_bytes());
        for item in snapshot.iterator_cf(family(db, name)?, IteratorMode::Start) {
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
