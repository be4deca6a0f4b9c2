//! The storage layer: a flat directory of files.

use std::io;

/// Why an operation on a file failed.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The disk is full, or the quota is used up. Stored data is not affected.
    #[error("{path}: {source}; free some space or raise the quota; it then continues by itself")]
    NoSpace { path: String, source: io::Error },
    /// There is no such file.
    #[error("{path}: there is no such file; was the directory changed by hand?")]
    NotFound { path: String },
    /// Any other error. After a failed sync, data that was not synced before must not be relied on, even if a later
    /// sync of the same file succeeds: it must be written again.
    #[error("{path}: {source}; check the disk, the mount and the permissions")]
    Io { path: String, source: io::Error },
}

impl StorageError {
    /// Classify a system error.
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

    /// Returns whether the disk is full; if so, the operation may succeed later.
    pub fn is_no_space(&self) -> bool {
        matches!(self, StorageError::NoSpace { .. })
    }
}

/// A flat directory of files. A file's contents survive a power failure once [`Storage::sync`] has returned after the
/// write; the existence of its name survives once [`Storage::create`], [`Storage::rename`] or [`Storage::remove`] has
/// returned.
///
/// An operation that failed may have taken effect, in part or as a whole.
pub trait Storage: Send {
    /// Names of all files, sorted.
    fn list(&self) -> Result<Vec<String>, StorageError>;

    /// Length of a file.
    fn len_bytes(&self, file: &str) -> Result<u64, StorageError>;

    /// Bytes of a file from `offset` on, at most `len_bytes`; fewer only at the end of the file.
    fn read_range(
        &self,
        file: &str,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Vec<u8>, StorageError>;

    /// Returns a whole file.
    fn read(&self, file: &str) -> Result<Vec<u8>, StorageError> {
        let len_bytes = self.len_bytes(file)?;
        self.read_range(
            file,
            0,
            usize::try_from(len_bytes).expect("a file fits memory"),
        )
    }

    /// Creates an empty file, or truncates an existing one; syncs the directory.
    fn create(&mut self, file: &str) -> Result<(), StorageError>;

    /// Writes at `offset`, which must not be beyond the end of the file.
    fn write_at(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError>;

    /// Writes at the end of a file.
    fn append(&mut self, file: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let end = self.len_bytes(file)?;
        self.write_at(file, end, bytes)
    }

    /// Truncates a file to `len_bytes`.
    fn truncate(&mut self, file: &str, len_bytes: u64) -> Result<(), StorageError>;

    /// On return, the file's contents and length survive a power failure.
    fn sync(&mut self, file: &str) -> Result<(), StorageError>;

    /// Renames a file atomically, replacing an existing file of that name; syncs the directory.
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError>;

    /// Removes a file; syncs the directory.
    fn remove(&mut self, file: &str) -> Result<(), StorageError>;

    /// Replaces a whole file atomically: after a power failure it has the old or the new contents.
    fn replace(&mut self, file: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let temporary = format!("{file}{TEMPORARY_SUFFIX}");
        self.create(&temporary)?;
        self.write_at(&temporary, 0, bytes)?;
        self.sync(&temporary)?;
        self.rename(&temporary, file)
    }
}

/// Suffix of a file that is not valid yet; leftovers of a power failure can be removed.
pub const TEMPORARY_SUFFIX: &str = ".new";
