//! The counters of the replicated state: one record, written with every burst.

use rocksdb::DB;

use super::StoreError;
use crate::db::Columns;
use crate::keyspace::leading_number;

/// Version of the stored format.
pub(super) const STATE_VERSION: u64 = 1;
/// Key of the record.
pub(super) const STATE_KEY: &[u8] = b"state";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) applied: u64,
    pub(super) time_ms: u64,
    pub(super) keys: u64,
    pub(super) next_session_id: u64,
}

impl State {
    pub(super) fn load(db: &DB) -> Result<Self, StoreError> {
        let Some(record) = db.get_cf(Columns::of(db)?.meta, STATE_KEY)? else {
            return Ok(Self {
                applied: 0,
                time_ms: 0,
                keys: 0,
                next_session_id: 1,
            });
        };
        let malformed = || StoreError::Malformed(String::from_utf8_lossy(STATE_KEY).into_owned());
        let words: Vec<u64> = record.chunks(8).map(leading_number).collect();
        match words[..] {
            [STATE_VERSION, applied, time_ms, keys, next_session_id] => Ok(Self {
                applied,
                time_ms,
                keys,
                next_session_id,
            }),
            [version, ..] if version > STATE_VERSION => Err(StoreError::Version(version)),
            _ => Err(malformed()),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        [
            STATE_VERSION,
            self.applied,
            self.time_ms,
            self.keys,
            self.next_session_id,
        ]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect()
    }
}
