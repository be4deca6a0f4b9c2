//! The files that a host keeps next to its log: its identity, its acceptor's fences and the last configuration.

use inband_storage::{Storage, StorageError};

use crate::configuration::{Configuration, Epoch, Identity};
use crate::member::{Fences, NoteError, Notes};

const IDENTITY_FILE: &str = "identity";
const FENCES_FILE: &str = "fences";
const CONFIGURATION_FILE: &str = "configuration";

/// Why a host's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file has unexpected contents.
    #[error("{file} in the control directory is damaged; remove the directory and let this host join under a new id")]
    Damaged { file: &'static str },
}

fn read<T: serde::de::DeserializeOwned>(
    storage: &dyn Storage,
    file: &'static str,
) -> Result<Option<T>, FilesError> {
    match storage.read(file) {
        Ok(bytes) => {
            let read = postcard::from_bytes(&bytes);
            read.map(Some).map_err(|_| FilesError::Damaged { file })
        }
        Err(StorageError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn write<T: serde::Serialize>(
    storage: &mut dyn Storage,
    file: &str,
    value: &T,
) -> Result<(), StorageError> {
    let bytes = postcard::to_stdvec(value).expect("it can always be written");
    storage.replace(file, &bytes)
}

/// Returns the host's identity; created at the first start.
pub(super) fn identity(storage: &mut dyn Storage, random: u64) -> Result<Identity, FilesError> {
    if let Some(identity) = read(storage, IDENTITY_FILE)? {
        return Ok(identity);
    }
    let identity = Identity(random);
    write(storage, IDENTITY_FILE, &identity)?;
    Ok(identity)
}

/// Returns the last configuration of this host.
pub(super) fn configuration(storage: &dyn Storage) -> Result<Option<Configuration>, FilesError> {
    read(storage, CONFIGURATION_FILE)
}

pub(super) fn keep_configuration(
    storage: &mut dyn Storage,
    configuration: &Configuration,
) -> Result<(), StorageError> {
    write(storage, CONFIGURATION_FILE, configuration)
}

pub(super) struct FileNotes {
    storage: Box<dyn Storage>,
    fences: Fences,
}

impl FileNotes {
    /// `at_least`: an epoch that the acceptor is known from other sources to have voted in.
    pub fn open(storage: Box<dyn Storage>, at_least: Epoch) -> Result<FileNotes, FilesError> {
        let noted: Option<(u32, u32)> = read(storage.as_ref(), FENCES_FILE)?;
        let (entered, fenced) = noted.unwrap_or_default();
        let entered = entered.max(at_least);
        let fences = Fences { entered, fenced };
        Ok(FileNotes { storage, fences })
    }
}

impl Notes for FileNotes {
    fn fences(&self) -> Fences {
        self.fences
    }

    fn note(&mut self, fences: Fences) -> Result<(), NoteError> {
        let noted = (fences.entered, fences.fenced);
        let written = write(self.storage.as_mut(), FENCES_FILE, &noted);
        written.map_err(|error| NoteError(error.to_string()))?;
        self.fences = fences;
        Ok(())
    }
}
