//! What a host must not forget, and how it survives a power cut.
//!
//! [`Storage`] is a flat directory of files, as little of a file system as a journal needs. It has two
//! implementations: [`Disk`], the real one, and [`SimulatedDisk`], which keeps what was synced apart
//! from what was not and can have its power cut at any operation.
//! [`replace`] puts a small file in place as a whole. [`Journal`] is an append-only journal over either: group commit, torn tails cut off, damage told.

mod block;
mod disk;
mod file;
mod journal;
mod simulated;
mod storage;
mod witness;

pub use disk::Disk;
pub use file::replace;
pub use journal::{Journal, JournalConfig, JournalError};
pub use simulated::{Cut, Failure, SimulatedDisk};
pub use storage::{Storage, StorageError, TEMPORARY_SUFFIX};
