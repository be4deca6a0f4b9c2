//! `inband flair`: a store whose reads are spread over its replicas by a switch (docs/flair.md).

pub mod cluster;
mod hosts;
mod keys;
mod operate;
mod record;
mod remote;
mod role;
mod run;
pub mod status;
mod up;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;

use crate::local_cluster::Service;

const SERVICE: Service = Service {
    name: "FLAIR",
    command: "flair",
};

/// Where a FLAIR cluster lives unless told otherwise.
pub const DEFAULT_DATA: &str = ".inband-flair";

/// Subcommands of `inband flair`.
#[derive(Debug, Subcommand)]
pub enum FlairCommand {
    /// Start replicas, switches and a gateway for Redis clients on this machine.
    Up(up::UpArgs),
    /// Stop all of it.
    Down(operate::ClusterArgs),
    /// Sessions, switches, replicas, counters.
    Status(operate::StatusArgs),
    /// Kill the process of a role at once.
    Kill(operate::RoleArgs),
    /// Start the process of a role again.
    Restart(operate::RoleArgs),
    /// Run one host, in the foreground.
    Run {
        /// The host's configuration (TOML; `inband flair up` writes some to look at).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// A replica: begin a new group, with this host as its only voter; the others join it. Once ever.
        #[arg(long)]
        found: bool,
    },
}

impl FlairCommand {
    /// May it end quietly when nobody reads its output any more?
    pub fn only_prints(&self) -> bool {
        matches!(self, FlairCommand::Status(_))
    }
}

/// What the cluster in a directory says of itself; `None`: there is none of FLAIR.
pub fn status_in(data: &Path) -> Option<Result<status::ClusterStatus>> {
    record::is_in(data).then(|| remote::status(data))
}

/// `inband flair ...`.
pub fn flair(command: FlairCommand) -> Result<()> {
    match command {
        FlairCommand::Up(args) => up::up(&args),
        FlairCommand::Down(args) => operate::down(&args),
        FlairCommand::Status(args) => operate::status(&args),
        FlairCommand::Kill(args) => operate::kill(&args),
        FlairCommand::Restart(args) => operate::restart(&args),
        FlairCommand::Run { config, found } => run::run(&config, found),
    }
}
