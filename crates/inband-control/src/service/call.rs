//! Calls of clients: the command line asks any host's service, and is sent on to the one that leads.

use std::net::SocketAddr;
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

/// Pause before a service is asked again that could not say who leads.
const RETRY: Duration = Duration::from_millis(100);
/// To reach a service.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// One attempt at one service.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a client wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// How things are.
    Status,
    /// Take in a node, whose host is running; its identity is what that host has reported.
    Add(Member),
    /// Let a node go forever.
    Remove(NodeId),
    /// Both at once.
    Replace {
        /// Goes.
        old: NodeId,
        /// Comes.
        new: Member,
    },
    /// Make a node the preferred leader.
    MoveLeader {
        /// `None`: of all partitions.
        partition: Option<u32>,
        /// To whom.
        to: NodeId,
    },
    /// Begin with empty acceptors; only if they cannot go on, and never before what a replica has applied.
    Restart {
        /// The new epoch is at least this.
        at_least: Epoch,
        /// One a partition; none: behind what the replicas report.
        first_instances: Vec<u64>,
    },
}

/// A host as the coordinator knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its node id.
    pub node: NodeId,
    /// Its identity.
    pub identity: Identity,
    /// Time since its last report.
    pub silent_ms: u64,
    /// Its acceptor.
    pub acceptor: Option<AcceptorReport>,
    /// Logs of its replica that stand still.
    pub stopped: Vec<StoppedLog>,
}

/// How things are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The controller that answers; it leads the others.
    pub leader: NodeId,
    /// Those whose logs count for the replicated configuration. Follows the controllers of the
    /// configuration in force; until then one that has left is still needed.
    pub voters: Vec<NodeId>,
    /// The configuration in force; `None`: not founded yet.
    pub opened: Option<Configuration>,
    /// The reconfiguration under way.
    pub pending: Option<Pending>,
    /// What keeps the cluster from repairing itself.
    pub waiting: Waiting,
    /// Hosts that have reported.
    pub hosts: Vec<HostStatus>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// Decided. The change is in force once this epoch, or a later one, is opened.
    Accepted {
        /// The epoch.
        epoch: Epoch,
    },
    /// It makes no sense, or not now.
    Refused(Refusal),
    /// Ask there; `None`: nobody leads at the moment.
    Elsewhere(Option<SocketAddr>),
    /// The leader changed, or too few controllers could be reached: it may happen yet.
    OutcomeUnknown,
    /// To [`Request::Restart`] while acceptors vote: nobody votes any more. Ask again, until it is accepted.
    Halted {
        /// The epoch in which nobody votes.
        epoch: Epoch,
    },
}

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody answered who could.
    #[error("no control service could answer within {0:?}; are a majority of the control-plane hosts up?")]
    NoAnswer(Duration),
    /// It may happen yet.
    #[error("the outcome is unknown; look at `inband member list` before trying again")]
    OutcomeUnknown,
    /// The control plane refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Ask the control plane by way of any of these services. Only a request that did not reach anybody
/// who could carry it out is sent again.
pub fn call(
    cluster: &str,
    services: &[SocketAddr],
    request: &Request,
    deadline: Duration,
    transport: &Transport,
) -> Result<Response, CallError> {
    let until = Instant::now() + deadline;
    let mut next = 0;
    let mut to = services.first().copied();
    while let Some(address) = to.filter(|_| Instant::now() < until) {
        match attempt(cluster, address, request, transport) {
            Ok(Response::Elsewhere(Some(leader))) if leader != address => {
                to = Some(leader);
                continue;
            }
            Ok(Response::Elsewhere(_)) | Err(Failure::NotSent) => {}
            Ok(Response::OutcomeUnknown) | Err(Failure::Unanswered) => {
                if *request != Request::Status {
                    return Err(CallError::OutcomeUnknown);
                }
            }
            Ok(Response::Refused(refusal)) => return Err(refusal.into()),
            Ok(response) => return Ok(response),
        }
        thread::sleep(RETRY);
        next = (next + 1) % services.len();
        to = Some(services[next]);
    }
    Err(CallError::NoAnswer(deadline))
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
    // A frame that is cut off is not acted upon.
    write_frame(&mut stream, &frame).map_err(|_| Failure::NotSent)?;
    match read_frame(&mut stream, FRAME_LEN_MAX_BYTES) {
        Ok(Frame {
            body: Body::Answer(response),
            ..
        }) => Ok(response),
        _ => Err(Failure::Unanswered),
    }
}

/// Tells frames of one cluster from those of another.
pub(super) fn cluster_id(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}
