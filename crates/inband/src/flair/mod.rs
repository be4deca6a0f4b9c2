//! `inband flair`: a store whose reads a switch distributes over its replicas (docs/flair.md).

mod run;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use inband_cluster::command::{ClusterCommand, RunCommand};
use inband_cluster::flair::Flair;

/// Subcommands of `inband flair`.
#[derive(Subcommand)]
pub enum FlairCommand {
    #[command(flatten)]
    Cluster(ClusterCommand<Flair>),
    /// Run one host in the foreground.
    Run {
        /// The host's configuration (TOML; `inband up flair` writes examples).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// On a replica: found a new group with this host as its only voter; the others join it. Use it only once.
        #[arg(long)]
        found: bool,
    },
}

impl RunCommand for FlairCommand {
    type System = Flair;

    fn only_prints(&self) -> bool {
        match self {
            FlairCommand::Cluster(command) => command.only_prints(),
            FlairCommand::Run { .. } => false,
        }
    }

    fn run(self) -> Result<()> {
        match self {
            FlairCommand::Cluster(command) => command.run(),
            FlairCommand::Run { config, found } => run::run(&config, found),
        }
    }
}
