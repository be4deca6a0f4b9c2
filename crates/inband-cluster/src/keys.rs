//! The keys that authenticate a cluster's packets, and how hosts use them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::paxos::cluster_dir::ClusterDir;
use anyhow::{Context, Result};
use inband_host::key_file::{KeyFile, KeyStatus};

/// Counters of packets that were dropped because they lacked a valid tag.
const DROPPED: [&str; 2] = ["bad_key", "bad_tag"];

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

/// Returns the number of packets that a host has dropped because they lacked a valid tag; empty if there are none.
pub fn dropped(counters: &BTreeMap<String, u64>) -> String {
    let counts = DROPPED
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
        for name in DROPPED {
            if let Some(count) = counters.get(name) {
                *sum.entry(name.into()).or_default() += count;
            }
        }
    }
    let active: Vec<String> = active.iter().map(u16::to_string).collect();
    format!("key {}{}", active.join(" and "), dropped(&sum))
}
