//! `inband status`, `kill`, `restart`, `down`: talk to a running `inband up falcon`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use inband_lab::restart;
use indicatif::HumanCount;

use super::remote::{self, Reply, Request};
use super::status::{ClusterStatus, SchedulerStatus};
use super::DEFAULT_DATA;
use crate::key;
use crate::operate::StatusForm;
use inband_cluster::background;
use inband_cluster::host_process::Process;
use inband_cluster::socket::{socket_in, unexpected};

/// Options of commands about the whole cluster.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// Directory of the cluster.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    pub data: PathBuf,
}

/// Options of `inband status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    form: StatusForm,
}

/// Options of commands about one process.
#[derive(Debug, Args)]
pub struct RoleArgs {
    /// scheduler, worker/0.
    role: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// `inband status`.
pub fn status(args: &StatusArgs) -> Result<()> {
    let status = remote::status(&args.cluster.data)?;
    let words = |status: &ClusterStatus| print!("{}", in_words(status));
    args.form.show(&status, words, print_counters)
}

fn print_counters(status: &ClusterStatus) {
    for (name, value) in status.scheduler.iter().flat_map(|s| &s.counters) {
        println!("  {name:<32} {value}");
    }
}

/// Lines for the scheduler, its queue and executors, one for each worker, and one for each process that does not run.
pub fn in_words(status: &ClusterStatus) -> String {
    let mut text = match &status.scheduler {
        Some(scheduler) => scheduler_in_words(scheduler),
        None => format!("scheduler {}: does not answer\n", status.door.scheduler),
    };
    for entry in &status.processes {
        let how = match entry.process {
            Process::Running if entry.restarts == 0 => continue,
            Process::Running => "runs",
            Process::Killed => "killed",
            Process::Ended => "ended by itself; see its log",
        };
        let restarts = restart::in_words(entry.restarts, entry.last_exit.as_deref());
        text += &format!("  {:<20} {how}{restarts}\n", entry.name);
    }
    text
}

fn scheduler_in_words(scheduler: &SchedulerStatus) -> String {
    let packets = key::summary_of(std::iter::once((
        scheduler.keys.as_ref(),
        &scheduler.counters,
    )));
    let (executors, busy, waiting) = scheduler.executors();
    let oldest = match scheduler.oldest_waits_us {
        Some(us) => format!(", the first for {:.1} ms", us as f64 / 1000.0),
        None => String::new(),
    };
    let mut text = format!(
        "scheduler {} ({}), policy {}, packets: {packets}\n\
         queue:     {} of {} slots{oldest}\n\
         given:     {:.0} tasks/s, {} in all\n\
         executors: {executors}, of which {busy} busy, {waiting} wait for tasks\n",
        scheduler.address,
        scheduler.dataplane,
        scheduler.policy,
        HumanCount(scheduler.queued),
        HumanCount(scheduler.slots as u64),
        scheduler.given_per_s,
        HumanCount(scheduler.given),
    );
    for worker in &scheduler.workers {
        let resources = match &worker.resources[..] {
            [] => String::new(),
            some => format!(", has {}", some.join(", ")),
        };
        text += &format!(
            "  {:<20} {:<21} number {}, {} of {} busy{resources}\n",
            worker.name,
            worker.address.to_string(),
            worker.number,
            worker.busy,
            worker.executors
        );
    }
    text
}

/// `inband kill`.
pub fn kill(args: &RoleArgs) -> Result<()> {
    let role = args.role.clone();
    println!("killed {}", done(args, &Request::Kill { role })?);
    Ok(())
}

/// `inband restart`.
pub fn restart(args: &RoleArgs) -> Result<()> {
    let role = args.role.clone();
    println!("restarted {}", done(args, &Request::Restart { role })?);
    Ok(())
}

fn done(args: &RoleArgs, request: &Request) -> Result<String> {
    match remote::ask(&args.cluster.data, request)? {
        Reply::Done { process } => Ok(process),
        other => unexpected(&other),
    }
}

/// `inband down`.
pub fn down(args: &ClusterArgs) -> Result<()> {
    remote::ask(&args.data, &Request::Down)?;
    background::wait_for_end(&args.data, &socket_in(&args.data));
    println!("stopped; clients put what was queued or ran into the next scheduler at this address");
    Ok(())
}
