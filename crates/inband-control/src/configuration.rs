//! The configuration of a cluster: who is in it, in which part, since which epoch.

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

/// Drawn at random when a host's state directory is made, and kept there. A host that comes with a
/// known id and another identity has lost what the cluster trusts it to remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity(pub u64);

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a node does. A node may do several things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Parts {
    /// Votes on values.
    pub acceptor: bool,
    /// Learns and stores values.
    pub replica: bool,
    /// May lead a partition.
    pub leader: bool,
    /// Keeps the replicated configuration: votes in Raft.
    pub controller: bool,
}

/// One node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Id on the wire, never used again for another host.
    pub node: NodeId,
    /// For people.
    pub name: String,
    /// Where its packets go.
    pub data: SocketAddrV4,
    /// Where its control service listens.
    pub control: SocketAddr,
    /// What it does.
    pub parts: Parts,
    /// `None` until the host has reported for the first time.
    pub identity: Option<Identity>,
}

/// With what the acceptors of an epoch begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Beginning {
    /// Empty: everything below these instances (one a partition) is in the replicas' state.
    Fresh(Vec<u64>),
    /// With the merged votes of a majority of the epoch before; to be installed.
    Merged,
    /// Never: nobody votes in this epoch. Replicas that have entered it deliver nothing of an earlier one, so what
    /// they then report is final, and the epoch after it can begin behind that.
    Halted,
}

/// Who is in the cluster in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Votes carry it. Acceptors and their states change only with it.
    pub epoch: Epoch,
    /// Of the replicated state when this last changed: higher is newer.
    pub revision: u64,
    /// Everybody, by id.
    pub members: BTreeMap<NodeId, Member>,
    /// For each partition the nodes that may lead it, the preferred one first.
    pub leaders: Vec<Vec<NodeId>>,
    /// With what its acceptors begin.
    pub beginning: Beginning,
}

impl Configuration {
    /// Ids of the members for which `is` holds, ascending.
    pub fn nodes(&self, is: impl Fn(&Parts) -> bool) -> Vec<NodeId> {
        // The keys: whoever gets these ids looks members up by them, and a message may lie.
        let members = self.members.iter();
        members
            .filter(|(_, member)| is(&member.parts))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The acceptors' ids, ascending.
    pub fn acceptors(&self) -> Vec<NodeId> {
        self.nodes(|parts| parts.acceptor)
    }

    /// The replicas' ids, ascending.
    pub fn replicas(&self) -> Vec<NodeId> {
        self.nodes(|parts| parts.replica)
    }

    /// Ids of the nodes that keep the configuration, ascending.
    pub fn controllers(&self) -> Vec<NodeId> {
        self.nodes(|parts| parts.controller)
    }

    /// Is this node an acceptor here?
    pub fn is_acceptor(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|m| m.parts.acceptor)
    }

    /// So many acceptors decide.
    pub fn majority(&self) -> usize {
        majority(self.acceptors().len())
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> usize {
        self.leaders.len()
    }
}

/// More than half of `count`.
pub fn majority(count: usize) -> usize {
    count / 2 + 1
}
