//! The protocol of a host's control socket. `inband run` and `inband p4 acceptor` are servers, the supervisor a client.
//!
//! Lists by log contain the partitions' logs in order and then, with more than one partition, log M.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use inband_control::service;
pub use inband_host::key_file::KeyStatus;
use inband_paxos::config::{Config, Role};
use inband_paxos::dataplane::registers::AcceptorView;
use inband_transport::tls::Transport;
use serde::{Deserialize, Serialize};

use inband_host::line_json::{self, CallError, Server};

/// Maximum number of positions in one line.
const POSITIONS_SHOWN_MAX: usize = 9;
/// Time limit for the control plane, which may be electing a leader.
const CONTROL_PLANE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum HostRequest {
    Status,
    /// Accept no more client commands, propose nothing, and answer when nothing is in flight. Answered by
    /// [`HostReply::Position`].
    Drain,
    /// How far is the replica? Answered by [`HostReply::Position`].
    Applied,
    /// Make everything applied survive a power cut. Answered by [`HostReply::Position`].
    Sync,
    /// Reload the cluster's key file. Answered by [`HostReply::Keys`].
    ReloadKeys,
    /// Forward a request to the control plane, wherever its leader is. Answered by [`HostReply::Control`].
    Control {
        request: service::Request,
    },
    /// Stop. Answered by [`HostReply::Stopping`] before the process ends.
    Stop,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum HostReply {
    Status(Box<HostStatus>),
    /// To [`HostRequest::Drain`], [`HostRequest::Applied`] and [`HostRequest::Sync`].
    Position(Position),
    Control(Box<service::Response>),
    /// To [`HostRequest::ReloadKeys`].
    Keys {
        /// The keys now in use; `None`: the host's configuration has no key file.
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
    /// By log: the last instance applied to the store; the log's first instance - 1 if none yet.
    pub applied: Vec<u64>,
    /// Values submitted here that are neither decided nor given up.
    pub outstanding: u64,
}

/// Returns a log's short name: `0`, `1`, ... for the partitions' logs, and `M` for log M after them.
pub fn log_label(log: usize, logs: usize) -> String {
    if is_log_m(log, logs) {
        "M".to_owned()
    } else {
        log.to_string()
    }
}

/// Returns a log's name in a sentence: `partition 0`, ..., `log M`.
pub fn log_name(log: usize, logs: usize) -> String {
    let kind = if is_log_m(log, logs) {
        "log"
    } else {
        "partition"
    };
    format!("{kind} {}", log_label(log, logs))
}

/// Returns whether it is the log of commands that span several partitions.
fn is_log_m(log: usize, logs: usize) -> bool {
    logs > 1 && log + 1 == logs
}

/// Positions in all logs in readable form: `instance 7`, or `instances 7, 12, 3`; of many, only the first.
pub fn instances(at: &[u64]) -> String {
    let shown = at.iter().take(POSITIONS_SHOWN_MAX).map(u64::to_string);
    let list = shown.collect::<Vec<_>>().join(", ");
    match at.len() {
        1 => format!("instance {list}"),
        logs if logs > POSITIONS_SHOWN_MAX => format!("instances {list}, ... of {logs} logs"),
        _ => format!("instances {list}"),
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostStatus {
    /// Name of the node.
    pub name: String,
    /// Id of the node.
    pub node: u8,
    /// Version of the program.
    pub version: String,
    /// The host's configuration epoch.
    pub epoch: u32,
    /// What a vote survives here.
    pub durability: String,
    /// How checkpoints and control-plane messages go to other hosts: `TLS` or `plain`.
    #[serde(default)]
    pub transport: String,
    /// Where each role runs: `xdp`, `xdp-generic` or `udp`.
    pub backends: BTreeMap<Role, String>,
    /// Which dataplanes were tried for the roles in the kernel, and why a faster one is not used.
    #[serde(default)]
    pub dataplane_why: String,
    /// The host was told to stop and is doing so.
    #[serde(default)]
    pub stopping: bool,
    /// Its cluster has a configuration, and the host has no role in it.
    #[serde(default)]
    pub is_removed: bool,
    /// If it may lead: its status as leader, by log. Empty if not.
    pub leaders: Vec<LeaderStatus>,
    /// If it votes: its status as acceptor, by log. Empty if not.
    pub acceptors: Vec<AcceptorStatus>,
    /// Durability `sync`: why the acceptor's disk accepts no votes, if it does not. Writes are retried until they
    /// succeed.
    #[serde(default)]
    pub acceptor_disk_failure: Option<String>,
    /// What to do about packets that were dropped lately because of their key, if there are any.
    #[serde(default)]
    pub key_drops: Option<String>,
    /// If it holds a store.
    pub replica: Option<ReplicaStatus>,
    /// The keys in use, if packets are authenticated.
    #[serde(default)]
    pub keys: Option<KeyStatus>,
    /// All counters, including dropped packets, by name.
    pub counters: BTreeMap<String, u64>,
    /// Memory of the process and its maps.
    pub memory_bytes: u64,
}

/// The status of a host as leader of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LeaderStatus {
    /// Whether it leads now.
    pub active: bool,
    pub round: u64,
    /// The instance that the next request gets.
    pub next_instance: u64,
    /// Slots below this instance may be reused.
    pub floor: u64,
}

/// The status of a host as acceptor of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AcceptorStatus {
    /// Whether it votes; false while it is recovering.
    pub voting: bool,
    /// The round promised for the whole log.
    pub round: u64,
    /// The trim floor.
    pub floor: u64,
    /// Highest instance it has voted in; 0 if none.
    pub highest_voted: u64,
}

impl From<&AcceptorView> for AcceptorStatus {
    fn from(view: &AcceptorView) -> AcceptorStatus {
        AcceptorStatus {
            voting: view.voting,
            round: view.promise,
            floor: view.floor,
            highest_voted: view.highest,
        }
    }
}

/// The status of a host as replica.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// By log: the last instance applied.
    pub applied: Vec<u64>,
    /// Values submitted here that are undecided.
    pub outstanding: u64,
    /// It accepts no more client commands.
    pub draining: bool,
    /// Keys in the store.
    pub keys: u64,
    pub clients: u64,
    /// How far the wall clock is ahead of that of the majority of replicas; `None` if unknown.
    #[serde(default)]
    pub clock_skew_ms: Option<i64>,
    /// Why commands are refused, if they are.
    #[serde(default)]
    pub refuses: Option<String>,
    /// The store has not applied all that was decided when it asked, or loads a checkpoint.
    #[serde(default)]
    pub catching_up: bool,
}

/// For a host: answers requests at the configured socket until the server is dropped.
pub fn serve(
    config: &Config,
    answer: impl Fn(HostRequest) -> HostReply + Send + Sync + 'static,
) -> anyhow::Result<Server> {
    let path = &config.host.control;
    if let Some(dir) = path.parent().filter(|dir| *dir != Path::new("")) {
        std::fs::create_dir_all(dir).with_context(|| format!("host.control: {}", dir.display()))?;
    }
    Server::start(path, answer, |message| HostReply::Error { message })
        .with_context(|| format!("host.control: cannot listen at {}", path.display()))
}

/// For a host: the answer to [`HostRequest::Control`]. The control plane answers over TCP, wherever its leader is.
pub fn ask_control_plane(
    config: &Config,
    request: &service::Request,
    transport: &Transport,
) -> HostReply {
    let controllers = config.controllers();
    let services: Vec<SocketAddr> = controllers
        .map(|node| SocketAddr::V4(node.control_plane()))
        .collect();
    let timeout = CONTROL_PLANE_TIMEOUT;
    let response = service::call(&config.cluster.name, &services, request, timeout, transport);
    match response {
        Ok(response) => HostReply::Control(Box::new(response)),
        Err(service::CallError::Refused(refusal)) => {
            HostReply::Control(Box::new(service::Response::Refused(refusal)))
        }
        Err(service::CallError::OutcomeUnknown) => {
            HostReply::Control(Box::new(service::Response::OutcomeUnknown))
        }
        Err(error) => HostReply::Error {
            message: error.to_string(),
        },
    }
}

/// As [`HostStatus::transport`].
pub fn transport_in_words(transport: &Transport) -> String {
    match transport.is_secure() {
        true => "TLS".into(),
        false => "plain".into(),
    }
}

/// Why a host did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The host could not be reached.
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{0}")]
    Refused(String),
    /// The answer does not belong to the request.
    #[error("an unexpected answer ({0}); do both sides run the same version?")]
    Unexpected(String),
}

pub fn status(socket: &Path, limit: Duration) -> Result<HostStatus, ControlError> {
    match line_json::call(socket, &HostRequest::Status, limit)? {
        HostReply::Status(status) => Ok(*status),
        other => Err(unexpected(other)),
    }
}

/// Requests to drain or to sync, or just the position.
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

/// Sends a request to the control plane through a host.
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

/// Makes a host reload its key file. Returns the keys now in use.
pub fn reload_keys(socket: &Path, limit: Duration) -> Result<Option<KeyStatus>, ControlError> {
    match line_json::call(socket, &HostRequest::ReloadKeys, limit)? {
        HostReply::Keys { keys } => Ok(keys),
        other => Err(unexpected(other)),
    }
}

/// Tells a host to stop.
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
        // The maps have numbers as keys, which not every serialization of an enum supports.
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
