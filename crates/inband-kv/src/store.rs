//! The replicated state machine: a log of values applied to RocksDB.
//!
//! One delivered burst becomes one write batch that holds its data, its session records, the
//! replicated time, the number of keys and the applied instance. So a crash of the process neither
//! loses nor repeats a command, and two replicas at the same instance have equal contents.

mod shared;
mod state;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inband_paxos::log::{Decided, Ticket, ValueKind};
use inband_paxos::session::{SessionTable, Verdict};
use rocksdb::{ColumnFamily, Direction, IteratorMode, WriteBatch, DB};

use crate::client_sessions::{self, Admission, ClientSessions, Records};
use crate::command::{Command, SessionStamp};
use crate::db::{open_database, open_database_to_read, Columns, Directory, HASH_LEN_BYTES};
use crate::engine;
use crate::keyspace::{self, Burst, Keyspace};
use crate::limits::{EXPIRED_KEYS_PER_ENTRY_MAX, EXPIRED_KEYS_PER_TICK_MAX};
use crate::reply::Reply;
use crate::value::{ValueError, ValueReader};

pub use shared::SharedDb;
use state::{State, STATE_KEY, STATE_VERSION};

/// First byte of the stored key of a proposer's session.
const PROPOSER_KEY: u8 = b's';

/// Why the store cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// RocksDB failed.
    #[error("RocksDB: {0}; check the disk of the store's directory, then restart the replica")]
    RocksDb(#[from] rocksdb::Error),
    /// A file or directory could not be used.
    #[error("{path}: {source}; check that it exists, is writable and the disk is not full")]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file that names the database in use is damaged.
    #[error("{path} names {name:?}, which is no database; write the name of the db-<n> directory in use into it")]
    ActiveFile {
        /// The file.
        path: PathBuf,
        /// What is in it.
        name: String,
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
    /// A newer program wrote a value into the log.
    #[error("instance {instance}: {source}")]
    Value {
        /// Where.
        instance: u64,
        /// What is wrong.
        source: ValueError,
    },
    /// The log skipped instances.
    #[error("instance {got} was delivered after {applied}; reset the log to the applied instance")]
    OutOfOrder {
        /// Last instance applied.
        applied: u64,
        /// Instance delivered.
        got: u64,
    },
    /// A checkpoint is not ahead of the store.
    #[error(
        "the checkpoint is at instance {checkpoint}, the store at {applied}; fetch a newer one"
    )]
    CheckpointTooOld {
        /// Last instance applied.
        applied: u64,
        /// Instance of the checkpoint.
        checkpoint: u64,
    },
    /// An earlier error left memory and disk apart.
    #[error("an earlier error stopped this store; restart the replica")]
    Stopped,
}

/// What became of a value of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Which value.
    pub ticket: Ticket,
    /// The proposer's session under which it was decided.
    pub session_id: u64,
    /// What the session table said.
    pub verdict: Verdict,
    /// Where its replies start in [`Outcomes::replies`].
    pub first_reply: usize,
    /// How many replies there are: one a command if the verdict was [`Verdict::Apply`], else none.
    pub reply_count: usize,
}

/// What became of the own values of a burst. Reused between bursts.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// The own values in the order in which they were decided.
    pub values: Vec<Outcome>,
    /// Their replies.
    pub replies: Vec<Reply>,
    /// Commands applied, of all proposers.
    pub commands: u64,
}

impl Outcomes {
    /// Forget everything, keep the memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.replies.clear();
        self.commands = 0;
    }
}

/// Records of client sessions go into the burst's batch.
struct BatchRecords<'a> {
    batch: &'a mut WriteBatch,
    meta: &'a ColumnFamily,
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
    /// Where to go on; 0: this was the last page.
    pub cursor: u64,
    /// The live keys of the page.
    pub keys: Vec<Vec<u8>>,
}

/// One replica's copy of the replicated state.
pub struct Store {
    directory: Directory,
    path: PathBuf,
    db: Arc<DB>,
    shared: SharedDb,
    state: State,
    keyspace: Keyspace,
    proposers: SessionTable,
    clients: ClientSessions,
    /// Proposer sessions to be stored with this burst.
    touched: Vec<u64>,
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

impl Store {
    /// Open the store in `dir`, creating it if there is none.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let directory = Directory::new(dir)?;
        let path = directory.active()?;
        let db = Arc::new(open_database(&path)?);
        let shared = SharedDb::new(db.clone());
        Self::load(directory, path, db, shared)
    }

