//! The socket of a running `inband up flair`: what `status`, `kill`, `restart` and `down` of other processes use.

use std::path::Path;

use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};

use super::status::ClusterStatus;
use super::SERVICE;
use crate::socket::unexpected;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum Request {
    /// Answered by [`Reply::Status`].
    Status,
    /// Kill the process of a role.
    Kill {
        /// `leader`, `switch`, `follower/0`, `replica/2`, ...
        role: String,
    },
    /// Start it again.
    Restart {
        /// As above.
        role: String,
    },
    /// Put a new key into the place of the old one. The same words as those of `inband up` clusters.
    RotateKey,
    /// End everything.
    Down,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Box<ClusterStatus>),
    /// It was done to this host, or to all.
    Done {
        /// Its name.
        host: String,
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
