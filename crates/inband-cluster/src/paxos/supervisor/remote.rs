//! The supervisor's socket: what `inband status`, `kill`, ... and `down` of another process use.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use inband_control::service;

use super::{ClusterStatus, DownReport, MemberKind, Shared, SupervisorError};
use crate::background::spawn_until;
use crate::paxos::cluster_dir::ClusterDir;
use inband_host::line_json::{self, Server};

/// Longer than anything that a supervisor does in one request.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// A change of the members lasts as long as it gets on: a new replica may have much to copy.
const CHANGE_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a restarted host may take to play its part again.
const ROLL_LIMIT: Duration = Duration::from_secs(60);

/// A request to a running supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum SupervisorRequest {
    /// Answered by [`SupervisorReply::Status`].
    Status,
    /// Kill the host of a role.
    Kill {
        /// `leader`, `acceptor/0`, ...
        role: String,
    },
    /// Start it again.
    Restart {
        /// `leader`, `acceptor/0`, ...
        role: String,
    },
    /// Restart a host that can be spared, and wait until it plays its part again.
    Roll {
        /// `acceptor/0`, ...
        host: String,
    },
    /// Hold its packets.
    Pause {
        /// `leader`, `acceptor/0`, ...
        role: String,
    },
    /// Release them.
    Resume {
        /// `leader`, `acceptor/0`, ...
        role: String,
    },
    /// Take in a new host.
    Add {
        /// What it is.
        kind: MemberKind,
    },
    /// Let a host go forever.
    Remove {
        /// `acceptor/0`, ...
        host: String,
    },
    /// Put a new host into the place of another. The answer names the new one.
    Replace {
        /// `acceptor/0`, ...
        host: String,
    },
    /// Make a host the preferred leader.
    Lead {
        /// Of this log; `None`: of all.
        log: Option<u32>,
        /// `replica/0`, ...
        host: String,
    },
    /// Put a new key into the place of the old one. The answer names it.
    RotateKey,
    /// What a change of the members is doing. Answered by [`SupervisorReply::Progress`].
    Progress,
    /// Ask the control plane. Answered by [`SupervisorReply::Control`].
    Control {
        /// What.
        request: service::Request,
    },
    /// Stop the cluster cleanly. Answered by [`SupervisorReply::Down`].
    Down,
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

/// A supervisor's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum SupervisorReply {
    /// To [`SupervisorRequest::Status`].
    Status(Box<ClusterStatus>),
    /// It was done to this host.
    Done {
        /// The host's name.
        host: String,
    },
    /// To [`SupervisorRequest::Progress`].
    Progress {
        /// `None`: none is under way.
        doing: Option<String>,
    },
    /// To [`SupervisorRequest::Control`].
    Control {
        /// The control plane's answer.
        response: Box<service::Response>,
    },
    /// To [`SupervisorRequest::Down`].
    Down(DownReport),
    /// It was not done.
    Error {
        /// One line.
        message: String,
    },
}

pub(super) fn serve(shared: &Arc<Shared>) -> Result<Server, SupervisorError> {
    let path = ClusterDir::socket_in(shared.dir.path());
    let shared = Arc::clone(shared);
    let handle = move |request: SupervisorRequest| {
        let done = match request {
            SupervisorRequest::Status => return SupervisorReply::Status(Box::new(shared.status())),
            SupervisorRequest::Down => return SupervisorReply::Down(shared.down()),
            SupervisorRequest::Kill { role } => shared.kill(&role),
            SupervisorRequest::Restart { role } => shared.restart(&role),
            SupervisorRequest::Roll { host } => shared.roll(&host, ROLL_LIMIT),
            SupervisorRequest::Pause { role } => shared.pause(&role),
            SupervisorRequest::Resume { role } => shared.resume(&role),
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

/// Ask the supervisor of the cluster in a directory.
pub fn ask(data: &Path, request: &SupervisorRequest) -> Result<SupervisorReply, SupervisorError> {
    match line_json::call(&ClusterDir::socket_in(data), request, request.limit()) {
        Ok(SupervisorReply::Error { message }) => Err(SupervisorError::Refused(message)),
        Ok(reply) => Ok(reply),
        Err(error) if error.nobody_listens() => Err(SupervisorError::NotRunning {
            dir: data.to_owned(),
        }),
        Err(error) => Err(error.into()),
    }
}

/// The status of the cluster in a directory.
pub fn status(data: &Path) -> Result<ClusterStatus, SupervisorError> {
    match ask(data, &SupervisorRequest::Status)? {
        SupervisorReply::Status(status) => Ok(*status),
        other => Err(unexpected(&other)),
    }
}

/// How the control plane of the cluster in a directory says things are.
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

/// Stop the cluster in a directory.
pub fn down(data: &Path) -> Result<DownReport, SupervisorError> {
    match ask(data, &SupervisorRequest::Down)? {
        SupervisorReply::Down(report) => Ok(report),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &SupervisorReply) -> SupervisorError {
    SupervisorError::Refused(format!(
        "an unexpected answer ({reply:?}); do both sides run the same version?"
    ))
}

/// Start a program that will call [`leave_terminal`](crate::background::leave_terminal) and [`super::Supervisor::start`] on `data`,
/// and wait until that answers.
pub fn spawn_detached(command: Command, data: &Path) -> Result<ClusterStatus, SupervisorError> {
    // Another supervisor may have the directory: then ours ends soon.
    Ok(spawn_until(command, data, |pid| {
        let status = status(data).ok();
        status.filter(|status| status.supervisor_pid == pid)
    })?)
}
