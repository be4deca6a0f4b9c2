//! The keys of a FLAIR cluster: made when it is founded, rotated while it serves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use inband_host::key_file::{KeyFile, KeyStatus};
use inband_host::line_json;

use super::status::{HostReply, HostRequest};

/// How long a host may take to answer that it has.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);

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
    let expected = KeyStatus::of(&keys.keys());
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
