//! All hosts of FLAIR on this machine: a namespace each if that is possible, else processes on loopback.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_flair::config::{Balance, ClusterConfig, Part, GATEWAY};
use inband_flair::reads::Reads;
use inband_host::line_json::Server;
use inband_host::state_dir::StateLock;
use inband_lab::cluster_dir::ClusterDir;
use inband_lab::process::{ProcessSpec, SupervisedChild};
use inband_lab::restart::Watcher;
use inband_lab::supervisor::listeners;
use inband_lab::Lab;
use inband_paxos::config::{Dataplane, Durability, DEFAULT_PORT};

use super::hosts::{cluster_config, existing_log, host, names, Host};
use super::keys;
use super::record::Record;
use super::remote::{Reply, Request};
use super::role::{self, Role};
use super::status::ClusterStatus;
use super::SERVICE;
use crate::host_process::Process;
use crate::{lock, socket, wait_until_ready, End};

/// What `inband up flair` is asked for.
#[derive(Debug, Clone)]
pub struct FlairSpec {
    /// The `inband` program.
    pub program: PathBuf,
    /// Directory of the cluster.
    pub data: PathBuf,
    /// Replica sets.
    pub sets: usize,
    /// Storage nodes of each.
    pub replicas: usize,
    /// Switches.
    pub switches: usize,
    /// Key groups of each set.
    pub groups: u32,
    /// How reads are answered.
    pub reads: Reads,
    /// How reads are spread.
    pub balance: Balance,
    /// Between two heartbeats, in milliseconds.
    pub heartbeat_ms: u64,
    /// Without a heartbeat for so long a switch serves no more, in milliseconds.
    pub step_down_ms: u64,
    /// What survives when all hosts end.
    pub durability: Durability,
    /// Where the switches' role runs.
    pub dataplane: Dataplane,
    /// Where Redis clients connect.
    pub resp: SocketAddr,
    /// Who is let in.
    pub security: Security,
}

/// What keeps strangers out. The default is nothing.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// Packets carry tags.
    pub authenticated: bool,
    /// Replicas talk to each other over TLS.
    pub tls: bool,
    /// Redis clients must speak TLS.
    pub resp_tls: bool,
    /// Redis clients must say the password in this file.
    pub password_file: Option<PathBuf>,
}

/// A running cluster. Everything ends and is removed when it is dropped.
pub struct Cluster {
    // Dropped first: no request meets a cluster that is being taken apart, and nothing of it is started again.
    watcher: Option<Watcher>,
    server: Option<Server>,
    shared: Arc<Shared>,
}

struct Shared {
    spec: FlairSpec,
    notice: String,
    config: ClusterConfig,
    hosts: Vec<Host>,
    /// One kill or restart at a time.
    operation: Mutex<()>,
    /// Which host `leader`, `switch` or `follower/N` meant when it was killed.
    last: Mutex<BTreeMap<String, String>>,
    end: End,
    front_door: TcpListener,
    // In the order of removal: processes (in hosts), network, lock.
    lab: Option<Lab>,
    _lock: StateLock,
}

/// The network: a lab where that works, unless told otherwise. The line says which, and why.
fn network(spec: &FlairSpec, names: &[String]) -> Result<(Option<Lab>, String)> {
    if spec.dataplane == Dataplane::Udp {
        return Ok((None, "switch udp: as asked for".into()));
    }
    Ok(match SERVICE.network(&spec.data, spec.dataplane, names)? {
        Ok(lab) => (Some(lab), "switch in the kernel: XDP works here".into()),
        Err(why) => (None, format!("switch udp: {why}")),
    })
}

