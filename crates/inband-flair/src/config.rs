//! The configuration of one FLAIR host: a TOML file with `[cluster]`, which is the same on all hosts, and `[host]`,
//! which selects one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

use inband_host::config::{Dataplane, Durability, TlsConfig};
use serde::{Deserialize, Serialize};

use crate::dataplane::FlairGeometry;

use crate::limits::{REPLICAS_MAX, SETS_MAX, SWITCHES_MAX};
use crate::reads::Reads;
use crate::timing;

/// Why a configuration was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("config {file}: cannot be read: {source}; check the path")]
    Unreadable {
        /// The file, as given.
        file: PathBuf,
        source: std::io::Error,
    },
    /// It is not TOML, a field is missing, or a field is unknown.
    #[error("config {file}: {source}")]
    NotUnderstood {
        /// The file, as given.
        file: PathBuf,
        /// The parser's error, with the position.
        source: Box<toml::de::Error>,
    },
    /// A value is out of bounds.
    #[error("config {file}: {message}")]
    Mistake {
        /// The file, as given.
        file: PathBuf,
        /// The value and its bounds.
        message: String,
    },
}

/// How reads are spread over the replicas that can serve them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Evenly.
    Random,
    /// Evenly, but not to the leader while it has writes to process (the paper's choice).
    #[default]
    LeaderAvoidance,
    /// By the followers' queue lengths.
    Load,
}

impl std::str::FromStr for Balance {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "random" => Ok(Balance::Random),
            "leader-avoidance" => Ok(Balance::LeaderAvoidance),
            "load" => Ok(Balance::Load),
            other => Err(format!(
                "unknown balance {other:?}; it is random, leader-avoidance or load"
            )),
        }
    }
}

impl std::fmt::Display for Balance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Balance::Random => "random",
            Balance::LeaderAvoidance => "leader-avoidance",
            Balance::Load => "load",
        })
    }
}

/// The set is omitted if there is only one.
fn is_first(set: &u16) -> bool {
    *set == 0
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// `replica/0` and so on, or `replica/1/0` and so on for set 1.
    pub name: String,
    /// Its replica set. Its number there is its position in the list among the replicas of this set.
    #[serde(default, skip_serializing_if = "is_first")]
    pub set: u16,
    /// Its address for packets from the switch.
    pub address: SocketAddrV4,
    /// Its address for Raft messages, over TCP.
    pub raft: SocketAddr,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchConfig {
    /// `switch/0` and so on, in list order.
    pub name: String,
    /// Its address for packets from clients and replicas.
    pub address: SocketAddrV4,
}

fn default_heartbeat_ms() -> u64 {
    timing::HEARTBEAT_MS
}

/// The default depends on other fields. No number in TOML is as large.
fn not_given() -> u64 {
    u64::MAX
}

/// The part of the configuration that is the same on all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    pub name: String,
    /// Key groups per set.
    pub groups: u32,
    /// How reads are answered.
    #[serde(default)]
    pub reads: Reads,
    /// How reads are spread, if any replica may answer.
    #[serde(default)]
    pub balance: Balance,
    /// Time between heartbeats to the switch, in milliseconds.
    #[serde(default = "default_heartbeat_ms")]
    pub heartbeat_ms: u64,
    /// How long a switch serves without a heartbeat, and how long a leader waits for an answer before it moves to
    /// another switch, in milliseconds.
    #[serde(default = "not_given")]
    pub step_down_ms: u64,
    /// What an acknowledged write survives: with `memory` the loss of any minority of replicas, with `sync` the loss of
    /// all.
    #[serde(default)]
    pub durability: Durability,
    /// The file with the keys that authenticate packets (`inband_host::key_file`). Without it, packets are not
    /// authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The replicas of all sets.
    pub replicas: Vec<ReplicaConfig>,
    pub switches: Vec<SwitchConfig>,
}

impl ClusterConfig {
    /// Returns the number of replica sets. They are numbered from 0.
    pub fn sets(&self) -> usize {
        let sets = self.replicas.iter().map(|replica| replica.set);
        sets.max().map_or(0, |last| usize::from(last) + 1)
    }

