//! All keys of a replica as one stream, for backups and for moving data to a cluster with a different number of
//! partitions. [`crate::import`] reads it.
//!
//! ```text
//! magic "IBEXPT1\n", "IBEXPT2\n" if some values are not strings, "IBEXPT3\n" if some are sorted sets | partitions u64 | time_ms u64
//! blocks: 1 u8 | count u32 | length u32 | records | xxh3 of the block so far u64
//!         each record: kind u8 | key length u24 | value length u32 | expire_at_ms u64 | key | value
//! end:    2 u8 | keys u64 | xxh3 of the blocks' hashes u64
//! ```
//!
//! Numbers are big-endian. `expire_at_ms` is a Unix time, 0 if the key does not expire. `partitions` and `time_ms`, the
//! replicated time, describe the source and are informational. Expired keys are omitted, and so is everything that is
//! not a key, such as sessions.

use std::io::{self, Write};
use std::sync::Arc;

use rocksdb::{IteratorMode, SnapshotWithThreadMode, DB};
use xxhash_rust::xxh3::{xxh3_64, Xxh3};

use crate::db::{family, DATA, HASH_LEN_BYTES};
use crate::keyspace::{is_live, record};
use crate::store::{SharedDbs, Snapshot, StoreError};
use crate::types::Kind;

/// First bytes of the stream; the digit is the version.
pub const MAGIC: [u8; 8] = *b"IBEXPT1\n";
/// The same, if some values are not strings.
pub const MAGIC_2: [u8; 8] = *b"IBEXPT2\n";
/// The same, if some values are sorted sets.
pub const MAGIC_3: [u8; 8] = *b"IBEXPT3\n";
pub const BLOCK: u8 = 1;
pub const END: u8 = 2;
/// Bits of the length of a record's key; the kind of its value is above them.
pub const KEY_LEN_BITS: u32 = 24;
/// Length of the header in front of a record's key.
pub const RECORD_HEADER_LEN_BYTES: usize = 16;
/// A block is written when it reaches this length.
const BLOCK_LEN_BYTES: usize = 256 * 1024;

/// Why an export failed. What has been written is not a complete stream.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The stream could not be written.
    #[error("writing the export: {0}; is the disk full? Remove the file and export again")]
    Io(#[from] io::Error),
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The partitions did not reach a common cut in time.
    #[error("the partitions did not come to one moment within {limit_ms} ms; is one of them without a leader? Try again")]
    NoCut {
        /// The time limit.
        limit_ms: u64,
    },
    /// The replica was started and has not caught up with its state before the crash.
    #[error("command {entry} over several partitions is applied in some of them only, as after a crash; let the replica run until it has caught up, then export again")]
    HalfApplied {
        /// The cross-partition command's number.
        entry: u64,
    },
}

impl From<rocksdb::Error> for ExportError {
    fn from(error: rocksdb::Error) -> Self {
        Self::Store(error.into())
    }
}

/// The contents of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of partitions of the source.
    pub partitions: u64,
    /// Replicated time of the source.
    pub time_ms: u64,
    pub keys: u64,
    /// Length of the stream.
    pub len_bytes: u64,
}

/// Writes all keys of `dbs`, as of one point in time, while the replica keeps running. With several partitions, each is
/// wherever its log happens to be; see [`crate::cut`].
pub fn export(dbs: &SharedDbs, to: impl Write) -> Result<Summary, ExportError> {
    let frozen = dbs.handles();
    let snapshots = dbs.freeze(&frozen)?;
    export_frozen(&frozen, &snapshots, to)
}

