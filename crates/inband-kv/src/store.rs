//! The replicated state machine of one log: values applied to RocksDB.
//!
//! A write batch holds the data of one or more delivered bursts, their session records, the replicated time, the number
//! of keys and the applied instance. So a crash of the process neither loses nor repeats a command, and two replicas at
//! the same instance have equal contents. A store that [defers](Store::set_deferring) writes collects several bursts in
//! memory; what a crash loses of them is delivered again, because it was never reported as [written](Store::written).
//!
//! The store of the log of cross-partition commands holds no keys: applying a value there appends its commands to a
//! queue, from which [`crate::machine`] executes them.

mod local;
mod shared;
mod state;
mod transfers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inband_host::log::{Decided, Ticket, ValueKind};
use inband_host::session::{SessionTable, Verdict};
use inband_resp::reply::Reply;
use rocksdb::{Cache, ColumnFamily, Direction, IteratorMode, WriteBatch, WriteOptions, DB};

use crate::client_sessions::{self, Admission, ClientSessions, Records};
use crate::command::{Command, SessionStamp};
use crate::db::{open_database, open_database_to_read, Columns, HASH_LEN_BYTES};
use crate::engine;
use crate::keyspace::{self, Keys, Keyspace, View};
use crate::limits::{
    EXPIRED_KEYS_PER_ENTRY_MAX, EXPIRED_KEYS_PER_TICK_MAX, READ_REPLIES_BYTES_MAX,
    RECORD_CACHE_BYTES_MAX, TTL_LAG_MS_MAX, UNWRITTEN_BYTES_MAX,
};
use crate::types::Kind;
use crate::value::{self, Chunk, ValueError, ValueReader};

pub use local::QueueEntry;
use local::Removals;
pub use shared::SharedDbs;
pub(crate) use shared::{Snapshot, Turn};
use state::{State, STATE_KEY, STATE_VERSION};
pub use transfers::ChunkFate;
use transfers::{Transfers, CHUNK_KEY};

/// The reply to a read through the log when there is no room for its result.
const TOO_MUCH_READ: &str = "TRYAGAIN not read: too much is read at once";

/// First byte of the stored key of a proposer's session.
const PROPOSER_KEY: u8 = b's';

