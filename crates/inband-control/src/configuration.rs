//! The configuration of a cluster: its members, their roles and the epoch.

use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV4};

use serde::{Deserialize, Serialize};

/// A node's id on the wire, 1..=254.
pub type NodeId = u8;
/// A configuration epoch; 0 means "none".
pub type Epoch = u32;

/// Lowest and highest node id.
pub const NODE_IDS: std::ops::RangeInclusive<NodeId> = 1..=254;
/// Most acceptors of one configuration: each has a bit in the quorum counter's bitmap.
pub const ACCEPTORS_MAX: usize = 15;
/// Most replicas of one configuration: each gets a copy of every vote.
pub const REPLICAS_MAX: usize = 15;

/// Drawn at random when a host's state directory is created, and stored there. A host with a known id and a different
/// identity has lost what the cluster relies on it to remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity(pub u64);

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The roles of a node. A node may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Parts {
    pub acceptor: bool,
    /// Learns and stores values.
    pub replica: bool,
    /// May lead a partition.
    pub leader: bool,
    /// Stores the replicated configuration: votes in Raft.
    pub controller: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Id on the wire; never reused for another host.
    pub node: NodeId,
    /// Display name.
    pub name: String,
    /// Destination of its packets.
    pub data: SocketAddrV4,
    /// Address of its control service.
    pub control: SocketAddr,
    pub parts: Parts,
    /// `None` until the host has reported.
    pub identity: Option<Identity>,
}

/// The initial state of an epoch's acceptors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Beginning {
    /// Empty: everything below these instances (one per partition) is in the replicas' state.
    Fresh(Vec<u64>),
    /// The merged votes of a majority of the previous epoch; to be installed.
    Merged,
    /// No acceptor votes in this epoch. Replicas that have entered it deliver nothing from earlier epochs, so the
    /// positions that they then report are final, and the next epoch can start after them.
    Halted,
}

/// The members of the cluster in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Carried by votes. Acceptors and their state change only together with it.
    pub epoch: Epoch,
    /// The revision of the replicated state when the configuration last changed: higher is newer.
    pub revision: u64,
    pub members: BTreeMap<NodeId, Member>,
    /// For each partition, the nodes that may lead it, in order of preference.
    pub leaders: Vec<Vec<NodeId>>,
    /// The initial state of its acceptors.
    pub beginning: Beginning,
}

impl Configuration {
    /// Ids of the members for which `is` holds, ascending.
    pub fn nodes(&self, is: impl Fn(&Parts) -> bool) -> Vec<NodeId> {
        // The map's keys, because callers look members up by these ids and a message may lie.
        let members = self.members.iter();
        members
            .filter(|(_, member)| is(&member.parts))
            .map(|(id, _)| *id)
            .collect()
    }

    pub fn acceptors(&self) -> Vec<NodeId> {
        self.nodes(|parts| parts.acceptor)
    }

    pub fn replicas(&self) -> Vec<NodeId> {
        self.nodes(|parts| parts.replica)
    }

    /// Returns the controllers' ids, ascending.
    pub fn controllers(&self) -> Vec<NodeId> {
        self.nodes(|parts| parts.controller)
    }

    /// Returns whether this node is an acceptor in this configuration.
    pub fn is_acceptor(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|m| m.parts.acceptor)
    }

    /// Returns the number of acceptors that form a majority.
    pub fn majority(&self) -> usize {
        majority(self.acceptors().len())
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        self.leaders.len()
    }
}

/// Returns the smallest number that is more than half of `count`.
pub fn majority(count: usize) -> usize {
    count / 2 + 1
}
