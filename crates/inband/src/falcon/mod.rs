//! `inband falcon`: schedules tasks on many executors through a scheduler in the network (docs/falcon.md).

mod metrics;
mod reach;
mod scheduler;
mod submit;
mod worker;

use anyhow::Result;
use clap::Subcommand;
use inband_cluster::command::{ClusterCommand, RunCommand, SystemCommand};
use inband_cluster::falcon::Falcon;
use inband_cluster::top::TopArgs;

/// Subcommands of `inband falcon`.
#[derive(Subcommand)]
pub enum FalconCommand {
    #[command(flatten)]
    Cluster(ClusterCommand<Falcon>),
    /// Show the status repeatedly.
    Top(TopArgs<Falcon>),
    /// Run a command as a task; its output and exit status are passed on as if it ran here.
    Submit(submit::SubmitArgs),
    /// Run executors for a scheduler, on this machine or another. Ctrl-C: accept no more tasks, and exit when the
    /// running ones have ended; a second Ctrl-C, or SIGTERM, ends those as well.
    Worker(worker::WorkerArgs),
    /// Run a single scheduler in the foreground.
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
            FalconCommand::Top(args) => args.run(Falcon::in_words),
            FalconCommand::Submit(args) => submit::submit(&args),
            FalconCommand::Worker(args) => worker::worker(args),
            FalconCommand::Scheduler(args) => scheduler::scheduler(&args),
        }
    }
}
