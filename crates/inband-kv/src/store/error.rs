//! Why a store cannot continue.

use std::path::PathBuf;

use super::state::STATE_VERSION;
use crate::value::ValueError;

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
    #[error("the checkpoint is not newer than any store (they are at instances {applied:?}); fetch a newer one")]
    CheckpointTooOld {
        /// Last instances applied, one per log.
        applied: Vec<u64>,
    },
    /// Applied instances were not written in time.
    #[error("the replica does not write what it has applied: {}", .why.as_deref().unwrap_or("is it stuck? Try again"))]
    Unwritten {
        /// Why it writes nothing, if that is known, and what to do.
        why: Option<String>,
    },
    /// The replica ended with unwritten instances, while another thread waited for them.
    #[error("the replica ended before it had written what it has applied; ask another replica, or this one when it runs again")]
    Ended,
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