/// Writes all keys of these databases, one per log.
pub(crate) fn export_frozen(
    frozen: &[Arc<DB>],
    snapshots: &[Snapshot<'_>],
    to: impl Write,
) -> Result<Summary, ExportError> {
    let states = SharedDbs::states(frozen, snapshots)?;
    if let Some(entry) = SharedDbs::half_applied(frozen, snapshots, &states)? {
        return Err(ExportError::HalfApplied { entry });
    }
    let partitions = crate::partition::partitions_of_logs(frozen.len());
    let mut writer = Writer {
        to,
        block: Vec::with_capacity(BLOCK_LEN_BYTES * 2),
        count: 0,
        hashes: Xxh3::new(),
        last_kind: states
            .iter()
            .map(|state| state.last_kind)
            .max()
            .unwrap_or_default(),
        summary: Summary {
            partitions: partitions as u64,
            time_ms: states.iter().map(|state| state.time_ms).max().unwrap_or(0),
            ..Summary::default()
        },
    };
    writer.start()?;
    let time_ms = writer.summary.time_ms;
    for (db, snapshot) in frozen.iter().zip(snapshots).take(partitions) {
        writer.write_all(db, snapshot, time_ms)?;
    }
    writer.finish()
}

struct Writer<W> {
    to: W,
    /// The records of the current block.
    block: Vec<u8>,
    count: u32,
    hashes: Xxh3,
    last_kind: Kind,
    summary: Summary,
}

impl<W: Write> Writer<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.summary.len_bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    fn start(&mut self) -> io::Result<()> {
        let Summary {
            partitions,
            time_ms,
            ..
        } = self.summary;
        let magic = match self.last_kind {
            Kind::String => MAGIC,
            Kind::Hash | Kind::Set | Kind::List => MAGIC_2,
            Kind::SortedSet => MAGIC_3,
        };
        self.put(&magic)?;
        self.put(&partitions.to_be_bytes())?;
        self.put(&time_ms.to_be_bytes())
    }

    fn write_all(
        &mut self,
        db: &DB,
        snapshot: &SnapshotWithThreadMode<'_, DB>,
        time_ms: u64,
    ) -> Result<(), ExportError> {
        for item in snapshot.iterator_cf(family(db, DATA)?, IteratorMode::Start) {
            let (stored_key, bytes) = item?;
            let record = record(&bytes);
            if !is_live(record.expire_at_ms, time_ms) {
                continue;
            }
            let key = &stored_key[HASH_LEN_BYTES..];
            let block = &mut self.block;
            let kind_and_len = (record.kind as u32) << KEY_LEN_BITS | key.len() as u32;
            block.extend_from_slice(&kind_and_len.to_be_bytes());
            block.extend_from_slice(&(record.value.len() as u32).to_be_bytes());
            block.extend_from_slice(&record.expire_at_ms.to_be_bytes());
            block.extend_from_slice(key);
            block.extend_from_slice(record.value);
            self.count += 1;
            if self.block.len() >= BLOCK_LEN_BYTES {
                self.write_block()?;
            }
        }
        Ok(())
    }

    fn write_block(&mut self) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let block = std::mem::take(&mut self.block);
        let header = block_header(self.count, block.len() as u32);
        let hash = block_hash(&header, &block);
        self.hashes.update(&hash.to_be_bytes());
        self.put(&header)?;
        self.put(&block)?;
        self.put(&hash.to_be_bytes())?;
        self.summary.keys += u64::from(self.count);
        (self.block, self.count) = (block, 0);
        self.block.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<Summary, ExportError> {
        self.write_block()?;
        let (keys, hash) = (self.summary.keys, self.hashes.digest());
        self.put(&[END])?;
        self.put(&keys.to_be_bytes())?;
        self.put(&hash.to_be_bytes())?;
        self.to.flush()?;
        Ok(self.summary)
    }
}

fn block_header(count: u32, len_bytes: u32) -> [u8; 9] {
    let mut header = [BLOCK; 9];
    header[1..5].copy_from_slice(&count.to_be_bytes());
    header[5..].copy_from_slice(&len_bytes.to_be_bytes());
    header
}

pub fn block_hash(header: &[u8; 9], records: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(header);
    hash.update(&xxh3_64(records).to_be_bytes());
    hash.digest()
}
