//! Client calls: the command line asks all services at a time who leads, and sends its request to the leader.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use inband_transport::frames::{read_frame, write_frame};
use inband_transport::paced::Pace;
use inband_transport::tls::Transport;
use serde::{Deserialize, Serialize};

use super::net::{Body, Frame, FRAME_LEN_MAX_BYTES};
use crate::configuration::{Configuration, Epoch, Identity, Member, NodeId};
use crate::coordinator::Waiting;
use crate::message::{AcceptorReport, StoppedLog};
use crate::state::{Pending, Refusal};

/// Pause before asking again a service that has not named itself as the leader.
const RETRY: Duration = Duration::from_millis(100);
/// Time limit for connecting to a service.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for a service's answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The state of the cluster.
    Status,
    /// Add a node whose host is running; its identity is the one that the host has reported.
    Add(Member),
    /// Remove a node permanently.
    Remove(NodeId),
    /// Both in one step.
    Replace {
        /// The node to remove.
        old: NodeId,
        /// The node to add.
        new: Member,
    },
    /// Make a node the preferred leader.
    MoveLeader {
        /// `None`: all partitions.
        partition: Option<u32>,
        /// The new preferred leader.
        to: NodeId,
    },
    /// Restart with empty acceptors. Allowed only if they cannot continue, and never before what a replica has applied.
    Restart {
        /// The new epoch is at least this.
        at_least: Epoch,
        /// One per partition; empty: after what the replicas report.
        first_instances: Vec<u64>,
    },
}

/// A host as known to the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    pub node: NodeId,
    pub identity: Identity,
    /// Milliseconds since its last report.
    pub silent_ms: u64,
    pub acceptor: Option<AcceptorReport>,
    /// Logs of its replica that make no progress.
    pub stopped: Vec<StoppedLog>,
}

/// The state of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The controller that answers; it is the leader.
    pub leader: NodeId,
    /// The controllers whose logs vote. Follows the controllers of the configuration in force; until it has caught up,
    /// a removed one is still needed.
    pub voters: Vec<NodeId>,
    /// The configuration in force; `None`: not founded yet.
    pub opened: Option<Configuration>,
    /// The reconfiguration in progress.
    pub pending: Option<Pending>,
    /// Why the cluster cannot repair itself, if it is blocked.
    pub waiting: Waiting,
    /// Hosts that have reported.
    pub hosts: Vec<HostStatus>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    Status(Box<Status>),
    /// Decided. The change is in force once this epoch or a later one is opened.
    Accepted {
        epoch: Epoch,
    },
    /// The request is invalid, or not possible now.
    Refused(Refusal),
    /// Ask the service at this address; `None`: there is no leader at present.
    Elsewhere(Option<SocketAddr>),
    /// The leader changed, or too few controllers could be reached: the request may still take effect.
    OutcomeUnknown,
    /// Answer to [`Request::Restart`] while acceptors vote: voting has been halted. Repeat the request until it is
    /// accepted.
    Halted {
        /// The halted epoch.
        epoch: Epoch,
    },
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No service that could answer did so in time.
    #[error("no control service could answer within {0:?}; are a majority of the control-plane hosts up?")]
    NoAnswer(Duration),
    /// The request may still take effect.
    #[error("the outcome is unknown; see `inband member list` before trying again")]
    OutcomeUnknown,
    /// The control plane refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Calls the control plane through any of these services. A service that does not answer delays nothing: all are asked at
/// the same time who leads. The request itself goes to the leader, and is repeated only if it did not reach a service that
/// could carry it out. It may take up to 10 s longer than `deadline` if the leader does not answer it.
pub fn call(
    cluster: &str,
    services: &[SocketAddr],
    request: &Request,
    deadline: Duration,
    transport: &Transport,
) -> Result<Response, CallError> {
    let until = Instant::now() + deadline;
    let mut search = Search::new(cluster, services, transport);
    while let Some((leader, status)) = search.leader(until) {
        if *request == Request::Status {
            match status {
                Some(status) => return Ok(Response::Status(status)),
                None => continue,
            }
        }
        match attempt(cluster, leader, request, transport) {
            Ok(Response::Elsewhere(_)) | Err(Failure::NotSent) => {}
            Ok(Response::OutcomeUnknown) | Err(Failure::Unanswered) => {
                return Err(CallError::OutcomeUnknown);
            }
            Ok(Response::Refused(refusal)) => return Err(refusal.into()),
            Ok(response) => return Ok(response),
        }
    }
    Err(CallError::NoAnswer(deadline))
}

