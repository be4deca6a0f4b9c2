//! A scheduler and workers on this machine: processes on loopback or, if the scheduler is to run in the kernel, in a
//! namespace each.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use inband_falcon::dataplane::FalconConfig;
use inband_falcon::limits::{EXECUTORS_MAX, LOCAL_EXECUTORS_MAX};
use inband_falcon::resources::ResourceNames;
use inband_host::key_file::KeyFile;
use inband_host::line_json::{self, Server};
use inband_host::state_dir::StateLock;
use inband_lab::cluster_dir::ClusterDir;
use inband_lab::lab::HOST_INTERFACE;
use inband_lab::netns::NETNS_DIR;
use inband_lab::restart::Watcher;
use inband_lab::Lab;
use inband_paxos::config::Dataplane;

use super::remote::{Reply, Request};
use super::scheduler::SchedulerOptions;
use super::status::{
    ClusterStatus, Door, ProcessEntry, SchedulerReply, SchedulerRequest, SchedulerStatus,
};
use super::SERVICE;
use inband_cluster::host_process::HostProcess;
use inband_cluster::{host_dir, lock, socket, wait_until_ready, End};

/// How long the scheduler may take to answer before it counts as silent.
const STATUS_LIMIT: Duration = Duration::from_millis(500);
/// How long workers may take to end what they run.
const END_LIMIT: Duration = Duration::from_secs(3);
const SCHEDULER: &str = "scheduler";
/// The host from which clients use a cluster that has a network of its own.
const CLIENT: &str = "client";

/// What `inband up falcon` is asked for.
#[derive(Debug, Clone)]
pub struct FalconSpec {
    /// The `inband` program.
    pub program: PathBuf,
    /// Directory of the cluster.
    pub data: PathBuf,
    /// Where the scheduler listens, unless it has a network of its own.
    pub listen: SocketAddrV4,
    /// The scheduler.
    pub scheduler: SchedulerOptions,
    /// Where its role runs.
    pub dataplane: Dataplane,
    /// Executors on this machine.
    pub executors: usize,
    /// What they have.
    pub resources: Vec<String>,
    /// Their Python.
    pub python: PathBuf,
    /// Packets carry tags.
    pub authenticated: bool,
}

impl FalconSpec {
    fn check(&self) -> Result<FalconConfig> {
        ensure!(
            self.executors <= LOCAL_EXECUTORS_MAX,
            "--executors {} are more than {LOCAL_EXECUTORS_MAX}; start workers on other machines",
            self.executors
        );
        let config = self.scheduler.config()?;
        let workers = self.workers();
        ensure!(
            workers.len() <= config.workers,
            "--executors {} are those of {} workers, and --workers allows {}",
            self.executors,
            workers.len(),
            config.workers
        );
        let names = ResourceNames::new(self.scheduler.resource_names().to_vec())?;
        names.bitmap(&self.resources).context("--resource")?;
        Ok(config)
    }

    /// Executors of each worker.
    fn workers(&self) -> Vec<usize> {
        let of_worker = usize::from(EXECUTORS_MAX);
        let firsts = (0..self.executors).step_by(of_worker);
        firsts
            .map(|first| (self.executors - first).min(of_worker))
            .collect()
    }
}

/// A running cluster. Everything ends and is removed when it is dropped.
pub struct Cluster {
    // Dropped first: no request meets a cluster that is being taken apart, and nothing of it is started again.
    watcher: Option<Watcher>,
    server: Option<Server>,
    shared: Arc<Shared>,
}

struct Shared {
    spec: FalconSpec,
    notice: String,
    door: Door,
    /// The scheduler first.
    hosts: Vec<HostProcess>,
    /// One kill or restart at a time.
    operation: Mutex<()>,
    end: End,
    // In the order of removal: processes (in hosts), network, lock.
    _lab: Option<Lab>,
    _lock: StateLock,
}

/// Is, or was, there a cluster in this directory?
pub fn is_in(data: &Path) -> bool {
    host_dir(data, SCHEDULER).is_dir()
}

fn socket_of_scheduler(data: &Path) -> PathBuf {
    host_dir(data, SCHEDULER).join("control.sock")
}

/// The network: loopback, or a lab if the role may run in the kernel and that works. The line says which, and why.
fn network(spec: &FalconSpec, names: &[String]) -> Result<(Option<Lab>, String)> {
    if spec.dataplane == Dataplane::Udp {
        let notice = format!("scheduler in user space, at {}", spec.listen);
        return Ok((None, notice));
    }
    Ok(match SERVICE.network(&spec.data, spec.dataplane, names)? {
        Ok(lab) => (Some(lab), "scheduler in the kernel: XDP works here".into()),
        Err(why) => (
            None,
            format!("scheduler in user space, at {}: {why}", spec.listen),
        ),
    })
}

