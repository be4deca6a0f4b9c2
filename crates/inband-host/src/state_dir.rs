//! A host's state directory: locked by one process, with small numbers that survive power failures.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::file_lock::{FileLock, LockError};

/// The file that is locked.
pub const LOCK_FILE: &str = "lock";

/// Why a host's state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Reading or writing failed.
    #[error("state directory: {path}: {source}; check the path, its permissions and free space")]
    Io { path: PathBuf, source: io::Error },
    /// The file does not hold a number.
    #[error("state file {path} holds {found:?}, not a number: it is damaged, check the disk")]
    Damaged { path: PathBuf, found: String },
    /// Another process holds the lock.
    #[error("state directory {dir} is in use by process {owner}; stop that process, or give this one a directory of its own")]
    InUse {
        dir: PathBuf,
        /// The process id, as recorded by that process.
        owner: String,
    },
}

impl StateError {
    /// Returns whether the error will recur until the host or its configuration is changed.
    pub fn is_lasting(&self) -> bool {
        match self {
            StateError::Io { .. } | StateError::InUse { .. } => false,
            StateError::Damaged { .. } => true,
        }
    }
}

/// Returns the number in a file; 0 if there is no file.
pub fn read_number(path: &Path) -> Result<u64, StateError> {
    match fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map_err(|_| StateError::Damaged {
            path: path.to_owned(),
            found: text.trim().chars().take(40).collect(),
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(StateError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Writes a number to a file in this directory; durable on return.
pub fn write_number(dir: &Path, name: &str, value: u64) -> Result<(), StateError> {
    let path = dir.join(name);
    inband_storage::replace(
        &path,
        format!("{value}\n").as_bytes(),
        inband_storage::FILE_MODE,
    )
    .map_err(|source| StateError::Io { path, source })
}

/// Creates the directory durably, unless it exists.
pub fn create(dir: &Path) -> Result<(), StateError> {
    let make = || -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(dir)?;
        // A directory survives a power failure once its parent is synced.
        for parent in dir.canonicalize()?.ancestors().skip(1) {
            inband_storage::sync_dir(parent)?;
        }
        Ok(())
    };
    make().map_err(|source| StateError::Io {
        path: dir.to_owned(),
        source,
    })
}

/// Exclusive use of a state directory while this exists; released however the process ends.
#[derive(Debug)]
pub struct StateLock {
    _lock: FileLock,
}

impl StateLock {
    /// Takes the lock, as [`FileLock::take`]. Must precede any read from the directory.
    pub fn take(state_dir: &Path) -> Result<StateLock, StateError> {
        create(state_dir)?;
        let path = state_dir.join(LOCK_FILE);
        let lock = FileLock::take(&path).map_err(|error| match error {
            LockError::InUse { owner } => StateError::InUse {
                dir: state_dir.to_owned(),
                owner,
            },
            LockError::Io(source) => StateError::Io { path, source },
        })?;
        Ok(StateLock { _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("inband-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn a_state_directory_has_one_process() {
        let dir = dir("lock");
        let lock = StateLock::take(&dir).unwrap();
        let refused = StateLock::take(&dir).unwrap_err().to_string();
        let own = format!("in use by process {};", std::process::id());
        assert!(refused.contains(&own), "{refused}");
        drop(lock);
        StateLock::take(&dir).unwrap();
        fs::remove_dir_all(dir).unwrap();
    }
}
