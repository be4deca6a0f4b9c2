//! Messages between hosts and the coordinator. They may be lost, duplicated and delayed, so each states an absolute
//! fact or goal, never a relative change.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::acceptor::{Holds, Piece, Position};
use crate::configuration::{Configuration, Epoch, Identity, NodeId};
use crate::state::Refusal;

/// A host's report about itself, sent to every controller periodically.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub node: NodeId,
    pub identity: Identity,
    /// Number of the process run: durable, never reused. A process with a higher one has lost what was only in memory.
    pub life: u64,
    /// Number of the report within this process run.
    pub number: u64,
    /// Address of its control service.
    pub control: SocketAddr,
    /// Revision of its configuration; 0: none.
    pub revision: u64,
    /// Set if it has an acceptor.
    pub acceptor: Option<AcceptorReport>,
    /// Set if it is a replica: the last applied instance of each partition, possibly only in memory. `None` until it
    /// has entered the configuration of `revision`.
    pub applied: Option<Vec<u64>>,
    /// The last instances that count for the trim floor: synced ones with durability `sync`, otherwise written ones.
    /// Empty if `applied` is `None`.
    pub durable: Vec<u64>,
    /// If it is a replica: the logs that make no progress.
    pub stopped: Vec<StoppedLog>,
    /// Settings that all hosts must share; see [`crate::member::MemberConfig::settings`].
    pub settings: String,
}

/// A replica's positions: one instance per partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaPositions {
    /// The last applied instances, possibly only in memory.
    pub applied: Vec<u64>,
    /// The last instances that count for the trim floor.
    pub durable: Vec<u64>,
}

/// A log from which a replica delivers nothing although values are pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedLog {
    pub log: u32,
    /// The instance that the replica waits for.
    pub instance: u64,
    /// How long it has been waiting.
    pub for_ms: u64,
    /// Acceptors whose vote for this instance has a value that does not match its digest.
    pub unreadable_at: Vec<NodeId>,
}

/// The state of an acceptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptorReport {
    /// The epoch in its registers: it no longer votes in lower epochs.
    pub epoch: Epoch,
    /// Whether it votes in that epoch.
    pub voting: bool,
    /// The epoch for which its votes are complete.
    pub holds: Option<Holds>,
    /// The highest epoch that it ever voted in, as durably noted.
    pub entered: Epoch,
    /// It never starts to vote in this epoch or a lower one, as durably noted.
    pub fenced: Epoch,
    /// Number of installation steps completed; increases while there is progress.
    pub progress: u64,
    /// The positions of each partition.
    pub positions: Vec<Position>,
}

impl AcceptorReport {
    /// Returns whether its memory contains everything that it voted for in `opened`, or everything that was chosen
    /// there.
    pub fn contributes(&self, opened: Epoch) -> bool {
        self.holds.is_some_and(|holds| holds.serves(opened))
    }

    /// Returns whether it never voted in `opened`.
    pub fn never_voted(&self, opened: Epoch) -> bool {
        self.entered < opened
    }

    /// Returns whether it voted in `opened` and has lost those votes.
    pub fn forgot(&self, opened: Epoch) -> bool {
        !self.contributes(opened) && !self.never_voted(opened)
    }
}

/// An order of the coordinator to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Enter this configuration, which is in force.
    Enter(Configuration),
    /// Permanently stop voting in epochs below `target`.
    Seal {
        /// Epoch of the reconfiguration.
        target: Epoch,
    },
    /// Take over the votes of an epoch that has ended.
    Install(InstallOrder),
    /// The cluster refuses this host.
    Refused(Refusal),
}

/// See [`Order::Install`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallOrder {
    /// Epoch of the reconfiguration.
    pub target: Epoch,
    /// The epoch in force, from which the votes come.
    pub base: Epoch,
    /// All of these together have the state to install ...
    pub sealed: Vec<(NodeId, SocketAddr)>,
    /// ... and each of these has all of it.
    pub holders: Vec<(NodeId, SocketAddr)>,
}

/// A request for a sealed acceptor's votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// Epoch of the reconfiguration.
    pub target: Epoch,
    /// The epoch in force.
    pub base: Epoch,
    pub partition: u32,
    /// First instance requested; 0: from the trim floor on.
    pub from: u64,
}

/// Any message between hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Host to controllers.
    Report(Report),
    /// Coordinator to host.
    Order(Order),
    /// From an acceptor's host to another one.
    Pull(Pull),
    /// The answer to a pull.
    Pulled {
        pull: Pull,
        /// The sender has already installed for the target epoch.
        whole: bool,
        /// The requested votes.
        piece: Piece,
    },
}
