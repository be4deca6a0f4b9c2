//! Runs a whole cluster on this machine: creates the network, generates a configuration per host, starts `inband run`
//! for each, and can kill, pause, restart and stop them.
//!
//! A [`Supervisor`] also listens at `supervisor.sock` in the cluster's directory, so that other processes can control
//! it through [`remote`].

mod down;
mod error;
mod keys;
mod members;
mod operate;
mod plane;
pub mod remote;
mod start;

use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use inband_paxos::config::{Dataplane, NodeConfig, Role};
use serde::{Deserialize, Serialize};

use inband_control::service;

pub use down::DownReport;
pub use error::SupervisorError;
pub use members::MemberKind;

use crate::host_process::{Process, ProcessSlot};
use crate::loopback_ports::HeldPort;
use crate::meant::Meant;
use crate::network::{Lab, LabError, LinkCounters};
use crate::paxos::cluster_dir::{ClusterDir, ClusterRecord};
use crate::paxos::control::{self, HostStatus};
use crate::paxos::layout::{ClusterSpec, HostPlan};
use crate::paxos::memory::MemoryNeed;
use crate::restart::Watcher;
use crate::supervisor::lock;
use inband_host::line_json::{Server, STATUS_TIMEOUT};

/// The state of a host's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum ProcessState {
    Running,
    /// Until it is resumed, its packets are held (lab), or it is stopped (UDP).
    Paused,
    /// Killed on request.
    Killed,
    /// It ended by itself.
    Ended {
        /// Its exit status.
        how: String,
    },
}

impl ProcessState {
    fn of(process: Process, last_exit: Option<&str>) -> ProcessState {
        match process {
            Process::Running => ProcessState::Running,
            Process::Paused => ProcessState::Paused,
            Process::Killed => ProcessState::Killed,
            Process::Ended => ProcessState::Ended {
                how: last_exit.unwrap_or("stopped").to_owned(),
            },
        }
    }
}

/// One host in a [`ClusterStatus`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostEntry {
    /// Id of the node.
    pub id: u8,
    /// `leader/0`, `acceptor/0`, `replica/0`, ...
    pub name: String,
    pub roles: Vec<Role>,
    /// Where its packet roles run. An acceptor with a journal runs in user space; beside another role, that one counts.
    pub dataplane: Dataplane,
    /// Where its packets go.
    pub address: SocketAddrV4,
    /// Its process id, if a process was started.
    pub pid: Option<u32>,
    #[serde(flatten)]
    pub process: ProcessState,
    /// How often it was restarted after it had ended by itself.
    #[serde(default)]
    pub restarts: u32,
    /// How it last ended by itself.
    #[serde(default)]
    pub last_exit: Option<String>,
    /// RESP address of this replica alone.
    pub resp: Option<SocketAddr>,
    /// Where it serves `/metrics`.
    pub metrics: Option<SocketAddr>,
    /// Its own status; `None` if it does not answer.
    pub status: Option<HostStatus>,
    /// In a lab: the counters of frames on its link.
    pub link: Option<LinkCounters>,
}

/// The status of the whole cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub name: String,
    /// The cluster's directory.
    pub data: PathBuf,
    /// The supervisor's process id.
    pub supervisor_pid: u32,
    /// The highest configuration epoch that any host is in.
    pub epoch: u32,
    /// Partitions of the key space.
    pub partitions: u32,
    /// By log: the first instance of the epoch in which this start began.
    pub first_instances: Vec<u64>,
    /// The default dataplane of roles.
    pub dataplane: Dataplane,
    /// `namespaces` or `loopback`.
    pub network: String,
    /// What a vote survives.
    pub durability: String,
    /// Slots of each acceptor's ring, per log.
    pub ring_slots: u32,
    /// Memory that the rings of one acceptor take.
    pub acceptor_rings_bytes: u64,
    /// Address for clients.
    pub resp: SocketAddr,
    /// By log: the host that leads now.
    pub leaders: Vec<Option<String>>,
    /// All hosts, in the order of their ids.
    pub hosts: Vec<HostEntry>,
}