    /// Checks that each host can be named and reached, and none taken for another.
    fn check_hosts(&self) -> Result<(), String> {
        let replicas = self.replicas.iter().map(|r| (&r.name, r.address));
        let switches = self.switches.iter().map(|s| (&s.name, s.address));
        let mut names = BTreeSet::from([GATEWAY]);
        let mut addresses = BTreeMap::new();
        for (name, address) in replicas.chain(switches) {
            if name.is_empty() || !names.insert(name.as_str()) {
                return Err(format!(
                    "cluster: {name:?} names no host, or two; each replica and switch has a name of its own, not {GATEWAY:?}"
                ));
            }
            if let Some(other) = addresses.insert(SocketAddr::V4(address), name) {
                return Err(format!(
                    "cluster: {name:?} and {other:?} have the same address {address}"
                ));
            }
        }
        let mut raft = BTreeMap::new();
        for replica in &self.replicas {
            if let Some(other) = raft.insert(replica.raft, &replica.name) {
                return Err(format!(
                    "cluster: {:?} and {other:?} have the same raft {}",
                    replica.name, replica.raft
                ));
            }
        }
        for (address, name) in addresses.iter().chain(&raft) {
            if address.port() == 0 || address.ip().is_unspecified() {
                return Err(format!(
                    "cluster: {name:?} has the address {address}, to which nothing can be sent"
                ));
            }
        }
        if self.name.is_empty() {
            return Err("cluster.name is empty; give it at least one character".into());
        }
        Ok(())
    }

    /// Returns the positions of a set's replicas in the list, in order of their numbers.
    pub fn places(&self, set: u16) -> Vec<usize> {
        let places = 0..self.replicas.len();
        places.filter(|p| self.replicas[*p].set == set).collect()
    }
}

/// The part of the configuration that is specific to this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// The name of a replica, a switch, or `gateway`: the Redis protocol in front of the store.
    pub name: String,
    pub socket: PathBuf,
    /// Switch only: where the role runs.
    #[serde(default)]
    pub dataplane: Dataplane,
    /// Switch in the kernel only: the interface that has its address.
    #[serde(default)]
    pub interface: Option<String>,
    /// Gateway only: the source address of its packets.
    #[serde(default)]
    pub address: Option<SocketAddrV4>,
    /// Gateway only: where to listen for Redis clients, in addition to inherited sockets.
    #[serde(default)]
    pub resp: Vec<SocketAddr>,
    /// Replica with durability `sync` only: the directory of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// Gateway only: a file with the password for Redis clients. Without it, no password is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Certificates for TCP connections; without them, these are not encrypted. Either all hosts have them, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
}

/// The part that a host plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The replica at this position of the list.
    Replica(usize),
    /// The switch with this number.
    Switch(usize),
    /// The host that Redis clients connect to.
    Gateway,
}

/// Node ids: replicas come first, then switches, then the gateway.
const FIRST_SWITCH_NODE: u8 = 101;
const GATEWAY_NODE: u8 = 201;
const _: () = assert!(SETS_MAX * REPLICAS_MAX < FIRST_SWITCH_NODE as usize);

impl Part {
    /// Returns the node id in packets and certificates.
    pub fn node(self) -> u8 {
        match self {
            Part::Replica(place) => place as u8 + 1,
            Part::Switch(number) => FIRST_SWITCH_NODE + number as u8,
            Part::Gateway => GATEWAY_NODE,
        }
    }
}

/// The configuration of one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub cluster: ClusterConfig,
    pub host: HostConfig,
}

/// Name of the host that serves the Redis protocol.
pub const GATEWAY: &str = "gateway";

/// Allowed time between heartbeats, in milliseconds.
const HEARTBEAT_MS: std::ops::RangeInclusive<u64> = 1..=1_000;
/// Maximum time that a switch serves without a heartbeat, in milliseconds.
const STEP_DOWN_MS_MAX: u64 = 60_000;
/// A switch must tolerate this many heartbeat intervals.
const HEARTBEATS_MISSED_MIN: u64 = 3;

