//! A system call on a file that failed.

use std::io;
use std::path::PathBuf;

/// What was tried, on which file, and what the system said.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}: {source}")]
pub struct FileError {
    /// The verb.
    pub what: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl FileError {
    /// For `map_err` on file operations.
    pub fn of(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| FileError { what, path, source }
    }
}
