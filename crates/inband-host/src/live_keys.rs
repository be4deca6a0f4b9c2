//! The keys of a host process, which may be read again while it runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use inband_ground::auth::Keys;

use crate::key_file::{KeyFile, KeyFileError, KeyStatus};

/// How long a host's thread may take to adopt new keys.
const TAKE_LIMIT: Duration = Duration::from_secs(5);
const TAKE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The keys of one process. Another thread reads the file again, and the main thread [takes](LiveKeys::take) them into use.
#[derive(Clone, Default)]
pub struct LiveKeys(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    path: PathBuf,
    /// As last read; `None`: packets are not authenticated.
    file: Option<KeyFile>,
    /// Read, but not yet in use.
    waiting: Option<Keys>,
}

impl LiveKeys {
    /// Loads a key file. `None`: packets are not authenticated.
    pub fn load(path: Option<&Path>) -> Result<LiveKeys> {
        let Some(path) = path else {
            return Ok(LiveKeys::default());
        };
        let inner = Inner {
            path: path.to_owned(),
            file: Some(KeyFile::load(path)?),
            waiting: None,
        };
        Ok(LiveKeys(Arc::new(Mutex::new(inner))))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the key file as last read.
    pub fn file(&self) -> Option<KeyFile> {
        self.inner().file.clone()
    }

    pub fn status(&self) -> Option<KeyStatus> {
        let inner = self.inner();
        inner.file.as_ref().map(|file| KeyStatus::of(&file.keys()))
    }

    /// For the host's thread: new keys to use from now on.
    pub fn take(&self) -> Option<Keys> {
        self.inner().waiting.take()
    }

    /// Reloads the file and waits until the host's thread uses its keys. `None`: there are no keys.
    pub fn reload(&self) -> Result<Option<KeyStatus>> {
        let keys = {
            let mut inner = self.inner();
            let Some(file) = &inner.file else {
                return Ok(None);
            };
            let new = KeyFile::load(&inner.path)?;
            if new.digest() != file.digest() {
                let path = inner.path.clone();
                return Err(KeyFileError::OtherDigestKey { path }.into());
            }
            let keys = new.keys();
            (inner.file, inner.waiting) = (Some(new), Some(keys));
            keys
        };
        let deadline = Instant::now() + TAKE_LIMIT;
        while self.inner().waiting.is_some() {
            ensure!(
                Instant::now() < deadline,
                "the host is busy; its keys change when it gets to it"
            );
            std::thread::sleep(TAKE_POLL_INTERVAL);
        }
        Ok(Some(KeyStatus::of(&keys)))
    }

    /// [`LiveKeys::reload`] as a step of [`crate::reload::Reload`].
    pub fn reload_in_words(&self) -> Result<Option<String>> {
        let status = self.reload()?;
        Ok(status.map(|keys| keys.in_words()))
    }
}
