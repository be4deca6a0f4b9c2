//! The processes of the testbed: `inband-bench falcon-host`. Each runs until its standard input is closed.

use std::io::Read;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::{Args, Subcommand};
use inband_falcon::client::Counters;
use inband_falcon::client_node::{self, local_address, ClientNode, Event};
use inband_falcon::observer::{Observer, Step};
use inband_falcon::runner::Tools;
use inband_falcon::scheduler_node::{self, SchedulerNode};
use inband_falcon::task::{TaskSpec, Work};
use inband_falcon::timing::{ExecutorTiming, MS};
use inband_falcon::work::Call;
use inband_falcon::worker_node::{self, WorkerNode};
use inband_flair::clock::boot_time_ns;
use inband_ground::auth::Digest;
use inband_host::namespace::enter;
use inband_lab::lab::HOST_INTERFACE;
use inband_paxos::config::Dataplane;
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::arrivals::{Arrivals, JobTimes};
use super::virtual_worker::VirtualWorker;

/// The function that tasks call.
const NAP: &str = "nap";
/// Timeout for the scheduler to answer, and for the last tasks to end.
const LIMIT: Duration = Duration::from_secs(20);
/// Timer slack of the sleeping threads: the maximum by which the kernel may delay a wake-up.
pub const TIMER_SLACK_NS: u64 = 1;

/// `inband-bench falcon-host`.
#[derive(Debug, Args)]
pub struct FalconHostArgs {
    /// The network namespace to enter.
    #[arg(long)]
    namespace: Option<PathBuf>,
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Prints its address once it is listening.
    Scheduler {
        #[arg(long)]
        listen: SocketAddrV4,
        #[arg(long)]
        dataplane: Dataplane,
        /// The file for the steps of tasks.
        #[arg(long)]
        report: Option<PathBuf>,
    },
    Worker {
        #[arg(long)]
        scheduler: SocketAddrV4,
        #[arg(long)]
        executors: u8,
        /// Executors are timers of one thread, on the last CPU.
        #[arg(long, conflicts_with = "report")]
        timers: bool,
        /// The file for the steps of tasks.
        #[arg(long)]
        report: Option<PathBuf>,
    },
    /// Exits by itself.
    Client(ClientArgs),
}

#[derive(Debug, Args)]
struct ClientArgs {
    #[arg(long)]
    scheduler: SocketAddrV4,
    #[arg(long)]
    report: PathBuf,
    #[arg(long, value_enum)]
    arrivals: Arrivals,
    #[arg(long)]
    jobs_per_s: f64,
    #[arg(long)]
    tasks_per_job: f64,
    #[arg(long)]
    tasks_per_submit: usize,
    #[arg(long)]
    sleep_us: u64,
    /// In the machine's monotonic clock.
    #[arg(long)]
    begin_ns: u64,
    #[arg(long)]
    duration_ms: u64,
    #[arg(long)]
    seed: u64,
}

/// When a task was at a step: job, task, and nanoseconds of the machine's clock.
pub type At = (u32, u32, u64);

/// The observations of a scheduler or a worker.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StepReport {
    pub came: Vec<At>,
    pub given: Vec<At>,
    pub received: Vec<At>,
}

/// The observations of a client.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ClientReport {
    /// For each job: number, when it was due, when it was submitted.
    pub jobs: Vec<(u32, u64, u64)>,
    /// For each task: job, task, when it began, when it ended.
    pub tasks: Vec<(u32, u32, u64, u64)>,
    /// Tasks without a result.
    pub failed: u64,
    /// Tasks begun on more than one executor.
    pub lost: u64,
    /// Retransmitted SUBMITs.
    pub repeated: u64,
    /// Tasks first rejected because of a full queue.
    pub refused: u64,
}

/// Runs as this process.
pub fn falcon_host(args: FalconHostArgs) -> Result<()> {
    args.namespace.as_deref().map(enter).transpose()?;
    match args.part {
        Part::Scheduler {
            listen,
            dataplane,
            report,
        } => run_scheduler(listen, dataplane, report.as_deref()),
        Part::Worker {
            scheduler,
            executors,
            timers: true,
            ..
        } => run_timers(scheduler, executors),
        Part::Worker {
            scheduler,
            executors,
            report,
            ..
        } => run_worker(scheduler, executors, report.as_deref()),
        Part::Client(args) => run_client(&args),
    }
}

fn run_scheduler(listen: SocketAddrV4, dataplane: Dataplane, report: Option<&Path>) -> Result<()> {
    let mut node = SchedulerNode::open(scheduler_node::Config {
        dataplane,
        interface: Some(HOST_INTERFACE.into()),
        ..scheduler_node::Config::new(listen)
    })?;
    let seen = report.map(|_| {
        let (seen, observer) = watch();
        node.observe(observer);
        seen
    });
    println!("{}", node.address());
    until_left(|| Ok(node.turn()?))?;
    write_seen(report, seen)
}

fn run_worker(scheduler: SocketAddrV4, executors: u8, report: Option<&Path>) -> Result<()> {
    nix::sys::prctl::set_timerslack(TIMER_SLACK_NS)?;
    let mut tools = Tools::default();
    tools.functions.insert(NAP.into(), Box::new(nap));
    let mut node = WorkerNode::open(worker_node::Config {
        scheduler,
        address: SocketAddrV4::new(local_address(scheduler)?, 0),
        name: "bench".into(),
        executors,
        resources: 1,
        tools,
        keys: None,
        digest: Digest::PLAIN,
        timing: ExecutorTiming::default(),
    })?;
    let seen = report.map(|_| {
        let (seen, observer) = watch();
        node.observe(observer);
        seen
    });
    until_left(|| Ok(node.turn()?))?;
    write_seen(report, seen)
}

