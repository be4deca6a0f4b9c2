//! `inband falcon worker`: the process of a worker.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_cluster::falcon::default_executors;
use inband_cluster::falcon::status::{SchedulerReply, SchedulerRequest};
use inband_falcon::client_node::{self, local_address, ClientNode};
use inband_falcon::limits::{EXECUTORS_MAX, WORKER_NAME_LEN_BYTES_MAX};
use inband_falcon::resources::ResourceNames;
use inband_falcon::runner::{Interpreter, Tools};
use inband_falcon::timing::ExecutorTiming;
use inband_falcon::worker_node::{self, WorkerNode};
use inband_host::line_json::Server;
use inband_host::live_keys::LiveKeys;
use inband_host::notify::Notifier;
use inband_host::reload::Reload;
use inband_host::signals::{Interrupt, StopRequest};

use super::reach::{must_be_safe, ReachArgs, Reached};

/// Silence of a scheduler after which a message is printed.
const SILENCE_SAID: Duration = Duration::from_secs(3);
/// Time limit for a scheduler to tell the names of resources, before it is asked again.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// Options of `inband falcon worker`.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Number of tasks to run at a time, 1 to 64. Default: two per CPU.
    #[arg(long, value_name = "N")]
    executors: Option<u8>,
    /// A resource that the worker has and tasks may need, by name or number; for schedulers with --policy resources.
    #[arg(long = "resource", value_name = "NAME")]
    resources: Vec<String>,
    /// Name in `inband status`. Default: this machine's name.
    #[arg(long)]
    name: Option<String>,
    /// The interpreter for Python tasks; it must find the package `inband`.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Address to listen on; clients must be able to reach it. Default: the source address of packets to the scheduler.
    #[arg(long, value_name = "ADDR")]
    listen: Option<Ipv4Addr>,
    /// Use addresses beyond loopback without a key: anyone who can send packets to this worker can run commands here.
    #[arg(long, conflicts_with = "key_file")]
    no_key: bool,
    /// Answer `inband up falcon` at this socket.
    #[arg(long, value_name = "PATH", hide = true)]
    socket: Option<PathBuf>,
}

fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // The kernel has the same limit and accepts no other characters.
    name.trim()
        .chars()
        .take(WORKER_NAME_LEN_BYTES_MAX)
        .collect()
}

/// Runs until told to stop.
pub fn worker(args: WorkerArgs) -> Result<()> {
    let reached = args.reach.reach()?;
    let here = match args.listen {
        Some(address) => address,
        None => local_address(reached.scheduler)?,
    };
    let addresses = [*reached.scheduler.ip(), here];
    must_be_safe("worker", reached.keys.as_ref(), args.no_key, &addresses)?;
    let stop = StopRequest::listen(Arc::default(), Interrupt::Drains)?;
    let executors = match args.executors {
        Some(executors) => executors,
        None => default_executors().min(usize::from(EXECUTORS_MAX)) as u8,
    };
    ensure!(
        (1..=EXECUTORS_MAX).contains(&executors),
        "--executors {executors} are not 1 to {EXECUTORS_MAX}; start several workers"
    );
    let Some(resources) = resources(&args.resources, &reached, &stop)? else {
        return Ok(());
    };
    let interpreter = Interpreter {
        program: args.python,
        env: Vec::new(),
    };
    let mut node = WorkerNode::open(worker_node::Config {
        scheduler: reached.scheduler,
        address: SocketAddrV4::new(here, 0),
        name: args.name.unwrap_or_else(machine_name),
        executors,
        resources,
        tools: Tools {
            python: Some(interpreter.of_cluster(reached.scheduler, reached.key_file.as_deref())),
            ..Tools::default()
        },
        keys: reached.keys,
        digest: reached.digest,
        timing: ExecutorTiming::default(),
    })?;
    let address = node.address();
    tracing::info!("worker: {executors} executors at {address}");
    let live = LiveKeys::load(reached.key_file.as_deref())?;
    let _control = match &args.socket {
        Some(path) => Some(
            serve(path, live.clone())
                .with_context(|| format!("--socket: cannot listen at {}", path.display()))?,
        ),
        None => None,
    };
    let mut notifier = Notifier::from_environment();
    let (for_reload, over) = (live.clone(), stop.clone());
    Reload::new()
        .with("packet keys", move || for_reload.reload_in_words())
        .start(stop.clone(), notifier.clone(), move || over.stops())?;
    run(&mut node, &stop, reached.scheduler, &live, &mut notifier)?;
    notifier.stopping();
    // It may have been told already; then this message has no effect.
    node.leave();
    drop(node);
    tracing::info!("worker: stopped");
    Ok(())
}

fn serve(path: &Path, keys: LiveKeys) -> io::Result<Server> {
    let error = |message| SchedulerReply::Error { message };
    let handle = move |request| match request {
        SchedulerRequest::ReloadKeys => SchedulerReply::to_reload(&keys),
        SchedulerRequest::Status => error("this is a worker: its scheduler has the status".into()),
    };
    Server::start(path, handle, error)
}

/// Returns the bitmap of its resources; `None` if it was told to stop.
fn resources(said: &[String], reached: &Reached, stop: &StopRequest) -> Result<Option<u64>> {
    if said.is_empty() {
        return Ok(Some(ResourceNames::default().bitmap(said)?));
    }
    let client = ClientNode::open(client_node::Config {
        keys: reached.keys,
        digest: reached.digest,
        ..client_node::Config::new(reached.scheduler)
    })?;
    while !stop.drains() && !stop.stops() {
        match client.ask(ASK_LIMIT) {
            Ok(cluster) => return Ok(Some(cluster.resource_names.bitmap(said)?)),
            Err(error) => tracing::warn!("worker: {error}"),
        }
    }
    Ok(None)
}

fn run(
    node: &mut WorkerNode,
    stop: &StopRequest,
    scheduler: SocketAddrV4,
    live: &LiveKeys,
    notifier: &mut Notifier,
) -> Result<()> {
    let mut has_been_known = false;
    let mut known_at = Some(Instant::now());
    let mut is_known = false;
    let mut drains = false;
    while !stop.stops() && !node.is_drained() {
        node.turn()?;
        notifier.turned(Instant::now());
        if let Some(keys) = live.take() {
            node.set_keys(keys);
        }
        if stop.drains() && !drains {
            drains = true;
            let running = node.executors() - node.idle();
            tracing::info!("worker: ends with the tasks that run ({running}); Ctrl-C ends them");
            node.drain();
        }
        if node.is_registered() != is_known {
            is_known = !is_known;
            known_at = Some(Instant::now());
            if is_known {
                tracing::info!("worker: the scheduler at {scheduler} knows it");
            }
            if is_known && !has_been_known {
                has_been_known = true;
                notifier.ready("known to the scheduler");
            } else {
                notifier.status(if is_known {
                    "known to the scheduler"
                } else {
                    "no scheduler answers"
                });
            }
        }
        let is_silent = |at: &Instant| !is_known && at.elapsed() > SILENCE_SAID;
        if known_at.as_ref().is_some_and(is_silent) {
            known_at = None;
            tracing::warn!(
                "worker: no scheduler answers at {scheduler}; is it up, and does it have the same key?"
            );
        }
    }
    Ok(())
}
