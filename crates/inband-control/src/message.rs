//! What hosts and the coordinator tell each other. Messages may be lost, repeated and late: each says
//! what is the case, or what is wanted, and never "one more".

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::acceptor::{Holds, Piece, Position};
use crate::configuration::{Configuration, Epoch, Identity, NodeId};
use crate::state::Refusal;

/// A host's words about itself, sent to every controller again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Who.
    pub node: NodeId,
    /// Which host it is.
    pub identity: Identity,
    /// Of the process; durable, each used once. A higher one has forgotten what is in memory only.
    pub life: u64,
    /// Of the report within this life.
    pub number: u64,
    /// Where its control service listens.
    pub control: SocketAddr,
    /// Revision of the configuration it is in; 0: of none.
    pub revision: u64,
    /// If it has an acceptor.
    pub acceptor: Option<AcceptorReport>,
    /// If it is a replica: the last instance of each partition that it has applied, be it in memory. `None` until it
    /// has entered the configuration of `revision`.
    pub applied: Option<Vec<u64>>,
    /// Of that, what counts for the trim floor: with durability `sync` synced, otherwise written. Empty without
    /// `applied`.
    pub durable: Vec<u64>,
    /// If it is a replica: the logs that stand still.
    pub stopped: Vec<StoppedLog>,
    /// What all hosts must have in common, see [`crate::member::MemberConfig::settings`].
    pub settings: String,
}

/// How far a replica is: an instance a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaPositions {
    /// The last one applied, be it in memory.
    pub applied: Vec<u64>,
    /// The last one that counts for the trim floor.
    pub durable: Vec<u64>,
}

/// A log of which a replica delivers nothing although there is something to deliver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedLog {
    /// Which.
    pub log: u32,
    /// The instance that the replica waits for.
    pub instance: u64,
    /// For how long.
    pub for_ms: u64,
    /// Acceptors whose vote for this instance has a value that does not match its digest.
    pub unreadable_at: Vec<NodeId>,
}

/// How an acceptor is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptorReport {
    /// The epoch in its registers: no vote of a lower one is cast any more.
    pub epoch: Epoch,
    /// It votes in that epoch.
    pub voting: bool,
    /// For which epoch what it remembers is complete.
    pub holds: Option<Holds>,
    /// The highest epoch it ever voted in, as it has durably noted.
    pub entered: Epoch,
    /// It will never begin to vote in this epoch or a lower one, as it has durably noted.
    pub fenced: Epoch,
    /// Steps of installing done so far; moves while it makes progress.
    pub progress: u64,
    /// Where each partition stands.
    pub positions: Vec<Position>,
}

impl AcceptorReport {
    /// What it remembers contains whatever it voted in `opened`, or whatever was chosen there.
    pub fn contributes(&self, opened: Epoch) -> bool {
        self.holds.is_some_and(|holds| holds.serves(opened))
    }

    /// It never voted in `opened`.
    pub fn never_voted(&self, opened: Epoch) -> bool {
        self.entered < opened
    }

    /// It voted in `opened` and does not know for what.
    pub fn forgot(&self, opened: Epoch) -> bool {
        !self.contributes(opened) && !self.never_voted(opened)
    }
}

/// What the coordinator wants of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// This is the configuration in force: be in it.
    Enter(Configuration),
    /// Stop voting in epochs below `target`, forever.
    Seal {
        /// Epoch of the reconfiguration.
        target: Epoch,
    },
    /// Take over the votes of an epoch that has ended.
    Install(InstallOrder),
    /// This host has no place here.
    Refused(Refusal),
}

/// See [`Order::Install`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallOrder {
    /// Epoch of the reconfiguration.
    pub target: Epoch,
    /// The epoch in force, whose votes these are.
    pub base: Epoch,
    /// All of these together have the state to be installed ...
    pub sealed: Vec<(NodeId, SocketAddr)>,
    /// ... and each of these has it whole.
    pub holders: Vec<(NodeId, SocketAddr)>,
}

/// Ask a sealed acceptor for its votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// Epoch of the reconfiguration.
    pub target: Epoch,
    /// The epoch in force.
    pub base: Epoch,
    /// Partition.
    pub partition: u32,
    /// First instance asked for; 0: from the floor on.
    pub from: u64,
}

/// Any message between hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Host to controllers.
    Report(Report),
    /// Coordinator to host.
    Order(Order),
    /// Acceptor's host to another's.
    Pull(Pull),
    /// The answer.
    Pulled {
        /// To this question.
        pull: Pull,
        /// The asked one has installed for the target already.
        whole: bool,
        /// What was asked for.
        piece: Piece,
    },
}