/// Why the store cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// RocksDB failed.
    #[error("RocksDB: {0}; check the disk of the store's directory, then restart the replica")]
    RocksDb(#[from] rocksdb::Error),
    /// A file or directory could not be used.
    #[error("{path}: {source}; check that it exists, is writable and the disk is not full")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// No data directory was given.
    #[error("no data directory is given; name at least one")]
    NoDirectory,
    /// The number of partitions is out of range.
    #[error("{0} partitions are not possible; choose 1 to {max}", max = crate::partition::PARTITIONS_MAX)]
    PartitionCount(usize),
    /// The data belongs to a different number of partitions.
    #[error(
        "{path} holds the data of {found} partition(s), and {asked} are asked for; start with {found}, \
         or export the data and import them into a cluster of {asked}"
    )]
    Partitions {
        /// The data directory.
        path: PathBuf,
        /// Partitions of the data.
        found: usize,
        /// Partitions asked for.
        asked: usize,
    },
    /// A store is missing.
    #[error("{path} is missing; is its disk mounted, and are the data directories given in the same order as before? If it is lost, remove all data of this replica, and it starts from a peer's checkpoint")]
    Missing {
        /// The database.
        path: PathBuf,
    },
    /// There is data, but no file says which databases are active.
    #[error("{path} holds data, but the first data directory has no file ACTIVE; is its disk mounted, and are the data directories given in the same order as before?")]
    NotActive {
        /// The directory that holds data.
        path: PathBuf,
    },
    /// The store belongs to a different log or number of partitions.
    #[error("{path} belongs to log {found_log} of {found_partitions} partition(s), not to log {log} of {partitions}; were directories exchanged?")]
    WrongPlace {
        /// The database.
        path: PathBuf,
        /// The log that it belongs to.
        found_log: u64,
        /// Its number of partitions.
        found_partitions: u64,
        /// The log that belongs here.
        log: usize,
        /// Number of partitions of this replica.
        partitions: usize,
    },
    /// The stores of this replica are inconsistent with each other: its host lost power.
    #[error("the stores of the partitions do not fit each other (command {entry} over several partitions is half applied and its record lost), as after a power cut without durability \"sync\"; remove all data of this replica, and it starts from a peer's checkpoint")]
    Torn { entry: u64 },
    /// The file that names the active databases is damaged.
    #[error("{path} names {text:?}, which are no databases; write the names of the db-<n> directories in use into it, one line a log")]
    ActiveFile {
        path: PathBuf,
        /// Its contents.
        text: String,
    },
    /// The database was not written by this program.
    #[error("column family {0} is missing; is this the directory of an Inband store?")]
    ColumnFamilyMissing(&'static str),
    /// A stored record does not decode.
    #[error("the stored record {0:?} is malformed; remove the directory to start from a peer's checkpoint")]
    Malformed(String),
    /// A newer program wrote the store.
    #[error("the store has format {0}, this program knows {STATE_VERSION}; upgrade this replica")]
    Version(u64),
    /// A value of the log cannot be applied.
    #[error("instance {instance}: {source}")]
    Value { instance: u64, source: ValueError },
    /// The log skipped instances.
    #[error("instance {got} was delivered after {applied}; reset the log to the applied instance")]
    OutOfOrder {
        /// Last instance applied.
        applied: u64,
        /// Instance delivered.
        got: u64,
    },
    /// The checkpoint is not ahead of any store.
    #[error("the checkpoint is nowhere ahead of the stores, which are at instances {applied:?}; fetch a newer one")]
    CheckpointTooOld {
        /// Last instances applied, one per log.
        applied: Vec<u64>,
    },
    /// Applied instances were not written in time.
    #[error("the replica does not write what it has applied; is it stuck? Try again")]
    Unwritten,
    /// The disk has been full for too long.
    #[error("the disk is full, and {len_bytes} bytes of decided values wait for room (limit {limit}); make room, then start the replica again", limit = crate::limits::UNAPPLIED_BYTES_MAX)]
    Unapplied {
        /// Bytes of decided values that wait.
        len_bytes: usize,
    },
    /// An earlier error left memory and disk inconsistent.
    #[error("an earlier error stopped this store; restart the replica")]
    Stopped,
    /// Injected by a test.
    #[cfg(any(test, feature = "testing"))]
    #[error("a write failed because a test asked for it")]
    Fault,
}

impl StoreError {
    /// Returns whether the error will recur until the host or its configuration is changed. A disk may be mounted late,
    /// and space may become free, so those errors are temporary.
    pub fn is_lasting(&self) -> bool {
        !matches!(
            self,
            StoreError::RocksDb(_)
                | StoreError::Io { .. }
                | StoreError::Missing { .. }
                | StoreError::NotActive { .. }
        )
    }
}

/// The log that a store belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRole {
    pub log: usize,
    pub partitions: usize,
}

impl LogRole {
    /// The only log of a single partition.
    pub const ONLY: LogRole = LogRole {
        log: 0,
        partitions: 1,
    };

    /// Returns whether it is the log of cross-partition commands.
    pub fn is_queue(&self) -> bool {
        self.log == self.partitions
    }
}

/// The progress of a store. Later in the same log compares as greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Last instance applied; 0: none.
    pub applied: u64,
    /// Last cross-partition command executed here: several may be executed at one marker.
    pub entry: u64,
}

