//! The status that a node reports.

use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;

use anyhow::Result;
use inband_host::config::Dataplane;
use inband_host::line_json::{call, STATUS_TIMEOUT};
use serde::{Deserialize, Serialize};

use crate::membership::{Change, Membership};

/// Asks a node for its status.
pub fn status_at(socket: &Path) -> Result<Status> {
    let answer: Result<Status, String> = call(socket, &None::<Change>, STATUS_TIMEOUT)?;
    answer.map_err(anyhow::Error::msg)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Status {
    pub name: String,
    pub listen: SocketAddrV4,
    /// Where its role runs, and why.
    pub dataplane: Dataplane,
    pub why: String,
    pub memcached: Vec<SocketAddr>,
    #[serde(default)]
    pub memcached_udp: Option<SocketAddr>,
    #[serde(default)]
    pub memcached_local_udp: Option<SocketAddr>,
    pub pid: u32,
    /// leading, following, electing, waiting or recovering.
    pub state: String,
    pub epoch: u64,
    pub leader: Option<u8>,
    /// The membership, as far as this node has applied it.
    pub membership: Membership,
    /// If leading, or establishing its epoch: the membership in its log, if that is not committed yet.
    #[serde(default)]
    pub changes_to: Option<Membership>,
    pub last: u64,
    pub committed: u64,
    pub applied: u64,
    /// Digest of the machine at `applied`.
    pub digest: u64,
    /// Bytes of the leader's table that it has pulled so far, while it pulls it.
    #[serde(default)]
    pub pulled_bytes: u64,
    pub items: u64,
    pub memory_bytes: u64,
    /// The part of it that items take.
    #[serde(default)]
    pub memory_used_bytes: u64,
    /// When this was so, in milliseconds by a clock that begins at the machine's start.
    #[serde(default)]
    pub at_ms: u64,
    pub elections: u64,
    pub notes: Vec<String>,
    pub counters: BTreeMap<String, u64>,
}

/// Why a node does not serve clients.
#[derive(Debug, thiserror::Error)]
#[error("the node is {0}")]
pub struct NotReady(String);

impl Status {
    /// Fails unless the node leads, or follows a leader.
    pub fn check_ready(&self) -> Result<(), NotReady> {
        match &self.state[..] {
            "leading" | "following" => Ok(()),
            other => Err(NotReady(other.to_owned())),
        }
    }

    pub fn in_words(&self) -> String {
        let ports: Vec<String> = self
            .memcached
            .iter()
            .map(|a| a.port().to_string())
            .collect();
        format!(
            "{:<7} {:<10} {:<11} epoch {:<6} zxid {:<9} {:>7} items  memcached at port {}  {}  {}",
            self.name,
            self.state,
            self.dataplane.to_string(),
            self.epoch,
            self.applied,
            self.items,
            ports.join(", local reads "),
            self.membership,
            self.notes.join(", ")
        )
        .trim_end()
        .to_owned()
    }
}