impl ClusterStatus {
    /// Returns the host that leads a log now.
    pub fn leader(&self, log: usize) -> Option<&str> {
        self.leaders.get(log)?.as_deref()
    }
}

/// A running cluster. Dropping it kills and removes everything; call [`down`](Self::down) first, or the next start
/// finds an unclean stop.
#[derive(Debug)]
pub struct Supervisor {
    // Dropped first, so that no request reaches a cluster that is being taken apart, and none of it is restarted.
    watcher: Option<Watcher>,
    server: Option<Server>,
    shared: Arc<Shared>,
}

/// State shared by requests on the socket and the owner's own calls.
#[derive(Debug)]
struct Shared {
    spec: ClusterSpec,
    /// Resolved: never [`Dataplane::Auto`].
    dataplane: Dataplane,
    notices: Vec<String>,
    /// In the order of their ids.
    hosts: Mutex<Vec<Arc<HostRuntime>>>,
    /// Held for one kill, restart, ... or down at a time.
    operation: Mutex<()>,
    /// Held for one membership change at a time. Locked before `operation`, which a change holds only briefly, so that
    /// hosts can be killed while a change waits.
    membership: Mutex<()>,
    /// What a membership change is doing.
    progress: Mutex<Option<String>>,
    /// The cluster is stopping: membership changes are aborted.
    stopping: AtomicBool,
    meant: Mutex<Meant>,
    client_listener: Mutex<Option<TcpListener>>,
    record: Mutex<ClusterRecord>,
    ended: Mutex<Option<DownReport>>,
    ended_signal: Condvar,
    // In the order of removal: processes are gone (hosts) before the network and the lock.
    lab: Option<Lab>,
    dir: ClusterDir,
}

/// A host. Only its process changes.
#[derive(Debug)]
struct HostRuntime {
    id: u8,
    plan: HostPlan,
    /// Resolved: never [`Dataplane::Auto`].
    dataplane: Dataplane,
    address: SocketAddrV4,
    /// On loopback: the same address.
    _held_port: Option<HeldPort>,
    dir: PathBuf,
    resp: Option<SocketAddr>,
    process: ProcessSlot,
    /// Where its process serves `/metrics`.
    metrics: Mutex<Option<SocketAddr>>,
}

impl HostRuntime {
    fn name(&self) -> &str {
        &self.plan.name
    }
    /// Returns the host's entry in every host's configuration.
    fn node(&self) -> NodeConfig {
        NodeConfig {
            id: self.id,
            name: self.plan.name.clone(),
            address: self.address,
            control_plane: None, // at the next port
            roles: self.plan.roles.clone(),
        }
    }
    fn socket(&self) -> PathBuf {
        control_socket(&self.dir)
    }
    fn config(&self) -> PathBuf {
        self.dir.join("config.toml")
    }
    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }
    fn pid_file(&self) -> PathBuf {
        self.dir.join("pid")
    }

    fn is_running(&self) -> bool {
        self.process.state().0 == Process::Running
    }
}

impl Supervisor {
    /// Starts a cluster and waits until it has a leader and voting acceptors.
    pub fn start(spec: ClusterSpec) -> Result<Self, SupervisorError> {
        Self::start_unless(spec, &|| false)
    }

