//! All hosts of FLAIR on this machine: each in a namespace if possible, otherwise as processes on loopback.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::listeners;
use crate::paxos::cluster_dir::ClusterDir;
use anyhow::{bail, ensure, Context, Result};
use inband_flair::config::{Balance, ClusterConfig, GATEWAY};
use inband_flair::reads::Reads;
use inband_host::config::{Dataplane, Durability};
use serde::{Deserialize, Serialize};

use super::hosts::{cluster_config, existing_log, host, names, Host};
use super::keys;
use super::record::{self, Record, FILES};
use super::role::{self, Role};
use super::status::ClusterStatus;
use crate::network::{Lab, Network};
use crate::process::{ProcessSpec, SupervisedChild};
use crate::supervisor::{finish_removal, host_dir, remove_hosts, Hosts, Supervisor};
use crate::system::{is_spare, HostPlan, Plan, System};

#[derive(Debug, Clone)]
pub struct FlairSpec {
    /// The `inband` program.
    pub program: PathBuf,
    /// Directory of the cluster.
    pub data: PathBuf,
    /// Number of replica sets.
    pub sets: usize,
    /// Storage nodes per set.
    pub replicas: usize,
    pub switches: usize,
    /// Key groups per set.
    pub groups: u32,
    pub reads: Reads,
    /// How reads are spread over replicas.
    pub balance: Balance,
    /// Time between two heartbeats, in milliseconds.
    pub heartbeat_ms: u64,
    /// A switch that gets no heartbeat for this long stops serving, in milliseconds.
    pub step_down_ms: u64,
    /// What survives when all hosts stop.
    pub durability: Durability,
    /// Begin with an empty store if that of the directory is lost.
    pub accept_loss: bool,
    /// Where the switches' role runs.
    pub dataplane: Dataplane,
    /// Address for Redis clients.
    pub resp: SocketAddr,
    pub security: Security,
}

/// Authentication and encryption. The default is none.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// Packets carry tags.
    pub authenticated: bool,
    /// Replicas talk to each other over TLS.
    pub tls: bool,
    /// Redis clients must speak TLS.
    pub resp_tls: bool,
    /// Redis clients must give the password in this file.
    pub password_file: Option<PathBuf>,
}

pub type Cluster = Supervisor<Flair>;

/// FLAIR, as a [`System`] of the supervisor.
pub struct Flair {
    spec: FlairSpec,
    /// The cluster is new and does not continue with data of an earlier start.
    begins: bool,
    /// The listener for Redis clients; the gateway inherits it.
    client_listener: Arc<TcpListener>,
    notice: String,
    /// Set once the hosts have addresses.
    config: Option<ClusterConfig>,
    hosts: Vec<Host>,
}

