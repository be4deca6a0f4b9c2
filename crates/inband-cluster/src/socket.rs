//! The socket of a cluster's supervisor, used by `status`, `kill`, `restart`, ... of other processes.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Result};
use inband_host::line_json;
use inband_host::output::quoted;
use inband_host::state_dir::LOCK_FILE;
use serde::{Deserialize, Serialize};

use crate::link;
use crate::network;
use crate::remains::Remains;
use crate::system::System;
use inband_host::system_file;

/// Longer than anything that is done in one request.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A request to the supervisor of a cluster; `R` is the system's own request type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum Request<R> {
    Status,
    Supervisor,
    /// Kill the process of a role or host. `force`: even if the cluster loses its data.
    Kill {
        role: String,
        #[serde(default)]
        force: bool,
    },
    /// Restart the process of a role or host, killing it first if it runs, and wait until it takes part. `force`: even if
    /// the cluster loses its data, and without the wait.
    Restart {
        role: String,
        #[serde(default)]
        force: bool,
    },
    /// Restart the process of a host once all take part.
    Roll {
        host: String,
    },
    /// Fails, and says why, unless all hosts take part now.
    TakePart,
    /// Hold the packets of a role or host.
    Pause {
        role: String,
    },
    Resume {
        role: String,
    },
    /// Change the faults of a host's link.
    Link {
        role: String,
        change: link::Change,
    },
    Down,
    System {
        request: R,
    },
}

/// The answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum Reply<S, R> {
    Status(Box<S>),
    Supervisor(SupervisorStatus),
    /// Done; names the host, or `all`.
    Done {
        host: String,
    },
    /// The request was refused, or failed.
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

/// Returns the socket of the supervisor of the cluster in a directory.
pub fn socket_in(data: &Path) -> PathBuf {
    data.join("supervisor.sock")
}

/// Sends a request to the supervisor of the cluster in a directory.
pub fn ask<S: System>(
    data: &Path,
    request: &Request<S::Request>,
) -> Result<Reply<S::Status, S::Reply>> {
    system_file::check(data, S::COMMAND)?;
    match line_json::call(&socket_in(data), request, CALL_TIMEOUT) {
        Err(error) if error.nobody_listens() => {
            let up = format!("inband up {}", S::COMMAND);
            match Remains::find(data, LOCK_FILE, |data| network::name_for(S::COMMAND, data)) {
                Some(remains) => bail!("{}", remains.in_words(data, &up)),
                None => bail!(
                    "no {} cluster runs in {}; start one: {up} --data {}",
                    S::COMMAND,
                    data.display(),
                    quoted(data)
                ),
            }
        }
        Ok(Reply::Error { message }) => bail!("{message}"),
        answered => Ok(answered?),
    }
}

/// Returns the status of the cluster in a directory.
pub fn status<S: System>(data: &Path) -> Result<S::Status> {
    match ask::<S>(data, &Request::Status)? {
        Reply::Status(status) => Ok(*status),
        other => unexpected(&without_body(&other)),
    }
}

/// Returns the supervisor of the cluster in a directory.
pub fn supervisor<S: System>(data: &Path) -> Result<SupervisorStatus> {
    match ask::<S>(data, &Request::Supervisor)? {
        Reply::Supervisor(supervisor) => Ok(supervisor),
        other => unexpected(&without_body(&other)),
    }
}

/// Sends a request that is answered by [`Reply::Done`]. Returns the host's name.
pub fn done<S: System>(data: &Path, request: &Request<S::Request>) -> Result<String> {
    match ask::<S>(data, request)? {
        Reply::Done { host } => Ok(host),
        other => unexpected(&without_body(&other)),
    }
}

/// Sends a request of the system's own type.
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

/// Returns the error for an answer that does not belong to the request.
pub fn unexpected<T>(reply: &impl Debug) -> Result<T> {
    bail!("an unexpected answer ({reply:?}); do both sides run the same version?")
}
