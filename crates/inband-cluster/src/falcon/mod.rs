//! Clusters of Falcon: a scheduler and workers on this machine, as processes on loopback or, if the scheduler is to run
//! in the kernel, each in a namespace (docs/falcon.md).

mod command;
mod scheduler_options;
pub mod status;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_falcon::dataplane::FalconConfig;
use inband_falcon::limits::{EXECUTORS_MAX, LOCAL_EXECUTORS_MAX};
use inband_falcon::resources::ResourceNames;
use inband_host::config::Dataplane;
use inband_host::key_watch::LOOK_INTERVAL;
use inband_host::line_json::{self, STATUS_TIMEOUT};
use inband_host::settings::Setting;
use serde::{Deserialize, Serialize};

use crate::host_process::HostProcess;
use crate::keys;
use crate::network::{Network, HOST_INTERFACE, NETNS_DIR};
use crate::socket::{request, unexpected};
use crate::supervisor::{host_dir, Hosts, Supervisor};
use crate::system::{HostPlan, Plan, System};

pub use command::default_executors;
pub use scheduler_options::SchedulerOptions;
use status::{ClusterAddress, ClusterStatus, SchedulerReply, SchedulerRequest, SchedulerStatus};

/// The scheduler's default address.
pub const DEFAULT_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7480);
const SCHEDULER: &str = "scheduler";
/// The host from which clients use a cluster with its own network.
const CLIENT: &str = "client";

#[derive(Debug, Clone)]
pub struct FalconSpec {
    /// The `inband` program.
    pub program: PathBuf,
    /// Directory of the cluster.
    pub data: PathBuf,
    /// Where the scheduler listens, unless the cluster has its own network.
    pub listen: SocketAddrV4,
    pub scheduler: SchedulerOptions,
    /// Where the scheduler's role runs.
    pub dataplane: Dataplane,
    /// Executors on this machine.
    pub executors: usize,
    /// The executors' resources.
    pub resources: Vec<String>,
    /// The executors' Python interpreter.
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

    /// Returns the number of executors of each worker.
    fn workers(&self) -> Vec<usize> {
        let of_worker = usize::from(EXECUTORS_MAX);
        let firsts = (0..self.executors).step_by(of_worker);
        firsts
            .map(|first| (self.executors - first).min(of_worker))
            .collect()
    }
}

pub type Cluster = Supervisor<Falcon>;

/// Falcon, as a [`System`] of the supervisor.
pub struct Falcon {
    spec: FalconSpec,
    notice: String,
    address: ClusterAddress,
}

/// Requests to the supervisor that only Falcon has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Answered by [`Reply::Address`], even while a process is being started.
    Address,
    Settings,
    RotateKey,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Address(ClusterAddress),
    Settings(Vec<Setting>),
    /// To [`Request::RotateKey`]: the id of the new key, which all processes now use.
    KeyRotated {
        id: u16,
    },
}

fn socket_of_scheduler(data: &Path) -> PathBuf {
    socket_of(data, SCHEDULER)
}

fn socket_of(data: &Path, process: &str) -> PathBuf {
    host_dir(data, process).join("control.sock")
}

impl System for Falcon {
    const NAME: &'static str = "Falcon";
    const COMMAND: &'static str = "falcon";
    const DEFAULT_DATA: &'static str = ".inband-falcon";
    /// Workers first stop what they run.
    const STOP_TIMEOUT: Duration = Duration::from_secs(3);

    type Spec = FalconSpec;
    type Status = ClusterStatus;
    type Request = Request;
    type Reply = Reply;

    fn data(spec: &mut FalconSpec) -> &mut PathBuf {
        &mut spec.data
    }

    fn plan(spec: FalconSpec) -> Result<(Falcon, Plan)> {
        spec.check()?;
        let address = ClusterAddress {
            data: spec.data.clone(),
            scheduler: spec.listen,
            key_file: keys::kept(&spec.data, spec.authenticated)?,
            namespace: None,
        };
        let workers = (0..spec.workers().len()).map(|n| format!("worker/{n}"));
        let hosts = [SCHEDULER.to_owned()]
            .into_iter()
            .chain(workers)
            .chain([CLIENT.to_owned()])
            .collect();
        let plan = Plan {
            hosts,
            dataplane: spec.dataplane,
            listener_ports: vec![spec.listen.port()],
        };
        let falcon = Falcon {
            spec,
            notice: String::new(),
            address,
        };
        Ok((falcon, plan))
    }

    fn configure(&mut self, network: &Network) -> Result<Vec<HostPlan>> {
        let (spec, address) = (&self.spec, &mut self.address);
        if let Some(lab) = network.lab() {
            let scheduler = lab.host(SCHEDULER)?.address();
            address.scheduler = SocketAddrV4::new(scheduler, spec.listen.port());
            let client = lab.host(CLIENT)?;
            address.namespace = Some(Path::new(NETNS_DIR).join(client.namespace().name()));
        }
        self.notice = match (network.lab(), spec.dataplane) {
            (Some(_), _) => format!("scheduler in the kernel: {}", network.why()),
            (None, Dataplane::Udp) => format!("scheduler in user space, at {}", spec.listen),
            (None, _) => format!(
                "scheduler in user space, at {}: {}",
                spec.listen,
                network.why()
            ),
        };
        let mut scheduler =
            HostPlan::new(SCHEDULER, &spec.program).args(scheduler_args(spec, address));
        scheduler.socket = Some(socket_of_scheduler(&spec.data));
        let mut plans = vec![scheduler];
        for (number, executors) in spec.workers().into_iter().enumerate() {
            let name = format!("worker/{number}");
            let args = worker_args(spec, address, &name, executors);
            let mut plan = HostPlan::new(&name, &spec.program).args(args);
            plan.socket = Some(socket_of(&spec.data, &name));
            plans.push(plan);
        }
        Ok(plans)
    }

