//! The testbed: a scheduler, workers and clients as processes, on loopback or, with the scheduler in the kernel, each
//! in its own network namespace; and the results of one load.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use hdrhistogram::Histogram;
use inband_falcon::timing::MS;
use inband_flair::clock::boot_time_ns;
use inband_lab::netns::NETNS_DIR;
use inband_lab::{Lab, LabSpec};
use inband_paxos::config::Dataplane;

use super::arrivals::Arrivals;
use super::host::{sleep_until, At, ClientReport, StepReport};
use super::ideal::delays_ns;
use crate::cpu::CpuClock;
use inband_cluster::scratch::ScratchDir;
use inband_host::namespace::enter;

/// Significant digits of delays.
const DIGITS: u8 = 3;
/// From the start of the clients to their first job.
const START: Duration = Duration::from_millis(250);
/// Time limit for a process to exit, in addition to the load.
const END_LIMIT: Duration = Duration::from_secs(30);
/// A load is sustained if at least this share of the tasks submitted in the counted time begin in it.
const HELD: f64 = 0.97;
/// The port of a scheduler in the kernel, which needs a fixed one.
const KERNEL_PORT: u16 = 7480;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The parameters of a load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub executors: usize,
    pub workers: usize,
    pub clients: usize,
    /// Of all clients together.
    pub jobs_per_s: f64,
    pub tasks_per_job: f64,
    pub tasks_per_submit: usize,
    pub sleep: Duration,
    pub arrivals: Arrivals,
    pub seed: u64,
    /// Time that is not counted.
    pub warm_up: Duration,
    /// Time that is counted.
    pub duration: Duration,
    /// Record every step of a task, which takes time.
    pub steps: bool,
    /// Where the scheduler's role runs: `udp`, `xdp` or `xdp-generic`.
    pub dataplane: Dataplane,
    /// Executors are timers of one thread in each worker.
    pub timers: bool,
}

impl Load {
    pub fn tasks_per_s(&self) -> f64 {
        self.jobs_per_s * self.tasks_per_job
    }

    /// Share of the executors' time, in percent, if a task takes exactly as long as it sleeps.
    pub fn utilisation_percent(&self) -> f64 {
        self.tasks_per_s() * self.sleep.as_secs_f64() * 100.0 / self.executors as f64
    }
}

/// Delays in nanoseconds, of all counted tasks.
pub type Delays = Histogram<u64>;

/// The steps of a task's delay.
#[derive(Debug)]
pub struct Steps {
    /// From the client to the scheduler's process.
    pub to_scheduler: Delays,
    /// Queued there until an executor was free.
    pub queued: Delays,
    /// From there to the worker's process.
    pub to_worker: Delays,
    /// From there to its first instruction.
    pub to_start: Delays,
}

/// The results of a load.
#[derive(Debug)]
pub struct Measured {
    /// From a task's submission to its start.
    pub delays: Delays,
    /// The same for an ideal scheduler, with tasks that sleep exactly as long as requested.
    pub ideal: Delays,
    /// The same for an ideal scheduler, with tasks that take as long as the real ones did.
    pub ideal_as_slept: Delays,
    /// How late jobs were submitted.
    pub late: Delays,
    /// How much too long tasks slept.
    pub overslept: Delays,
    pub steps: Option<Steps>,
    /// CPU seconds per second: scheduler, workers, clients.
    pub cpu: [f64; 3],
    /// Tasks begun in the counted time.
    pub begun_counted: u64,
    pub failed: u64,
    pub lost: u64,
    pub repeated: u64,
    pub refused: u64,
}

fn delays() -> Delays {
    Histogram::new(DIGITS).expect("so many digits are possible")
}

fn record(delays: &mut Delays, ns: u64) {
    delays.record(ns).expect("it grows with what it is given");
}

pub fn delays_of(all_ns: impl IntoIterator<Item = u64>) -> Delays {
    let mut delays = delays();
    for ns in all_ns {
        record(&mut delays, ns);
    }
    delays
}

/// A process of the testbed. Dropping it kills it.
struct Host(Child);

