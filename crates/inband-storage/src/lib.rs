//! What a host must not forget, and how it survives a power cut.
//!
//! [`Storage`] is a flat directory of files, as little of a file system as a journal needs. It has two
//! implementations: [`Disk`], the real one, and [`SimulatedDisk`], which keeps what was synced apart
//! from what was not and can have its power cut at any operation.
//! [`replace`] puts a small file in place as a whole. [`Journal`] is an append-only journal over either: group commit, torn tails cut off, damage reported.
//!
//! ```
//! use inband_storage::{Cut, Journal, JournalConfig, JournalError, SimulatedDisk};
//!
//! # fn main() -> Result<(), JournalError> {
//! let disk = SimulatedDisk::new();
//! let config = JournalConfig::default();
//! let mut journal = Journal::open(Box::new(disk.clone()), config, &mut |_| ())?;
//! journal.append(b"a promise");
//! journal.commit()?; // from here on it may be acted on
//! journal.append(b"not committed");
//! disk.power_cut(Cut::Unsynced, &mut |_| 0);
//! drop(journal);
//!
//! let mut found = Vec::new();
//! Journal::open(Box::new(disk), config, &mut |record| found.push(record.to_vec()))?;
//! assert_eq!(found, [b"a promise"]);
//! # Ok(())
//! # }
//! ```

mod block;
mod disk;
mod file;
mod journal;
mod secret_file;
mod simulated;
mod storage;
mod witness;

pub use disk::Disk;
pub use file::{replace, sync_dir, FILE_MODE};
pub use journal::{Journal, JournalConfig, JournalError};
pub use secret_file::{read_secret, SecretFileError};
pub use simulated::{Cut, Failure, SimulatedDisk};
pub use storage::{Storage, StorageError, TEMPORARY_SUFFIX};
