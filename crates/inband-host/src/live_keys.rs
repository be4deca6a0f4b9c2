//! The keys of a host process, which may be read again while it runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use inband_ground::auth::{Digest, Keys};

use crate::key_file::{KeyFile, KeyFileError, KeyStatus};
use crate::reload::Reload;

/// How long a host's thread may take to adopt new keys.
const TAKE_LIMIT: Duration = Duration::from_secs(5);
const TAKE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The keys of one process. They are read again, perhaps by another thread, and the main thread [takes](LiveKeys::take)
/// them into use.
#[derive(Clone, Default)]
pub struct LiveKeys(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    path: PathBuf,
    /// How values are digested, which must not change; `None`: packets are not authenticated.
    digest: Option<Digest>,
    /// As last read.
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
        let file = KeyFile::load(path)?;
        let live = LiveKeys::following(path, file.digest());
        live.inner().file = Some(file);
        Ok(live)
    }

    /// Returns the keys of a file that was read before, with this digest key.
    pub fn following(path: &Path, digest: Digest) -> LiveKeys {
        let inner = Inner {
            path: path.to_owned(),
            digest: Some(digest),
            ..Inner::default()
        };
        LiveKeys(Arc::new(Mutex::new(inner)))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the key file as last read.
    pub fn file(&self) -> Option<KeyFile> {
        self.inner().file.clone()
    }

    /// Returns the keys as last read.
    pub fn keys(&self) -> Option<Keys> {
        self.inner().file.as_ref().map(KeyFile::keys)
    }

    pub fn status(&self) -> Option<KeyStatus> {
        self.keys().map(|keys| KeyStatus::of(&keys))
    }

    /// For the host's thread: new keys to use from now on.
    pub fn take(&self) -> Option<Keys> {
        self.inner().waiting.take()
    }

    /// Reads the file again, for [`LiveKeys::take`]. `None`: there are no keys.
    pub fn read(&self) -> Result<Option<KeyStatus>, KeyFileError> {
        let mut inner = self.inner();
        let Some(digest) = inner.digest else {
            return Ok(None);
        };
        let file = KeyFile::load(&inner.path)?;
        if file.digest() != digest {
            let path = inner.path.clone();
            return Err(KeyFileError::OtherDigestKey { path });
        }
        let keys = file.keys();
        (inner.file, inner.waiting) = (Some(file), Some(keys));
        Ok(Some(KeyStatus::of(&keys)))
    }

    /// Reads the file again and waits until the host's thread uses its keys. `None`: there are no keys.
    pub fn reload(&self) -> Result<Option<KeyStatus>> {
        let status = self.read()?;
        let deadline = Instant::now() + TAKE_LIMIT;
        while self.inner().waiting.is_some() {
            ensure!(
                Instant::now() < deadline,
                "the host is busy; its keys change when it gets to it"
            );
            std::thread::sleep(TAKE_POLL_INTERVAL);
        }
        Ok(status)
    }

    /// [`LiveKeys::reload`] as a step of [`crate::reload::Reload`].
    pub fn reload_in_words(&self) -> Result<Option<String>> {
        let status = self.reload()?;
        Ok(status.map(|keys| keys.in_words()))
    }

    /// What a main loop carries out itself on SIGHUP, before it [takes](LiveKeys::take) the keys.
    pub fn reading(&self) -> Reload {
        let live = self.clone();
        Reload::new().with("packet keys", move || {
            let status = live.read()?;
            Ok(status.map(|keys| keys.in_words()))
        })
    }
}