impl Host {
    fn start(arguments: &[String], output: Stdio) -> Result<Host> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.arg("falcon-host").args(arguments);
        command.stdin(Stdio::piped()).stdout(output);
        Ok(Host(
            command
                .spawn()
                .context("starting a process of the testbed")?,
        ))
    }

    /// Waits for it to exit by itself.
    fn end(&mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let until = Instant::now() + END_LIMIT;
        loop {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("a process of the testbed ended: {status}"),
                None => ensure!(
                    Instant::now() < until,
                    "a process of the testbed does not end"
                ),
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The network between the processes: loopback, or a lab with a namespace for each.
struct Network(Option<Lab>);

const SCHEDULER: &str = "scheduler";

fn worker_name(number: usize) -> String {
    format!("worker-{number}")
}

fn client_name(number: usize) -> String {
    format!("client-{number}")
}

impl Network {
    fn new(load: &Load) -> Result<Network> {
        if load.dataplane == Dataplane::Udp {
            return Ok(Network(None));
        }
        let workers = (0..load.workers).map(worker_name);
        let clients = (0..load.clients).map(client_name);
        let spec = LabSpec {
            name: format!("falcon-bench-{}", std::process::id()),
            hosts: [SCHEDULER.to_owned()]
                .into_iter()
                .chain(workers)
                .chain(clients)
                .collect(),
            seed: load.seed,
        };
        Ok(Network(Some(
            Lab::create(&spec).context("making the network")?,
        )))
    }

    /// Returns the address for the scheduler to listen on.
    fn scheduler(&self) -> Result<SocketAddrV4> {
        let address = match &self.0 {
            Some(lab) => lab.host(SCHEDULER)?.address(),
            None => Ipv4Addr::LOCALHOST,
        };
        let port = if self.0.is_some() { KERNEL_PORT } else { 0 };
        Ok(SocketAddrV4::new(address, port))
    }

    /// Returns the namespace for this process; `None`: the current one.
    fn namespace(&self, name: &str) -> Result<Option<PathBuf>> {
        let Some(lab) = &self.0 else {
            return Ok(None);
        };
        let host = lab.host(name)?;
        Ok(Some(Path::new(NETNS_DIR).join(host.namespace().name())))
    }

    fn start(&self, name: &str, arguments: &[String], output: Stdio) -> Result<Host> {
        let mut all = Vec::new();
        if let Some(namespace) = self.namespace(name)? {
            all.extend(["--namespace".to_owned(), namespace.display().to_string()]);
        }
        all.extend_from_slice(arguments);
        Host::start(&all, output)
    }
}

fn arguments(words: &str) -> Vec<String> {
    words.split(' ').map(str::to_owned).collect()
}

fn reporting(mut arguments: Vec<String>, path: Option<&Path>) -> Vec<String> {
    if let Some(path) = path {
        arguments.push("--report".into());
        arguments.push(path.display().to_string());
    }
    arguments
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_reader(BufReader::new(file))?)
}

/// Starts everything, applies the load, and stops everything.
pub fn measure(load: &Load) -> Result<Measured> {
    let scratch = ScratchDir::create(&std::env::temp_dir(), "falcon")?;
    let path = |name: String| scratch.path().join(name);
    let step_path = |name: String| load.steps.then(|| path(name));

    let mut step_paths = Vec::new();
    let scheduler_path = step_path("scheduler".into());
    let network = Network::new(load)?;
    let words = arguments(&format!(
        "scheduler --listen {} --dataplane {}",
        network.scheduler()?,
        load.dataplane
    ));
    let words = reporting(words, scheduler_path.as_deref());
    step_paths.extend(scheduler_path);
    let mut scheduler = network.start(SCHEDULER, &words, Stdio::piped())?;
    let address = address_of(&mut scheduler.0)?;
    let mut workers = Vec::new();
    for number in 0..load.workers {
        let part = |n: usize| load.executors * n / load.workers;
        let executors = part(number + 1) - part(number);
        let timers = if load.timers { " --timers" } else { "" };
        let words = arguments(&format!(
            "worker --scheduler {address} --executors {executors}{timers}"
        ));
        let name = worker_name(number);
        let worker_path = step_path(name.clone());
        let words = reporting(words, worker_path.as_deref());
        step_paths.extend(worker_path);
        workers.push(network.start(&name, &words, Stdio::null())?);
    }
    let namespace = network.namespace(&client_name(0))?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            namespace.as_deref().map(enter).transpose()?;
            wait_for_executors(address, load.executors)
        });
        waiting.join().expect("it does not panic")
    })?;

    let begin_ns = boot_time_ns() + START.as_nanos() as u64;
    let mut clients = Vec::new();
    let mut client_paths: Vec<PathBuf> = Vec::new();
    for number in 0..load.clients {
        let name = client_name(number);
        let client_path = path(name.clone());
        let words = client_arguments(load, number, begin_ns, address);
        let words = reporting(words, Some(&client_path));
        clients.push(network.start(&name, &words, Stdio::null())?);
        client_paths.push(client_path);
    }
    let named = |what: &str, host: &Host| (what.to_owned(), host.0.id());
    let all: Vec<(String, u32)> = std::iter::once(named("scheduler", &scheduler))
        .chain(workers.iter().map(|host| named("worker", host)))
        .chain(clients.iter().map(|host| named("client", host)))
        .collect();
    sleep_until(begin_ns + load.warm_up.as_nanos() as u64);
    let cpu = CpuClock::start(&all);
    sleep_until(begin_ns + (load.warm_up + load.duration).as_nanos() as u64);
    let used = cpu.stop();
    let cpu = ["scheduler", "worker", "client"].map(|what| {
        let of = used.iter().filter(|(name, _)| name == what);
        of.map(|(_, used)| used.process).sum()
    });
    for host in &mut clients {
        host.end().context("a client")?;
    }
    for host in workers.iter_mut().chain([&mut scheduler]) {
        host.end()?;
    }
    let reports: Vec<ClientReport> = client_paths
        .iter()
        .map(|p| read(p))
        .collect::<Result<_>>()?;
    let steps: Vec<StepReport> = step_paths.iter().map(|p| read(p)).collect::<Result<_>>()?;
    let counted_from_ns = begin_ns + load.warm_up.as_nanos() as u64;
    evaluate(load, &reports, &steps, cpu, counted_from_ns)
}

