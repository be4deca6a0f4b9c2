//! The supervisor's socket, used by `inband status`, `kill`, ... and `down` of other processes.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use inband_control::service;

use super::{ClusterStatus, DownReport, MemberKind, Shared, SupervisorError};
use crate::background::{spawn_until, Started};
use crate::link;
use crate::paxos::cluster_dir::ClusterDir;
use crate::socket::socket_in;
use inband_host::line_json::{self, Server};

/// Longer than anything that a supervisor does in one request.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// A membership change may take as long as it makes progress, because a new replica may have much to copy.
const CHANGE_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// Timeout for a restarted host to be back in service.
const ROLL_LIMIT: Duration = Duration::from_secs(60);

/// A request to a running supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum SupervisorRequest {
    Status,
    /// Kill the host of a role.
    Kill {
        /// `leader`, `acceptor/0`, ...
        role: String,
    },
    /// Restart the host of a role.
    Restart {
        /// `leader`, `acceptor/0`, ...
        role: String,
    },
    /// Restart a host that the others can do without, and wait until it is back in service.
    Roll {
        /// `acceptor/0`, ...
        host: String,
    },
    /// Hold the packets of a role.
    Pause {
        /// `leader`, `acceptor/0`, ...
        role: String,
    },
    Resume {
        /// `leader`, `acceptor/0`, ...
        role: String,
    },
    /// Change the faults of a host's link.
    Link {
        /// `leader`, `acceptor/0`, ...
        role: String,
        change: link::Change,
    },
    Add {
        kind: MemberKind,
    },
    /// Remove a host permanently.
    Remove {
        /// `acceptor/0`, ...
        host: String,
    },
    /// Replace a host by a new one. The answer names the new one.
    Replace {
        /// `acceptor/0`, ...
        host: String,
    },
    /// Make a host the preferred leader.
    Lead {
        /// `None`: of all logs.
        log: Option<u32>,
        /// `replica/0`, ...
        host: String,
    },
    /// Replace the key. The answer names the new one.
    RotateKey,
    /// What is a membership change doing? Answered by [`SupervisorReply::Progress`].
    Progress,
    /// Forward a request to the control plane. Answered by [`SupervisorReply::Control`].
    Control {
        request: service::Request,
    },
    /// Stop the cluster cleanly. Answered by [`SupervisorReply::Down`].
    Down {
        /// Also if acknowledged writes are lost.
        #[serde(default)]
        accept_loss: bool,
    },
}

impl SupervisorRequest {
    fn limit(&self) -> Duration {
        match self {
            Self::Add { .. } | Self::Remove { .. } | Self::Replace { .. } | Self::Lead { .. } => {
                CHANGE_LIMIT
            }
            _ => CALL_LIMIT,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum SupervisorReply {
    Status(Box<ClusterStatus>),
    /// Done; names the host.
    Done {
        host: String,
    },
    Progress {
        /// `None`: no change is in progress.
        doing: Option<String>,
    },
    Control {
        response: Box<service::Response>,
    },
    Down(DownReport),
    /// The request was refused, or failed.
    Error {
        /// One line.
        message: String,
    },
}

pub(super) fn serve(shared: &Arc<Shared>) -> Result<Server, SupervisorError> {
    let path = socket_in(shared.dir.path());
    let shared = Arc::clone(shared);
    let handle = move |request: SupervisorRequest| {
        let done = match request {
            SupervisorRequest::Status => return SupervisorReply::Status(Box::new(shared.status())),
            SupervisorRequest::Down { accept_loss } => match shared.down(accept_loss) {
                Ok(report) => return SupervisorReply::Down(report),
                Err(error) => Err(error),
            },
            SupervisorRequest::Kill { role } => shared.kill(&role),
            SupervisorRequest::Restart { role } => shared.restart(&role),
            SupervisorRequest::Roll { host } => shared.roll(&host, ROLL_LIMIT),
            SupervisorRequest::Pause { role } => shared.pause(&role),
            SupervisorRequest::Resume { role } => shared.resume(&role),
            SupervisorRequest::Link { role, change } => shared.link(&role, &change),
            SupervisorRequest::Add { kind } => shared.add_member(kind),
            SupervisorRequest::Remove { host } => shared.remove_member(&host),
            SupervisorRequest::Replace { host } => shared.replace_member(&host),
            SupervisorRequest::Lead { log, host } => shared.move_leader(log, &host),
            SupervisorRequest::RotateKey => shared.rotate_key(),
            SupervisorRequest::Progress => {
                let doing = shared.progress();
                return SupervisorReply::Progress { doing };
            }
            SupervisorRequest::Control { request } => match shared.ask_plane(&request) {
                Ok(response) => {
                    let response = Box::new(response);
                    return SupervisorReply::Control { response };
                }
                Err(error) => Err(error.into()),
            },
        };
        match done {
            Ok(host) => SupervisorReply::Done { host },
            Err(error) => SupervisorReply::Error {
                message: error.to_string(),
            },
        }
    };
    Server::start(&path, handle, |message| SupervisorReply::Error { message })
        .map_err(SupervisorError::file("listen at", &path))
}

/// Sends a request to the supervisor of the cluster in a directory.
pub fn ask(data: &Path, request: &SupervisorRequest) -> Result<SupervisorReply, SupervisorError> {
    match line_json::call(&socket_in(data), request, request.limit()) {
        Ok(SupervisorReply::Error { message }) => Err(SupervisorError::Refused(message)),
        Ok(reply) => Ok(reply),
        Err(error) if error.nobody_listens() => Err(SupervisorError::NotRunning {
            dir: data.to_owned(),
            remains: ClusterDir::remains(data),
        }),
        Err(error) => Err(error.into()),
    }
}

/// Returns the status of the cluster in a directory.
pub fn status(data: &Path) -> Result<ClusterStatus, SupervisorError> {
    match ask(data, &SupervisorRequest::Status)? {
        SupervisorReply::Status(status) => Ok(*status),
        other => Err(unexpected(&other)),
    }
}

/// Returns the control plane's status, for the cluster in a directory.
pub fn plane_status(data: &Path) -> Result<service::Status, SupervisorError> {
    let request = service::Request::Status;
    match ask(data, &SupervisorRequest::Control { request })? {
        SupervisorReply::Control { response } => match *response {
            service::Response::Status(status) => Ok(*status),
            other => Err(SupervisorError::Refused(format!(
                "the control plane answered {other:?}; do both sides run the same version?"
            ))),
        },
        other => Err(unexpected(&other)),
    }
}

/// Stops the cluster in a directory; with `accept_loss`, also if acknowledged writes are lost.
pub fn down(data: &Path, accept_loss: bool) -> Result<DownReport, SupervisorError> {
    match ask(data, &SupervisorRequest::Down { accept_loss })? {
        SupervisorReply::Down(report) => Ok(report),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &SupervisorReply) -> SupervisorError {
    SupervisorError::Refused(format!(
        "an unexpected answer ({reply:?}); do both sides run the same version?"
    ))
}

/// Starts a program that will call [`leave_terminal`](crate::background::leave_terminal) and
/// [`super::Supervisor::start`] on `data`, and waits until that supervisor answers.
pub fn spawn_detached(
    command: Command,
    data: &Path,
) -> Result<Started<ClusterStatus>, SupervisorError> {
    // If another supervisor holds the directory, ours ends soon.
    Ok(spawn_until(command, data, |pid| {
        let status = status(data).ok();
        status.filter(|status| status.supervisor_pid == pid)
    })?)
}
