//! What processes say of themselves, and learners of the log.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use inband_host::config::Dataplane;
use inband_host::line_json::call;
use serde::{Deserialize, Serialize};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Instances of one [`Reply::Log`].
pub const LOG_MAX: usize = 500;

/// An instance that was applied, and its value.
pub type Applied = (u64, Vec<u8>);

/// What a process is asked on its control socket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Ask {
    /// How it is.
    Status,
    /// What it has delivered from this instance on, at most [`LOG_MAX`]: of a learner.
    Log(u64),
}

/// The answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Ask::Status`].
    Status(Box<Status>),
    /// To [`Ask::Log`]: instances that were applied, and the next one to ask for.
    Log(Vec<Applied>, u64),
    /// It cannot be.
    Error(String),
}

/// How a process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which one: minion/1.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddrV4,
    /// Where its role runs.
    pub dataplane: Dataplane,
    /// Why there.
    pub why: String,
    /// Its process.
    pub pid: u32,
    /// passing, serving, incomplete, recovering, delivering.
    pub state: String,
    /// Of a role: requests that have passed; of a storage: its highest instance; of a learner: instances delivered.
    pub position: u64,
    /// What it counted.
    pub counters: BTreeMap<String, u64>,
}

/// The control socket of a process.
pub fn socket_of(data: &Path) -> PathBuf {
    data.join("control.sock")
}

/// Ask a process how it is.
pub fn status_at(socket: &Path) -> Result<Status> {
    match call(socket, &Ask::Status, TIMEOUT)? {
        Reply::Status(status) => Ok(*status),
        Reply::Error(error) => anyhow::bail!("{error}"),
        Reply::Log(..) => anyhow::bail!("{}: an answer to another question", socket.display()),
    }
}

/// What a learner has applied from this instance on, and the next one to ask for.
pub fn log_at(socket: &Path, from: u64) -> Result<(Vec<Applied>, u64)> {
    let reply = call(socket, &Ask::Log(from), TIMEOUT);
    match reply.with_context(|| format!("no learner answers at {}", socket.display()))? {
        Reply::Log(log, next) => Ok((log, next)),
        Reply::Error(error) => anyhow::bail!("{error}"),
        Reply::Status(_) => anyhow::bail!("{}: an answer to another question", socket.display()),
    }
}
