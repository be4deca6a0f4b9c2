//! A node whose state other threads can see: the control socket and the metrics read it here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use inband_dataplane::registers::{AcceptorView, LeaderView};
use inband_paxos::leadership::LeaderEvent;
use inband_paxos::log::{Burst, ReplicatedLog, SubmitError, Ticket};
use inband_paxos::node::Node;

/// Time between two publications.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// Leader changes remembered.
const EVENTS_MAX: usize = 64;

/// What a node told about itself last.
#[derive(Debug, Clone, Default)]
pub struct NodeState {
    /// The acceptor's registers, if it has the role.
    pub acceptor: Option<AcceptorView>,
    /// The leader's registers, if it has the role.
    pub leader: Option<LeaderView>,
    /// Next instance the learner delivers, if there is one.
    pub next_delivery: Option<u64>,
    /// Highest instance the learner knows to exist.
    pub known_highest: u64,
    /// Values submitted and not yet answered.
    pub outstanding: usize,
    /// Counters by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// Bytes of registers, rings and log.
    pub memory_bytes: u64,
    /// Nodes whose link-layer address is not known.
    pub unresolved: Vec<u8>,
    /// Leader changes: microseconds since the node started, and what happened.
    pub leader_events: Vec<(u64, LeaderEvent)>,
    /// Take-overs completed here.
    pub takeovers: u64,
}

/// Shared between the node's thread and the others.
pub type Shared = Arc<Mutex<NodeState>>;

/// The state as last published.
pub fn read(shared: &Shared) -> NodeState {
    shared.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A [`Node`] that publishes its state as it is polled.
pub struct PublishedNode {
    node: Node,
    shared: Shared,
    publish_at: Instant,
}

impl PublishedNode {
    /// Wrap a node.
    pub fn new(node: Node) -> (PublishedNode, Shared) {
        let shared = Shared::default();
        let mut published =
            PublishedNode { node, shared: shared.clone(), publish_at: Instant::now() };
        published.publish();
        (published, shared)
    }

    fn publish(&mut self) {
        self.publish_at = Instant::now() + PUBLISH_EVERY;
        let host = self.node.host();
        let fresh = NodeState {
            acceptor: self.node.acceptor_view(),
            leader: self.node.leader_view(),
            next_delivery: host.learner().map(|l| l.next()),
            known_highest: host.learner().map_or(0, |l| l.known_highest()),
            outstanding: host.proposer().outstanding(),
            counters: self.node.counters(),
            memory_bytes: self.node.memory_bytes(),
            unresolved: self.node.unresolved().to_vec(),
            leader_events: Vec::new(),
            takeovers: host.leadership().map_or(0, |l| l.takeovers()),
        };
        let events = self.node.take_leader_events();
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = std::mem::take(&mut state.leader_events);
        all.extend(events);
        let surplus = all.len().saturating_sub(EVENTS_MAX);
        all.drain(..surplus);
        *state = NodeState { leader_events: all, ..fresh };
    }
}

impl ReplicatedLog for PublishedNode {
    fn max_value_len_bytes(&self) -> usize {
        self.node.max_value_len_bytes()
    }
    fn submit_room(&self) -> usize {
        self.node.submit_room()
    }
    fn submit(&mut self, value: &[u8]) -> Result<Ticket, SubmitError> {
        self.node.submit(value)
    }
    fn poll(&mut self, burst: &mut Burst) {
        self.node.poll(burst);
        if Instant::now() >= self.publish_at {
            self.publish();
        }
    }
    fn applied(&mut self, instance: u64) {
        self.node.applied(instance);
    }
    fn reset(&mut self, applied: u64) {
        self.node.reset(applied);
    }
    fn session_refused(&mut self, ticket: Ticket) {
        self.node.session_refused(ticket);
    }
    fn answered(&mut self, ticket: Ticket) {
        self.node.answered(ticket);
    }
    fn wake_fds(&self) -> Vec<RawFd> {
        self.node.wake_fds()
    }
    fn poll_timeout(&self) -> Duration {
        self.node.poll_timeout().min(PUBLISH_EVERY)
    }
    fn checkpoint_peers(&self) -> Vec<SocketAddr> {
        self.node.checkpoint_peers()
    }
}
