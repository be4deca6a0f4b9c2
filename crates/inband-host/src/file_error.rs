//! Errors of file operations.

use std::io;
use std::path::PathBuf;

/// A failed file operation: what was tried, on which file, and the system's error.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}: {source}")]
pub struct FileError {
    /// A verb for the message.
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