    /// As [`Supervisor::start`]; while it waits, it asks often whether to give up, and then stops what it has started.
    pub fn start_unless(
        spec: ClusterSpec,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Self, SupervisorError> {
        let shared = Arc::new(start::start(spec, gives_up)?);
        let server = remote::serve(&shared)?;
        let watched = Arc::clone(&shared);
        let watcher = Watcher::start(move || watched.restart_ended())
            .map_err(LabError::system("start a thread"))?;
        Ok(Self {
            watcher: Some(watcher),
            server: Some(server),
            shared,
        })
    }

    /// Returns what the user should know about the start, one line each: the dataplane and why, what may be missing.
    pub fn notices(&self) -> &[String] {
        &self.shared.notices
    }

    /// Address for clients.
    pub fn resp(&self) -> SocketAddr {
        self.shared.spec.resp
    }

    /// Returns the lab, for injecting faults; `None` on loopback.
    pub fn lab(&self) -> Option<&Lab> {
        self.shared.lab.as_ref()
    }

    /// Queries every host; those that do not answer in time have no [`HostEntry::status`].
    pub fn status(&self) -> ClusterStatus {
        self.shared.status()
    }

    /// Returns the host that a role names: `leader` is the current leader, `leader:2` that of partition 2, `leader:M`
    /// that of log M.
    pub fn host_of(&self, role: &str) -> Result<String, SupervisorError> {
        Ok(self.shared.resolve(role)?.plan.name.clone())
    }

    /// Kills the process of a role at once. Returns the host's name.
    pub fn kill(&self, role: &str) -> Result<String, SupervisorError> {
        self.shared.kill(role)
    }

    /// Restarts the process of a role, killing it first if it runs; `leader` is the host that was killed or paused under
    /// this name, if there is one. Returns the host's name.
    pub fn restart(&self, role: &str) -> Result<String, SupervisorError> {
        self.shared.restart(role)
    }

    /// Stops a host that the others can do without, starts it again, and waits until it votes, has caught up and every
    /// log has a leader. Called for one host after another, it deploys a new version of the program while the cluster
    /// serves.
    pub fn roll(&self, host: &str, limit: Duration) -> Result<String, SupervisorError> {
        self.shared.roll(host, limit)
    }

    /// Holds the packets of a role. Returns the host's name.
    pub fn pause(&self, role: &str) -> Result<String, SupervisorError> {
        self.shared.pause(role)
    }

    /// Undoes a pause; `leader` is the host that was paused under this name. Returns the host's name.
    pub fn resume(&self, role: &str) -> Result<String, SupervisorError> {
        self.shared.resume(role)
    }

    /// Adds a host and waits until it is in service. Returns its name.
    pub fn add_member(&self, kind: MemberKind) -> Result<String, SupervisorError> {
        self.shared.add_member(kind)
    }

    /// Removes a host permanently. Returns its name.
    pub fn remove_member(&self, host: &str) -> Result<String, SupervisorError> {
        self.shared.remove_member(host)
    }

    /// Replaces a host, which may be dead, by a new one. Returns the new host's name.
    pub fn replace_member(&self, host: &str) -> Result<String, SupervisorError> {
        self.shared.replace_member(host)
    }

    /// Makes a host the preferred leader of one partition's log, or of all, and waits until it leads. Returns its name.
    pub fn move_leader(&self, log: Option<u32>, host: &str) -> Result<String, SupervisorError> {
        self.shared.move_leader(log, host)
    }

    /// Sends a request to the control plane, through any host.
    pub fn control_plane(
        &self,
        request: &service::Request,
    ) -> Result<service::Response, SupervisorError> {
        Ok(self.shared.ask_plane(request)?)
    }

    /// Stops the cluster cleanly: drains, waits until replicas are equal, syncs, writes the marker. The processes have
    /// ended on return; the rest is removed when the supervisor is dropped. If that would lose what clients were told is
    /// done, because a replica cannot write it, this fails, and the cluster runs.
    pub fn down(&self) -> Result<DownReport, SupervisorError> {
        self.shared.down(false)
    }

    /// The same, whatever it loses.
    pub fn down_with_loss(&self) -> Result<DownReport, SupervisorError> {
        self.shared.down(true)
    }

    /// Waits up to `limit` until the cluster has been stopped, for example by `inband down`.
    pub fn wait_for_end(&self, limit: Duration) -> Option<DownReport> {
        let ended = lock(&self.shared.ended);
        let (ended, _) = self
            .shared
            .ended_signal
            .wait_timeout_while(ended, limit, |e| e.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        ended.clone()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.watcher = None;
        self.server = None;
        self.shared.kill_all();
    }
}

/// Returns the control socket of the host with this directory.
fn control_socket(host: &Path) -> PathBuf {
    host.join("control.sock")
}

impl Shared {
    /// Returns the host that leads a log: if several claim to, the one with the highest round.
    fn leader_among(statuses: &[Option<HostStatus>], log: usize) -> Option<usize> {
        let round_of = |status: &Option<HostStatus>| {
            let leader = status.as_ref()?.leaders.get(log)?;
            leader.active.then_some(leader.round)
        };
        let rounds = statuses
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((round_of(s)?, i)));
        rounds.max().map(|(_, i)| i)
    }

    /// Returns how many logs the cluster has.
    fn logs(&self) -> usize {
        lock(&self.record).first_instances.len()
    }

    /// Returns the current hosts.
    fn hosts(&self) -> Vec<Arc<HostRuntime>> {
        lock(&self.hosts).clone()
    }

    /// Queries hosts in parallel.
    fn host_statuses(&self, hosts: &[Arc<HostRuntime>]) -> Vec<Option<HostStatus>> {
        thread::scope(|scope| {
            let ask = |host: &HostRuntime| {
                let socket = host.socket();
                host.is_running()
                    .then(|| scope.spawn(move || control::status(&socket, STATUS_TIMEOUT)))
            };
            let asked: Vec<_> = hosts.iter().map(|host| ask(host)).collect();
            asked
                .into_iter()
                .map(|thread| thread?.join().ok()?.ok())
                .collect()
        })
    }

    fn status(&self) -> ClusterStatus {
        let hosts = self.hosts();
        let statuses = self.host_statuses(&hosts);
        let leaders = (0..self.logs())
            .map(|log| Self::leader_among(&statuses, log))
            .map(|index| index.map(|i| hosts[i].plan.name.clone()))
            .collect();
        let epochs = statuses.iter().flatten().map(|status| status.epoch);
        let epoch = epochs.max();
        let durability = lock(&self.record).durability;
        let link = |host: &HostRuntime| self.lab.as_ref()?.counters(host.name()).ok();
        let entries = hosts
            .iter()
            .zip(statuses)
            .map(|(host, status)| {
                let link = link(host);
                let (process, pid) = host.process.state();
                let (restarts, last_exit) = host.process.restarts();
                HostEntry {
                    id: host.id,
                    name: host.plan.name.clone(),
                    roles: host.plan.roles.clone(),
                    dataplane: start::dataplane_of(&host.plan.roles, host.dataplane, durability),
                    address: host.address,
                    pid,
                    process: ProcessState::of(process, last_exit.as_deref()),
                    restarts,
                    last_exit,
                    resp: host.resp,
                    metrics: *lock(&host.metrics),
                    status,
                    link,
                }
            })
            .collect();
        let record = lock(&self.record);
        ClusterStatus {
            name: record.name.clone(),
            data: self.dir.path().to_owned(),
            supervisor_pid: std::process::id(),
            epoch: epoch.unwrap_or(0).max(record.epoch),
            partitions: record.partitions,
            first_instances: record.first_instances.clone(),
            dataplane: self.dataplane,
            network: if self.lab.is_some() {
                "namespaces"
            } else {
                "loopback"
            }
            .to_owned(),
            durability: record.durability.to_string(),
            ring_slots: self.spec.ring_slots,
            acceptor_rings_bytes: MemoryNeed::of(&self.spec).acceptor_rings_bytes,
            resp: self.spec.resp,
            leaders,
            hosts: entries,
        }
    }

    fn kill_all(&self) {
        for host in self.hosts() {
            host.process.kill();
            let _ = std::fs::remove_file(host.pid_file());
            let _ = std::fs::remove_file(host.socket());
        }
        *lock(&self.client_listener) = None;
    }
}
