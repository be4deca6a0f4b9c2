//! The options of a node.

use std::ops::RangeInclusive;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::membership::Membership;
use crate::promise::{Nanos, MS};

/// Default suspicion timeout.
pub const SUSPECT_AFTER_NS: Nanos = 10 * MS;
/// Default suspicion timeout of a node that waits for its disk.
pub const SUSPECT_AFTER_SYNC_NS: Nanos = 50 * MS;
pub const SUSPECT_AFTER_MIN_NS: Nanos = 50_000;
pub const SUSPECT_AFTER_MAX_NS: Nanos = 500 * MS;
/// Suspicion timeouts, as on the command line.
pub const SUSPECT_AFTER_US: RangeInclusive<u64> =
    SUSPECT_AFTER_MIN_NS / 1000..=SUSPECT_AFTER_MAX_NS / 1000;

/// How many members must have a record before it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quorum {
    /// More than half of them.
    #[default]
    Majority,
    /// All of them.
    All,
}

impl Quorum {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Quorum::Majority => "majority",
            Quorum::All => "all",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The node's id, from 1.
    pub node: u8,
    /// Number of nodes with an address; their ids are 1 to this. Not all of them need be members.
    pub nodes: u8,
    /// The nodes that start together, used while the log does not name the members.
    pub founding: Membership,
    /// A leader that has not been heard from for this long is suspected.
    pub suspect_after_ns: Nanos,
}

impl Config {
    pub(crate) fn heartbeat_ns(&self) -> Nanos {
        self.suspect_after_ns / 5
    }

    pub(crate) fn resend_after_ns(&self) -> Nanos {
        self.suspect_after_ns / 5
    }

    /// Returns after how much silence of its leader a node may vote for another: its own suspicion timeout, less a
    /// heartbeat.
    pub(crate) fn willing_after_ns(&self) -> Nanos {
        self.suspect_after_ns - self.heartbeat_ns()
    }

    /// Returns by how much later each further node suspects the leader.
    pub(crate) fn stagger_ns(&self) -> Nanos {
        self.suspect_after_ns / 2
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The node begins with others, as its operator says. It votes once all of them are known to be new. A node that has
    /// had its place in a cluster before recovers nevertheless.
    Founding,
    /// The node has lost its log.
    Recovering,
    /// The role has the log that was on disk.
    WithLog,
}
