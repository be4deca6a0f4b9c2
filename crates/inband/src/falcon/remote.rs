//! The socket of a running `inband falcon up`: what `status`, `kill`, `submit` and `down` of other processes use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Result};
use inband_lab::line_json;
use serde::{Deserialize, Serialize};

use super::status::{ClusterStatus, Door};

/// Longer than anything that is done in one request.
const CALL_LIMIT: Duration = Duration::from_secs(60);

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

/// Where a cluster in a directory listens.
pub fn socket_in(data: &Path) -> PathBuf {
    data.join("supervisor.sock")
}

/// Ask the cluster in a directory.
pub fn ask(data: &Path, request: &Request) -> Result<Reply> {
    match line_json::call(&socket_in(data), request, CALL_LIMIT) {
        Ok(Reply::Error { message }) => bail!("{message}"),
        Ok(reply) => Ok(reply),
        Err(error) if error.nobody_listens() => bail!(
            "no Falcon cluster runs in {}; start one: inband falcon up",
            data.display()
        ),
        Err(error) => Err(error.into()),
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

/// An answer to another question.
pub fn unexpected<T>(reply: &Reply) -> Result<T> {
    bail!("an unexpected answer ({reply:?}); do both sides run the same version?")
}