impl Cluster {
    /// Start all hosts and wait until a session serves.
    pub fn start(mut spec: FlairSpec) -> Result<Cluster> {
        let (data, state_lock) = SERVICE.take_directory(&spec.data)?;
        spec.data = data;
        let begins = Record::check(Record::read(&spec.data)?, &spec)?;
        if let Some(log) = existing_log(&spec).filter(|_| begins) {
            bail!(
                "there is a log of another cluster in {}; remove it, or choose another --data",
                log.display()
            );
        }
        let front_door = listeners::bind(spec.resp, "--resp")?;
        let names = names(&spec);
        let (lab, notice) = network(&spec, &names)?;
        let addresses = match &lab {
            Some(lab) => {
                let hosts = lab.hosts();
                let address =
                    |h: &Arc<inband_lab::Host>| SocketAddrV4::new(h.address(), DEFAULT_PORT);
                hosts.iter().map(address).collect()
            }
            None => {
                let doors = [spec.resp.port()];
                let network = SERVICE.network_name(&spec.data);
                listeners::free_loopback_ports(&network, names.len(), &[], &doors)?
            }
        };
        let config = cluster_config(&spec, &names, &addresses);
        if let Some(path) = &config.key_file {
            keys::prepare(path, begins)?;
        }
        if begins {
            Record::of(&spec).write(&spec.data)?;
        }
        let hosts = names
            .iter()
            .zip(&addresses)
            .map(|(name, address)| host(&spec, &config, name, *address, lab.as_ref()))
            .collect::<Result<_>>()?;
        let shared = Arc::new(Shared {
            spec,
            notice,
            config,
            hosts,
            operation: Mutex::default(),
            last: Mutex::default(),
            end: End::default(),
            front_door,
            lab,
            _lock: state_lock,
        });
        let spawn = |host: &Host| shared.spawn(host, true);
        shared.hosts.iter().try_for_each(spawn)?;
        shared.wait_until_serving()?;
        let server = serve(&shared)?;
        let watched = Arc::clone(&shared);
        let watcher = Watcher::start(move || watched.restart_ended())?;
        Ok(Cluster {
            watcher: Some(watcher),
            server: Some(server),
            shared,
        })
    }

    /// Where the switches' role runs, and why.
    pub fn notice(&self) -> &str {
        &self.shared.notice
    }

    /// Every host.
    pub fn status(&self) -> ClusterStatus {
        self.shared.status()
    }

    /// The network of its hosts, if they have one of their own.
    pub fn lab(&self) -> Option<&Lab> {
        self.shared.lab.as_ref()
    }

    /// What all hosts agree on.
    pub fn config(&self) -> &ClusterConfig {
        &self.shared.config
    }

    /// Kill the process of a role or host. Which host that was.
    pub fn kill(&self, role: &str) -> Result<String> {
        self.shared.kill(role)
    }

    /// Start it again.
    pub fn restart(&self, role: &str) -> Result<String> {
        self.shared.restart(role)
    }

    /// The gateway's configuration, for others who are clients from its host.
    pub fn gateway_config(&self) -> PathBuf {
        let gateway = self.shared.hosts.last().expect("a cluster has a gateway");
        gateway.dir.join("config.toml")
    }

    /// Run a program on the gateway's host, to its end.
    pub fn run_beside_gateway(
        &self,
        program: &Path,
        arguments: Vec<OsString>,
        limit: Duration,
    ) -> Result<()> {
        let process = ProcessSpec::new(program).args(arguments);
        let mut child = match &self.shared.lab {
            Some(lab) => lab.host(GATEWAY)?.spawn(&process)?,
            None => SupervisedChild::spawn(&process, None)?,
        };
        ensure!(
            child.wait_for_exit(limit),
            "it did not end in {} s",
            limit.as_secs()
        );
        match child.exit_status() {
            Some(status) if status.success() => Ok(()),
            how => bail!("it failed ({how:?})"),
        }
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
        for host in &self.shared.hosts {
            host.process.kill();
        }
    }
}

impl Shared {
    /// Start a host's process. `is_first`: all hosts are started, and one of the replicas of each set founds the group
    /// if none is in one.
    fn spawn(&self, host: &Host, is_first: bool) -> Result<()> {
        // A stale socket would be asked instead of the new one.
        let _ = fs::remove_file(&host.config.host.socket);
        let mut process = host.process.spec();
        let is_founder = host.member().is_some_and(|(_, number)| number == 0);
        if is_first && is_founder {
            process = process.args(["--found"]);
        }
        if host.config.part() == Some(Part::Gateway) {
            process.listeners = vec![(self.front_door.as_fd(), "resp")];
        }
        host.process.start(process)
    }

    /// Start again what has ended by itself. Not while somebody kills or starts a host.
    fn restart_ended(&self) {
        let Ok(_operation) = self.operation.try_lock() else {
            return;
        };
        for host in &self.hosts {
            host.process.restart_if_due(|| self.spawn(host, false));
        }
    }

