//! The keys of a FLAIR cluster: made when it is founded, read by each host, rotated while it serves.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use inband_flair::config::Config;
use inband_ground::auth::Keys;
use inband_host::key_file::KeyStatus;
use inband_host::key_file::{KeyFile, KeyFileError};
use inband_host::line_json;

use super::status::{HostReply, HostRequest};

/// How long a host's thread may take to adopt new keys.
const TAKE_LIMIT: Duration = Duration::from_secs(5);
const TAKE_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a host may take to answer that it has.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);

fn status_of(keys: &Keys) -> KeyStatus {
    KeyStatus {
        active: keys.active(),
        accepted: keys.ids(),
    }
}

/// The keys of one host. The thread of its control socket reloads them, and its main thread uses them.
#[derive(Clone, Default)]
pub struct HostKeys(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    path: PathBuf,
    /// As last read; `None`: packets are not authenticated.
    file: Option<KeyFile>,
    /// Read, but not yet in use.
    waiting: Option<Keys>,
}

impl HostKeys {
    /// Loads the keys that the configuration names.
    pub fn load(config: &Config) -> Result<HostKeys> {
        let Some(path) = &config.cluster.key_file else {
            return Ok(HostKeys::default());
        };
        let inner = Inner {
            path: path.clone(),
            file: Some(KeyFile::load(path)?),
            waiting: None,
        };
        Ok(HostKeys(Arc::new(Mutex::new(inner))))
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
        inner.file.as_ref().map(|file| status_of(&file.keys()))
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
        Ok(Some(status_of(&keys)))
    }
}

/// Prepares the keys of a cluster. A new cluster gets new ones, because it would accept recorded packets of an earlier
/// cluster with the same keys. A cluster that continues keeps its keys.
pub fn prepare(path: &Path, founds: bool) -> Result<()> {
    if founds || !path.exists() {
        let keys = KeyFile::generate().context("taking random bytes")?;
        return Ok(keys.save(path)?);
    }
    KeyFile::load(path)?;
    Ok(())
}

/// Replaces the key on all running hosts: first all accept the new key, then all send with it, then all drop the old
/// one. Finishes an interrupted rotation first. Returns the new key's id.
pub fn rotate(path: &Path, sockets: &[(String, PathBuf)]) -> Result<u16> {
    let mut keys = KeyFile::load(path)?;
    reload(&keys, sockets)?;
    if keys.ids().len() > 1 {
        keys.drop_others();
        distribute(&keys, path, sockets)?;
    }
    let new = keys.add()?;
    distribute(&keys, path, sockets)?;
    keys.activate(new)?;
    distribute(&keys, path, sockets)?;
    keys.drop_others();
    distribute(&keys, path, sockets)?;
    Ok(new)
}

fn distribute(keys: &KeyFile, path: &Path, sockets: &[(String, PathBuf)]) -> Result<()> {
    keys.save(path)?;
    reload(keys, sockets)
}

/// Makes each host reload the file and confirm that it uses its content.
fn reload(keys: &KeyFile, sockets: &[(String, PathBuf)]) -> Result<()> {
    let expected = status_of(&keys.keys());
    for (name, socket) in sockets {
        let why = match line_json::call(socket, &HostRequest::ReloadKeys, RELOAD_LIMIT) {
            Ok(HostReply::Keys(Some(status))) if status == expected => continue,
            Ok(other) => format!("it says {other:?}"),
            Err(error) => error.to_string(),
        };
        bail!(
            "{name} did not take the keys: {why}; all hosts still understand each other. Kill it or wait until \
             it answers, then rotate again"
        );
    }
    Ok(())
}
