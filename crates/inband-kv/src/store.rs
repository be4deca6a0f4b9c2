//! The replicated state machine of one log: values applied to RocksDB.
//!
//! A write batch holds the data of one or more delivered bursts, their session records, the replicated time, the number
//! of keys and the applied instance. So a crash of the process neither loses nor repeats a command, and two replicas at
//! the same instance have equal contents. A store that [defers](Store::set_deferring) writes collects several bursts in
//! memory; what a crash loses of them is delivered again, because it was never reported as [written](Store::written).
//! Such a batch may be written by [another thread](writing), while more is applied. At most one is, and every other
//! write waits for it.
//!
//! The store of the log of cross-partition commands holds no keys: applying a value there appends its commands to a
//! queue, from which [`crate::machine`] executes them.

mod apply;
mod error;
mod figures;
mod local;
mod outcome;
mod shared;
mod state;
mod transfers;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inband_host::log::Decided;
use inband_host::session::SessionTable;
use inband_resp::reply::Reply;
use rocksdb::{Cache, ColumnFamily, IteratorMode, WriteBatch, DB};

use crate::client_sessions::{self, ClientSessions, Records};
use crate::command::Command;
use crate::db::{open_database, open_database_to_read, Columns, HASH_LEN_BYTES};
use crate::engine;
use crate::events::EventClasses;
use crate::keyspace::{self, Keyspace, View};
use crate::limits::{RECORD_CACHE_BYTES_MAX, TTL_LAG_MS_MAX};
use crate::types::{self, Kind};

pub(crate) use apply::execute_stamped;
pub use error::StoreError;
pub use figures::StoreFigures;
pub use local::QueueEntry;
use local::Removals;
pub use outcome::{LogRole, Outcome, Outcomes, Position};
pub use shared::SharedDbs;
pub(crate) use shared::{Snapshot, Turn};
use state::{State, STATE_KEY};
pub use transfers::ChunkFate;
use transfers::{Transfers, CHUNK_KEY};
use writing::Part;
pub(crate) use writing::{Job, Writer};

/// First byte of the stored key of a proposer's session.
const PROPOSER_KEY: u8 = b's';

/// Puts the records of client sessions in the burst's batch.
pub(crate) struct BatchRecords<'a> {
    pub(crate) batch: &'a mut WriteBatch,
    pub(crate) meta: &'a ColumnFamily,
}

impl Records for BatchRecords<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.put_cf(self.meta, key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.batch.delete_cf(self.meta, key);
    }
}

/// A page of keys, see [`Store::scan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanPage {
    /// Where to continue; 0: this was the last page.
    pub cursor: u64,
    /// The live keys of the page.
    pub keys: Vec<Vec<u8>>,
    /// The kinds of their values.
    pub kinds: Vec<Kind>,
}

/// One replica's copy of the replicated state of one log.
pub struct Store {
    role: LogRole,
    path: PathBuf,
    db: Arc<DB>,
    shared: SharedDbs,
    state: State,
    keyspace: Keyspace,
    proposers: SessionTable,
    clients: ClientSessions,
    transfers: Transfers,
    /// Proposer sessions to store with this burst.
    touched: Vec<u64>,
    /// Entries queued by this burst.
    queued: Vec<QueueEntry>,
    removals: Removals,
    /// Bursts may be collected before they are written.
    is_deferring: bool,
    /// Goes into the next write, in addition to what [`fill`](Self::fill) adds.
    unwritten: WriteBatch,
    /// The position that has been written.
    written: Position,
    begun: Option<Begun>,
    is_stopped: bool,
}

/// A write that has begun, and may have ended without this store having noted it.
struct Begun {
    job: Arc<Job>,
    /// The position that it writes.
    position: Position,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.path)
            .field("state", &self.state)
            .finish()
    }
}

/// What one command may access in a store while it is executed.
pub(crate) struct Work<'a> {
    pub(crate) view: View<'a>,
    pub(crate) clients: &'a mut ClientSessions,
    pub(crate) meta: &'a ColumnFamily,
}

/// Executes read-only commands without going through the log.
pub struct Reader<'a> {
    view: View<'a>,
    steps: u64,
}

