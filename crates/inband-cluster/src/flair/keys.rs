//! The keys of a FLAIR cluster: made when it is founded, rotated while it serves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use inband_host::key_file::KeyFile;
use inband_host::line_json;

use super::status::{HostReply, HostRequest};
use crate::keys::{self, RELOAD_LIMIT};

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

/// Replaces the key on all running hosts; see [`keys::rotate`].
pub fn rotate(path: &Path, sockets: &[(String, PathBuf)]) -> Result<u16> {
    keys::rotate(
        path,
        sockets,
        Duration::ZERO,
        |socket| match line_json::call(socket, &HostRequest::ReloadKeys, RELOAD_LIMIT)? {
            HostReply::Keys(keys) => Ok(keys),
            other => bail!("it says {other:?}"),
        },
    )
}