    fn load(
        directory: Directory,
        path: PathBuf,
        db: Arc<DB>,
        shared: SharedDb,
    ) -> Result<Self, StoreError> {
        let state = State::load(&db)?;
        let mut proposers = SessionTable::new();
        let mut clients = ClientSessions::new(state.next_session_id);
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
                _ => false,
            };
            if !is_good {
                return Err(StoreError::Malformed(
                    String::from_utf8_lossy(&key).into_owned(),
                ));
            }
        }
        let keyspace = Keyspace::open(&db, columns, state.keys)?;
        Ok(Self {
            directory,
            path,
            db,
            shared,
            state,
            keyspace,
            proposers,
            clients,
            touched: Vec::new(),
            is_stopped: false,
        })
    }

    /// Last instance applied; 0: none.
    pub fn applied(&self) -> u64 {
        self.state.applied
    }

    /// Replicated time.
    pub fn time_ms(&self) -> u64 {
        self.state.time_ms
    }

    /// Number of keys, expired ones that are not yet deleted included.
    pub fn keys(&self) -> u64 {
        self.keyspace.keys
    }

    /// No key expires before this time; `u64::MAX` if none ever does.
    pub fn earliest_expiry_ms(&self) -> u64 {
        self.keyspace.earliest_expiry_ms
    }

    /// Number of named client sessions.
    pub fn client_sessions(&self) -> usize {
        self.clients.len()
    }

    /// A handle for other threads.
    pub fn shared(&self) -> SharedDb {
        self.shared.clone()
    }

    /// Apply a burst. Instances at or below the applied one are skipped. After an error the store
    /// is stopped: memory and disk may differ.
    pub fn apply<'d>(
        &mut self,
        decided: impl IntoIterator<Item = Decided<'d>>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        if self.is_stopped {
            return Err(StoreError::Stopped);
        }
        self.is_stopped = true;
        let applied_before = self.state.applied;
        let db = self.db.clone();
        let columns = Columns::of(&db)?;
        let mut batch = WriteBatch::default();
        for decided in decided {
            if decided.instance <= self.state.applied {
                continue;
            }
            if decided.instance != self.state.applied + 1 {
                let (applied, got) = (self.state.applied, decided.instance);
                return Err(StoreError::OutOfOrder { applied, got });
            }
            self.apply_one(&db, columns, &mut batch, &decided, outcomes)?;
            self.state.applied = decided.instance;
        }
        if self.state.applied != applied_before {
            for id in self.touched.drain(..) {
                let key = proposer_key(id);
                match self.proposers.encode_session(id) {
                    Some(record) => batch.put_cf(columns.meta, key, record),
                    None => batch.delete_cf(columns.meta, key),
                }
            }
            self.keyspace.write(columns, &mut batch);
            self.state.keys = self.keyspace.keys;
            self.state.next_session_id = self.clients.next_id();
            batch.put_cf(columns.meta, STATE_KEY, self.state.encode());
            db.write(batch)?;
            self.keyspace.burst_written();
        }
        self.is_stopped = false;
        Ok(())
    }

    fn apply_one(
        &mut self,
        db: &DB,
        columns: Columns<'_>,
        batch: &mut WriteBatch,
        decided: &Decided<'_>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        let verdict = self.admit(decided);
        let first_reply = outcomes.replies.len();
        if verdict == Verdict::Apply {
            match ValueReader::new(decided.value) {
                Ok(value) => self.apply_value(db, columns, batch, decided, value, outcomes)?,
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
            let reply_count = outcomes.replies.len() - first_reply;
            let session_id = decided.origin.client_id;
            let outcome = Outcome {
                ticket,
                session_id,
                verdict,
                first_reply,
                reply_count,
            };
            outcomes.values.push(outcome);
        }
        Ok(())
    }

    /// Ask the proposers' session table, and note which of its records change.
    fn admit(&mut self, decided: &Decided<'_>) -> Verdict {
        let touched = match decided.origin.kind {
            ValueKind::Noop => return Verdict::Nothing,
            ValueKind::Command => decided.origin.client_id,
            ValueKind::OpenSession => decided.instance,
        };
        let ids_before: Option<Vec<u64>> =
            (decided.origin.kind == ValueKind::OpenSession).then(|| self.proposers.ids().collect());
        let verdict = self.proposers.admit(decided.instance, &decided.origin);
        if let Some(ids) = ids_before.filter(|ids| ids.len() == self.proposers.len()) {
            // Opening one expired another.
            let gone = ids
                .into_iter()
                .find(|id| self.proposers.ids().all(|open| open != *id));
            self.touched.extend(gone);
        }
        if !self.touched.contains(&touched) && (verdict != Verdict::Refused) {
            self.touched.push(touched);
        }
        verdict
    }

    fn apply_value(
        &mut self,
        db: &DB,
        columns: Columns<'_>,
        batch: &mut WriteBatch,
        decided: &Decided<'_>,
        value: ValueReader<'_>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        self.state.time_ms = self.state.time_ms.max(value.time_ms);
        let now_ms = self.state.time_ms;
        let mut records = BatchRecords {
            batch,
            meta: columns.meta,
        };
        self.clients.expire(now_ms, &mut records);
        let keyspace = &mut self.keyspace;
        let mut burst = Burst {
            db,
            columns,
            keyspace,
            now_ms,
        };
        let is_tick = value.count == 0;
        burst.delete_expired(if is_tick {
            EXPIRED_KEYS_PER_TICK_MAX
        } else {
            EXPIRED_KEYS_PER_ENTRY_MAX
        })?;
        let is_own = decided.ticket.is_some();
        outcomes.commands += value.count as u64;
        for bytes in value.commands() {
            let reply = match Command::decode(bytes) {
                None => Some(Reply::error("ERR malformed command in a value")),
                Some((command, Some(stamp))) => {
                    let clients = &mut self.clients;
                    Some(execute_stamped(
                        &mut burst,
                        clients,
                        &mut records,
                        &command,
                        stamp,
                    )?)
                }
                Some((Command::SessionNew, None)) => Some(Reply::Integer(
                    self.clients.open(now_ms, &mut records) as i64,
                )),
                Some((command, None)) if !is_own && command.only_reads() => None,
                Some((command, None)) => Some(engine::execute(&mut burst, &command)?),
            };
            if is_own {
                outcomes.replies.extend(reply);
            }
        }
        Ok(())
    }

    /// Keys from hash position `cursor` on, at least `count` records looked at unless the end is
    /// reached first. A hash position means the same on every replica. Keys of one hash come
    /// together, so a key that is there throughout a scan is returned.
    pub fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, StoreError> {
        let start = cursor.to_be_bytes();
        let mode = IteratorMode::From(&start, Direction::Forward);
        let (mut keys, mut seen, mut last_hash) = (Vec::new(), 0, None);
        for item in self.db.iterator_cf(Columns::of(&self.db)?.data, mode) {
            let (stored_key, record) = item?;
            let hash = stored_key
                .first_chunk()
                .map_or(0, |hash| u64::from_be_bytes(*hash));
            if let Some(last_hash) = last_hash.filter(|last| seen >= count && *last != hash) {
                // Not zero: there is a higher hash.
                return Ok(ScanPage {
                    cursor: last_hash + 1,
                    keys,
                });
            }
            last_hash = Some(hash);
            seen += 1;
            if keyspace::is_live(keyspace::leading_number(&record), self.state.time_ms) {
                keys.push(stored_key[HASH_LEN_BYTES..].to_vec());
            }
        }
        Ok(ScanPage { cursor: 0, keys })
    }

    /// A hash over everything replicated, the applied instance included. Equal on every replica
    /// that has applied the same log.
    pub fn digest(&self) -> Result<u64, StoreError> {
        self.shared.digest().map(|(_, digest)| digest)
    }

    /// Make everything applied survive a crash of the host.
    pub fn sync(&self) -> Result<(), StoreError> {
        Ok(self.db.flush_wal(true)?)
    }

    /// Write a checkpoint into `dir`, which must not exist; the instance it is at.
    pub fn checkpoint(&self, dir: &Path) -> Result<u64, StoreError> {
        self.shared.checkpoint(dir)
    }

    /// Where to receive a checkpoint for [`install`](Self::install).
    pub fn incoming(&self) -> PathBuf {
        self.directory.incoming()
    }

    /// Where checkpoints for peers are made, see [`crate::checkpoint_server`].
    pub fn outgoing(&self) -> PathBuf {
        self.directory.outgoing()
    }

    /// Replace the contents with the complete checkpoint in `incoming`. The old contents are
    /// removed after the new ones are in use; a crash at any moment leaves one of the two.
    pub fn install(&mut self, incoming: &Path) -> Result<(), StoreError> {
        let checkpoint = State::load(&open_database_to_read(incoming)?)?.applied;
        if checkpoint <= self.state.applied {
            let applied = self.state.applied;
            return Err(StoreError::CheckpointTooOld {
                applied,
                checkpoint,
            });
        }
        let shared = self.shared.clone();
        let mut in_use = shared.lock();
        let place = self.directory.install(incoming, &self.path)?;
        let db = Arc::new(open_database(&place)?);
        *in_use = db.clone();
        drop(in_use);
        let old_path = self.path.clone();
        *self = Self::load(self.directory.clone(), place, db, shared)?;
        std::fs::remove_dir_all(&old_path).map_err(|e| crate::db::io_error(&old_path, e))
    }
}

/// Execute a command of a named client session, once.
fn execute_stamped(
    burst: &mut Burst<'_>,
    clients: &mut ClientSessions,
    records: &mut dyn Records,
    command: &Command<'_>,
    stamp: SessionStamp,
) -> Result<Reply, StoreError> {
    let reply = match clients.admit(stamp, burst.now_ms, records) {
        Admission::Answer(reply) => return Ok(reply),
        Admission::ReadAgain => return Ok(engine::execute(burst, command)?),
        Admission::Execute => engine::execute(burst, command)?,
    };
    clients.store_reply(stamp, &reply, command.only_reads(), records);
    Ok(reply)
}

fn proposer_key(id: u64) -> [u8; 9] {
    let mut key = [PROPOSER_KEY; 9];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}