impl Reader<'_> {
    /// Executes an encoded command. `None`: a key in it has expired by cluster time but not by replicated time, or its
    /// remaining time differs too much between the two; the command must go through the log.
    pub fn read(&mut self, command: &[u8]) -> Result<Option<Reply>, StoreError> {
        let reply = match Command::decode(command) {
            Some((command, None)) if command.only_reads() => {
                let work = types::Work::default();
                let view = &mut self.view;
                let reply = engine::execute_within(view, &work, &command)?;
                self.steps += work.steps_used();
                let is_behind = view.clock_ms > view.now_ms + TTL_LAG_MS_MAX;
                view.is_doubtful |= is_behind && command.tells_time(&reply);
                reply
            }
            _ => Reply::error("ERR this command goes through the log"),
        };
        Ok((!std::mem::take(&mut self.view.is_doubtful)).then_some(reply))
    }

    /// Steps that the commands have used; see [`COLLECTION_STEPS_MAX`](crate::limits::COLLECTION_STEPS_MAX).
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.view.keyspace.trim_cache();
    }
}

impl Store {
    /// Opens the database in `path`; `create` it if there is none.
    pub(crate) fn open(
        path: &Path,
        role: LogRole,
        cache: &Cache,
        shared: SharedDbs,
        create: bool,
    ) -> Result<Self, StoreError> {
        let db = open_database(path, cache, create)?;
        let state = match State::load(&db)? {
            Some(state) => state,
            None => {
                let state = State::new(role);
                db.put_cf(Columns::of(&db)?.meta, STATE_KEY, state.encode())?;
                state
            }
        };
        if (state.log, state.partitions) != (role.log as u64, role.partitions as u64) {
            return Err(StoreError::WrongPlace {
                path: path.to_path_buf(),
                found_log: state.log,
                found_partitions: state.partitions,
                log: role.log,
                partitions: role.partitions,
            });
        }
        Self::load(role, path.to_path_buf(), Arc::new(db), shared)
    }

    fn load(
        role: LogRole,
        path: PathBuf,
        db: Arc<DB>,
        shared: SharedDbs,
    ) -> Result<Self, StoreError> {
        let state = State::load(&db)?.unwrap_or(State::new(role));
        let mut proposers = SessionTable::new();
        let mut clients = ClientSessions::new(state.next_id);
        let mut transfers = Transfers::default();
        let columns = Columns::of(&db)?;
        // 'c' sessions sort before their 'r' replies.
        for item in db.iterator_cf(columns.meta, IteratorMode::Start) {
            let (key, record) = item?;
            let is_good = match (
                key.first(),
                key.get(1..).and_then(|id| id.first_chunk::<8>()),
            ) {
                _ if *key == *STATE_KEY => true,
                (Some(&PROPOSER_KEY), Some(id)) => {
                    proposers.decode_session(u64::from_be_bytes(*id), &record)
                }
                (Some(&client_sessions::SESSION_KEY), _) => clients.load_session(&key, &record),
                (Some(&client_sessions::REPLY_KEY), _) => clients.load_reply(&key, &record),
                (Some(&CHUNK_KEY), _) => transfers.load(&key, &record),
                _ => false,
            };
            if !is_good {
                return Err(StoreError::Malformed(
                    String::from_utf8_lossy(&key).into_owned(),
                ));
            }
        }
        let cache_bytes_max = RECORD_CACHE_BYTES_MAX / role.partitions;
        let transient = shared.transient().clone();
        let mut keyspace =
            Keyspace::open(&db, columns, state.keys, cache_bytes_max, role, transient)?;
        (keyspace.has_versions, keyspace.writes) = (state.has_versions, state.writes);
        (keyspace.last_kind, keyspace.events) = (state.last_kind, state.events);
        if !role.is_queue() {
            let changes = &shared.transient().changes;
            changes.begin(role.log, role.partitions, state.position());
        }
        let removals = Removals::load(&db, columns, role)?;
        Ok(Self {
            role,
            path,
            db,
            shared,
            state,
            keyspace,
            proposers,
            clients,
            transfers,
            touched: Vec::new(),
            queued: Vec::new(),
            removals,
            is_deferring: false,
            unwritten: WriteBatch::default(),
            written: state.position(),
            begun: None,
            is_stopped: false,
        })
    }

