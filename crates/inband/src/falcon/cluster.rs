//! A scheduler and workers on this machine: processes on loopback or, if the scheduler is to run in the kernel, in a
//! namespace each.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use inband_dataplane::falcon::FalconConfig;
use inband_falcon::limits::{EXECUTORS_MAX, LOCAL_EXECUTORS_MAX};
use inband_falcon::resources::ResourceNames;
use inband_lab::cluster_dir::ClusterDir;
use inband_lab::lab::HOST_INTERFACE;
use inband_lab::line_json::{self, Server};
use inband_lab::netns::NETNS_DIR;
use inband_lab::{preflight, Lab, LabError, LabSpec};
use inband_paxos::config::Dataplane;
use inband_paxos::durable::StateLock;
use inband_paxos::key_file::KeyFile;

use super::hosts::Host;
use super::remote::{self, Reply, Request};
use super::scheduler::SchedulerOptions;
use super::status::{ClusterStatus, Door, SchedulerReply, SchedulerRequest, SchedulerStatus};
use crate::flair::status::Process;

/// How long the executors may take until they are known.
const READY_LIMIT: Duration = Duration::from_secs(20);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long the scheduler may take to answer before it counts as silent.
const STATUS_LIMIT: Duration = Duration::from_millis(500);
/// How long workers may take to end what they run.
const END_LIMIT: Duration = Duration::from_secs(3);
const SCHEDULER: &str = "scheduler";
/// The host from which clients use a cluster that has a network of its own.
const CLIENT: &str = "client";

/// What `inband falcon up` is asked for.
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
    // Dropped first: no request meets a cluster that is being taken apart.
    server: Option<Server>,
    shared: Arc<Shared>,
}

struct Shared {
    spec: FalconSpec,
    notice: String,
    door: Door,
    /// The scheduler first.
    hosts: Vec<Host>,
    /// One kill or restart at a time.
    operation: Mutex<()>,
    has_ended: Mutex<bool>,
    ended: Condvar,
    // In the order of removal: processes (in hosts), network, lock.
    _lab: Option<Lab>,
    _lock: StateLock,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn host_dir(data: &Path, name: &str) -> PathBuf {
    data.join("hosts").join(name.replace('/', "-"))
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
    let path = spec.data.as_os_str().as_encoded_bytes();
    let make = || -> Result<Lab, LabError> {
        preflight::check_lab()?;
        let lab = Lab::create(&LabSpec {
            // Another one for every directory.
            name: format!("falcon-{:08x}", inband_dataplane::wire::digest(path) as u32),
            hosts: names.to_vec(),
            seed: 1,
        })?;
        // The way in which the scheduler will attach its program.
        drop(lab.host(SCHEDULER)?.attach_pass()?);
        Ok(lab)
    };
    match make() {
        Ok(lab) => Ok((Some(lab), "scheduler in the kernel: XDP works here".into())),
        Err(error @ (LabError::InUse { .. } | LabError::BadLayout(_))) => Err(error.into()),
        Err(error) if spec.dataplane == Dataplane::Auto => Ok((
            None,
            format!("scheduler in user space, at {}: {error}", spec.listen),
        )),
        Err(error) => Err(error.into()),
    }
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
        fs::create_dir_all(&spec.data)
            .with_context(|| format!("--data: cannot create {}", spec.data.display()))?;
        spec.data = fs::canonicalize(&spec.data)?;
        let state_lock = StateLock::take(&spec.data).with_context(|| {
            let data = spec.data.display();
            format!("does another `inband falcon up` run in {data}?")
        })?;
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
            has_ended: Mutex::new(false),
            ended: Condvar::new(),
            _lab: lab,
            _lock: state_lock,
        });
        shared.begin()?;
        let server = serve(&shared)?;
        Ok(Cluster {
            server: Some(server),
            shared,
        })
    }

    /// Everything about it.
    pub fn status(&self) -> ClusterStatus {
        self.shared.status()
    }

    /// Wait so long for `inband falcon down`. Has it come?
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let ended = lock(&self.shared.has_ended);
        let waited = self.shared.ended.wait_timeout_while(ended, limit, |e| !*e);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.server = None;
        let _operation = lock(&self.shared.operation);
        self.shared.end_processes();
        let _ = fs::remove_file(remote::socket_in(&self.shared.spec.data));
    }
}

