//! Clients of the key-value store, on whichever log it runs, and their keys.

pub mod client;
pub mod companions;
pub mod keys;

use std::path::PathBuf;

use anyhow::{ensure, Result};

/// Fails with this message if these stores, which no process has open, do not hold the same data.
pub fn check_equal(dirs: &[PathBuf], message: &str) -> Result<()> {
    let digests = dirs
        .iter()
        .map(|dir| inband_cluster::kv::summary(std::slice::from_ref(dir)))
        .collect::<Result<Vec<_>>>()?;
    ensure!(
        digests.windows(2).all(|pair| pair[0] == pair[1]),
        "{message}: {digests:?}"
    );
    Ok(())
}