/// The cluster's keys: those that it had before, since they were given to other machines.
fn keys(spec: &FalconSpec) -> Result<Option<PathBuf>> {
    if !spec.authenticated {
        return Ok(None);
    }
    let path = ClusterDir::key_file_in(&spec.data);
    if path.exists() {
        KeyFile::load(&path)?;
    } else {
        let keys = KeyFile::generate().context("taking random bytes")?;
        keys.save(&path)?;
    }
    Ok(Some(path))
}

impl Cluster {
    /// Start all processes and wait until the executors are known.
    pub fn start(mut spec: FalconSpec) -> Result<Cluster> {
        spec.check()?;
        let (data, state_lock) = SERVICE.take_directory(&spec.data)?;
        spec.data = data;
        let key_file = keys(&spec)?;
        let workers = (0..spec.workers().len()).map(|n| format!("worker/{n}"));
        let names: Vec<String> = [SCHEDULER.to_owned()]
            .into_iter()
            .chain(workers)
            .chain([CLIENT.to_owned()])
            .collect();
        let (lab, notice) = network(&spec, &names)?;
        let mut door = Door {
            data: spec.data.clone(),
            scheduler: spec.listen,
            key_file,
            namespace: None,
        };
        if let Some(lab) = &lab {
            let address = lab.host(SCHEDULER)?.address();
            door.scheduler = SocketAddrV4::new(address, spec.listen.port());
            let client = lab.host(CLIENT)?;
            door.namespace = Some(Path::new(NETNS_DIR).join(client.namespace().name()));
        }
        let hosts = hosts(&spec, &door, lab.as_ref())?;
        let shared = Arc::new(Shared {
            spec,
            notice,
            door,
            hosts,
            operation: Mutex::default(),
            end: End::default(),
            _lab: lab,
            _lock: state_lock,
        });
        shared.begin()?;
        let server = serve(&shared)?;
        let watched = Arc::clone(&shared);
        let watcher = Watcher::start(move || watched.restart_ended())?;
        Ok(Cluster {
            watcher: Some(watcher),
            server: Some(server),
            shared,
        })
    }

    /// Everything about it.
    pub fn status(&self) -> ClusterStatus {
        self.shared.status()
    }

    /// Wait so long for `inband down`. Has it come?
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        self.shared.end.wait(limit)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.watcher = None;
        self.server = None;
        let _operation = lock(&self.shared.operation);
        self.shared.end_processes();
    }
}

/// How the scheduler and the workers are started.
fn hosts(spec: &FalconSpec, door: &Door, lab: Option<&Lab>) -> Result<Vec<HostProcess>> {
    let mut hosts = vec![(SCHEDULER.to_owned(), scheduler_args(spec, door, lab))];
    for (number, executors) in spec.workers().into_iter().enumerate() {
        let name = format!("worker/{number}");
        let args = worker_args(spec, door, &name, executors);
        hosts.push((name, args));
    }
    let host = |(name, args): (String, Vec<OsString>)| {
        let dir = host_dir(&spec.data, &name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let network = lab.map(|lab| lab.host(&name)).transpose()?;
        Ok(HostProcess::new(&name, &spec.program, args, &dir, network))
    };
    hosts.into_iter().map(host).collect()
}

fn scheduler_args(spec: &FalconSpec, door: &Door, lab: Option<&Lab>) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["falcon".into(), "scheduler".into()];
    args.push(format!("--listen={}", door.scheduler).into());
    args.extend(["--socket".into(), socket_of_scheduler(&spec.data).into()]);
    if lab.is_some() {
        args.push(format!("--dataplane={}", spec.dataplane).into());
        args.push(format!("--interface={HOST_INTERFACE}").into());
    }
    args.extend(key_args(door));
    args.extend(spec.scheduler.to_args());
    args
}

fn worker_args(spec: &FalconSpec, door: &Door, name: &str, executors: usize) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["falcon".into(), "worker".into()];
    args.push(format!("--scheduler={}", door.scheduler).into());
    args.push(format!("--executors={executors}").into());
    args.push(format!("--name={name}").into());
    args.extend(["--python".into(), spec.python.clone().into()]);
    args.extend(key_args(door));
    let resources = spec.resources.iter();
    args.extend(resources.map(|name| format!("--resource={name}").into()));
    args
}