    /// Workers are started only once the scheduler answers.
    fn is_up(&self, host: &str) -> bool {
        host != SCHEDULER || self.scheduler_status().is_some()
    }

    fn ready(&self, _hosts: &Hosts) -> Result<(), String> {
        let executors = self.spec.executors as u32;
        let knows = |status: &SchedulerStatus| status.executors().0 >= executors;
        match self.scheduler_status().as_ref().is_some_and(knows) {
            true => Ok(()),
            false => Err("scheduler and executors do not know each other".into()),
        }
    }

    fn status(&self, hosts: &Hosts) -> ClusterStatus {
        ClusterStatus {
            address: self.address.clone(),
            supervisor_pid: std::process::id(),
            notice: self.notice.clone(),
            processes: hosts.iter().map(HostProcess::status).collect(),
            scheduler: self.scheduler_status(),
        }
    }

    fn request(&self, request: Request, hosts: &Hosts) -> Result<Reply> {
        Ok(match request {
            Request::Address => Reply::Address(self.address.clone()),
            Request::Settings => Reply::Settings(self.spec.scheduler.settings()),
            Request::RotateKey => Reply::KeyRotated {
                id: self.rotate_key(hosts)?,
            },
        })
    }

    fn is_in_unmarked(data: &Path) -> bool {
        host_dir(data, SCHEDULER).is_dir()
    }
}

impl Falcon {
    fn scheduler_status(&self) -> Option<SchedulerStatus> {
        let socket = socket_of_scheduler(&self.spec.data);
        match line_json::call(&socket, &SchedulerRequest::Status, STATUS_TIMEOUT) {
            Ok(SchedulerReply::Status(status)) => Some(*status),
            _ => None,
        }
    }

    /// Only on this machine: workers elsewhere have copies of the file.
    fn rotate_key(&self, hosts: &Hosts) -> Result<u16> {
        let _operation = hosts.exclusive();
        let key_file = self.address.key_file.as_deref();
        let key_file = key_file.context("this cluster was started without a key")?;
        let own: Vec<_> = hosts.iter().map(HostProcess::name).collect();
        let workers = self.scheduler_status().map(|status| status.workers);
        let mut elsewhere = workers.iter().flatten().map(|worker| &worker.name[..]);
        if let Some(worker) = elsewhere.find(|name| !own.contains(name)) {
            bail!("the worker {worker} is not this cluster's own: replace its key file by hand, as docs/security.md says");
        }
        let running = own.iter().filter(|name| hosts.is_running(name));
        let sockets: Vec<_> = running
            .map(|name| ((*name).to_owned(), socket_of(&self.spec.data, name)))
            .collect();
        keys::rotate(
            key_file,
            &sockets,
            2 * LOOK_INTERVAL,
            |socket| match line_json::call(
                socket,
                &SchedulerRequest::ReloadKeys,
                keys::RELOAD_LIMIT,
            )? {
                SchedulerReply::Keys(keys) => Ok(keys),
                other => bail!("it says {other:?}"),
            },
        )
    }
}

/// Returns the address of the cluster in a directory.
pub fn address_of(data: &Path) -> Result<ClusterAddress> {
    match request::<Falcon>(data, Request::Address)? {
        Reply::Address(address) => Ok(address),
        other => unexpected(&other),
    }
}

/// Parses a scheduler's `host:port`.
pub fn parse_address(text: &str) -> Result<SocketAddrV4, String> {
    let found = text
        .to_socket_addrs()
        .map_err(|error| format!("{error}; give HOST:PORT"))?;
    let mut v4 = found.filter_map(|address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    });
    v4.next()
        .ok_or_else(|| "it has no IPv4 address, which Falcon needs".into())
}

fn scheduler_args(spec: &FalconSpec, address: &ClusterAddress) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["falcon".into(), "scheduler".into()];
    args.push(format!("--listen={}", address.scheduler).into());
    args.extend(["--socket".into(), socket_of_scheduler(&spec.data).into()]);
    if address.namespace.is_some() {
        args.push(format!("--dataplane={}", spec.dataplane).into());
        args.push(format!("--interface={HOST_INTERFACE}").into());
    }
    args.extend(key_args(address));
    args.extend(spec.scheduler.to_args());
    args
}

fn worker_args(
    spec: &FalconSpec,
    address: &ClusterAddress,
    name: &str,
    executors: usize,
) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["falcon".into(), "worker".into()];
    args.push(format!("--scheduler={}", address.scheduler).into());
    args.push(format!("--executors={executors}").into());
    args.push(format!("--name={name}").into());
    args.extend(["--socket".into(), socket_of(&spec.data, name).into()]);
    args.extend(["--python".into(), spec.python.clone().into()]);
    args.extend(key_args(address));
    let resources = spec.resources.iter();
    args.extend(resources.map(|name| format!("--resource={name}").into()));
    args
}

fn key_args(address: &ClusterAddress) -> Vec<OsString> {
    match &address.key_file {
        Some(path) => vec!["--key-file".into(), path.into()],
        // `up --no-key` has asked for it.
        None => vec!["--no-key".into()],
    }
}
