//! The socket of a running `inband flair up`: what `status`, `kill`, `restart` and `down` of other processes use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Result};
use inband_lab::line_json;
use serde::{Deserialize, Serialize};

use super::status::ClusterStatus;

/// Longer than anything that is done in one request.
const CALL_LIMIT: Duration = Duration::from_secs(60);

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
            "no FLAIR cluster runs in {}; start one: inband flair up",
            data.display()
        ),
        Err(error) => Err(error.into()),
    }
}

/// The status of the cluster in a directory.
pub fn status(data: &Path) -> Result<ClusterStatus> {
    match ask(data, &Request::Status)? {
        Reply::Status(status) => Ok(*status),
        other => bail!("an unexpected answer ({other:?}); do both sides run the same version?"),
    }
}
