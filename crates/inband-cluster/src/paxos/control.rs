//! What a host answers on its control socket. `inband run` is the server, the supervisor a client.
//!
//! Whatever is said of every log is a list: the partitions' logs in their order, then, with more
//! than one partition, the log of the commands that span several.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use inband_control::service;
pub use inband_host::key_file::KeyStatus;
use inband_paxos::config::Role;
use serde::{Deserialize, Serialize};

use inband_host::line_json::{self, CallError};

/// Positions that one line names.
const POSITIONS_SHOWN_MAX: usize = 9;

/// A request to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum HostRequest {
    /// How are you? Answered by [`HostReply::Status`].
    Status,
    /// Take no more client commands, propose nothing of your own, and answer when nothing is in
    /// flight. Answered by [`HostReply::Position`].
    Drain,
    /// How far are you? Answered by [`HostReply::Position`].
    Applied,
    /// Make everything applied survive a power cut. Answered by [`HostReply::Position`].
    Sync,
    /// Read the cluster's key file again. Answered by [`HostReply::Keys`].
    ReloadKeys,
    /// Ask the control plane, wherever its leader is. Answered by [`HostReply::Control`].
    Control {
        /// What.
        request: service::Request,
    },
    /// End. Answered by [`HostReply::Stopping`] before the process ends.
    Stop,
}

/// A host's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum HostReply {
    /// To [`HostRequest::Status`].
    Status(Box<HostStatus>),
    /// To [`HostRequest::Drain`], [`HostRequest::Applied`] and [`HostRequest::Sync`].
    Position(Position),
    /// To [`HostRequest::Control`].
    Control(Box<service::Response>),
    /// To [`HostRequest::ReloadKeys`].
    Keys {
        /// Used from now on; `None`: the host's configuration has no key file.
        keys: Option<KeyStatus>,
    },
    /// To [`HostRequest::Stop`].
    Stopping,
    /// The request failed or was not understood.
    Error {
        /// One line.
        message: String,
    },
}

/// How far a replica is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Last instance of every log applied to the store; its first instance - 1 if none yet.
    pub applied: Vec<u64>,
    /// Values submitted here that are neither decided nor given up.
    pub outstanding: u64,
}

/// A log's short name: `0`, `1`, ... for the partitions', and `M` for the one behind them.
pub fn log_label(log: usize, logs: usize) -> String {
    if is_log_m(log, logs) {
        "M".to_owned()
    } else {
        log.to_string()
    }
}

/// A log's name in a sentence: `partition 0`, ..., `log M`.
pub fn log_name(log: usize, logs: usize) -> String {
    let kind = if is_log_m(log, logs) {
        "log"
    } else {
        "partition"
    };
    format!("{kind} {}", log_label(log, logs))
}

/// Whether it is the log of the commands that span several partitions.
fn is_log_m(log: usize, logs: usize) -> bool {
    logs > 1 && log + 1 == logs
}

/// Positions in all logs, for people: `instance 7`, or `instances 7, 12, 3`; the first of many.
pub fn instances(at: &[u64]) -> String {
    let shown = at.iter().take(POSITIONS_SHOWN_MAX).map(u64::to_string);
    let list = shown.collect::<Vec<_>>().join(", ");
    match at.len() {
        1 => format!("instance {list}"),
        logs if logs > POSITIONS_SHOWN_MAX => format!("instances {list}, ... of {logs} logs"),
        _ => format!("instances {list}"),
    }
}

/// Everything a host says of itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostStatus {
    /// Name of the node.
    pub name: String,
    /// Id of the node.
    pub node: u8,
    /// Version of the program.
    pub version: String,
    /// Configuration epoch it runs in.
    pub epoch: u32,
    /// What a vote survives here.
    pub durability: String,
    /// How checkpoints and the control plane go to other hosts: `TLS` or `plain`.
    #[serde(default)]
    pub transport: String,
    /// Where each role runs: `xdp`, `xdp-generic` or `udp`.
    pub backends: BTreeMap<Role, String>,
    /// What was tried for the roles in the kernel, and what keeps them from a better data plane.
    #[serde(default)]
    pub dataplane_why: String,
    /// It was told to end, and is ending.
    #[serde(default)]
    pub stopping: bool,
    /// If it may lead: as leader of every log. Empty if not.
    pub leaders: Vec<LeaderStatus>,
    /// If it votes: as acceptor of every log. Empty if not.
    pub acceptors: Vec<AcceptorStatus>,
    /// Durability `sync`: why the acceptor's disk takes no votes, if it does not. It is tried again until it does.
    #[serde(default)]
    pub acceptor_disk_failure: Option<String>,
    /// If it holds a store.
    pub replica: Option<ReplicaStatus>,
    /// If packets are authenticated: with which keys.
    #[serde(default)]
    pub keys: Option<KeyStatus>,
    /// Everything counted, dropped packets among them, by name.
    pub counters: BTreeMap<String, u64>,
    /// Memory of the process and of its maps.
    pub memory_bytes: u64,
}

