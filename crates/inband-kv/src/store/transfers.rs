//! Commands that arrive in chunks because they do not fit in one value. Part of the replicated state: applied as a
//! whole when the last chunk arrives, or not at all.
//!
//! A transfer belongs to the session of its proposer and ends with it: a chunk that is refused because the session has
//! expired stays missing. A transfer also times out, in case its proposer has failed.

use std::collections::BTreeMap;

use rocksdb::{ColumnFamily, WriteBatch};

use crate::keyspace::leading_number;
use crate::limits::{COMMAND_LEN_BYTES_MAX, TRANSFERS_MAX, TRANSFER_AGE_MS_MAX};
use crate::value::Chunk;

/// First byte of the stored key of a chunk.
pub(super) const CHUNK_KEY: u8 = b'k';
const KEY_LEN_BYTES: usize = 19;
/// Length of the header of a stored first chunk.
const FIRST_HEADER_LEN_BYTES: usize = 18;

/// The result of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkFate {
    /// Stored; others are missing.
    Stored,
    /// It was the last one, and the command was applied.
    Complete,
    /// Its command was dropped: abandoned by its proposer, evicted, or timed out.
    Dropped,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Transfer {
    /// Instance of its first chunk.
    begun: u64,
    /// Its replicated time.
    begun_ms: u64,
    count: u16,
    chunks: BTreeMap<u16, Box<[u8]>>,
    len_bytes: usize,
}

/// All incomplete chunked commands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Transfers {
    /// By session and transfer.
    transfers: BTreeMap<(u64, u64), Transfer>,
}

impl Transfers {
    /// Processes a chunk that was decided in `instance` at replicated time `now_ms`. Returns the command if it is
    /// complete.
    pub(super) fn take(
        &mut self,
        session: u64,
        chunk: &Chunk<'_>,
        (instance, now_ms): (u64, u64),
        meta: &ColumnFamily,
        batch: &mut WriteBatch,
    ) -> (ChunkFate, Option<Vec<u8>>) {
        let id = (session, chunk.transfer);
        if chunk.index == 0 {
            self.begin(id, chunk.count, (instance, now_ms), meta, batch);
        }
        let Some(transfer) = self.transfers.get_mut(&id) else {
            return (ChunkFate::Dropped, None);
        };
        let is_new = !transfer.chunks.contains_key(&chunk.index);
        transfer.len_bytes += if is_new { chunk.bytes.len() } else { 0 };
        let is_possible = chunk.count == transfer.count
            && chunk.index < chunk.count
            && transfer.len_bytes <= COMMAND_LEN_BYTES_MAX;
        if !is_possible {
            self.remove(id, meta, batch);
            return (ChunkFate::Dropped, None);
        }
        if is_new {
            let mut record = Vec::new();
            if chunk.index == 0 {
                record.extend_from_slice(&instance.to_be_bytes());
                record.extend_from_slice(&now_ms.to_be_bytes());
                record.extend_from_slice(&chunk.count.to_be_bytes());
            }
            record.extend_from_slice(chunk.bytes);
            batch.put_cf(meta, chunk_key(id, chunk.index), record);
            transfer.chunks.insert(chunk.index, chunk.bytes.into());
        }
        if transfer.chunks.len() < usize::from(transfer.count) {
            return (ChunkFate::Stored, None);
        }
        let command = transfer.chunks.values().flat_map(|c| c.iter().copied());
        let command: Vec<u8> = command.collect();
        self.remove(id, meta, batch);
        (ChunkFate::Complete, Some(command))
    }

    /// Begins a transfer, or abandons it if `count` is 0.
    fn begin(
        &mut self,
        id: (u64, u64),
        count: u16,
        (begun, begun_ms): (u64, u64),
        meta: &ColumnFamily,
        batch: &mut WriteBatch,
    ) {
        self.remove(id, meta, batch);
        if count == 0 {
            return;
        }
        if self.transfers.len() >= TRANSFERS_MAX {
            let oldest = self.transfers.iter().min_by_key(|(_, t)| t.begun);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.remove(oldest, meta, batch);
            }
        }
        let transfer = Transfer {
            begun,
            begun_ms,
            count,
            chunks: BTreeMap::new(),
            len_bytes: 0,
        };
        self.transfers.insert(id, transfer);
    }

    fn remove(&mut self, id: (u64, u64), meta: &ColumnFamily, batch: &mut WriteBatch) {
        if let Some(transfer) = self.transfers.remove(&id) {
            for index in transfer.chunks.keys() {
                batch.delete_cf(meta, chunk_key(id, *index));
            }
        }
    }

    /// Drops transfers that have been incomplete for too long.
    pub(super) fn expire(&mut self, now_ms: u64, meta: &ColumnFamily, batch: &mut WriteBatch) {
        let is_old = |t: &Transfer| now_ms.saturating_sub(t.begun_ms) > TRANSFER_AGE_MS_MAX;
        let old = self.transfers.iter().filter(|(_, t)| is_old(t));
        let ids: Vec<(u64, u64)> = old.map(|(id, _)| *id).collect();
        for id in ids {
            self.remove(id, meta, batch);
        }
    }

    /// A proposer's session has expired.
    pub(super) fn end_session(
        &mut self,
        session: u64,
        meta: &ColumnFamily,
        batch: &mut WriteBatch,
    ) {
        let of_session = self.transfers.range((session, 0)..=(session, u64::MAX));
        let ids: Vec<(u64, u64)> = of_session.map(|(id, _)| *id).collect();
        for id in ids {
            self.remove(id, meta, batch);
        }
    }

    /// Loads a stored chunk; the first chunk of each transfer must be loaded before the others. `false` if the record
    /// is malformed.
    pub(super) fn load(&mut self, key: &[u8], record: &[u8]) -> bool {
        if key.len() != KEY_LEN_BYTES {
            return false;
        }
        let id = (leading_number(&key[1..]), leading_number(&key[9..]));
        let index = u16::from_be_bytes([key[17], key[18]]);
        let mut bytes = record;
        if index == 0 {
            let Some((head, rest)) = record.split_first_chunk::<FIRST_HEADER_LEN_BYTES>() else {
                return false;
            };
            let transfer = Transfer {
                begun: leading_number(head),
                begun_ms: leading_number(&head[8..]),
                count: u16::from_be_bytes([head[16], head[17]]),
                chunks: BTreeMap::new(),
                len_bytes: 0,
            };
            self.transfers.insert(id, transfer);
            bytes = rest;
        }
        let Some(transfer) = self.transfers.get_mut(&id) else {
            return false;
        };
        transfer.len_bytes += bytes.len();
        transfer.chunks.insert(index, bytes.into());
        true
    }
}

fn chunk_key((session, transfer): (u64, u64), index: u16) -> [u8; KEY_LEN_BYTES] {
    let mut key = [CHUNK_KEY; KEY_LEN_BYTES];
    key[1..9].copy_from_slice(&session.to_be_bytes());
    key[9..17].copy_from_slice(&transfer.to_be_bytes());
    key[17..].copy_from_slice(&index.to_be_bytes());
    key
}
