//! `inband inspect DIR`: what a replica's data directory holds, without a cluster.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use inband_kv::machine::{Machine, MachineConfig};

/// Options of `inband inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A replica's data directories, in the order of its configuration. No process may have them
    /// open.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
}

/// Print one JSON object.
pub fn inspect(args: &InspectArgs) -> Result<()> {
    println!("{}", summary(&args.dirs)?);
    Ok(())
}

/// What a replica's data directories hold.
pub fn summary(dirs: &[PathBuf]) -> Result<serde_json::Value> {
    // Opening would create an empty store in its place.
    let first = &dirs[0];
    let partitions = Machine::partitions_in(first)?
        .with_context(|| format!("{} holds no data of a replica", first.display()))?;
    let machine = Machine::open(MachineConfig {
        dirs: dirs.to_vec(),
        partitions,
        sync: false,
    })
    .with_context(|| first.display().to_string())?;
    Ok(serde_json::json!({
        "applied": machine.applied(),
        "partitions": partitions,
        "keys": machine.keys(),
        "time_ms": machine.stores().map(|store| store.time_ms()).max(),
        "digest": format!("{:016x}", machine.digest()?),
    }))
}
