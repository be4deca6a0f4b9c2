//! `inband falcon`: tasks for many executors through a scheduler in the network (docs/falcon.md).

mod metrics;
mod reach;
mod scheduler;
mod submit;
mod top;
mod worker;

use anyhow::Result;
use clap::Subcommand;
use inband_cluster::command::{ClusterCommand, RunCommand};
use inband_cluster::falcon::Falcon;

/// Subcommands of `inband falcon`.
#[derive(Subcommand)]
pub enum FalconCommand {
    #[command(flatten)]
    Cluster(ClusterCommand<Falcon>),
    /// The status, again and again.
    Top(top::TopArgs),
    /// Run a command as a task: its output and exit status are as if it ran here.
    Submit(submit::SubmitArgs),
    /// Run executors for a scheduler, here or elsewhere. Ctrl-C: take no more tasks, and end with those that run; a
    /// second one, or SIGTERM, ends those, too.
    Worker(worker::WorkerArgs),
    /// Run a scheduler alone, in the foreground.
    Scheduler(scheduler::SchedulerArgs),
}

impl RunCommand for FalconCommand {
    type System = Falcon;

    fn only_prints(&self) -> bool {
        match self {
            FalconCommand::Cluster(command) => command.only_prints(),
            FalconCommand::Top(_) => true,
            _ => false,
        }
    }

    fn run(self) -> Result<()> {
        match self {
            FalconCommand::Cluster(command) => command.run(),
            FalconCommand::Top(args) => top::top(&args),
            FalconCommand::Submit(args) => submit::submit(&args),
            FalconCommand::Worker(args) => worker::worker(args),
            FalconCommand::Scheduler(args) => scheduler::scheduler(&args),
        }
    }
}
