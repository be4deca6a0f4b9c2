//! `inband inspect DIR`: what a replica's data directory holds, without a cluster.

use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_kv::store::Store;

/// Options of `inband inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A replica's data directory. No process may have it open.
    dir: PathBuf,
}

/// Print one JSON object.
pub fn inspect(args: &InspectArgs) -> Result<()> {
    // Opening would create an empty store in its place.
    ensure!(args.dir.is_dir(), "{} is no directory", args.dir.display());
    let store = Store::open(&args.dir).with_context(|| args.dir.display().to_string())?;
    let text = serde_json::json!({
        "applied": store.applied(),
        "keys": store.keys(),
        "time_ms": store.time_ms(),
        "digest": format!("{:016x}", store.digest()?),
    });
    println!("{text}");
    Ok(())
}
