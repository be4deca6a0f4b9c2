//! The storage layer: a flat directory of files.

use std::io;

/// Why an operation on a file failed.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The disk is full, or the quota is used up. What was stored before is untouched.
    #[error("{path}: {source}; free some space or raise the quota, then it goes on by itself")]
    NoSpace {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such file.
    #[error("{path}: there is no such file; was the directory changed by hand?")]
    NotFound {
        /// The file.
        path: String,
    },
    /// Anything else. After a failed sync nothing that was not synced before may be relied on, even
    /// if a later sync of the same file succeeds: it must be written again.
    #[error("{path}: {source}; check the disk, the mount and the permissions")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

impl StorageError {
    /// Sort an error of the system.
    pub fn from_io(path: &str, source: io::Error) -> StorageError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StorageError::NoSpace { path, source }
            }
            io::ErrorKind::NotFound => StorageError::NotFound { path },
            _ => StorageError::Io { path, source },
        }
    }

    /// Is the disk full? Then the operation may succeed later.
    pub fn is_no_space(&self) -> bool {
        matches!(self, StorageError::NoSpace { .. })
    }
}

/// A flat directory of files. What a file holds survives a power cut once [`Storage::sync`] has
/// returned after the write; that a file exists under its name survives once [`Storage::create`],
/// [`Storage::rename`] or [`Storage::remove`] has returned.
///
/// An operation that failed may have happened, in part or whole.
pub trait Storage: Send {
    /// Names of all files, sorted.
    fn list(&self) -> Result<Vec<String>, StorageError>;

    /// Length of a file.
    fn len_bytes(&self, file: &str) -> Result<u64, StorageError>;

    /// Bytes of a file from `offset` on, at most `len_bytes`: fewer only where the file ends.
    fn read_range(
        &self,
        file: &str,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Vec<u8>, StorageError>;

    /// A whole file.
    fn read(&self, file: &str) -> Result<Vec<u8>, StorageError> {
        let len_bytes = self.len_bytes(file)?;
        self.read_range(
            file,
            0,
            usize::try_from(len_bytes).expect("a file fits memory"),
        )
    }

    /// Make an empty file, or empty the one there is; syncs the directory.
    fn create(&mut self, file: &str) -> Result<(), StorageError>;

    /// Write at `offset`, which may lie at the end of the file, not beyond it.
    fn write_at(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError>;

    /// Write at the end of a file.
    fn append(&mut self, file: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let end = self.len_bytes(file)?;
        self.write_at(file, end, bytes)
    }

    /// Cut a file off at `len_bytes`.
    fn truncate(&mut self, file: &str, len_bytes: u64) -> Result<(), StorageError>;

    /// What was written to the file, and its length, survive a power cut from now on.
    fn sync(&mut self, file: &str) -> Result<(), StorageError>;

    /// Give a file another name, in one step, replacing the file of that name; syncs the directory.
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError>;

    /// Remove a file; syncs the directory.
    fn remove(&mut self, file: &str) -> Result<(), StorageError>;

    /// Replace a whole file in one step: after a power cut it holds the old or the new bytes.
    fn replace(&mut self, file: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let temporary = format!("{file}{TEMPORARY_SUFFIX}");
        self.create(&temporary)?;
        self.write_at(&temporary, 0, bytes)?;
        self.sync(&temporary)?;
        self.rename(&temporary, file)
    }
}

/// Ends the name of a file that is not yet in force; what a power cut leaves of it can be removed.
pub const TEMPORARY_SUFFIX: &str = ".new";