fn client_arguments(
    load: &Load,
    number: usize,
    begin_ns: u64,
    scheduler: SocketAddrV4,
) -> Vec<String> {
    let jobs_per_s = load.jobs_per_s / load.clients as f64;
    // Staggered evenly over the clients.
    let offset_ns = (number as f64 * 1e9 / load.jobs_per_s) as u64;
    arguments(&format!(
        "client --scheduler {scheduler} --arrivals {} --jobs-per-s {jobs_per_s} --tasks-per-job {} --tasks-per-submit {} \
         --sleep-us {} --begin-ns {} --duration-ms {} --seed {}",
        load.arrivals.name(),
        load.tasks_per_job,
        load.tasks_per_submit,
        load.sleep.as_micros(),
        begin_ns + offset_ns,
        (load.warm_up + load.duration).as_millis(),
        load.seed + number as u64,
    ))
}

fn address_of(child: &mut Child) -> Result<SocketAddrV4> {
    let output = child.stdout.take().context("its output was asked for")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let address = line.trim().parse();
    address.with_context(|| format!("the scheduler says {line:?}, no address"))
}

fn wait_for_executors(scheduler: SocketAddrV4, executors: usize) -> Result<()> {
    use inband_falcon::client_node::{ClientNode, Config};
    let client = ClientNode::open(Config::new(scheduler))?;
    let until = Instant::now() + END_LIMIT;
    loop {
        let known = client.executors(END_LIMIT)? as usize;
        if known == executors {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "{known} of {executors} executors are known to the scheduler"
        );
        thread::sleep(POLL_INTERVAL);
    }
}

struct Counted {
    id: (u32, u32),
    submitted_ns: u64,
    begun_ns: u64,
    ended_ns: u64,
}

fn evaluate(
    load: &Load,
    reports: &[ClientReport],
    steps: &[StepReport],
    cpu: [f64; 3],
    counted_from_ns: u64,
) -> Result<Measured> {
    let mut all = Vec::new();
    let mut late = delays();
    for report in reports {
        let submitted: HashMap<u32, u64> = report.jobs.iter().map(|j| (j.0, j.2)).collect();
        for (_, due_ns, submitted_ns) in &report.jobs {
            record(&mut late, submitted_ns.saturating_sub(*due_ns));
        }
        for (job, task, begun_ns, ended_ns) in &report.tasks {
            let submitted_ns = *submitted.get(job).context("a task of no job")?;
            let (id, begun_ns, ended_ns) = ((*job, *task), *begun_ns, *ended_ns);
            all.push(Counted {
                id,
                submitted_ns,
                begun_ns,
                ended_ns,
            });
        }
    }
    all.sort_by_key(|task| task.submitted_ns);
    let sleep_ns = load.sleep.as_nanos() as u64;
    let is_counted = |task: &&Counted| task.submitted_ns >= counted_from_ns;
    // Simulate all tasks: those before the counted time determine the queue's initial state.
    let ideal = |run_ns: &dyn Fn(&Counted) -> u64| {
        let tasks: Vec<_> = all.iter().map(|t| (t.submitted_ns, run_ns(t))).collect();
        let delays = delays_ns(&tasks, load.executors);
        let counted = all.iter().zip(delays).filter(|(task, _)| is_counted(task));
        delays_of(counted.map(|(_, delay_ns)| delay_ns))
    };
    let slept_ns = |task: &Counted| task.ended_ns.saturating_sub(task.begun_ns);
    let counted: Vec<&Counted> = all.iter().filter(is_counted).collect();
    ensure!(
        !counted.is_empty(),
        "no task was counted; give a longer --duration-ms"
    );
    let counted_ns = counted_from_ns..counted_from_ns + load.duration.as_nanos() as u64;
    let has_begun = |task: &&Counted| counted_ns.contains(&task.begun_ns);
    let begun_counted = all.iter().filter(has_begun).count() as u64;
    let sum = |of: fn(&ClientReport) -> u64| reports.iter().map(of).sum();
    let delay_ns = |task: &&Counted| task.begun_ns.saturating_sub(task.submitted_ns);
    Ok(Measured {
        delays: delays_of(counted.iter().map(delay_ns)),
        ideal: ideal(&|_| sleep_ns),
        ideal_as_slept: ideal(&slept_ns),
        late,
        overslept: delays_of(counted.iter().map(|t| slept_ns(t).saturating_sub(sleep_ns))),
        steps: load.steps.then(|| steps_of(&counted, steps)),
        cpu,
        begun_counted,
        failed: sum(|report| report.failed),
        lost: sum(|report| report.lost),
        repeated: sum(|report| report.repeated),
        refused: sum(|report| report.refused),
    })
}

