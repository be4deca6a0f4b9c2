//! What switches and servers say of themselves.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use inband_host::config::Dataplane;
use inband_host::line_json::call;
use serde::{Deserialize, Serialize};

/// How long a node may take to say how it is.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);

/// How a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which one: server/1.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddrV4,
    /// Where its role runs.
    pub dataplane: Dataplane,
    /// Why there.
    pub why: String,
    /// Its process.
    pub pid: u32,
    /// Its epoch: that in which a switch is active, or below which a server refuses.
    pub epoch: u64,
    /// active, passive, serving or recovering.
    pub state: String,
    /// Bytes of its registers.
    pub memory_bytes: u64,
    /// What else is to be known.
    pub notes: Vec<String>,
    /// What its role counted.
    pub counters: BTreeMap<String, u64>,
}

/// The control socket of a node.
pub fn socket_of(data: &Path) -> PathBuf {
    data.join("control.sock")
}

/// Ask a node how it is.
pub fn status_at(socket: &Path) -> Result<Status> {
    let answer: Result<Status, String> = call(socket, &(), STATUS_TIMEOUT)?;
    answer.map_err(anyhow::Error::msg)
}