impl Config {
    /// Reads and checks a file.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Unreadable {
            file: file.into(),
            source,
        })?;
        let mut config: Config =
            toml::from_str(&text).map_err(|source| ConfigError::NotUnderstood {
                file: file.into(),
                source: Box::new(source),
            })?;
        let cluster = &mut config.cluster;
        if cluster.step_down_ms == not_given() {
            cluster.step_down_ms = timing::default_step_down_ms(cluster.durability);
        }
        match config.check() {
            Ok(()) => Ok(config),
            Err(message) => Err(ConfigError::Mistake {
                file: file.into(),
                message,
            }),
        }
    }

    /// Checks the values. The error names the value and its bounds.
    pub fn check(&self) -> Result<(), String> {
        let cluster = &self.cluster;
        let within = |name: &str, count: usize, max: usize| {
            if (1..=max).contains(&count) {
                return Ok(());
            }
            Err(format!("{count} {name} are not from 1 to {max}"))
        };
        within("replica sets", cluster.sets(), SETS_MAX)?;
        for set in 0..cluster.sets() as u16 {
            let name = format!("cluster.replicas of set {set}");
            within(&name, cluster.places(set).len(), REPLICAS_MAX)?;
        }
        within("cluster.switches", cluster.switches.len(), SWITCHES_MAX)?;
        cluster.check_hosts()?;
        let geometry = FlairGeometry {
            sets: cluster.sets(),
            groups: cluster.groups as usize,
        };
        geometry
            .validate()
            .map_err(|error| format!("cluster.groups: {error}"))?;
        if cluster.reads == Reads::FollowerLeases && cluster.groups < 2 {
            return Err(
                "cluster.groups 1 is below 2, which reads = \"follower-leases\" takes".into(),
            );
        }
        if !HEARTBEAT_MS.contains(&cluster.heartbeat_ms) {
            return Err(format!(
                "cluster.heartbeat_ms {} is not in {HEARTBEAT_MS:?}",
                cluster.heartbeat_ms
            ));
        }
        let step_down_ms_min = HEARTBEATS_MISSED_MIN * cluster.heartbeat_ms;
        if !(step_down_ms_min..=STEP_DOWN_MS_MAX).contains(&cluster.step_down_ms) {
            return Err(format!(
                "cluster.step_down_ms {} is not from {step_down_ms_min} (three heartbeats) to \
                 {STEP_DOWN_MS_MAX}",
                cluster.step_down_ms
            ));
        }
        if self.part().is_none() {
            return Err(format!(
                "host.name {:?} is neither a replica, nor a switch, nor {GATEWAY:?}",
                self.host.name
            ));
        }
        if self.part() == Some(Part::Gateway) && self.host.address.is_none() {
            return Err("host.address is missing: the gateway sends packets from there".into());
        }
        let is_replica = matches!(self.part(), Some(Part::Replica(_)));
        if is_replica && cluster.durability == Durability::Sync && self.host.data.is_none() {
            return Err(
                "host.data is missing: with durability sync a replica has its log there".into(),
            );
        }
        Ok(())
    }

    /// Returns the part that this host plays; `None` if no host has its name (in an unchecked configuration).
    pub fn part(&self) -> Option<Part> {
        let name = &self.host.name;
        let cluster = &self.cluster;
        let replica = cluster.replicas.iter().position(|r| r.name == *name);
        let switch = cluster.switches.iter().position(|s| s.name == *name);
        let gateway = (name == GATEWAY).then_some(Part::Gateway);
        replica
            .map(Part::Replica)
            .or(switch.map(Part::Switch))
            .or(gateway)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [cluster]
        name = "c"
        groups = 4096
        heartbeat_ms = 10
        step_down_ms = 50
        replicas = [{ name = "replica/0", address = "10.77.0.3:7400", raft = "10.77.0.3:7401" }]
        switches = [{ name = "switch/0", address = "10.77.0.1:7400" }]
        [host]
        name = "replica/0"
        socket = "/tmp/s"
    "#;

    fn load(text: &str) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Config::load(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_host_knows_its_part() {
        let mut config = load(GOOD).expect("it is right");
        assert_eq!(config.part(), Some(Part::Replica(0)));
        config.host.name = "switch/0".into();
        assert_eq!(config.part(), Some(Part::Switch(0)));
        assert_eq!(config.cluster.balance, Balance::LeaderAvoidance);
    }

    #[test]
    fn timeouts_have_defaults() {
        let both = "heartbeat_ms = 10\n        step_down_ms = 50\n";
        assert!(GOOD.contains(both));
        let timeouts = |text: &str| {
            let config = load(text).expect("it is right").cluster;
            (config.heartbeat_ms, config.step_down_ms)
        };
        assert_eq!(timeouts(&GOOD.replace(both, "")), (10, 50));
        let sync = GOOD.replace(both, "durability = \"sync\"\n");
        assert_eq!(timeouts(&(sync + "data = \"/tmp/d\"")), (10, 250));
    }

    #[test]
    fn replicas_are_numbered_within_their_set() {
        let mut config = load(GOOD).expect("it is right");
        let mut further = config.cluster.replicas[0].clone();
        (further.set, further.name) = (1, "replica/1/0".into());
        further.address.set_port(7410);
        further.raft.set_port(7411);
        config.cluster.replicas.insert(0, further);
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.cluster.sets(), 2);
        let places = (config.cluster.places(0), config.cluster.places(1));
        assert_eq!(places, (vec![1], vec![0]));
        let text = toml::to_string(&config).expect("it is written");
        assert_eq!(load(&text), Ok(config));
    }

    #[test]
    fn mistakes_name_the_value_and_the_bounds() {
        for (from, to, says) in [
            (
                "groups = 4096",
                "groups = 0",
                "cluster.groups: 0 key groups are not 1 to 65536",
            ),
            (
                "heartbeat_ms = 10",
                "heartbeat_ms = 0",
                "cluster.heartbeat_ms 0 is not in",
            ),
            (
                "step_down_ms = 50",
                "step_down_ms = 20",
                "20 is not from 30 (three heartbeats)",
            ),
            (
                "name = \"replica/0\"\n        socket",
                "name = \"x\"\n        socket",
                "host.name \"x\" is neither",
            ),
            ("[host]", "[host]\n unknown = 1", "unknown field"),
            (
                "groups = 4096",
                "groups = 4096\n durability = \"sync\"",
                "host.data is missing",
            ),
            (
                "switches = [{ name = \"switch/0\", address = \"10.77.0.1:7400\" }]",
                "switches = []",
                "0 cluster.switches are not from 1",
            ),
            (
                "name = \"replica/0\", address",
                "name = \"replica/0\", set = 1, address",
                "0 cluster.replicas of set 0 are not from 1 to 8",
            ),
            (
                "name = \"replica/0\", address",
                "name = \"replica/0\", set = 8, address",
                "9 replica sets are not from 1 to 8",
            ),
            (
                "name = \"switch/0\"",
                "name = \"replica/0\"",
                "\"replica/0\" names no host, or two",
            ),
            (
                "name = \"switch/0\"",
                "name = \"gateway\"",
                "\"gateway\" names no host, or two",
            ),
            (
                "10.77.0.1:7400",
                "10.77.0.3:7400",
                "\"switch/0\" and \"replica/0\" have the same address 10.77.0.3:7400",
            ),
            (
                "10.77.0.1:7400",
                "10.77.0.1:0",
                "\"switch/0\" has the address 10.77.0.1:0",
            ),
            (
                "10.77.0.3:7401",
                "0.0.0.0:7401",
                "\"replica/0\" has the address 0.0.0.0:7401",
            ),
            ("name = \"c\"", "name = \"\"", "cluster.name is empty"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let said = load(&GOOD.replacen(from, to, 1)).expect_err(to);
            assert!(said.contains(says), "{said}");
        }
    }
}