fn steps_of(tasks: &[&Counted], reports: &[StepReport]) -> Steps {
    let by_id = |pick: fn(&StepReport) -> &Vec<At>| -> HashMap<(u32, u32), u64> {
        let all = reports.iter().flat_map(pick);
        all.map(|(job, task, at_ns)| ((*job, *task), *at_ns))
            .collect()
    };
    let (came, given) = (by_id(|r| &r.came), by_id(|r| &r.given));
    let received = by_id(|r| &r.received);
    let mut steps = Steps {
        to_scheduler: delays(),
        queued: delays(),
        to_worker: delays(),
        to_start: delays(),
    };
    for task in tasks {
        let at = |of: &HashMap<(u32, u32), u64>| of.get(&task.id).copied();
        // A task whose packets were lost and retransmitted has no steps.
        let (Some(came), Some(given), Some(received)) = (at(&came), at(&given), at(&received))
        else {
            continue;
        };
        for (delays, from, to) in [
            (&mut steps.to_scheduler, task.submitted_ns, came),
            (&mut steps.queued, came, given),
            (&mut steps.to_worker, given, received),
            (&mut steps.to_start, received, task.begun_ns),
        ] {
            record(delays, to.saturating_sub(from));
        }
    }
    steps
}

/// Returns whether as many tasks began as were submitted. `peer.py` uses the same criterion.
pub fn is_held(load: &Load, measured: &Measured) -> bool {
    let wanted = load.tasks_per_s() * load.duration.as_secs_f64();
    measured.begun_counted as f64 >= HELD * wanted
}

pub fn quantile_us(delays: &Delays, quantile: f64) -> f64 {
    delays.value_at_quantile(quantile) as f64 / (MS as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_of_tasks_after_the_warm_up_and_taken_apart() {
        let load = Load {
            executors: 1,
            workers: 1,
            clients: 1,
            jobs_per_s: 100.0,
            tasks_per_job: 1.0,
            tasks_per_submit: 1,
            sleep: Duration::from_nanos(1_000_000),
            arrivals: Arrivals::Periodic,
            seed: 1,
            warm_up: Duration::from_millis(1),
            duration: Duration::from_millis(100),
            steps: true,
            dataplane: Dataplane::Udp,
            timers: false,
        };
        // Job 8 belongs to the warm-up; 10 begins when the only executor is free, if there are no delays.
        let client = ClientReport {
            jobs: vec![
                (8, 0, 10),
                (9, 1_000_000, 1_000_100),
                (10, 1_000_000, 1_000_200),
            ],
            tasks: vec![
                (8, 0, 500_000, 1_500_000),
                (9, 0, 1_600_100, 2_600_300),
                (10, 0, 2_700_200, 3_700_200),
            ],
            ..ClientReport::default()
        };
        let steps = StepReport {
            came: vec![(9, 0, 1_000_200)],
            given: vec![(9, 0, 1_500_200)],
            received: vec![(9, 0, 1_590_100)],
        };
        let measured = evaluate(&load, &[client], &[steps], [0.0; 3], 1_000_000);
        let measured = measured.expect("tasks were counted");
        let near = |delays: &Delays, quantile: f64, us: f64| {
            let found = quantile_us(delays, quantile);
            assert!((found - us).abs() <= us / 100.0, "{found} is not {us}");
        };
        assert_eq!(measured.delays.len(), 2);
        near(&measured.delays, 0.5, 600.0);
        near(&measured.delays, 1.0, 1700.0);
        near(&measured.ideal, 0.5, 0.0);
        near(&measured.ideal, 1.0, 999.9);
        near(&measured.overslept, 1.0, 0.2);
        near(&measured.late, 1.0, 0.2);
        let steps = measured.steps.expect("they were asked for");
        near(&steps.to_scheduler, 1.0, 0.1);
        near(&steps.queued, 1.0, 500.0);
        near(&steps.to_worker, 1.0, 89.9);
        near(&steps.to_start, 1.0, 10.0);
        assert_eq!(measured.begun_counted, 2);
    }
}
