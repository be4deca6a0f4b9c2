//! The hosts of a cluster of `inband up flair`: their configurations, certificates and processes.

use std::fs;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

use crate::certificates;
use crate::paxos::cluster_dir::ClusterDir;
use anyhow::{bail, Context, Result};
use inband_flair::config::{
    ClusterConfig, Config, HostConfig, Part, ReplicaConfig, SwitchConfig, GATEWAY,
};
use inband_flair::limits::{REPLICAS_MAX, SETS_MAX};
use inband_flair::replica_node::LOG_DIR;
use inband_host::config::{Dataplane, Durability, TlsConfig};
use inband_host::line_json::{self, STATUS_TIMEOUT};

use super::cluster::FlairSpec;
use super::status::{HostEntry, HostReply, HostRequest, HostStatus};
use crate::host_process::{HostProcess, Process};
use crate::network::{Network, HOST_INTERFACE};
use crate::supervisor::host_dir;
use crate::system::HostPlan;

/// Name of every cluster; its directory distinguishes it from others.
const CLUSTER: &str = "flair";
pub struct Host {
    /// Its configuration, as written to its directory.
    pub config: Config,
    /// Where its packets go.
    pub address: SocketAddrV4,
}

impl Host {
    /// Returns its name in the configuration.
    pub fn name(&self) -> &str {
        &self.config.host.name
    }

    /// Returns a replica's set, and its number in the set.
    pub fn member(&self) -> Option<(u16, usize)> {
        let Some(Part::Replica(place)) = self.config.part() else {
            return None;
        };
        let cluster = &self.config.cluster;
        let set = cluster.replicas[place].set;
        let number = cluster.places(set).iter().position(|p| *p == place)?;
        Some((set, number))
    }

    /// Returns its own status, if it answers.
    pub fn status(&self) -> Option<HostStatus> {
        let socket = &self.config.host.socket;
        match line_json::call(socket, &HostRequest::Status, STATUS_TIMEOUT) {
            Ok(HostReply::Status(status)) => Some(*status),
            _ => None,
        }
    }

    /// Returns the host's entry in the cluster's status.
    pub fn entry(&self, process: &HostProcess) -> HostEntry {
        let process = process.status();
        let runs = process.process == Process::Running;
        HostEntry {
            name: process.name,
            set: self.member().map(|(set, _)| set),
            address: self.address,
            process: process.process,
            pid: process.pid,
            restarts: process.restarts,
            last_exit: process.last_exit,
            status: runs.then(|| self.status()).flatten(),
        }
    }
}

/// Names of the hosts, in the order of their addresses.
pub fn names(spec: &FlairSpec) -> Vec<String> {
    let switches = (0..spec.switches).map(|i| format!("switch/{i}"));
    let replicas = replicas(spec.sets, spec.replicas)
        .into_iter()
        .map(|(_, name)| name);
    switches
        .chain(replicas)
        .chain([GATEWAY.to_owned()])
        .collect()
}

/// Returns the set and the name of each replica. The name includes the set only if there are several.
fn replicas(sets: usize, replicas: usize) -> Vec<(u16, String)> {
    let members = |set: usize| {
        let name = move |number| match sets {
            1 => format!("replica/{number}"),
            _ => format!("replica/{set}/{number}"),
        };
        (0..replicas).map(move |number| (set as u16, name(number)))
    };
    (0..sets).flat_map(members).collect()
}

