//! `inband flair`: a store whose reads are spread over its replicas by a switch (docs/flair.md).

mod operate;
mod run;
mod up;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

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
        /// The host's configuration (TOML; `inband up flair` writes some to look at).
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