/// The outcome of a value submitted by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub ticket: Ticket,
    /// The proposer's session under which it was decided.
    pub session_id: u64,
    /// The verdict of the session table.
    pub verdict: Verdict,
    /// Index of its first reply in [`Outcomes::replies`].
    pub first_reply: usize,
    /// Number of replies: one per command if the verdict was [`Verdict::Apply`], else none.
    pub reply_count: usize,
    /// The entry number of its first command, if it went to the log of cross-partition commands; the other commands
    /// follow.
    pub first_entry: Option<u64>,
    /// The result, if it was a chunk and was applied.
    pub chunk: Option<ChunkFate>,
}

impl Outcome {
    /// A value covered by an installed checkpoint: it went through its log, but its replies are lost. Without this
    /// outcome its proposer would wait forever.
    fn skipped(ticket: Ticket, decided: &Decided<'_>) -> Outcome {
        Outcome {
            ticket,
            session_id: decided.origin.client_id,
            verdict: Verdict::Duplicate,
            first_reply: 0,
            reply_count: 0,
            first_entry: None,
            chunk: None,
        }
    }
}

/// The outcomes of this process's values in a burst. Reused between bursts.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// The process's own values in the order in which they were decided, log by log.
    pub values: Vec<Outcome>,
    pub replies: Vec<Reply>,
    /// Approximate length of the replies.
    reply_bytes: usize,
    /// Executed entries that this process submitted, with their replies.
    pub entries: Vec<(u64, Reply)>,
    /// Number of commands applied, submitted by any process.
    pub commands: u64,
}

impl Outcomes {
    /// Clears everything, but keeps the memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.replies.clear();
        self.reply_bytes = 0;
        self.entries.clear();
        self.commands = 0;
    }

    /// Returns whether there is room for replies to reads.
    fn has_room(&self) -> bool {
        self.reply_bytes < READ_REPLIES_BYTES_MAX
    }
}

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
    is_stopped: bool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.path)
            .field("state", &self.state)
            .finish()
    }
}

/// Where applied values go.
struct Target<'a> {
    db: &'a DB,
    columns: Columns<'a>,
    batch: &'a mut WriteBatch,
}

/// What one command may access in a store while it is executed.
pub(crate) struct Work<'a> {
    pub(crate) view: View<'a>,
    pub(crate) clients: &'a mut ClientSessions,
    pub(crate) meta: &'a ColumnFamily,
}

/// Executes read-only commands without going through the log.
pub struct Reader<'a>(View<'a>);

