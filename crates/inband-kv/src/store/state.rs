//! The counters of the replicated state: one record, written with every burst.

use rocksdb::DB;

use super::{LogRole, Position, StoreError};
use crate::db::{family, META};
use crate::keyspace::leading_number;

/// Version of the stored format. Version 1 had the first four numbers only, and one partition.
pub(super) const STATE_VERSION: u64 = 2;
const STATE_VERSION_1: u64 = 1;
/// Key of the record.
pub(super) const STATE_KEY: &[u8] = b"state";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) applied: u64,
    pub(super) time_ms: u64,
    pub(super) keys: u64,
    /// The next client session, or the next entry if this is the log of commands over several
    /// partitions.
    pub(super) next_id: u64,
    /// Number of partitions.
    pub(super) partitions: u64,
    /// Number of this log.
    pub(super) log: u64,
    /// Records have versions.
    pub(super) has_versions: bool,
    /// Records written with a version.
    pub(super) writes: u64,
    /// Last command over several partitions that was executed here.
    pub(super) done_entry: u64,
}

impl State {
    /// The state before anything was applied.
    pub(super) fn new(role: LogRole) -> Self {
        Self {
            applied: 0,
            time_ms: 0,
            keys: 0,
            next_id: 1,
            partitions: role.partitions as u64,
            log: role.log as u64,
            has_versions: role.partitions > 1,
            writes: 0,
            done_entry: 0,
        }
    }

    /// The stored state; `None` if there is none yet.
    pub(super) fn load(db: &DB) -> Result<Option<Self>, StoreError> {
        let Some(record) = db.get_cf(family(db, META)?, STATE_KEY)? else {
            return Ok(None);
        };
        let malformed = || StoreError::Malformed(String::from_utf8_lossy(STATE_KEY).into_owned());
        let words: Vec<u64> = record.chunks(8).map(leading_number).collect();
        let one_partition = State::new(LogRole::ONLY);
        Ok(Some(match words[..] {
            [STATE_VERSION, applied, time_ms, keys, next_id, partitions, log, has_versions, writes, done_entry] => {
                Self {
                    applied,
                    time_ms,
                    keys,
                    next_id,
                    partitions,
                    log,
                    has_versions: has_versions != 0,
                    writes,
                    done_entry,
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
        }))
    }

    pub(super) fn position(&self) -> Position {
        Position {
            applied: self.applied,
            entry: self.done_entry,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        [
            STATE_VERSION,
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
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect()
    }
}