fn run_timers(scheduler: SocketAddrV4, executors: u8) -> Result<()> {
    let mut cpu = CpuSet::new();
    cpu.set(thread::available_parallelism()?.get() - 1)?;
    sched_setaffinity(Pid::from_raw(0), &cpu).context("a CPU for the worker")?;
    let local = SocketAddrV4::new(local_address(scheduler)?, 0);
    let mut worker = VirtualWorker::open(scheduler, local, executors)?;
    until_left(|| worker.turn())
}

/// Sleeps for as many microseconds as the argument says. Returns the start and the end.
fn nap(argument: &[u8]) -> Result<Vec<u8>, String> {
    let begun_ns = boot_time_ns();
    thread::sleep(Duration::from_micros(nap_us(argument)?));
    Ok(begun_and_ended(begun_ns, boot_time_ns()))
}

/// How long a task sleeps.
pub fn nap_us(argument: &[u8]) -> Result<u64, String> {
    let micros = argument.try_into().map(u64::from_le_bytes);
    micros.map_err(|_| "8 bytes are needed".to_owned())
}

/// What a task returns.
pub fn begun_and_ended(begun_ns: u64, ended_ns: u64) -> Vec<u8> {
    [begun_ns.to_le_bytes(), ended_ns.to_le_bytes()].concat()
}

/// Calls `turn` repeatedly until standard input is closed.
fn until_left(mut turn: impl FnMut() -> Result<()>) -> Result<()> {
    let is_left = Arc::new(AtomicBool::new(false));
    let for_thread = Arc::clone(&is_left);
    thread::spawn(move || {
        // Nothing is sent on it; an end or an error means to exit.
        let _ = std::io::stdin().read(&mut [0]);
        for_thread.store(true, Ordering::Release);
    });
    while !is_left.load(Ordering::Acquire) {
        turn()?;
    }
    Ok(())
}

type Seen = Arc<Mutex<StepReport>>;

fn watch() -> (Seen, Observer) {
    let seen = Seen::default();
    let for_node = Arc::clone(&seen);
    let observer: Observer = Box::new(move |step, job, task| {
        let mut seen = for_node.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = match step {
            Step::Came => &mut seen.came,
            Step::Given => &mut seen.given,
            Step::Received => &mut seen.received,
        };
        steps.push((job, task, boot_time_ns()));
    });
    (seen, observer)
}

fn write_seen(report: Option<&Path>, seen: Option<Seen>) -> Result<()> {
    let (Some(path), Some(seen)) = (report, seen) else {
        return Ok(());
    };
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    write(path, &*seen)
}

fn write(path: &Path, report: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(report)?;
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

fn run_client(args: &ClientArgs) -> Result<()> {
    nix::sys::prctl::set_timerslack(TIMER_SLACK_NS)?;
    let node = ClientNode::open(client_node::Config {
        tasks_per_submit: args.tasks_per_submit,
        ..client_node::Config::new(args.scheduler)
    })?;
    node.executors(LIMIT)?;
    let argument = args.sleep_us.to_le_bytes().to_vec();
    let name = NAP.to_owned();
    let work = Call::Function { name, argument }.encode();
    let spec = TaskSpec::new(Work::Inline(work));
    let mut report = ClientReport::default();
    let end_ns = args.begin_ns + args.duration_ms * MS;
    let times = JobTimes::new(args.arrivals, args.jobs_per_s, args.begin_ns, args.seed);
    let mut tasks = 0;
    for (due_ns, of_job) in times.jobs(args.tasks_per_job, end_ns) {
        let specs = vec![spec.clone(); of_job as usize];
        sleep_until(due_ns);
        let submitted_ns = boot_time_ns();
        let job = node.submit(specs, &[], None)?;
        tasks += of_job;
        report.jobs.push((job.0, due_ns, submitted_ns));
        take_in(&node, Duration::ZERO, &mut report);
    }
    let limit_ns = boot_time_ns() + LIMIT.as_nanos() as u64;
    while report.tasks.len() as u64 + report.failed < tasks {
        take_in(&node, Duration::from_millis(10), &mut report);
        ensure!(
            boot_time_ns() < limit_ns,
            "tasks are not done after {LIMIT:?}"
        );
    }
    let Counters {
        lost,
        repeated,
        refused,
        ..
    } = node.counters();
    (report.lost, report.repeated, report.refused) = (lost, repeated, refused);
    write(&args.report, &report)
}

pub fn sleep_until(due_ns: u64) {
    let now_ns = boot_time_ns();
    if due_ns > now_ns {
        thread::sleep(Duration::from_nanos(due_ns - now_ns));
    }
}

fn take_in(node: &ClientNode, limit: Duration, report: &mut ClientReport) {
    for event in node.wait(limit) {
        let Event::Done(id, outcome) = event else {
            continue;
        };
        let output = outcome.ok().and_then(Result::ok).unwrap_or_default();
        match output
            .split_first_chunk()
            .map(|(begun, ended)| (begun, ended.try_into()))
        {
            Some((begun, Ok(ended))) => {
                let (begun, ended) = (u64::from_le_bytes(*begun), u64::from_le_bytes(ended));
                report.tasks.push((id.job, id.task, begun, ended));
            }
            _ => report.failed += 1,
        }
    }
}