impl Reader<'_> {
    /// Executes an encoded command. `None`: a key in it has expired by cluster time but not by replicated time, or its
    /// remaining time differs too much between the two; the command must go through the log.
    pub fn read(&mut self, command: &[u8]) -> Result<Option<Reply>, StoreError> {
        let reply = match Command::decode(command) {
            Some((command, None)) if command.only_reads() => {
                let reply = engine::execute(&mut self.0, &command)?;
                let is_behind = self.0.clock_ms > self.0.now_ms + TTL_LAG_MS_MAX;
                self.0.is_doubtful |= is_behind && command.tells_time(&reply);
                reply
            }
            _ => Reply::error("ERR this command goes through the log"),
        };
        Ok((!std::mem::take(&mut self.0.is_doubtful)).then_some(reply))
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.keyspace.was_read();
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
        let scripts = shared.scripts().clone();
        let mut keyspace = Keyspace::open(&db, columns, state.keys, cache_bytes_max, scripts)?;
        (keyspace.has_versions, keyspace.writes) = (state.has_versions, state.writes);
        keyspace.has_collections = state.has_collections;
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

    /// Applies a burst up to the first marker that must not be passed yet. Returns how many of its instances are now
    /// applied. Instances at or below the applied one are skipped: they are covered by a checkpoint that was installed
    /// after they were delivered. After an error the store is stopped: memory and disk may differ.
    pub fn apply<'d>(
        &mut self,
        decided: impl IntoIterator<Item = Decided<'d>>,
        may_pass: &dyn Fn(u64) -> bool,
        outcomes: &mut Outcomes,
    ) -> Result<usize, StoreError> {
        self.start()?;
        let db = self.db.clone();
        let (mut batch, mut taken) = (std::mem::take(&mut self.unwritten), 0);
        let mut to = Target {
            db: &db,
            columns: Columns::of(&db)?,
            batch: &mut batch,
        };
        for decided in decided {
            if decided.instance > self.state.applied {
                self.check_order(&decided)?;
                if value::marker_entry(decided.value).is_some_and(|entry| !may_pass(entry)) {
                    break;
                }
                self.apply_one(&mut to, &decided, outcomes)?;
                self.state.applied = decided.instance;
                if self.keyspace.unwritten_bytes() >= UNWRITTEN_BYTES_MAX as u64 {
                    let mut batch = std::mem::take(to.batch);
                    self.fill(&mut batch)?;
                    self.write(batch, false)?;
                }
            } else if let Some(ticket) = decided.ticket {
                outcomes.values.push(Outcome::skipped(ticket, &decided));
            }
            taken += 1;
        }
        self.unwritten = batch;
        self.is_stopped = false;
        if !self.is_deferring {
            self.flush()?;
        }
        Ok(taken)
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

    /// Writes everything that has been applied.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        if self.written == self.state.position() {
            return Ok(());
        }
        self.start()?;
        let mut batch = std::mem::take(&mut self.unwritten);
        self.fill(&mut batch)?;
        self.write(batch, false)?;
        self.finish();
        Ok(())
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
        self.state.has_collections = self.keyspace.has_collections;
        if self.role.partitions == 1 {
            self.state.next_id = self.clients.next_id();
        }
        batch.put_cf(columns.meta, STATE_KEY, self.state.encode());
        if !self.shared.is_being_cut() {
            self.removals.write(columns, batch);
        }
        Ok(())
    }

    /// Writes a batch; with `sync`, it survives a power failure.
    pub(crate) fn write(&mut self, batch: WriteBatch, sync: bool) -> Result<(), StoreError> {
        #[cfg(any(test, feature = "testing"))]
        self.shared.faults().pass()?;
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        #[cfg(any(test, feature = "testing"))]
        let noted = batch.data().to_vec();
        self.db.write_opt(batch, &options)?;
        #[cfg(any(test, feature = "testing"))]
        self.shared.faults().written(&self.path, &noted, sync);
        self.written = self.state.position();
        self.keyspace.burst_written();
        Ok(())
    }

    fn apply_one(
        &mut self,
        to: &mut Target<'_>,
        decided: &Decided<'_>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        let verdict = self.admit(decided, to);
        let (first_reply, next_entry) = (outcomes.replies.len(), self.state.next_id);
        let mut fate = None;
        if verdict == Verdict::Apply && value::marker_entry(decided.value).is_none() {
            let chunk = Chunk::of_value(decided.value);
            fate = match chunk {
                Some(chunk) => Some(self.apply_chunk(to, decided, chunk, outcomes)?),
                None => None,
            };
            match ValueReader::new(decided.value) {
                _ if chunk.is_some() => {}
                Ok(value) => {
                    self.state.has_versions |= value.is_version_2;
                    let commands = &mut value.commands();
                    self.apply_commands(to, value.time_ms, decided.ticket, commands, outcomes)?;
                }
                Err(ValueError::Malformed) => {
                    tracing::warn!(instance = decided.instance, "{}", ValueError::Malformed);
                }
                Err(source) => {
                    return Err(StoreError::Value {
                        instance: decided.instance,
                        source,
                    });
                }
            }
        }
        if let Some(ticket) = decided.ticket {
            outcomes.values.push(Outcome {
                ticket,
                session_id: decided.origin.client_id,
                verdict,
                first_reply,
                reply_count: outcomes.replies.len() - first_reply,
                first_entry: self.role.is_queue().then_some(next_entry),
                chunk: fate,
            });
        }
        Ok(())
    }

    fn advance_time(&mut self, to: &mut Target<'_>, time_ms: u64) {
        self.state.time_ms = self.state.time_ms.max(time_ms);
        self.transfers
            .expire(self.state.time_ms, to.columns.meta, to.batch);
    }

    /// Stores a chunk, and applies its command if it was the last one.
    fn apply_chunk(
        &mut self,
        to: &mut Target<'_>,
        decided: &Decided<'_>,
        chunk: Chunk<'_>,
        outcomes: &mut Outcomes,
    ) -> Result<ChunkFate, StoreError> {
        self.state.has_versions = true;
        self.advance_time(to, chunk.time_ms);
        let session = decided.origin.client_id;
        let now = (decided.instance, self.state.time_ms);
        let (transfers, meta) = (&mut self.transfers, to.columns.meta);
        let (fate, command) = transfers.take(session, &chunk, now, meta, to.batch);
        if let Some(command) = command {
            let commands = &mut std::iter::once(&command[..]);
            self.apply_commands(to, chunk.time_ms, decided.ticket, commands, outcomes)?;
        }
        Ok(fate)
    }

    /// Passes a marker whose entries have been executed; must be written together with their changes.
    pub(crate) fn pass_marker(
        &mut self,
        decided: &Decided<'_>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        self.check_order(decided)?;
        let db = self.db.clone();
        let mut nothing = Target {
            db: &db,
            columns: Columns::of(&db)?,
            batch: &mut WriteBatch::default(),
        };
        self.apply_one(&mut nothing, decided, outcomes)?;
        self.state.applied = decided.instance;
        Ok(())
    }

    /// Looks the value up in the proposers' session table, and notes which of its records change.
    fn admit(&mut self, decided: &Decided<'_>, to: &mut Target<'_>) -> Verdict {
        let touched = match decided.origin.kind {
            ValueKind::Noop => return Verdict::Nothing,
            ValueKind::Command => decided.origin.client_id,
            ValueKind::OpenSession => decided.instance,
        };
        let ids_before: Option<Vec<u64>> =
            (decided.origin.kind == ValueKind::OpenSession).then(|| self.proposers.ids().collect());
        let verdict = self.proposers.admit(decided.instance, &decided.origin);
        if let Some(ids) = ids_before.filter(|ids| ids.len() == self.proposers.len()) {
            // Opening a session has expired another one.
            let gone = ids
                .into_iter()
                .find(|id| self.proposers.ids().all(|open| open != *id));
            if let Some(gone) = gone {
                self.touched.push(gone);
                self.transfers.end_session(gone, to.columns.meta, to.batch);
            }
        }
        if !self.touched.contains(&touched) && (verdict != Verdict::Refused) {
            self.touched.push(touched);
        }
        verdict
    }

    /// Executes commands, or appends them to the queue.
    fn apply_commands(
        &mut self,
        to: &mut Target<'_>,
        time_ms: u64,
        ticket: Option<Ticket>,
        commands: &mut dyn Iterator<Item = &[u8]>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        self.advance_time(to, time_ms);
        self.keyspace.has_versions = self.state.has_versions;
        if self.role.is_queue() {
            commands.for_each(|command| {
                self.queue_command(to.columns, to.batch, command, ticket);
            });
            return Ok(());
        }
        let is_own = ticket.is_some();
        let now_ms = self.state.time_ms;
        let mut records = BatchRecords {
            batch: to.batch,
            meta: to.columns.meta,
        };
        self.clients.expire(now_ms, &mut records);
        let keyspace = &mut self.keyspace;
        let mut view = View {
            db: to.db,
            columns: to.columns,
            keyspace,
            now_ms,
            clock_ms: 0,
            is_doubtful: false,
        };
        let mut commands = commands.peekable();
        let is_tick = commands.peek().is_none();
        view.delete_expired(if is_tick {
            EXPIRED_KEYS_PER_TICK_MAX
        } else {
            EXPIRED_KEYS_PER_ENTRY_MAX
        })?;
        for bytes in commands {
            outcomes.commands += 1;
            let reply = match Command::decode(bytes) {
                None => Some(Reply::error("ERR malformed command in a value")),
                Some((command, Some(stamp))) => {
                    let clients = &mut self.clients;
                    Some(execute_stamped(
                        &mut view,
                        clients,
                        &mut records,
                        &command,
                        stamp,
                    )?)
                }
                Some((Command::SessionNew { owner }, None)) if self.role.partitions == 1 => Some(
                    Reply::Integer(self.clients.open(owner, now_ms, &mut records) as i64),
                ),
                Some((command, None)) if !is_own && command.only_reads() => None,
                Some((command, None)) if !outcomes.has_room() && command.only_reads() => {
                    Some(Reply::error(TOO_MUCH_READ))
                }
                Some((command, None)) => Some(engine::execute(&mut view, &command)?),
            };
            if let Some(reply) = reply.filter(|_| is_own) {
                outcomes.reply_bytes += reply.len_bytes();
                outcomes.replies.push(reply);
            }
        }
        Ok(())
    }

    /// Returns what the execution of a cross-partition command at `now_ms` needs of this store.
    pub(crate) fn work(&mut self, now_ms: u64) -> Result<Work<'_>, StoreError> {
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
        Ok(Reader(View {
            db: &self.db,
            columns: Columns::of(&self.db)?,
            keyspace: &mut self.keyspace,
            now_ms: self.state.time_ms,
            clock_ms,
            is_doubtful: false,
        }))
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
        let removals = std::mem::take(&mut self.removals);
        let is_deferring = self.is_deferring;
        *self = Self::load(self.role, path, db, shared)?;
        (self.removals, self.is_deferring) = (removals, is_deferring);
        Ok(())
    }

    /// Keys from hash position `cursor` on; examines at least `count` records unless the end is reached first. A hash
    /// position has the same meaning on every replica. Keys whose hashes differ only in the lowest `fine_bits` are
    /// returned together, so a key that exists throughout a scan is returned. Sees only what is written.
    pub fn scan(&self, cursor: u64, count: usize, fine_bits: u32) -> Result<ScanPage, StoreError> {
        let start = cursor.to_be_bytes();
        let mode = IteratorMode::From(&start, Direction::Forward);
        let (mut keys, mut kinds) = (Vec::new(), Vec::new());
        let (mut seen, mut last_place) = (0, None);
        for item in self.db.iterator_cf(Columns::of(&self.db)?.data, mode) {
            let (stored_key, record) = item?;
            let hash = stored_key
                .first_chunk()
                .map_or(0, |hash| u64::from_be_bytes(*hash));
            let place = hash >> fine_bits;
            if let Some(last) = last_place.filter(|last| seen >= count && *last != place) {
                // Not zero: there is a higher position.
                return Ok(ScanPage {
                    cursor: (last + 1) << fine_bits,
                    keys,
                    kinds,
                });
            }
            last_place = Some(place);
            seen += 1;
            let record = keyspace::record(&record);
            if keyspace::is_live(record.expire_at_ms, self.state.time_ms) {
                kinds.push(record.kind);
                keys.push(stored_key[HASH_LEN_BYTES..].to_vec());
            }
        }
        Ok(ScanPage {
            cursor: 0,
            keys,
            kinds,
        })
    }
}

/// Executes a command of a named client session exactly once.
pub(crate) fn execute_stamped(
    keys: &mut dyn Keys,
    clients: &mut ClientSessions,
    records: &mut dyn Records,
    command: &Command<'_>,
    stamp: SessionStamp,
) -> Result<Reply, StoreError> {
    let reply = match clients.admit(stamp, keys.now_ms(), records) {
        Admission::Answer(reply) => return Ok(reply),
        Admission::ReadAgain => return Ok(engine::execute(keys, command)?),
        Admission::Execute => engine::execute(keys, command)?,
    };
    clients.store_reply(stamp, &reply, command.only_reads(), records);
    Ok(reply)
}

fn proposer_key(id: u64) -> [u8; 9] {
    let mut key = [PROPOSER_KEY; 9];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}
