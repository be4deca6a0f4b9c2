//! The socket of a running `inband up falcon`: what `status`, `kill`, `submit` and `down` of other processes use.

use std::path::Path;

use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};

use super::status::{ClusterStatus, Door};
use super::SERVICE;
use inband_cluster::socket::unexpected;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum Request {
    /// Answered by [`Reply::Status`].
    Status,
    /// Answered by [`Reply::Door`].
    Door,
    /// Kill a process.
    Kill {
        /// `scheduler`, `worker/0`, ...
        role: String,
    },
    /// Start it again.
    Restart {
        /// As above.
        role: String,
    },
    /// End everything.
    Down,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Box<ClusterStatus>),
    /// To [`Request::Door`].
    Door(Door),
    /// It was done to this process, or to all.
    Done {
        /// Its name.
        process: String,
    },
    /// It was not done.
    Error {
        /// One line.
        message: String,
    },
}

/// Ask the cluster in a directory.
pub fn ask(data: &Path, request: &Request) -> Result<Reply> {
    match SERVICE.ask(data, request)? {
        Reply::Error { message } => bail!("{message}"),
        reply => Ok(reply),
    }
}

/// The status of the cluster in a directory.
pub fn status(data: &Path) -> Result<ClusterStatus> {
    match ask(data, &Request::Status)? {
        Reply::Status(status) => Ok(*status),
        other => unexpected(&other),
    }
}

/// How the cluster in a directory is reached.
pub fn door(data: &Path) -> Result<Door> {
    match ask(data, &Request::Door)? {
        Reply::Door(door) => Ok(door),
        other => unexpected(&other),
    }
}