type Answer = Result<Response, Failure>;

/// A search for the leader.
struct Search<'c> {
    cluster: &'c str,
    transport: &'c Transport,
    /// When each service may be asked next; `None`: it is being asked.
    next_at: BTreeMap<SocketAddr, Option<Instant>>,
    sender: Sender<(SocketAddr, Answer)>,
    answers: mpsc::Receiver<(SocketAddr, Answer)>,
}

impl<'c> Search<'c> {
    fn new(cluster: &'c str, services: &[SocketAddr], transport: &'c Transport) -> Self {
        let (sender, answers) = mpsc::channel();
        let now = Some(Instant::now());
        Self {
            cluster,
            transport,
            next_at: services.iter().map(|service| (*service, now)).collect(),
            sender,
            answers,
        }
    }

    /// Returns the next service that says that it leads, with its status if it knows who is up. `None` at `until`.
    fn leader(&mut self, until: Instant) -> Option<(SocketAddr, Option<Box<Status>>)> {
        loop {
            let now = Instant::now();
            if now >= until {
                return None;
            }
            self.ask(now);
            let (service, answer) = match self.answers.recv_timeout(RETRY.min(until - now)) {
                Ok(answered) => answered,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is held here"),
            };
            let again_at = Some(Instant::now() + RETRY);
            self.next_at.insert(service, again_at);
            match answer {
                Ok(Response::Status(status)) => return Some((service, Some(status))),
                Ok(Response::Elsewhere(Some(leader))) if leader == service => {
                    return Some((leader, None));
                }
                Ok(Response::Elsewhere(Some(other))) => {
                    self.next_at.entry(other).or_insert(Some(now));
                }
                _ => {}
            }
        }
    }

    /// Asks each service whose turn it is, on a thread of its own.
    fn ask(&mut self, now: Instant) {
        for (service, next_at) in &mut self.next_at {
            if next_at.is_none_or(|at| now < at) {
                continue;
            }
            *next_at = None;
            let (service, sender) = (*service, self.sender.clone());
            let (cluster, transport) = (self.cluster.to_owned(), self.transport.clone());
            thread::spawn(move || {
                let answer = attempt(&cluster, service, &Request::Status, &transport);
                // Nobody waits for it once another one leads.
                let _ = sender.send((service, answer));
            });
        }
    }
}

enum Failure {
    NotSent,
    Unanswered,
}

fn attempt(
    cluster: &str,
    to: SocketAddr,
    request: &Request,
    transport: &Transport,
) -> Result<Response, Failure> {
    let pace = Pace {
        silence_max: ATTEMPT_TIMEOUT,
        grace: Duration::ZERO,
        bytes_per_s_min: 0,
    };
    let connected = transport.connect(to, CONNECT_TIMEOUT, pace);
    let mut stream = connected.map_err(|_| Failure::NotSent)?;
    let frame = Frame {
        cluster: cluster_id(cluster),
        from: 0,
        control: None,
        body: Body::Call(request.clone()),
    };
    // A truncated frame is not acted upon.
    write_frame(&mut stream, &frame).map_err(|_| Failure::NotSent)?;
    match read_frame(&mut stream, FRAME_LEN_MAX_BYTES) {
        Ok(Frame {
            body: Body::Answer(response),
            ..
        }) => Ok(response),
        _ => Err(Failure::Unanswered),
    }
}

/// Returns the number that distinguishes the frames of this cluster from those of others.
pub(super) fn cluster_id(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}
