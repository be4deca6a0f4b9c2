//! `inband falcon`: tasks for many executors through a scheduler in the network (docs/falcon.md).

mod cluster;
mod metrics;
mod operate;
pub mod reach;
mod remote;
mod scheduler;
mod signals;
mod status;
mod submit;
mod top;
mod up;
mod worker;

use std::net::{Ipv4Addr, SocketAddrV4};

use std::path::Path;

use anyhow::Result;
use clap::Subcommand;

use inband_cluster::Service;

const SERVICE: Service = Service {
    name: "Falcon",
    command: "falcon",
};

/// Where a Falcon cluster lives unless told otherwise.
pub const DEFAULT_DATA: &str = ".inband-falcon";
/// Where a scheduler listens unless told otherwise.
pub const DEFAULT_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7480);

/// Subcommands of `inband falcon`.
#[derive(Debug, Subcommand)]
pub enum FalconCommand {
    /// Start a scheduler and executors on this machine.
    Up(up::UpArgs),
    /// Stop all of it; tasks that run are ended.
    Down(operate::ClusterArgs),
    /// Queue, executors, workers, counters.
    Status(operate::StatusArgs),
    /// The same, again and again.
    Top(top::TopArgs),
    /// Kill a process of the cluster at once: scheduler, worker/0, ...
    Kill(operate::RoleArgs),
    /// Start it again.
    Restart(operate::RoleArgs),
    /// Run a command as a task: its output and exit status are as if it ran here.
    Submit(submit::SubmitArgs),
    /// Run executors for a scheduler, here or elsewhere. Ctrl-C: take no more tasks, and end with those that run; a
    /// second one, or SIGTERM, ends those, too.
    Worker(worker::WorkerArgs),
    /// Run a scheduler alone, in the foreground.
    Scheduler(scheduler::SchedulerArgs),
}

impl FalconCommand {
    /// May it end quietly when nobody reads its output any more?
    pub fn only_prints(&self) -> bool {
        matches!(self, FalconCommand::Status(_) | FalconCommand::Top(_))
    }
}

/// Is, or was, there a cluster of Falcon in this directory?
pub fn is_in(data: &Path) -> bool {
    cluster::is_in(data)
}

/// `inband falcon ...`.
pub fn falcon(command: FalconCommand) -> Result<()> {
    match command {
        FalconCommand::Up(args) => up::up(&args),
        FalconCommand::Down(args) => operate::down(&args),
        FalconCommand::Status(args) => operate::status(&args),
        FalconCommand::Top(args) => top::top(&args),
        FalconCommand::Kill(args) => operate::kill(&args),
        FalconCommand::Restart(args) => operate::restart(&args),
        FalconCommand::Submit(args) => submit::submit(&args),
        FalconCommand::Worker(args) => worker::worker(args),
        FalconCommand::Scheduler(args) => scheduler::scheduler(&args),
    }
}