/// How the scheduler and the workers are started.
fn hosts(spec: &FalconSpec, door: &Door, lab: Option<&Lab>) -> Result<Vec<Host>> {
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
        Ok(Host::new(&name, &spec.program, args, &dir, network))
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
        None => Vec::new(),
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
        workers.iter().try_for_each(Host::start)?;
        let executors = self.spec.executors as u32;
        self.wait_until(&self.hosts, |status| status.executors().0 >= executors)
    }

    /// Start a process, and wait until it is there.
    fn start(&self, host: &Host) -> Result<()> {
        if host.name() == SCHEDULER {
            // A stale socket would be asked instead of the new one.
            let _ = fs::remove_file(socket_of_scheduler(&self.spec.data));
        }
        host.start()?;
        if host.name() == SCHEDULER {
            return self.wait_until(std::slice::from_ref(host), |_| true);
        }
        Ok(())
    }

    /// Wait until this is so of what the scheduler says. None of the processes `of` may end meanwhile.
    fn wait_until(&self, of: &[Host], is_so: impl Fn(&SchedulerStatus) -> bool) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            if self.scheduler_status().is_some_and(|status| is_so(&status)) {
                return Ok(());
            }
            for host in of {
                ensure!(
                    host.entry().process != Process::Ended,
                    "{} ended: {}",
                    host.name(),
                    host.log_tail()
                );
            }
            ensure!(
                Instant::now() < deadline,
                "scheduler and executors do not know each other after {} s; logs are in {}",
                READY_LIMIT.as_secs(),
                self.spec.data.join("hosts").display()
            );
            thread::sleep(READY_POLL_INTERVAL);
        }
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
            processes: self.hosts.iter().map(Host::entry).collect(),
            scheduler: self.scheduler_status(),
        }
    }

    fn named(&self, name: &str) -> Result<&Host> {
        let found = self.hosts.iter().find(|host| host.name() == name);
        found.with_context(|| {
            let names: Vec<&str> = self.hosts.iter().map(Host::name).collect();
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
            bail!("{name} does not run; start it: inband falcon restart {name}");
        }
        Ok(name.to_owned())
    }

    fn restart(&self, name: &str) -> Result<String> {
        let _operation = lock(&self.operation);
        self.start(self.named(name)?)?;
        Ok(name.to_owned())
    }

    /// Workers end what they run.
    fn end_processes(&self) {
        self.hosts.iter().for_each(Host::tell_to_end);
        let deadline = Instant::now() + END_LIMIT;
        for host in &self.hosts {
            host.wait_for_end(deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn end(&self) {
        *lock(&self.has_ended) = true;
        self.ended.notify_all();
    }
}

fn serve(shared: &Arc<Shared>) -> Result<Server> {
    let path = remote::socket_in(&shared.spec.data);
    let shared = Arc::clone(shared);
    let handle = move |request: Request| {
        let done = match request {
            Request::Status => return Reply::Status(Box::new(shared.status())),
            Request::Door => return Reply::Door(shared.door.clone()),
            Request::Kill { role } => shared.kill(&role),
            Request::Restart { role } => shared.restart(&role),
            Request::Down => {
                shared.end();
                Ok("all".into())
            }
        };
        match done {
            Ok(process) => Reply::Done { process },
            Err(error) => Reply::Error {
                message: format!("{error:#}"),
            },
        }
    };
    Server::start(&path, handle, |message| Reply::Error { message })
        .with_context(|| format!("cannot listen at {}", path.display()))
}
