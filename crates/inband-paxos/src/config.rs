//! The configuration of one host: a TOML file with `[cluster]`, `[host]` and one `[[node]]` for
//! every node of the cluster.
//!
//! `[cluster]` and the `[[node]]`s are the same on all hosts; `[host]` says which of the nodes this
//! one is and what it may use. Every mistake is reported with the file, the line, the value found
//! and the values allowed. A [`Config`] that exists has passed all checks.

mod discovery;
mod file;
mod log;

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::dataplane::soft::{ACCEPTOR_SLOT_LEN_BYTES, COUNT_SLOT_LEN_BYTES};
use crate::dataplane::wire::HEADER_LEN_BYTES;
pub use inband_host::config::{ClientAddress, Dataplane, Durability, TlsConfig};
pub use inband_host::logging::{LogConfig, LogFormat, LogLevel};
use serde::{Deserialize, Serialize};

use crate::host::spread_leaders;

/// Allowed values of the file's settings. The documentation and all error messages quote these.
pub mod bounds {
    use std::ops::RangeInclusive;

    /// Node ids; one byte on the wire, 0 and 255 are reserved.
    pub const NODE_ID: RangeInclusive<u64> = 1..=254;
    /// Configuration epochs; 32 bits on the wire, 0 means "none".
    pub const EPOCH: RangeInclusive<u64> = 1..=u32::MAX as u64;
    /// First instance of an epoch; instance 0 means "none". TOML integers are signed 64 bit.
    pub const FIRST_INSTANCE: RangeInclusive<u64> = 1..=i64::MAX as u64;
    /// Partitions of one cluster.
    pub const PARTITIONS: RangeInclusive<u64> = 1..=64;
    /// Slots of an acceptor's ring; also a power of two.
    pub const RING_SLOTS: RangeInclusive<u64> = 64..=65_536;
    /// `cluster.mtu`: IPv6 requires at least 1280; packets longer than 1500 bytes are never produced.
    pub const MTU: RangeInclusive<u64> = 1280..=1500;
    /// UDP and TCP ports.
    pub const PORT: RangeInclusive<u64> = 1..=65_535;
    /// Nodes of one cluster that may lead.
    pub const LEADERS: RangeInclusive<usize> = 1..=254;
    /// Acceptors of one cluster: each has a bit in the quorum counter's member bitmap.
    pub const ACCEPTORS: RangeInclusive<usize> = 1..=15;
    /// Replicas of one cluster.
    pub const REPLICAS: RangeInclusive<usize> = 1..=15;
    /// Controllers of one cluster: each takes part in every change of the configuration.
    pub const CONTROLLERS: RangeInclusive<usize> = 0..=7;
    /// Length of cluster and node names in bytes. Namespace names are built from both.
    pub const NAME_LEN_BYTES: RangeInclusive<usize> = 1..=32;
    pub use inband_host::line_json::SOCKET_PATH_MAX_BYTES;
    /// Longest name of a network interface in bytes.
    pub const INTERFACE_NAME_MAX_BYTES: usize = 15;
    /// `host.timing.submit_deadline_ms`
    pub const SUBMIT_DEADLINE_MS: RangeInclusive<u64> = 10..=600_000;
    /// `host.timing.suspect_after_ms`
    pub const SUSPECT_AFTER_MS: RangeInclusive<u64> = 5..=60_000;
    /// `host.timing.probe_interval_ms`
    pub const PROBE_INTERVAL_MS: RangeInclusive<u64> = 1..=10_000;
    /// `host.timing.spin_us`
    pub const SPIN_US: RangeInclusive<u64> = 0..=10_000;
    /// `host.limits.max_clients`
    pub const MAX_CLIENTS: RangeInclusive<u64> = 1..=65_536;
    /// `host.limits.clients_memory_mib`; the longest reply to a single client takes 32.
    pub const CLIENTS_MEMORY_MIB: RangeInclusive<u64> = 64..=1_048_576;
    /// `host.limits.client_request_s` and `client_unread_s`
    pub const CLIENT_TIMEOUT_S: RangeInclusive<u64> = 1..=86_400;
    /// `host.limits.client_idle_s`; 0: forever.
    pub const CLIENT_IDLE_S: RangeInclusive<u64> = 0..=31_536_000;
    /// `host.limits.worker_threads`
    pub const WORKER_THREADS: RangeInclusive<u64> = 0..=64;
    /// `host.limits.ring_memory_mib`
    pub const RING_MEMORY_MIB: RangeInclusive<u64> = 1..=1_048_576;
    /// `host.limits.peer_log_values`
    pub const PEER_LOG_VALUES: RangeInclusive<u64> = 64..=16_777_216;
}

