//! Network namespaces.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use nix::sched::{setns, CloneFlags};

/// Moves the calling thread into the network namespace at this path.
pub fn enter(namespace: &Path) -> Result<()> {
    let shown = || format!("entering the cluster's network, {}", namespace.display());
    let file = File::open(namespace).with_context(shown)?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(shown)
}