/// A host as leader of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LeaderStatus {
    /// Whether it leads now.
    pub active: bool,
    /// Its round.
    pub round: u64,
    /// The instance that the next request gets.
    pub next_instance: u64,
    /// Slots below are free for reuse.
    pub floor: u64,
}

/// A host as acceptor of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AcceptorStatus {
    /// Votes; or is recovering and does not.
    pub voting: bool,
    /// Promised for the whole log.
    pub round: u64,
    /// Trim floor.
    pub floor: u64,
    /// Highest instance it has voted in; 0 if none.
    pub highest_voted: u64,
}

/// A host as replica.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Last instance applied, of every log.
    pub applied: Vec<u64>,
    /// Values submitted here that are undecided.
    pub outstanding: u64,
    /// Takes no more client commands.
    pub draining: bool,
    /// Keys in the store.
    pub keys: u64,
    /// Connected clients.
    pub clients: u64,
    /// How far the wall clock is ahead of the majority of the replicas'; `None`: not known.
    #[serde(default)]
    pub clock_skew_ms: Option<i64>,
    /// Why commands are refused, if they are.
    #[serde(default)]
    pub refuses: Option<String>,
}

/// Why a host did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It was not reached.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It said no.
    #[error("{0}")]
    Refused(String),
    /// It answered another question.
    #[error("an unexpected answer ({0}); do both sides run the same version?")]
    Unexpected(String),
}

/// Ask for the status.
pub fn status(socket: &Path, limit: Duration) -> Result<HostStatus, ControlError> {
    match line_json::call(socket, &HostRequest::Status, limit)? {
        HostReply::Status(status) => Ok(*status),
        other => Err(unexpected(other)),
    }
}

/// Ask to drain, sync, or just for the position.
pub fn position(
    socket: &Path,
    request: &HostRequest,
    limit: Duration,
) -> Result<Position, ControlError> {
    match line_json::call(socket, request, limit)? {
        HostReply::Position(position) => Ok(position),
        other => Err(unexpected(other)),
    }
}

/// Ask the control plane by way of a host.
pub fn control(
    socket: &Path,
    request: service::Request,
    limit: Duration,
) -> Result<service::Response, ControlError> {
    match line_json::call(socket, &HostRequest::Control { request }, limit)? {
        HostReply::Control(response) => Ok(*response),
        other => Err(unexpected(other)),
    }
}

/// Have the key file read again; says which keys are used now.
pub fn reload_keys(socket: &Path, limit: Duration) -> Result<Option<KeyStatus>, ControlError> {
    match line_json::call(socket, &HostRequest::ReloadKeys, limit)? {
        HostReply::Keys { keys } => Ok(keys),
        other => Err(unexpected(other)),
    }
}

/// Ask to end.
pub fn stop(socket: &Path, limit: Duration) -> Result<(), ControlError> {
    match line_json::call(socket, &HostRequest::Stop, limit)? {
        HostReply::Stopping => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn unexpected(reply: HostReply) -> ControlError {
    match reply {
        HostReply::Error { message } => ControlError::Refused(message),
        other => ControlError::Unexpected(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_control_plane_is_carried() {
        // Its maps have numbers as keys, which not every way to write an enum can carry.
        let configuration = inband_control::configuration::Configuration {
            epoch: 3,
            revision: 9,
            members: [(
                7,
                inband_control::configuration::Member {
                    node: 7,
                    name: "acceptor/0".into(),
                    data: "10.0.0.1:7400".parse().unwrap(),
                    control: "10.0.0.1:7400".parse().unwrap(),
                    parts: Default::default(),
                    identity: None,
                },
            )]
            .into(),
            leaders: vec![vec![7]],
            beginning: inband_control::configuration::Beginning::Merged,
        };
        let status = service::Status {
            leader: 7,
            voters: vec![7],
            opened: Some(configuration),
            pending: None,
            waiting: inband_control::coordinator::Waiting::Nothing,
            hosts: Vec::new(),
        };
        let reply = HostReply::Control(Box::new(service::Response::Status(Box::new(status))));
        let line = serde_json::to_string(&reply).unwrap();
        assert_eq!(serde_json::from_str::<HostReply>(&line).unwrap(), reply);
        let request = HostRequest::Control {
            request: service::Request::Remove(7),
        };
        let line = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<HostRequest>(&line).unwrap(), request);
    }

    #[test]
    fn positions_and_logs_have_names() {
        assert_eq!(instances(&[7]), "instance 7");
        assert_eq!(instances(&[7, 12, 3]), "instances 7, 12, 3");
        let many = instances(&[5; 65]);
        assert!(many.ends_with("5, 5, ... of 65 logs"), "{many}");
        assert_eq!(log_name(0, 1), "partition 0");
        assert_eq!((log_label(1, 3), log_label(2, 3)), ("1".into(), "M".into()));
        assert_eq!(log_name(2, 3), "log M");
    }
}
