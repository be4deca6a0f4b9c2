//! Records which system a cluster's directory belongs to.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::file_error::FileError;

/// The file that names the system.
const NAME: &str = "system";

/// Why a directory cannot be used for a cluster of a system.
#[derive(Debug, thiserror::Error)]
pub enum SystemFileError {
    #[error("--data: {data} holds a cluster of `inband up {system}`; choose another directory, or see what runs there: inband status --data {data}")]
    OtherSystem { data: PathBuf, system: String },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Returns the system's name on the command line. `None`: the directory was made by a version that did not record it.
pub fn read(data: &Path) -> Result<Option<String>, SystemFileError> {
    let path = data.join(NAME);
    match fs::read_to_string(&path) {
        // Earlier versions did not sync it: a power cut may have left it empty.
        Ok(system) if system.trim().is_empty() => Ok(None),
        Ok(system) => Ok(Some(system.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::of("read", path)(source).into()),
    }
}

/// Refuses a directory of another system.
pub fn check(data: &Path, system: &str) -> Result<(), SystemFileError> {
    match read(data)? {
        Some(found) if found != system => Err(SystemFileError::OtherSystem {
            data: data.to_owned(),
            system: found,
        }),
        _ => Ok(()),
    }
}

/// Records durably that the directory belongs to this system. Refuses a directory of another system.
pub fn claim(data: &Path, system: &str) -> Result<(), SystemFileError> {
    check(data, system)?;
    match read(data)? {
        Some(_) => Ok(()),
        None => {
            let path = data.join(NAME);
            let text = format!("{system}\n");
            inband_storage::replace(&path, text.as_bytes(), inband_storage::FILE_MODE)
                .map_err(FileError::of("write", path))?;
            Ok(())
        }
    }
}