/// Port of node addresses without one, unless `cluster.port` is set.
pub const DEFAULT_PORT: u16 = 7400;
/// Ring slots unless `cluster.ring_slots` is set: few, because memory costs more than checks.
pub const DEFAULT_RING_SLOTS: u32 = 4096;

/// The MTU of Ethernet, used unless `cluster.mtu` is set.
pub const DEFAULT_MTU: u16 = 1500;
/// Length of the IPv4 and UDP headers.
pub const IP_UDP_LEN_BYTES: usize = 28;

/// Returns why a socket for Redis clients is not opened.
pub fn unprotected(what: &str, address: SocketAddr) -> String {
    format!(
        "{what} = {address} serves others than this machine, without a password and without TLS; set \
         host.password_file or host.tls.resp, or set host.protected_mode = false if only trusted \
         clients can reach it"
    )
}

/// Why a configuration was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("config {file}: cannot be read: {source}; check the path")]
    Unreadable {
        /// The file name as given.
        file: String,
        source: std::io::Error,
    },
    /// The rings of this host's roles are too large: logs times slots times the size of a slot.
    #[error("config {file}: the rings of {logs} logs with {ring_slots} slots each need {needed_bytes} bytes on this host, over the limit of {limit_bytes} bytes; lower cluster.partitions or cluster.ring_slots, or raise host.limits.ring_memory_mib")]
    RingMemory {
        /// The file name as given.
        file: String,
        logs: usize,
        ring_slots: u32,
        /// Memory that they need, in bytes.
        needed_bytes: u64,
        /// Memory that they may take, in bytes.
        limit_bytes: u64,
    },
    /// A line of the file is wrong.
    #[error("config {file} line {line}: {message}")]
    Mistake {
        /// The file name as given.
        file: String,
        /// Line of the mistake, from 1.
        line: usize,
        /// What is wrong and what is allowed.
        message: String,
    },
}

/// A role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May lead: stamps requests with instances. The order of the nodes is the take-over order.
    Leader,
    Acceptor,
    /// Quorum counter, learner and store; serves clients.
    Replica,
    /// Stores the cluster's configuration, together with the other controllers. Without controllers, membership is
    /// fixed, and an acceptor that lost its memory votes again only after a restart of all nodes.
    Controller,
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "leader" => Ok(Self::Leader),
            "acceptor" => Ok(Self::Acceptor),
            "replica" => Ok(Self::Replica),
            "controller" => Ok(Self::Controller),
            other => Err(format!(
                "unknown role {other:?}; the roles are \"leader\", \"acceptor\", \"replica\" and \"controller\""
            )),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader",
            Self::Acceptor => "acceptor",
            Self::Replica => "replica",
            Self::Controller => "controller",
        })
    }
}

/// `[cluster]`: the same on all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterConfig {
    /// Name of the cluster; the lab derives the names of its resources from it.
    pub name: String,
    pub epoch: u32,
    /// First instance of this epoch, one for each log; everything below is in the replicas' state. In the file,
    /// `first_instance = N` sets all of them.
    pub first_instances: Vec<u64>,
    /// Partitions of the key space. Each has a log; with several there is one more log, see [`Config::logs`].
    pub partitions: u32,
    /// Each log has a different first leader in take-over order, so that leaders share the load.
    pub leader_balance: bool,
    /// Slots of each acceptor's ring.
    pub ring_slots: u32,
    /// Port of node addresses without one.
    pub port: u16,
    /// The durability of votes.
    pub durability: Durability,
    /// The smallest MTU among the interfaces of all hosts: no packet is longer.
    pub mtu: u16,
    /// The file with the keys that authenticate packets; `None`: packets are not authenticated. See
    /// [`inband_host::key_file`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

impl ClusterConfig {
    /// Returns the longest value that fits in one packet.
    pub fn value_len_max_bytes(&self) -> usize {
        usize::from(self.mtu) - IP_UDP_LEN_BYTES - HEADER_LEN_BYTES
    }

    /// See [`Config::logs`].
    pub fn logs(&self) -> usize {
        logs_of(self.partitions)
    }
}

/// Returns the number of logs of a cluster with this many partitions; see [`Config::logs`].
pub fn logs_of(partitions: u32) -> usize {
    partitions as usize + usize::from(partitions > 1)
}

