//! `inband up falcon`: a whole Falcon cluster on this machine.

use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use inband_falcon::client_node::{self, ClientNode, Event};
use inband_falcon::task::{TaskSpec, Work};
use inband_falcon::work::Call;
use inband_host::signals::StopSignals;
use inband_lab::supervisor::remote::{leave_terminal, spawn_until};
use inband_paxos::config::Dataplane;

use super::cluster::{Cluster, FalconSpec};
use super::reach::{address, Reached};
use super::scheduler::SchedulerOptions;
use super::status::{ClusterStatus, Door};
use super::worker::default_executors;
use super::{operate, remote, DEFAULT_ADDRESS, DEFAULT_DATA};
use inband_cluster::background;
use inband_host::namespace::enter;
use inband_host::output::quoted;

const SELF_CHECK_TASKS: usize = 200;
const SELF_CHECK_LIMIT: Duration = Duration::from_secs(10);
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Options of `inband up falcon`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Tasks that this machine runs at a time, up to 1024. By default two a CPU. 0: none here; workers join from
    /// elsewhere (inband falcon worker).
    #[arg(long, value_name = "N")]
    executors: Option<usize>,
    /// What this machine's executors have that tasks may need, by name or number; with --policy resources.
    #[arg(long = "resource", value_name = "NAME")]
    resources: Vec<String>,
    /// The interpreter for tasks of Python, which finds the package `inband`.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Where the scheduler listens: an address of this machine, if others are to reach it.
    #[arg(long, default_value_t = DEFAULT_ADDRESS, value_name = "ADDR:PORT", value_parser = address)]
    listen: SocketAddrV4,
    #[command(flatten)]
    scheduler: SchedulerOptions,
    /// Where the scheduler's role runs: udp (in a process, on this machine's network), or in the kernel, and every
    /// process in a network namespace of its own: xdp, xdp-generic, or auto, which falls back to udp.
    #[arg(long, visible_alias = "backend", default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// Directory for sockets, logs and the key file.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Make no key: whoever can send packets to the scheduler or the workers can run commands there.
    #[arg(long)]
    no_key: bool,
    /// Run in the background; stop with `inband down`.
    #[arg(long)]
    detach: bool,
    /// Set for the background process that --detach starts.
    #[arg(long, hide = true)]
    detached: bool,
}

impl UpArgs {
    fn spec(&self) -> Result<FalconSpec> {
        Ok(FalconSpec {
            program: std::env::current_exe().context("finding this program")?,
            data: self.data.clone(),
            listen: self.listen,
            scheduler: self.scheduler.clone(),
            dataplane: self.dataplane,
            executors: self.executors.unwrap_or_else(default_executors),
            resources: self.resources.clone(),
            python: self.python.clone(),
            authenticated: !self.no_key,
        })
    }

    fn data_option(&self) -> String {
        format!(" --data {}", quoted(&self.data))
    }
}

/// Start, check, show, and end at Ctrl-C.
pub fn up(args: &UpArgs) -> Result<()> {
    if args.detach {
        return up_detached(args);
    }
    if args.detached {
        leave_terminal();
    }
    let signals = StopSignals::take()?;
    let cluster = Cluster::start(args.spec()?)?;
    if !args.detached {
        show_start(&cluster.status(), args)?;
        println!("Ctrl-C stops it.");
    }
    while !signals.wait(WATCH_INTERVAL) && !cluster.wait_for_end(WATCH_INTERVAL) {}
    drop(cluster);
    println!("stopped");
    Ok(())
}

fn up_detached(args: &UpArgs) -> Result<()> {
    let status = spawn_until(background::this_command()?, &args.data, |pid| {
        let status = remote::status(&args.data).ok();
        status.filter(|status| status.supervisor_pid == pid)
    })?;
    show_start(&status, args)?;
    println!(
        "It runs in the background; `inband down{}` stops it.",
        args.data_option()
    );
    Ok(())
}

fn show_start(status: &ClusterStatus, args: &UpArgs) -> Result<()> {
    let (door, data) = (&status.door, args.data_option());
    println!("{}", status.notice);
    print!("{}", operate::in_words(status));
    let (executors, _, _) = status
        .scheduler
        .as_ref()
        .map_or((0, 0, 0), |s| s.executors());
    if executors > 0 {
        let median = self_check(door).context("self-check: Falcon runs no tasks")?;
        println!(
            "self-check: {SELF_CHECK_TASKS} tasks one after another, median {:.0} us from submission to result",
            median.as_nanos() as f64 / 1000.0
        );
    }
    let key_file = door.key_file.as_ref();
    let key = key_file.map(|path| format!(" --key-file {}", path.display()));
    let python_key = key_file.map(|path| format!(", key_file={:?}", path.display().to_string()));
    match key_file {
        Some(path) => println!("key file: {} (others need a copy)", path.display()),
        None => println!(
            "key file: none; whoever can send packets to these processes can run commands here"
        ),
    }
    println!("ready: inband falcon submit{data} -- echo hello");
    println!(
        "       inband falcon worker --scheduler {}{}",
        door.scheduler,
        key.unwrap_or_else(|| " --no-key".into())
    );
    println!(
        "       inband.Executor({:?}{}) in Python",
        door.scheduler.to_string(),
        python_key.unwrap_or_default()
    );
    println!("try:   inband falcon top{data} | inband kill{data} scheduler");
    Ok(())
}

/// Tasks of nothing, one after another; the median time.
fn self_check(door: &Door) -> Result<Duration> {
    std::thread::scope(|scope| {
        // The thread is in the cluster's network then, and no other.
        let check = scope.spawn(|| check_in(door));
        check
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn check_in(door: &Door) -> Result<Duration> {
    if let Some(namespace) = &door.namespace {
        enter(namespace)?;
    }
    let reached = Reached::by(door)?;
    let client = ClientNode::open(client_node::Config {
        keys: reached.keys,
        digest: reached.digest,
        ..client_node::Config::new(reached.scheduler)
    })?;
    let nothing = || TaskSpec::new(Work::Inline(Call::Sleep { micros: 0 }.encode()));
    let mut times = Vec::with_capacity(SELF_CHECK_TASKS);
    for _ in 0..SELF_CHECK_TASKS {
        let began = Instant::now();
        client.submit(vec![nothing()], &[], Some(SELF_CHECK_LIMIT))?;
        let outcome = loop {
            let mut events = client.wait(SELF_CHECK_LIMIT).into_iter();
            if let Some(Event::Done(_, outcome)) = events.find(|e| matches!(e, Event::Done(..))) {
                break outcome;
            }
            ensure!(began.elapsed() < 2 * SELF_CHECK_LIMIT, "no answer");
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
