//! The keys that authenticate a cluster's packets, and how hosts use them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::paxos::cluster_dir::ClusterDir;
use anyhow::{bail, Context, Result};
use inband_host::key_drops::KEY_DROPS;
use inband_host::key_file::{KeyFile, KeyStatus};

/// Returns the key file of a cluster's directory, if the cluster is to be authenticated. A cluster keeps existing keys,
/// because they may have been given to other machines.
pub fn kept(data: &Path, authenticated: bool) -> Result<Option<PathBuf>> {
    if !authenticated {
        return Ok(None);
    }
    let path = ClusterDir::key_file_in(data);
    if path.exists() {
        KeyFile::load(&path)?;
    } else {
        let keys = KeyFile::generate().context("taking random bytes")?;
        keys.save(&path)?;
    }
    Ok(Some(path))
}

/// How long a process may take to answer that it uses the keys.
pub const RELOAD_LIMIT: Duration = Duration::from_secs(10);

/// Replaces the key of all running processes: first all accept the new key, then all send with it, then all drop the old
/// one. `reload` makes the one at a socket read the file again, and returns what it uses then. `pause` follows each step,
/// for clients that notice by themselves. Finishes an interrupted rotation first. Returns the new key's id.
pub fn rotate(
    path: &Path,
    sockets: &[(String, PathBuf)],
    pause: Duration,
    reload: impl Fn(&Path) -> Result<Option<KeyStatus>>,
) -> Result<u16> {
    let reload_all = |keys: &KeyFile| {
        let expected = KeyStatus::of(&keys.keys());
        for (name, socket) in sockets {
            let why = match reload(socket) {
                Ok(Some(status)) if status == expected => continue,
                Ok(status) => format!("it uses {status:?}"),
                Err(error) => format!("{error:#}"),
            };
            bail!(
                "{name} did not take the keys: {why}; all hosts still understand each other. Kill it or wait until \
                 it answers, then rotate again"
            );
        }
        Ok(())
    };
    let distribute = |keys: &KeyFile| {
        keys.save(path)?;
        reload_all(keys)?;
        thread::sleep(pause);
        anyhow::Ok(())
    };
    let mut keys = KeyFile::load(path)?;
    reload_all(&keys)?;
    if keys.ids().len() > 1 {
        keys.drop_others();
        distribute(&keys)?;
    }
    let new = keys.add()?;
    distribute(&keys)?;
    keys.activate(new)?;
    distribute(&keys)?;
    keys.drop_others();
    distribute(&keys)?;
    Ok(new)
}

/// Returns the number of packets that a host has dropped because they lacked a valid tag; empty if there are none.
pub fn dropped(counters: &BTreeMap<String, u64>) -> String {
    let counts = KEY_DROPS
        .iter()
        .filter_map(|name| Some((name, counters.get(*name)?)));
    counts
        .map(|(name, count)| format!("  {name} {count}"))
        .collect()
}

/// For `inband status`: the keys with which hosts send, and the packets that were dropped. `said` has the keys and the
/// counters of each host that answers.
pub fn summary<'a>(
    said: impl Iterator<Item = (Option<&'a KeyStatus>, &'a BTreeMap<String, u64>)> + Clone,
) -> String {
    let mut active: Vec<u16> = said
        .clone()
        .filter_map(|(keys, _)| Some(keys?.active))
        .collect();
    active.sort_unstable();
    active.dedup();
    if active.is_empty() {
        return "not authenticated".into();
    }
    let mut sum: BTreeMap<String, u64> = BTreeMap::new();
    for (_, counters) in said {
        for name in KEY_DROPS {
            if let Some(count) = counters.get(name) {
                *sum.entry(name.into()).or_default() += count;
            }
        }
    }
    let active: Vec<String> = active.iter().map(u16::to_string).collect();
    format!("key {}{}", active.join(" and "), dropped(&sum))
}