    fn wait_until_serving(&self) -> Result<()> {
        let processes = self.hosts.iter().map(|host| &host.process);
        wait_until_ready(&self.spec.data, processes, "no session serves", || {
            let status = self.status();
            let answer = status.hosts.iter().all(|host| host.status.is_some());
            let serves = |set| status.switch_of(set).is_some();
            answer && (0..status.sets as u16).all(serves)
        })
    }

    fn status(&self) -> ClusterStatus {
        ClusterStatus {
            data: self.spec.data.clone(),
            supervisor_pid: std::process::id(),
            network: match self.lab {
                Some(_) => "namespaces".into(),
                None => "loopback".into(),
            },
            // With port 0 it is any.
            resp: self.front_door.local_addr().unwrap_or(self.spec.resp),
            sets: self.spec.sets,
            groups: self.config.groups,
            balance: self.config.balance.to_string(),
            durability: self.spec.durability,
            hosts: self.hosts.iter().map(Host::entry).collect(),
        }
    }

    /// The host that a role means now.
    fn resolve(&self, role: &str) -> Result<&Host> {
        match Role::parse(role, self.spec.sets)? {
            Role::Host => self.named(role),
            Role::Leader(set) => {
                let status = self.status();
                let (leader, _) = status.leader_of(set).context("no replica leads now")?;
                self.named(&leader.name)
            }
            Role::Switch => {
                let status = self.status();
                let switch = status.switch().context("no session serves now")?;
                self.named(&switch.name)
            }
            Role::Follower(set, number) => {
                let status = self.status();
                let leader = status.leader_of(set).map(|(host, _)| &host.name);
                let members = status.hosts.iter().filter(|host| host.set == Some(set));
                let mut followers = members.filter(|host| Some(&host.name) != leader);
                let follower = followers.nth(number);
                let follower = follower.with_context(|| format!("there is no {role}"))?;
                self.named(&follower.name)
            }
        }
    }

    fn named(&self, name: &str) -> Result<&Host> {
        let names = || {
            let names: Vec<&str> = self.hosts.iter().map(Host::name).collect();
            names.join(", ")
        };
        self.hosts
            .iter()
            .find(|host| host.name() == name)
            .with_context(|| {
                format!(
                    "no host is {name:?}; there are {}, {}",
                    role::names(self.spec.sets),
                    names()
                )
            })
    }

    fn kill(&self, role: &str) -> Result<String> {
        let _operation = lock(&self.operation);
        let host = self.resolve(role)?;
        ensure!(
            host.process.kill(),
            "{} does not run; start it: inband restart {}",
            host.name(),
            host.name()
        );
        lock(&self.last).insert(role.to_owned(), host.name().to_owned());
        Ok(host.name().to_owned())
    }

    fn restart(&self, role: &str) -> Result<String> {
        let _operation = lock(&self.operation);
        let last = lock(&self.last).get(role).cloned();
        let host = match last {
            Some(name) => self.named(&name)?,
            None => self.resolve(role)?,
        };
        self.spawn(host, false)?;
        lock(&self.last).remove(role);
        Ok(host.name().to_owned())
    }

    fn rotate_key(&self) -> Result<String> {
        let _operation = lock(&self.operation);
        ensure!(
            self.spec.security.authenticated,
            "this cluster was started without a key"
        );
        let runs = |host: &&Host| host.process.state().0 == Process::Running;
        let running = self.hosts.iter().filter(runs);
        let sockets: Vec<_> = running
            .map(|host| (host.name().to_owned(), host.config.host.socket.clone()))
            .collect();
        let id = keys::rotate(&ClusterDir::key_file_in(&self.spec.data), &sockets)?;
        Ok(format!("key {id}"))
    }
}

fn serve(shared: &Arc<Shared>) -> Result<Server> {
    let data = shared.spec.data.clone();
    let shared = Arc::clone(shared);
    let answer = move |request| {
        let host = match request {
            Request::Status => return Ok(Reply::Status(Box::new(shared.status()))),
            Request::Kill { role } => shared.kill(&role)?,
            Request::Restart { role } => shared.restart(&role)?,
            Request::RotateKey => shared.rotate_key()?,
            Request::Down => {
                shared.end.come();
                "all".into()
            }
        };
        Ok(Reply::Done { host })
    };
    socket::serve(&data, answer, |message| Reply::Error { message })
}