/// Memory in bytes for the rings of a host with these roles.
pub fn ring_memory_bytes(roles: &[Role], partitions: u32, ring_slots: u32) -> u64 {
    let slots = logs_of(partitions) as u64 * u64::from(ring_slots);
    let of = |role, slot_len_bytes: usize| {
        if roles.contains(&role) {
            slots * slot_len_bytes as u64
        } else {
            0
        }
    };
    of(Role::Acceptor, ACCEPTOR_SLOT_LEN_BYTES) + of(Role::Replica, COUNT_SLOT_LEN_BYTES)
}

/// `[host.limits]`: memory and client limits of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// RESP connections served at once.
    pub max_clients: u32,
    /// Memory that this host may hold for all clients together, in MiB.
    pub clients_memory_mib: u32,
    /// A client whose request is still incomplete this many seconds after it began is disconnected.
    pub client_request_s: u32,
    /// A client that reads none of its replies for this many seconds is disconnected.
    pub client_unread_s: u32,
    /// A client without a request for this many seconds is disconnected; 0: never.
    pub client_idle_s: u32,
    /// Decided values kept for peers that have fallen behind; a peer further behind needs a checkpoint.
    pub peer_log_values: u32,
    /// Memory limit for the rings of this host's roles, in MiB.
    pub ring_memory_mib: u32,
    /// Threads besides a replica's own that read its sockets, apply its partitions and write its replies.
    pub worker_threads: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_clients: 4096,
            clients_memory_mib: 512,
            client_request_s: 60,
            client_unread_s: 60,
            client_idle_s: 0,
            peer_log_values: 65_536,
            ring_memory_mib: 1024,
            worker_threads: 0,
        }
    }
}

/// `[host.timing]`: timeouts of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// A submitted value without a decision after this time is reported as "outcome unknown".
    pub submit_deadline_ms: u64,
    /// A leader is suspected by the others if it is silent for this long; it suspects itself if nothing is decided for
    /// this long although something was proposed. Both back off.
    pub suspect_after_ms: u64,
    /// How often a leader is probed.
    pub probe_interval_ms: u64,
    /// How long a receiving thread spins before it blocks.
    pub spin_us: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            submit_deadline_ms: 5000,
            suspect_after_ms: 100,
            probe_interval_ms: 10,
            spin_us: 50,
        }
    }
}

/// `[host]`: this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostConfig {
    /// Id of this host's `[[node]]`.
    pub node: u8,
    /// Directory for markers, incarnation and control socket.
    pub state_dir: PathBuf,
    /// The store of a replica: partition `k` is in `data_dirs[k % data_dirs.len()]`. In the file, `data_dir = DIR` sets
    /// a single one.
    pub data_dirs: Vec<PathBuf>,
    /// Where the packet roles run.
    pub dataplane: Dataplane,
    /// Interface to which the packet programs are attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Unix socket that answers status and control requests.
    pub control: PathBuf,
    /// Address that serves `/metrics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// Addresses that serve RESP clients. Listening sockets may also be inherited.
    pub resp: Vec<SocketAddr>,
    /// Where clients reach this replica, as the discovery commands tell them; `None`: its first listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announce: Option<ClientAddress>,
    /// The replica answers cluster-aware clients as a node of Redis Cluster.
    pub redis_cluster: bool,
    /// It redirects them to the master.
    pub redis_cluster_redirect: bool,
    /// A file with the password that Redis clients must send; without it, no password is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Redis clients on other machines are served only with a password or TLS.
    pub protected_mode: bool,
    /// Certificates for TCP connections; without them TCP is not protected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Memory and client limits.
    pub limits: Limits,
    pub timing: Timing,
}

/// One `[[node]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeConfig {
    /// Id on the wire.
    pub id: u8,
    /// Unique display name, such as `acceptor/1`.
    pub name: String,
    /// Destination of its packets (UDP), and where peers fetch checkpoints (TCP).
    pub address: SocketAddrV4,
    /// Address of its control service (TCP); see [`NodeConfig::control_plane`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<SocketAddrV4>,
    pub roles: Vec<Role>,
}

/// Default address of the control service of the host with this address: the next port.
pub fn control_plane_beside(address: SocketAddrV4) -> SocketAddrV4 {
    let port = address.port().checked_add(1).unwrap_or(1);
    SocketAddrV4::new(*address.ip(), port)
}

