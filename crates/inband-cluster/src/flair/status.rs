//! The status of hosts and clusters of FLAIR, as sent over their sockets.

use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use inband_flair::replica::Status as ReplicaStatus;
use inband_host::key_file::KeyStatus;
use inband_paxos::config::Durability;
use serde::{Deserialize, Serialize};

use crate::host_process::Process;

/// A request to a host's control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum HostRequest {
    Status,
    /// Reload the key file. Answered by [`HostReply::Keys`].
    ReloadKeys,
}

/// The answer to a [`HostRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum HostReply {
    Status(Box<HostStatus>),
    /// To [`HostRequest::ReloadKeys`]: the keys now in use; `None`: the host has no key file.
    Keys(Option<KeyStatus>),
    /// The request was not understood, or failed.
    Error {
        /// One line.
        message: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostStatus {
    /// `replica/0`, `switch/1`, `gateway`.
    pub name: String,
    /// Where a switch's role runs: `xdp`, `xdp-generic` or `udp`.
    pub backend: String,
    /// Set for a replica.
    pub replica: Option<ReplicaStatus>,
    /// For a switch: its session for each set.
    pub sessions: Vec<SwitchStatus>,
    /// The keys in use, if packets are authenticated.
    pub keys: Option<KeyStatus>,
    /// How it talks to other hosts over TCP: `TLS` or `plain`.
    pub transport: String,
    /// All counters, by name.
    pub counters: BTreeMap<String, u64>,
}

impl HostStatus {
    /// Returns whether it is a replica whose log votes, as it knows itself: the group adds a log only after the former
    /// log of that replica has left.
    pub fn votes(&self) -> bool {
        let replica = self.replica.as_ref();
        replica.is_some_and(|replica| replica.voters.contains(&replica.replica))
    }
}

/// The status of a switch for one replica set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Its session; 0: none.
    pub session: u64,
    /// It serves now.
    pub active: bool,
    /// Key groups with writes in flight.
    pub unstable_groups: u64,
}

/// One host in a [`ClusterStatus`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEntry {
    /// `replica/0`, `switch/1`, `gateway`.
    pub name: String,
    /// For a replica: its set.
    pub set: Option<u16>,
    /// Where its packets go.
    pub address: SocketAddrV4,
    pub process: Process,
    /// Its process id, while it runs.
    pub pid: Option<u32>,
    /// How often it was restarted after it had ended by itself.
    #[serde(default)]
    pub restarts: u32,
    /// How it last ended by itself.
    #[serde(default)]
    pub last_exit: Option<String>,
    /// Its own status; `None` if it does not answer.
    pub status: Option<HostStatus>,
}

/// The status of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's directory.
    pub data: PathBuf,
    /// The supervisor's process id.
    pub supervisor_pid: u32,
    /// Where the switches' role runs, and why.
    #[serde(default)]
    pub notice: String,
    /// `namespaces` or `loopback`.
    pub network: String,
    /// Address for Redis clients.
    pub resp: SocketAddr,
    /// Number of replica sets.
    pub sets: usize,
    /// Key groups per set.
    pub groups: u32,
    /// How reads are spread over replicas.
    pub balance: String,
    /// What survives when all hosts stop.
    pub durability: Durability,
    pub hosts: Vec<HostEntry>,
}

impl ClusterStatus {
    /// Returns the replica that leads the first set, as far as is known.
    pub fn leader(&self) -> Option<(&HostEntry, &ReplicaStatus)> {
        self.leader_of(0)
    }

    /// Returns the first replica that does not vote, or does not answer.
    pub fn without_vote(&self) -> Option<&HostEntry> {
        let votes = |host: &HostEntry| host.status.as_ref().is_some_and(HostStatus::votes);
        let mut replicas = self.hosts.iter().filter(|host| host.set.is_some());
        replicas.find(|host| !votes(host))
    }

    /// Returns the switch whose session serves the first set.
    pub fn switch(&self) -> Option<&HostEntry> {
        self.switch_of(0)
    }

    /// Returns the replica that leads a set, as far as is known: the one with the highest term.
    pub fn leader_of(&self, set: u16) -> Option<(&HostEntry, &ReplicaStatus)> {
        let members = self.hosts.iter().filter(|host| host.set == Some(set));
        let replicas = members.filter_map(|host| {
            let replica = host.status.as_ref()?.replica.as_ref()?;
            Some((host, replica))
        });
        replicas
            .filter(|(_, replica)| replica.leads())
            .max_by_key(|(_, replica)| replica.term)
    }

    /// Returns the switch whose session serves a set.
    pub fn switch_of(&self, set: u16) -> Option<&HostEntry> {
        let (_, leader) = self.leader_of(set)?;
        let (_, switch) = leader.serving?;
        let name = format!("switch/{switch}");
        self.hosts.iter().find(|host| host.name == name)
    }
}