fn key_args(door: &Door) -> Vec<OsString> {
    match &door.key_file {
        Some(path) => vec!["--key-file".into(), path.into()],
        // `up --no-key` has asked for it.
        None => vec!["--no-key".into()],
    }
}

impl Shared {
    fn begin(&self) -> Result<()> {
        let started = self.start_all();
        if started.is_err() {
            self.end_processes();
        }
        started
    }

    fn start_all(&self) -> Result<()> {
        let (scheduler, workers) = self.hosts.split_first().context("there is a scheduler")?;
        self.start(scheduler)?;
        workers.iter().try_for_each(|worker| self.start(worker))?;
        let executors = self.spec.executors as u32;
        self.wait_until(&self.hosts, |status| status.executors().0 >= executors)
    }

    /// Start a process, and wait until it is there.
    fn start(&self, host: &HostProcess) -> Result<()> {
        if host.name() == SCHEDULER {
            // A stale socket would be asked instead of the new one.
            let _ = fs::remove_file(socket_of_scheduler(&self.spec.data));
        }
        host.start(host.spec())?;
        if host.name() == SCHEDULER {
            return self.wait_until(std::slice::from_ref(host), |_| true);
        }
        Ok(())
    }

    /// Wait until this is so of what the scheduler says. None of the processes `of` may end meanwhile.
    fn wait_until(
        &self,
        of: &[HostProcess],
        is_so: impl Fn(&SchedulerStatus) -> bool,
    ) -> Result<()> {
        let lateness = "scheduler and executors do not know each other";
        wait_until_ready(&self.spec.data, of.iter(), lateness, || {
            self.scheduler_status().is_some_and(|status| is_so(&status))
        })
    }

    fn scheduler_status(&self) -> Option<SchedulerStatus> {
        let socket = socket_of_scheduler(&self.spec.data);
        match line_json::call(&socket, &SchedulerRequest::Status, STATUS_LIMIT) {
            Ok(SchedulerReply::Status(status)) => Some(*status),
            _ => None,
        }
    }

    fn status(&self) -> ClusterStatus {
        ClusterStatus {
            door: self.door.clone(),
            supervisor_pid: std::process::id(),
            notice: self.notice.clone(),
            processes: self.hosts.iter().map(entry).collect(),
            scheduler: self.scheduler_status(),
        }
    }

    fn named(&self, name: &str) -> Result<&HostProcess> {
        let found = self.hosts.iter().find(|host| host.name() == name);
        found.with_context(|| {
            let names: Vec<&str> = self.hosts.iter().map(HostProcess::name).collect();
            format!(
                "no process of this cluster is {name:?}; there are {} (others are stopped where they run)",
                names.join(", ")
            )
        })
    }

    fn kill(&self, name: &str) -> Result<String> {
        let _operation = lock(&self.operation);
        let host = self.named(name)?;
        if !host.kill() {
            bail!("{name} does not run; start it: inband restart {name}");
        }
        Ok(name.to_owned())
    }

    fn restart(&self, name: &str) -> Result<String> {
        let _operation = lock(&self.operation);
        self.start(self.named(name)?)?;
        Ok(name.to_owned())
    }

    /// Start again what has ended by itself. Not while somebody kills or starts a process.
    fn restart_ended(&self) {
        let Ok(_operation) = self.operation.try_lock() else {
            return;
        };
        for host in &self.hosts {
            host.restart_if_due(|| self.start(host));
        }
    }

    /// Workers end what they run.
    fn end_processes(&self) {
        self.hosts.iter().for_each(HostProcess::tell_to_end);
        let deadline = Instant::now() + END_LIMIT;
        for host in &self.hosts {
            host.wait_for_end(deadline.saturating_duration_since(Instant::now()));
        }
    }
}

/// For the cluster's status.
fn entry(host: &HostProcess) -> ProcessEntry {
    let (process, pid) = host.state();
    let (restarts, last_exit) = host.restarts();
    ProcessEntry {
        name: host.name().into(),
        process,
        pid,
        restarts,
        last_exit,
    }
}

fn serve(shared: &Arc<Shared>) -> Result<Server> {
    let data = shared.spec.data.clone();
    let shared = Arc::clone(shared);
    let answer = move |request| {
        let process = match request {
            Request::Status => return Ok(Reply::Status(Box::new(shared.status()))),
            Request::Door => return Ok(Reply::Door(shared.door.clone())),
            Request::Kill { role } => shared.kill(&role)?,
            Request::Restart { role } => shared.restart(&role)?,
            Request::Down => {
                shared.end.come();
                "all".into()
            }
        };
        Ok(Reply::Done { process })
    };
    socket::serve(&data, answer, |message| Reply::Error { message })
}
