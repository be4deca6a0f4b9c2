//! `inband inspect DIR`: shows the contents of a replica's data directory, without a cluster.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use inband_cluster::kv::summary;

/// Options of `inband inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The data directories of a replica, in the order of its configuration. No process may have them open.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
}

/// Prints one JSON object.
pub fn inspect(args: &InspectArgs) -> Result<()> {
    println!("{}", summary(&args.dirs)?);
    Ok(())
}