/// Returns the configuration that all hosts share.
pub fn cluster_config(
    spec: &FlairSpec,
    names: &[String],
    addresses: &[SocketAddrV4],
) -> ClusterConfig {
    let of = |kind: &str| -> Vec<(String, SocketAddrV4)> {
        let all = names.iter().cloned().zip(addresses.iter().copied());
        all.filter(|(name, _)| name.starts_with(kind)).collect()
    };
    ClusterConfig {
        name: CLUSTER.into(),
        groups: spec.groups,
        reads: spec.reads,
        balance: spec.balance,
        heartbeat_ms: spec.heartbeat_ms,
        step_down_ms: spec.step_down_ms,
        durability: spec.durability,
        key_file: spec
            .security
            .authenticated
            .then(|| ClusterDir::key_file_in(&spec.data)),
        replicas: of("replica")
            .into_iter()
            .zip(replicas(spec.sets, spec.replicas))
            .map(|((name, address), (set, _))| ReplicaConfig {
                name,
                set,
                address,
                raft: SocketAddr::V4(address), // the same number, but TCP
            })
            .collect(),
        switches: of("switch")
            .into_iter()
            .map(|(name, address)| SwitchConfig { name, address })
            .collect(),
    }
}

fn log_of(data: &Path, replica: &str) -> PathBuf {
    host_dir(data, replica).join(LOG_DIR)
}

/// Returns the directory of a replica's log, if any exists, whatever the number of sets and replicas was.
pub fn existing_log(data: &Path) -> Option<PathBuf> {
    // With several sets, names include the set.
    let mut names = [1, SETS_MAX]
        .into_iter()
        .flat_map(|sets| replicas(sets, REPLICAS_MAX));
    names.find_map(|(_, name)| Some(log_of(data, &name)).filter(|log| log.exists()))
}

/// Returns for each set of a cluster how many of its replicas have a log on disk.
pub fn logs_of_sets(data: &Path, sets: usize, replicas_per_set: usize) -> Vec<usize> {
    let mut logs = vec![0; sets];
    for (set, name) in replicas(sets, replicas_per_set) {
        logs[usize::from(set)] += usize::from(log_of(data, &name).exists());
    }
    logs
}

/// Writes a host's configuration and the files that it names. Returns how to start its process. `begins`: the cluster
/// has no data yet.
pub fn host(
    spec: &FlairSpec,
    cluster: &ClusterConfig,
    name: &str,
    network: &Network,
    begins: bool,
) -> Result<(Host, HostPlan)> {
    let (address, lab) = (network.address(name)?, network.lab());
    let dir = host_dir(&spec.data, name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let is_durable = spec.durability == Durability::Sync && name.starts_with("replica");
    let mut config = Config {
        cluster: cluster.clone(),
        host: HostConfig {
            name: name.into(),
            socket: dir.join("control.sock"),
            dataplane: lab.map_or(Dataplane::Udp, |_| spec.dataplane),
            interface: lab.map(|_| HOST_INTERFACE.to_owned()),
            address: Some(address),
            resp: Vec::new(),
            data: is_durable.then(|| dir.clone()),
            password_file: spec.security.password_file.clone(),
            tls: None,
        },
    };
    if let Err(message) = config.check() {
        bail!("{message}");
    }
    config.host.tls = tls(spec, &config, &dir)?;
    let file = dir.join("config.toml");
    let text = toml::to_string(&config).context("writing a configuration")?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    let mut plan = HostPlan::new(name, &spec.program).args(["flair", "run", "--config"]);
    plan.args.push(file.into());
    plan.socket = Some(config.host.socket.clone());
    let host = Host { config, address };
    if begins && host.member().is_some_and(|(_, number)| number == 0) {
        // It founds its set's group. Never again: that would replace a lost store by an empty one.
        plan.first_args.push("--found".into());
    }
    Ok((host, plan))
}

/// Returns the certificate of a host that uses TCP connections, made if there is none.
fn tls(spec: &FlairSpec, config: &Config, dir: &Path) -> Result<Option<TlsConfig>> {
    let part = config.part().context("a checked host has a part")?;
    let takes_part = !matches!(part, Part::Switch(_));
    if !spec.security.tls || !takes_part {
        return Ok(None);
    }
    let addresses = [spec.resp.ip()];
    let files = certificates::ensure(&spec.data, CLUSTER, dir, part.node(), &addresses)?;
    let is_for_clients = part == Part::Gateway && spec.security.resp_tls;
    Ok(Some(certificates::config(files, is_for_clients)))
}
