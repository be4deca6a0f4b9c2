//! The socket of a cluster's supervisor: what `status`, `kill`, `restart`, ... of other processes use.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Result};
use inband_host::line_json;
use serde::{Deserialize, Serialize};

use crate::system::System;

/// Longer than anything that is done in one request.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A request to the supervisor of a cluster; `R`: the system's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum Request<R> {
    /// Answered by [`Reply::Status`].
    Status,
    /// Answered by [`Reply::Supervisor`].
    Supervisor,
    /// Kill the process of a role or host. `force`: even if the cluster loses its data.
    Kill {
        role: String,
        #[serde(default)]
        force: bool,
    },
    /// Start it again; kill it first if it runs.
    Restart {
        role: String,
        #[serde(default)]
        force: bool,
    },
    /// Hold its packets.
    Pause { role: String },
    /// Release them.
    Resume { role: String },
    /// End everything.
    Down,
    /// Answered by [`Reply::System`].
    System { request: R },
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum Reply<S, R> {
    Status(Box<S>),
    Supervisor(SupervisorStatus),
    /// It was done to this host, or to `all`.
    Done {
        host: String,
    },
    /// It was not done.
    Error {
        message: String,
    },
    System(R),
}

/// The process that supervises a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorStatus {
    pub pid: u32,
    /// `flair`, `falcon`, ...
    pub system: String,
}

/// Where the supervisor of the cluster in a directory listens.
pub fn socket_in(data: &Path) -> PathBuf {
    data.join("supervisor.sock")
}

/// Ask the supervisor of the cluster in a directory.
pub fn ask<S: System>(
    data: &Path,
    request: &Request<S::Request>,
) -> Result<Reply<S::Status, S::Reply>> {
    match line_json::call(&socket_in(data), request, CALL_TIMEOUT) {
        Err(error) if error.nobody_listens() => bail!(
            "no {} cluster runs in {}; start one: inband up {}",
            S::NAME,
            data.display(),
            S::COMMAND
        ),
        Ok(Reply::Error { message }) => bail!("{message}"),
        answered => Ok(answered?),
    }
}

/// The status of the cluster in a directory.
pub fn status<S: System>(data: &Path) -> Result<S::Status> {
    match ask::<S>(data, &Request::Status)? {
        Reply::Status(status) => Ok(*status),
        other => unexpected(&without_body(&other)),
    }
}

/// The supervisor of the cluster in a directory.
pub fn supervisor<S: System>(data: &Path) -> Result<SupervisorStatus> {
    match ask::<S>(data, &Request::Supervisor)? {
        Reply::Supervisor(supervisor) => Ok(supervisor),
        other => unexpected(&without_body(&other)),
    }
}

/// Have something done. Returns the host it was done to.
pub fn done<S: System>(data: &Path, request: &Request<S::Request>) -> Result<String> {
    match ask::<S>(data, request)? {
        Reply::Done { host } => Ok(host),
        other => unexpected(&without_body(&other)),
    }
}

/// Make a request of the system's own.
pub fn request<S: System>(data: &Path, request: S::Request) -> Result<S::Reply> {
    match ask::<S>(data, &Request::System { request })? {
        Reply::System(reply) => Ok(reply),
        other => unexpected(&without_body(&other)),
    }
}

fn without_body<S, R>(reply: &Reply<S, R>) -> &'static str {
    match reply {
        Reply::Status(_) => "a status",
        Reply::Supervisor(_) => "a supervisor's id",
        Reply::Done { .. } => "done",
        Reply::Error { .. } => "an error",
        Reply::System(_) => "of the system",
    }
}

/// An answer to another question.
pub fn unexpected<T>(reply: &impl Debug) -> Result<T> {
    bail!("an unexpected answer ({reply:?}); do both sides run the same version?")
}