    /// Returns the position of the database in `path`, which must not be open.
    pub(crate) fn position_in(path: &Path) -> Result<Position, StoreError> {
        let state = State::load(&open_database_to_read(path)?)?;
        Ok(state.map_or(Position::default(), |state| state.position()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Last instance applied; 0: none.
    pub fn applied(&self) -> u64 {
        self.state.applied
    }

    pub fn position(&self) -> Position {
        self.state.position()
    }

    pub fn time_ms(&self) -> u64 {
        self.state.time_ms
    }

    /// Returns the number of keys, including expired keys not yet deleted.
    pub fn keys(&self) -> u64 {
        self.keyspace.keys
    }

    /// No key expires before this time; `u64::MAX` if no key expires.
    pub fn earliest_expiry_ms(&self) -> u64 {
        self.keyspace.earliest_expiry_ms
    }

    /// Which keyspace events are published.
    pub fn events(&self) -> EventClasses {
        self.keyspace.events
    }

    pub fn client_sessions(&self) -> usize {
        self.clients.len()
    }

    /// Last cross-partition command executed here.
    pub fn done_entry(&self) -> u64 {
        self.state.done_entry
    }

    /// Last entry queued, if this is the log of cross-partition commands.
    pub(crate) fn last_entry(&self) -> u64 {
        self.state.next_id - 1
    }

    pub(crate) fn db(&self) -> &Arc<DB> {
        &self.db
    }

    /// Whether [`apply`](Self::apply) writes at once, or leaves that to [`flush`](Self::flush).
    pub(crate) fn set_deferring(&mut self, is_deferring: bool) {
        self.is_deferring = is_deferring;
    }

    /// Last instance written; 0: none.
    pub fn written(&self) -> u64 {
        self.written.applied
    }

    /// Returns the number of applied and unwritten instances; a partly applied instance counts.
    pub(crate) fn unwritten(&self) -> u64 {
        let is_unwritten = self.written != self.state.position();
        (self.state.applied - self.written.applied).max(u64::from(is_unwritten))
    }

    /// Returns the number of instances applied since the last write began; a partly applied instance counts.
    pub(crate) fn dirty(&self) -> u64 {
        let begun = self.begun_position();
        let is_dirty = begun != self.state.position();
        (self.state.applied - begun.applied).max(u64::from(is_dirty))
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn cached_bytes(&self) -> usize {
        self.keyspace.cached_bytes()
    }

    /// The position that is written, or is being written.
    fn begun_position(&self) -> Position {
        self.begun
            .as_ref()
            .map_or(self.written, |begun| begun.position)
    }

    /// Writes everything that has been applied.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        self.end_write()?;
        let Some(part) = self.take_part()? else {
            return Ok(());
        };
        self.write(part.batch, false)?;
        self.finish();
        Ok(())
    }

    /// Returns what a write of everything applied consists of; `None`: nothing. If there is something, it must be put
    /// into a job, and [`write_begins`](Self::write_begins) be called. No write may be under way.
    pub(crate) fn take_part(&mut self) -> Result<Option<Part>, StoreError> {
        if self.dirty() == 0 {
            return Ok(None);
        }
        self.start()?;
        let mut batch = std::mem::take(&mut self.unwritten);
        self.fill(&mut batch)?;
        Ok(Some(self.part(batch)))
    }

    /// A job with this store's part, if it had one to give, has begun.
    pub(crate) fn write_begins(&mut self, job: &Arc<Job>) {
        self.removals.write_begins();
        if self.dirty() == 0 {
            return;
        }
        self.keyspace.write_begins();
        self.begun = Some(Begun {
            job: job.clone(),
            position: self.state.position(),
        });
        self.finish();
    }

    /// Waits for the write that has begun, if there is one.
    pub(crate) fn end_write(&mut self) -> Result<(), StoreError> {
        let Some(begun) = self.begun.take() else {
            return Ok(());
        };
        begun.job.run();
        if let Err(error) = begun.job.result() {
            self.is_stopped = true;
            return Err(error);
        }
        self.written = begun.position;
        self.keyspace.write_ended();
        Ok(())
    }

    fn part(&self, batch: WriteBatch) -> Part {
        Part {
            db: self.db.clone(),
            path: self.path.clone(),
            shared: self.shared.clone(),
            batch,
        }
    }

    fn check_order(&self, decided: &Decided<'_>) -> Result<(), StoreError> {
        if decided.instance != self.state.applied + 1 {
            let (applied, got) = (self.state.applied, decided.instance);
            return Err(StoreError::OutOfOrder { applied, got });
        }
        Ok(())
    }

    /// From here on memory and disk differ until [`write`](Self::write) has succeeded.
    pub(crate) fn start(&mut self) -> Result<(), StoreError> {
        if self.is_stopped {
            return Err(StoreError::Stopped);
        }
        self.is_stopped = true;
        Ok(())
    }

    /// Nothing has changed since [`start`](Self::start), or it has been written.
    pub(crate) fn finish(&mut self) {
        self.is_stopped = false;
    }

    /// Puts everything that has changed since the last write, and is not in `unwritten`, into `batch`.
    pub(crate) fn fill(&mut self, batch: &mut WriteBatch) -> Result<(), StoreError> {
        let db = self.db.clone();
        let columns = Columns::of(&db)?;
        for id in self.touched.drain(..) {
            let key = proposer_key(id);
            match self.proposers.encode_session(id) {
                Some(record) => batch.put_cf(columns.meta, key, record),
                None => batch.delete_cf(columns.meta, key),
            }
        }
        self.keyspace.write(columns, batch);
        self.state.keys = self.keyspace.keys;
        self.state.writes = self.keyspace.writes;
        self.state.last_kind = self.keyspace.last_kind;
        self.state.events = self.keyspace.events;
        if self.role.partitions == 1 {
            self.state.next_id = self.clients.next_id();
        }
        batch.put_cf(columns.meta, STATE_KEY, self.state.encode());
        if !self.shared.is_being_cut() {
            self.removals.write(columns, batch);
        }
        Ok(())
    }

    /// Writes a batch, after the write that has begun; with `sync`, it survives a power failure.
    pub(crate) fn write(&mut self, batch: WriteBatch, sync: bool) -> Result<(), StoreError> {
        self.end_write()?;
        self.part(batch).write(sync)?;
        self.written = self.state.position();
        self.keyspace.write_begins();
        self.keyspace.write_ended();
        Ok(())
    }

    /// Returns what the execution of the cross-partition command `entry` at `now_ms` needs of this store.
    pub(crate) fn work(&mut self, entry: u64, now_ms: u64) -> Result<Work<'_>, StoreError> {
        let applied = self.state.applied;
        self.keyspace.at = Position { applied, entry };
        let columns = Columns::of(&self.db)?;
        Ok(Work {
            view: View {
                db: &self.db,
                columns,
                keyspace: &mut self.keyspace,
                now_ms,
                clock_ms: 0,
                is_doubtful: false,
            },
            clients: &mut self.clients,
            meta: columns.meta,
        })
    }

    /// Reads without going through the log, at cluster time `clock_ms`.
    pub fn reader(&mut self, clock_ms: u64) -> Result<Reader<'_>, StoreError> {
        if self.is_stopped {
            return Err(StoreError::Stopped);
        }
        Ok(Reader {
            view: View {
                db: &self.db,
                columns: Columns::of(&self.db)?,
                keyspace: &mut self.keyspace,
                now_ms: self.state.time_ms,
                clock_ms,
                is_doubtful: false,
            },
            steps: 0,
        })
    }

    /// An entry was executed here at `now_ms`; must be written together with its changes.
    pub(crate) fn entry_done(&mut self, entry: u64, now_ms: u64) {
        self.state.done_entry = entry;
        self.state.time_ms = self.state.time_ms.max(now_ms);
    }

    /// Writes what an earlier execution of an entry recorded for this store, and reloads the state.
    pub(crate) fn restore(&mut self, batch: WriteBatch) -> Result<(), StoreError> {
        self.flush()?;
        self.start()?;
        self.write(batch, false)?;
        let (path, db, shared) = (self.path.clone(), self.db.clone(), self.shared.clone());
        shared.transient().awaited.lose_track();
        shared.transient().subscriptions.lose_messages();
        let removals = std::mem::take(&mut self.removals);
        let is_deferring = self.is_deferring;
        *self = Self::load(self.role, path, db, shared)?;
        (self.removals, self.is_deferring) = (removals, is_deferring);
        Ok(())
    }

    /// Keys from hash position `cursor` on; examines at least `count` records unless the end is reached first. A hash
    /// position has the same meaning on every replica. Keys whose hashes differ only in the lowest `fine_bits` are
    /// returned together, so a key that exists throughout a scan is returned.
    pub fn scan(&self, cursor: u64, count: usize, fine_bits: u32) -> Result<ScanPage, StoreError> {
        let mut page = ScanPage {
            cursor: 0,
            keys: Vec::new(),
            kinds: Vec::new(),
        };
        let (mut seen, mut last_place) = (0, None);
        let visit = &mut |stored_key: &[u8], record: &[u8]| {
            let hash = stored_key
                .first_chunk()
                .map_or(0, |hash| u64::from_be_bytes(*hash));
            let place = hash >> fine_bits;
            if let Some(last) = last_place.filter(|last| seen >= count && *last != place) {
                // Not zero: there is a higher position.
                page.cursor = (last + 1) << fine_bits;
                return false;
            }
            last_place = Some(place);
            seen += 1;
            let record = keyspace::record(record);
            if keyspace::is_live(record.expire_at_ms, self.state.time_ms) {
                page.kinds.push(record.kind);
                page.keys.push(stored_key[HASH_LEN_BYTES..].to_vec());
            }
            true
        };
        let (columns, start) = (Columns::of(&self.db)?, cursor.to_be_bytes());
        self.keyspace.visit_from(&self.db, columns, &start, visit)?;
        Ok(page)
    }
}

fn proposer_key(id: u64) -> [u8; 9] {
    let mut key = [PROPOSER_KEY; 9];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}