/// Requests to the supervisor that only FLAIR has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Replaces the key that authenticates packets.
    RotateKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::RotateKey`]: the id of the new key, which all hosts now use.
    KeyRotated { id: u16 },
}

impl System for Flair {
    const NAME: &'static str = "FLAIR";
    const COMMAND: &'static str = "flair";
    const DEFAULT_DATA: &'static str = ".inband-flair";

    type Spec = FlairSpec;
    type Status = ClusterStatus;
    type Request = Request;
    type Reply = Reply;

    fn data(spec: &mut FlairSpec) -> &mut PathBuf {
        &mut spec.data
    }

    fn plan(spec: FlairSpec) -> Result<(Flair, Plan)> {
        finish_removal(&spec.data, &FILES)?;
        let was = Record::read(&spec.data)?;
        let begins = Record::begins(was.as_ref(), &spec)?;
        if let Some(log) = existing_log(&spec.data).filter(|_| was.is_none()) {
            bail!(
                "{} has a log, but {} does not say of which cluster: restore that file if there is a copy of it, or choose \
                 another --data",
                log.display(),
                record::path(&spec.data).display()
            );
        }
        let client_listener = Arc::new(listeners::bind(spec.resp, "--resp")?);
        let plan = Plan {
            hosts: names(&spec),
            dataplane: spec.dataplane,
            listener_ports: vec![spec.resp.port()],
        };
        let flair = Flair {
            spec,
            begins,
            client_listener,
            notice: String::new(),
            config: None,
            hosts: Vec::new(),
        };
        Ok((flair, plan))
    }

    fn configure(&mut self, network: &Network) -> Result<Vec<HostPlan>> {
        let (spec, names) = (&self.spec, names(&self.spec));
        let place = if network.lab().is_some() {
            "in the kernel"
        } else {
            "udp"
        };
        self.notice = format!("switch {place}: {}", network.why());
        if self.begins && (spec.accept_loss || existing_log(&spec.data).is_some()) {
            remove_hosts(&spec.data, &FILES)?;
        }
        let config = cluster_config(spec, &names, network.addresses());
        if let Some(path) = &config.key_file {
            keys::prepare(path, self.begins)?;
        }
        let mut plans = Vec::new();
        for name in &names {
            let (host, mut plan) = host(spec, &config, name, network, self.begins)?;
            if name == GATEWAY {
                plan.listeners = vec![(Arc::clone(&self.client_listener), "resp")];
            }
            self.hosts.push(host);
            plans.push(plan);
        }
        if self.begins {
            Record::of(spec).write(&spec.data)?;
        }
        self.config = Some(config);
        Ok(plans)
    }

    fn is_up(&self, host: &str) -> bool {
        self.host(host).is_some_and(|host| host.status().is_some())
    }

    /// Only then may another replica be stopped.
    fn takes_part(&self, host: &str) -> Result<(), String> {
        let replica = self.host(host).filter(|host| host.member().is_some());
        let votes = |replica: &Host| replica.status().is_some_and(|status| status.votes());
        match replica.is_none_or(votes) {
            true => Ok(()),
            false => Err("it does not vote yet".into()),
        }
    }

    fn ready(&self, hosts: &Hosts) -> Result<(), String> {
        let status = self.status(hosts);
        all_vote(&status)?;
        let answer = status.hosts.iter().all(|host| host.status.is_some());
        let serves = |set| status.switch_of(set).is_some();
        match answer && (0..status.sets as u16).all(serves) {
            true => Ok(()),
            false => Err("no session serves".into()),
        }
    }

    /// The gateway waits until the groups are founded.
    fn may_start(&self, host: &str, hosts: &Hosts) -> Result<(), String> {
        match host {
            GATEWAY => all_vote(&self.status(hosts)),
            _ => Ok(()),
        }
    }

    /// Once clients can write, there may be data to lose.
    fn starting(&self, host: &str) -> Result<()> {
        let founded = Record::of(&self.spec).founded();
        // A start with data needs no room on a full disk.
        if host != GATEWAY || Record::read(&self.spec.data)?.as_ref() == Some(&founded) {
            return Ok(());
        }
        founded.write(&self.spec.data)
    }

    fn status(&self, hosts: &Hosts) -> ClusterStatus {
        let entries = self.hosts.iter().zip(hosts.iter());
        ClusterStatus {
            data: self.spec.data.clone(),
            supervisor_pid: std::process::id(),
            notice: self.notice.clone(),
            network: hosts.network().kind().into(),
            // The port was chosen by the system if 0 was given.
            resp: self.client_listener.local_addr().unwrap_or(self.spec.resp),
            sets: self.spec.sets,
            groups: self.spec.groups,
            balance: self.spec.balance.to_string(),
            durability: self.spec.durability,
            hosts: entries.map(|(host, process)| host.entry(process)).collect(),
        }
    }

    fn host_of(&self, role: &str, hosts: &Hosts) -> Result<Option<String>> {
        let found = match Role::parse(role, self.spec.sets)? {
            Role::Host => return Ok(None),
            Role::Leader(set) => {
                let status = self.status(hosts);
                let (leader, _) = status.leader_of(set).context("no replica leads now")?;
                leader.name.clone()
            }
            Role::Switch => {
                let status = self.status(hosts);
                let switch = status.switch().context("no session serves now")?;
                switch.name.clone()
            }
            Role::Follower(set, number) => {
                let status = self.status(hosts);
                let leader = status.leader_of(set).map(|(host, _)| &host.name);
                let members = status.hosts.iter().filter(|host| host.set == Some(set));
                let mut followers = members.filter(|host| Some(&host.name) != leader);
                let follower = followers.nth(number);
                let follower = follower.with_context(|| format!("there is no {role}"))?;
                follower.name.clone()
            }
        };
        Ok(Some(found))
    }

    fn roles(&self) -> &'static str {
        role::names(self.spec.sets)
    }

    /// Checks that a replica may stop: it loses its log, and with it its vote; the others must be a majority.
    fn check_spare(&self, host: &str) -> Result<()> {
        let set_of = |host: &Host| host.member().map(|(set, _)| set);
        let set = self.host(host).and_then(set_of);
        if self.spec.durability == Durability::Sync || set.is_none() {
            return Ok(());
        }
        let members = self.hosts.iter().filter(|member| set_of(member) == set);
        let answering: Vec<(&str, bool)> = members
            .filter_map(|member| Some((member.name(), member.status()?.votes())))
            .collect();
        let voting = answering.iter().filter(|(_, votes)| *votes).count();
        let (all, majority) = (self.spec.replicas, self.spec.replicas / 2 + 1);
        ensure!(
            is_spare(answering, host, majority),
            "the store would be lost: {voting} of {all} replicas vote, and {majority} must without {host}; wait until `inband status` says that the others vote, or lose it with --force"
        );
        Ok(())
    }

    fn request(&self, Request::RotateKey: Request, hosts: &Hosts) -> Result<Reply> {
        let _operation = hosts.exclusive();
        ensure!(
            self.spec.security.authenticated,
            "this cluster was started without a key"
        );
        let running = self.hosts.iter().filter(|h| hosts.is_running(h.name()));
        let sockets: Vec<_> = running
            .map(|host| (host.name().to_owned(), host.config.host.socket.clone()))
            .collect();
        let id = keys::rotate(&ClusterDir::key_file_in(&self.spec.data), &sockets)?;
        Ok(Reply::KeyRotated { id })
    }

    fn is_in_unmarked(data: &Path) -> bool {
        record::is_in(data)
    }
}

fn all_vote(status: &ClusterStatus) -> Result<(), String> {
    match status.without_vote() {
        None => Ok(()),
        Some(replica) => Err(format!("{} does not vote", replica.name)),
    }
}

impl Flair {
    fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name() == name)
    }
}

impl Supervisor<Flair> {
    /// Returns where the switches' role runs, and why.
    pub fn notice(&self) -> &str {
        &self.system().notice
    }

    /// Returns the hosts' network, if they have one of their own.
    pub fn lab(&self) -> Option<&Lab> {
        self.hosts().network().lab()
    }

    /// Returns the configuration that all hosts share.
    pub fn config(&self) -> &ClusterConfig {
        let config = self.system().config.as_ref();
        config.expect("a started cluster is configured")
    }

    /// Returns the gateway's configuration, for other clients on its host.
    pub fn gateway_config(&self) -> PathBuf {
        host_dir(self.hosts().data(), GATEWAY).join("config.toml")
    }

    /// Runs a program on the gateway's host until it ends.
    pub fn run_beside_gateway(
        &self,
        program: &Path,
        arguments: Vec<OsString>,
        timeout: Duration,
    ) -> Result<()> {
        let process = ProcessSpec::new(program).args(arguments);
        let host = self.lab().map(|lab| lab.host(GATEWAY)).transpose()?;
        let mut child =
            SupervisedChild::spawn(&process, host.as_deref().map(|host| host.namespace()))?;
        ensure!(
            child.wait_for_exit(timeout),
            "it did not end in {} s",
            timeout.as_secs()
        );
        match child.exit_status() {
            Some(status) if status.success() => Ok(()),
            how => bail!("it failed ({how:?})"),
        }
    }
}
