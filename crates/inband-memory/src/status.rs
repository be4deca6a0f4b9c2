//! The status that switches and servers report.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use anyhow::Result;
use inband_host::config::Dataplane;
use inband_host::line_json::{call, STATUS_TIMEOUT};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The node's name, such as server/1.
    pub name: String,
    pub listen: SocketAddrV4,
    /// Where its role runs.
    pub dataplane: Dataplane,
    /// Why its role runs there.
    pub why: String,
    pub pid: u32,
    /// The epoch in which a switch is active, or below which a server refuses packets.
    pub epoch: u64,
    /// active, passive, serving or recovering.
    pub state: String,
    /// Size of its registers in bytes.
    pub memory_bytes: u64,
    /// Other remarks for the user.
    pub notes: Vec<String>,
    pub counters: BTreeMap<String, u64>,
}

/// Returns the path of a node's control socket.
pub fn socket_of(data: &Path) -> PathBuf {
    data.join("control.sock")
}

/// Asks a node for its status.
pub fn status_at(socket: &Path) -> Result<Status> {
    let answer: Result<Status, String> = call(socket, &(), STATUS_TIMEOUT)?;
    answer.map_err(anyhow::Error::msg)
}
