//! The keys that a cluster's packets are authenticated with, and what hosts say of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::paxos::cluster_dir::ClusterDir;
use anyhow::{Context, Result};
use inband_host::key_file::{KeyFile, KeyStatus};

/// Counters of packets that were dropped for want of a right tag.
const DROPPED: [&str; 2] = ["bad_key", "bad_tag"];

/// The key file of a cluster's directory, if it is to be authenticated. A cluster keeps the keys that it had before, since
/// they were given to other machines.
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

/// Packets that a host has dropped for want of a right tag; nothing if there are none.
pub fn dropped(counters: &BTreeMap<String, u64>) -> String {
    let counts = DROPPED
        .iter()
        .filter_map(|name| Some((name, counters.get(*name)?)));
    counts
        .map(|(name, count)| format!("  {name} {count}"))
        .collect()
}

/// For `inband status`: the keys that hosts send with, and the packets that were dropped. Of each host that answers,
/// its keys and its counters.
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
        for name in DROPPED {
            if let Some(count) = counters.get(name) {
                *sum.entry(name.into()).or_default() += count;
            }
        }
    }
    let active: Vec<String> = active.iter().map(u16::to_string).collect();
    format!("key {}{}", active.join(" and "), dropped(&sum))
}
