//! Falcon on the command line.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use inband_falcon::client_node::{self, ClientNode, Event};
use inband_falcon::task::{TaskSpec, Work};
use inband_falcon::work::Call;
use inband_ground::auth::Digest;
use inband_host::config::Dataplane;
use inband_host::key_file::KeyFile;
use inband_host::namespace::enter;
use inband_host::settings::Setting;
use indicatif::HumanCount;

use super::status::{ClusterAddress, ClusterStatus, SchedulerStatus};
use super::{parse_address, Falcon, FalconSpec, Reply, Request, SchedulerOptions, DEFAULT_ADDRESS};
use crate::command::{data_option, SystemCommand};
use crate::host_process::Process;
use crate::keys;
use crate::socket::{request, unexpected};

const SELF_CHECK_TASKS: usize = 200;
const SELF_CHECK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct Options {
    /// Tasks that this machine runs at a time, up to 1024. The default is two per CPU. 0: none here; workers join from
    /// elsewhere (inband falcon worker).
    #[arg(long, value_name = "N")]
    executors: Option<usize>,
    /// A resource of this machine's executors, by name or number; with --policy resources.
    #[arg(long = "resource", value_name = "NAME")]
    resources: Vec<String>,
    /// The Python interpreter for tasks, which must be able to import the package `inband`.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Where the scheduler listens: an address of this machine if other machines are to reach it.
    #[arg(long, default_value_t = DEFAULT_ADDRESS, value_name = "ADDR:PORT", value_parser = parse_address)]
    listen: SocketAddrV4,
    #[command(flatten)]
    scheduler: SchedulerOptions,
    /// Where the scheduler's role runs: udp (in a process, on this machine's network), or in the kernel, with every
    /// process in its own network namespace: xdp, xdp-generic, or auto, which falls back to udp.
    #[arg(long, visible_alias = "backend", default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// Use no key: anyone who can send packets to the scheduler or the workers can run commands there.
    #[arg(long)]
    no_key: bool,
}

/// Two per CPU, up to a worker's maximum.
pub fn default_executors() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

impl SystemCommand for Falcon {
    const ABOUT: &'static str =
        "Tasks for many executors, through a scheduler in the network (Falcon)";
    const ABOUT_UP: &'static str = "Start a scheduler and executors on this machine";
    const ABOUT_ROLES: &'static str = "scheduler, worker/0";
    type Options = Options;

    fn spec(options: &Options, data: &Path) -> Result<FalconSpec> {
        Ok(FalconSpec {
            program: std::env::current_exe().context("finding this program")?,
            data: data.to_owned(),
            listen: options.listen,
            scheduler: options.scheduler.clone(),
            dataplane: options.dataplane,
            executors: options.executors.unwrap_or_else(default_executors),
            resources: options.resources.clone(),
            python: options.python.clone(),
            authenticated: !options.no_key,
        })
    }

    /// Returns a line each for the scheduler, its queue and executors, each worker, and each process that is not
    /// running.
    fn in_words(status: &ClusterStatus) -> String {
        let mut text = match &status.scheduler {
            Some(scheduler) => scheduler_in_words(scheduler),
            None => {
                let address = status.address.scheduler;
                format!("scheduler {address}: does not answer\n")
            }
        };
        for process in &status.processes {
            let how = match process.process {
                Process::Running if process.restarts == 0 => continue,
                Process::Running => "runs",
                _ => process.in_words(),
            };
            let restarts = process.restarts_in_words();
            text += &format!("  {:<20} {how}{restarts}\n", process.name);
        }
        text
    }

    fn counters(status: &ClusterStatus) -> Vec<(&str, &str, u64)> {
        let counters = status.scheduler.iter().flat_map(|s| &s.counters);
        counters
            .map(|(name, value)| ("scheduler", &name[..], *value))
            .collect()
    }

    fn self_check(_: &Options, status: &ClusterStatus) -> Result<Option<String>> {
        let executors = |s: &SchedulerStatus| s.executors().0;
        if status.scheduler.as_ref().map_or(0, executors) == 0 {
            return Ok(None);
        }
        let median = self_check(&status.address).context("Falcon runs no tasks")?;
        Ok(Some(format!(
            "{SELF_CHECK_TASKS} tasks one after another, median {:.0} us from submission to result",
            median.as_nanos() as f64 / 1000.0
        )))
    }

    fn notice(status: &ClusterStatus) -> String {
        status.notice.clone()
    }

    fn next_steps(_: &Options, status: &ClusterStatus, data: &Path) -> String {
        let (address, data) = (&status.address, data_option(data));
        let key_file = address.key_file.as_ref();
        let key = key_file.map(|path| format!(" --key-file {}", path.display()));
        let python_key =
            key_file.map(|path| format!(", key_file={:?}", path.display().to_string()));
        let key_line = match key_file {
            Some(path) => format!("{} (others need a copy)", path.display()),
            None => {
                "none; anyone who can send packets to these processes can run commands here".into()
            }
        };
        format!(
            "key file: {key_line}\n\
             ready: inband falcon submit{data} -- echo hello\n       \
             inband falcon worker --scheduler {}{}\n       \
             inband.Executor({:?}{}) in Python\n\
             try:   inband falcon top{data} | inband kill{data} scheduler\n",
            address.scheduler,
            key.unwrap_or_else(|| " --no-key".into()),
            address.scheduler.to_string(),
            python_key.unwrap_or_default()
        )
    }

    fn settings(data: &Path) -> Result<Vec<Setting>> {
        match request::<Falcon>(data, Request::Settings)? {
            Reply::Settings(settings) => Ok(settings),
            other => unexpected(&other),
        }
    }

    fn what_stayed(_: &ClusterStatus) -> &'static str {
        "clients put what was queued or ran into the next scheduler at this address"
    }
}

fn scheduler_in_words(scheduler: &SchedulerStatus) -> String {
    let packets = keys::summary(std::iter::once((
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

/// Runs empty tasks one after another and returns the median time.
fn self_check(address: &ClusterAddress) -> Result<Duration> {
    std::thread::scope(|scope| {
        // In a thread, because only that thread enters the cluster's network.
        let check = scope.spawn(|| check_in(address));
        check
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn check_in(address: &ClusterAddress) -> Result<Duration> {
    if let Some(namespace) = &address.namespace {
        enter(namespace)?;
    }
    let file = address.key_file.as_deref().map(KeyFile::load).transpose()?;
    let client = ClientNode::open(client_node::Config {
        keys: file.as_ref().map(KeyFile::keys),
        digest: file.as_ref().map_or(Digest::PLAIN, KeyFile::digest),
        ..client_node::Config::new(address.scheduler)
    })?;
    let nothing = || TaskSpec::new(Work::Inline(Call::Sleep { micros: 0 }.encode()));
    let mut times = Vec::with_capacity(SELF_CHECK_TASKS);
    for _ in 0..SELF_CHECK_TASKS {
        let began = Instant::now();
        client.submit(vec![nothing()], &[], Some(SELF_CHECK_TIMEOUT))?;
        let outcome = loop {
            let mut events = client.wait(SELF_CHECK_TIMEOUT).into_iter();
            if let Some(Event::Done(_, outcome)) = events.find(|e| matches!(e, Event::Done(..))) {
                break outcome;
            }
            ensure!(began.elapsed() < 2 * SELF_CHECK_TIMEOUT, "no answer");
        };
        match outcome {
            Ok(Ok(_)) => times.push(began.elapsed()),
            Ok(Err(error)) => bail!("a task failed: {}", String::from_utf8_lossy(&error)),
            Err(failure) => bail!("a task failed: {failure}"),
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
