//! The status that processes report, and the log that learners report.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use inband_host::config::Dataplane;
use inband_host::line_json::call;
use serde::{Deserialize, Serialize};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of instances in one [`Reply::Log`].
pub const LOG_MAX: usize = 500;

/// An applied instance and its value.
pub type Applied = (u64, Vec<u8>);

/// A request on a process's control socket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Ask {
    /// Asks for the process's status.
    Status,
    /// Asks a learner for what it has applied from this instance on, at most [`LOG_MAX`] instances.
    Log(u64),
}

/// The answer to [`Ask`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// Answers [`Ask::Status`].
    Status(Box<Status>),
    /// Answers [`Ask::Log`]: applied instances, and the next instance to ask for.
    Log(Vec<Applied>, u64),
    /// The request failed.
    Error(String),
}

/// A process's status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The process's name, such as minion/1.
    pub name: String,
    pub listen: SocketAddrV4,
    /// Where its role runs.
    pub dataplane: Dataplane,
    /// Why its role runs there.
    pub why: String,
    /// Its process id.
    pub pid: u32,
    /// passing, serving, incomplete, recovering, delivering.
    pub state: String,
    /// For a role: requests that have passed; for a storage: its highest instance; for a learner: instances delivered.
    pub position: u64,
    pub counters: BTreeMap<String, u64>,
    /// Lengths of its queues, and other numbers that go up and down.
    #[serde(default)]
    pub gauges: BTreeMap<String, u64>,
}

/// Returns the path of a process's control socket.
pub fn socket_of(data: &Path) -> PathBuf {
    data.join("control.sock")
}

/// Asks a process for its status.
pub fn status_at(socket: &Path) -> Result<Status> {
    match call(socket, &Ask::Status, TIMEOUT)? {
        Reply::Status(status) => Ok(*status),
        Reply::Error(error) => anyhow::bail!("{error}"),
        Reply::Log(..) => anyhow::bail!(
            "{}: the reply is to another request; do both sides run the same version?",
            socket.display()
        ),
    }
}

/// Returns what a learner has applied from this instance on, and the next instance to ask for.
pub fn log_at(socket: &Path, from: u64) -> Result<(Vec<Applied>, u64)> {
    let reply = call(socket, &Ask::Log(from), TIMEOUT);
    match reply.with_context(|| format!("no learner answers at {}", socket.display()))? {
        Reply::Log(log, next) => Ok((log, next)),
        Reply::Error(error) => anyhow::bail!("{error}"),
        Reply::Status(_) => anyhow::bail!(
            "{}: the reply is to another request; do both sides run the same version?",
            socket.display()
        ),
    }
}