impl NodeConfig {
    /// Address of its control service, if the cluster has controllers.
    pub fn control_plane(&self) -> SocketAddrV4 {
        let default = control_plane_beside(self.address);
        self.control_plane.unwrap_or(default)
    }

    /// Returns the number of its roles that handle packets.
    pub fn packet_roles(&self) -> usize {
        let roles = self.roles.iter();
        roles.filter(|role| **role != Role::Controller).count()
    }

    /// Returns whether the node has this role.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

/// A checked configuration of one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Config {
    /// What all hosts share.
    pub cluster: ClusterConfig,
    pub host: HostConfig,
    /// The log of this host.
    pub log: LogConfig,
    /// Every node of the cluster, in the file's order.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeConfig>,
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            file: file.clone(),
            source,
        })?;
        Self::parse(&text, &file)
    }

    /// Checks a text; `file_name` is used only in messages.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigError> {
        let located = |at: usize, message: String| ConfigError::Mistake {
            file: file_name.to_owned(),
            line: line_of(text, at),
            message,
        };
        let raw: file::RawConfig = toml::from_str(text)
            .map_err(|e| located(e.span().map_or(0, |s| s.start), one_line(e.message())))?;
        let config = raw
            .check()
            .map_err(|mistake| located(mistake.at, mistake.message))?;
        let needed_bytes = config.ring_memory_bytes();
        let limit_bytes = u64::from(config.host.limits.ring_memory_mib) << 20;
        if needed_bytes > limit_bytes {
            return Err(ConfigError::RingMemory {
                file: file_name.to_owned(),
                logs: config.logs(),
                ring_slots: config.cluster.ring_slots,
                needed_bytes,
                limit_bytes,
            });
        }
        Ok(config)
    }

    /// Returns the text of a file that parses to this configuration.
    pub fn to_toml(&self) -> String {
        // Every field is a string, an integer, a list or a table of those: TOML can hold them all.
        toml::to_string(self).expect("a configuration is always representable in TOML")
    }

    /// Returns the node that this host is.
    pub fn this(&self) -> &NodeConfig {
        self.node(self.host.node)
            .expect("checked when parsed: host.node names a [[node]]")
    }

    /// Returns the node with this id.
    pub fn node(&self, id: u8) -> Option<&NodeConfig> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// Returns the voting members, in the file's order.
    pub fn acceptors(&self) -> impl Iterator<Item = &NodeConfig> {
        self.with_role(Role::Acceptor)
    }

    /// Returns the replicas, in the file's order.
    pub fn replicas(&self) -> impl Iterator<Item = &NodeConfig> {
        self.with_role(Role::Replica)
    }

    /// Returns the controllers, in the file's order; none: membership is fixed.
    pub fn controllers(&self) -> impl Iterator<Item = &NodeConfig> {
        self.with_role(Role::Controller)
    }

    /// Returns the nodes that may lead, in take-over order.
    pub fn leaders(&self) -> impl Iterator<Item = &NodeConfig> {
        self.with_role(Role::Leader)
    }

    /// Returns whether the cluster has a control plane. If so, the epoch and the nodes in this file are only the
    /// initial ones.
    pub fn is_managed(&self) -> bool {
        self.controllers().next().is_some()
    }

    /// For each log, the nodes that may lead it, in take-over order.
    pub fn take_over_orders(&self) -> Vec<Vec<u8>> {
        let leaders: Vec<u8> = self.leaders().map(|n| n.id).collect();
        if self.cluster.leader_balance {
            spread_leaders(&leaders, self.logs())
        } else {
            vec![leaders; self.logs()]
        }
    }

    /// Returns the number of logs: one for each partition and, if there are several, one more for cross-partition
    /// commands. That one has the index `partitions`.
    pub fn logs(&self) -> usize {
        self.cluster.logs()
    }

    /// Memory in bytes for the rings of this host's roles.
    pub fn ring_memory_bytes(&self) -> u64 {
        let cluster = &self.cluster;
        ring_memory_bytes(&self.this().roles, cluster.partitions, cluster.ring_slots)
    }

    /// Returns the number of acceptors that form a majority.
    pub fn majority(&self) -> usize {
        self.acceptors().count() / 2 + 1
    }

    fn with_role(&self, role: Role) -> impl Iterator<Item = &NodeConfig> {
        self.nodes.iter().filter(move |n| n.has(role))
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(at)
        .filter(|&&b| b == b'\n')
        .count()
        + 1
}

fn one_line(message: &str) -> String {
    message
        .split('\n')
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}
