//! The counters of the replicated state: one record, written with every burst.

use rocksdb::DB;

use super::{LogRole, Position, StoreError};
use crate::db::{family, META};
use crate::events::EventClasses;
use crate::keyspace::leading_number;
use crate::types::Kind;

/// Highest version of the stored format: keyspace events are published. Two numbers more.
pub(super) const STATE_VERSION: u64 = 5;
/// There are sorted sets, or were.
const STATE_VERSION_4: u64 = 4;
/// There are other collections, or were.
const STATE_VERSION_3: u64 = 3;
/// All values are strings.
const STATE_VERSION_2: u64 = 2;
/// Only the first four numbers, and one partition.
const STATE_VERSION_1: u64 = 1;
/// Key of the record.
pub(super) const STATE_KEY: &[u8] = b"state";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) applied: u64,
    pub(super) time_ms: u64,
    pub(super) keys: u64,
    /// The next client session, or the next entry if this is the log of cross-partition commands.
    pub(super) next_id: u64,
    /// Number of partitions.
    pub(super) partitions: u64,
    /// Number of this log.
    pub(super) log: u64,
    /// Records have versions.
    pub(super) has_versions: bool,
    /// See [`crate::keyspace::Keyspace::last_kind`].
    pub(super) last_kind: Kind,
    /// See [`crate::keyspace::Keyspace::writes`].
    pub(super) writes: u64,
    /// Last cross-partition command executed here.
    pub(super) done_entry: u64,
    /// Which keyspace events are published.
    pub(super) events: EventClasses,
}

impl State {
    /// Returns the state before anything was applied.
    pub(super) fn new(role: LogRole) -> Self {
        Self {
            applied: 0,
            time_ms: 0,
            keys: 0,
            next_id: 1,
            partitions: role.partitions as u64,
            log: role.log as u64,
            has_versions: role.partitions > 1,
            last_kind: Kind::String,
            writes: 0,
            done_entry: 0,
            events: EventClasses::default(),
        }
    }

    /// Returns the stored state; `None` if there is none yet.
    pub(super) fn load(db: &DB) -> Result<Option<Self>, StoreError> {
        let record = db.get_cf(family(db, META)?, STATE_KEY)?;
        record.map(|record| Self::decode(&record)).transpose()
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self, StoreError> {
        let malformed = || StoreError::Malformed(String::from_utf8_lossy(STATE_KEY).into_owned());
        let words: Vec<u64> = record.chunks(8).map(leading_number).collect();
        let one_partition = State::new(LogRole::ONLY);
        Ok(match words[..] {
            [version @ (STATE_VERSION_2 | STATE_VERSION_3 | STATE_VERSION_4 | STATE_VERSION), applied, time_ms, keys, next_id, partitions, log, has_versions, writes, done_entry, ref rest @ ..] =>
            {
                let (last_kind, events) = match (version, rest) {
                    (STATE_VERSION_2, []) => (Kind::String, EventClasses::default()),
                    (STATE_VERSION_3, []) => (Kind::List, EventClasses::default()),
                    (STATE_VERSION_4, []) => (Kind::SortedSet, EventClasses::default()),
                    (STATE_VERSION, [last_kind, events]) => (
                        Kind::of_byte(*last_kind as u8).ok_or_else(malformed)?,
                        EventClasses::of_bits(*events).ok_or_else(malformed)?,
                    ),
                    _ => return Err(malformed()),
                };
                Self {
                    applied,
                    time_ms,
                    keys,
                    next_id,
                    partitions,
                    log,
                    has_versions: has_versions != 0,
                    last_kind,
                    writes,
                    done_entry,
                    events,
                }
            }
            [STATE_VERSION_1, applied, time_ms, keys, next_id] => Self {
                applied,
                time_ms,
                keys,
                next_id,
                ..one_partition
            },
            [version, ..] if version > STATE_VERSION => return Err(StoreError::Version(version)),
            _ => return Err(malformed()),
        })
    }

    pub(super) fn position(&self) -> Position {
        Position {
            applied: self.applied,
            entry: self.done_entry,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let version = match self.last_kind {
            Kind::String => STATE_VERSION_2,
            Kind::Hash | Kind::Set | Kind::List => STATE_VERSION_3,
            Kind::SortedSet => STATE_VERSION_4,
        };
        let has_events = self.events != EventClasses::default();
        let version = if has_events { STATE_VERSION } else { version };
        let rest = [self.last_kind as u64, self.events.bits()];
        let rest = has_events.then_some(rest).into_iter().flatten();
        [
            version,
            self.applied,
            self.time_ms,
            self.keys,
            self.next_id,
            self.partitions,
            self.log,
            u64::from(self.has_versions),
            self.writes,
            self.done_entry,
        ]
        .into_iter()
        .chain(rest)
        .flat_map(u64::to_be_bytes)
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rocksdb::{Options, DB};

    use crate::db::{DATA, EXPIRY, META};
    use crate::keyspace::stored_key;
    use crate::machine::{Machine, MachineConfig};

    /// A store in format 1: one key, applied up to instance 7.
    fn write_version_1(dir: &Path) {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let families = [DATA, EXPIRY, META];
        let db = DB::open_cf(&options, dir.join("db-3"), families).unwrap();
        let mut key = Vec::new();
        stored_key(b"k", &mut key);
        let record = [&0u64.to_be_bytes()[..], b"value"].concat();
        db.put_cf(db.cf_handle(DATA).unwrap(), key, record).unwrap();
        let state: Vec<u8> = [1u64, 7, 1000, 1, 5]
            .iter()
            .flat_map(|w| w.to_be_bytes())
            .collect();
        db.put_cf(db.cf_handle(META).unwrap(), super::STATE_KEY, state)
            .unwrap();
        std::fs::write(dir.join("ACTIVE"), "db-3").unwrap();
    }

    #[test]
    fn data_of_version_1_open() {
        let dir = tempfile::tempdir().unwrap();
        write_version_1(dir.path());
        let machine = Machine::open(MachineConfig::single(dir.path())).unwrap();
        let store = machine.store(0);
        assert_eq!(
            (store.applied(), store.time_ms(), store.keys()),
            (7, 1000, 1)
        );
        assert!(!store.keyspace.has_versions);
        assert_eq!(machine.scan(0, 10).unwrap().keys, [b"k".to_vec()]);
    }
}
