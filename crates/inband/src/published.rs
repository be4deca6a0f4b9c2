//! A node whose state other threads can see: the control socket and the metrics read it from here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use inband_control::message::{ReplicaPositions, StoppedLog};
use inband_host::key_drops::KeyDrops;
use inband_paxos::dataplane::registers::{AcceptorView, LeaderView};
use inband_paxos::dataplane::round::owner;
use inband_paxos::dataplane::soft::Roles;
use inband_paxos::host::HostConfig;
use inband_paxos::leadership::LeaderEvent;
use inband_paxos::log::{Burst, ReadTicket, ReplicatedLog, SubmitError, Ticket};
use inband_paxos::node::Node;
use inband_paxos::partition::Partition;

use crate::node_commands::NodeCommandQueue;

/// How often a node's state is published.
pub const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// A log that has delivered nothing for this long although something is pending is reported as stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(5);
/// After a submission has been given up, the log still counts as waiting for this long.
const WAIT_FORGOTTEN_AFTER: Duration = Duration::from_secs(30);
/// Number of leader changes remembered.
const EVENTS_MAX: usize = 64;

/// The last published state of a node.
#[derive(Debug, Clone, Default)]
pub struct NodeState {
    /// When this was published; at most [`PUBLISH_EVERY`] ago, unless the node's thread is busy.
    pub published_at: Option<Instant>,
    /// Configuration epoch; 0: in no configuration.
    pub epoch: u32,
    /// The configuration in force gives this host a role. If not, it was removed, or is yet to be added.
    pub is_member: bool,
    /// If it is a replica: its positions. Clients may have been answered up to `applied`, which was delivered.
    pub positions: Option<ReplicaPositions>,
    /// If it is a replica: the logs that make no progress.
    pub stopped: Vec<StoppedLog>,
    /// The acceptor's registers of every log, if it has the role.
    pub acceptors: Vec<AcceptorView>,
    /// Why the acceptor's disk accepts no votes, if it does not.
    pub acceptor_disk_failure: Option<String>,
    /// The leader's registers of every log, if it has the role.
    pub leaders: Vec<LeaderView>,
    /// The node that leads each log, as far as this host knows; 0: none.
    pub known_leaders: Vec<u8>,
    /// The instance below which slots may be reused, in each log, as far as this host knows.
    pub floors: Vec<u64>,
    /// Next instance that the learner delivers, if there is one; summed over all logs.
    pub next_delivery: Option<u64>,
    /// Highest instance known to the learner; summed over all logs.
    pub known_highest: u64,
    /// Number of submitted and unanswered values.
    pub outstanding: usize,
    /// Ids of packet keys: the active one, and all accepted ones.
    pub keys: Option<(u16, Vec<u16>)>,
    /// What to do about packets that were dropped lately because of their key, if there are any.
    pub key_drops: Option<String>,
    pub counters: BTreeMap<&'static str, u64>,
    /// Memory of registers, rings and log.
    pub memory_bytes: u64,
    /// Nodes whose link-layer address is not known.
    pub unresolved: Vec<u8>,
    /// Leader changes: microseconds since the node started, log, and what happened.
    pub leader_events: Vec<(u64, usize, LeaderEvent)>,
    /// Number of take-overs completed here, of all logs.
    pub takeovers: u64,
    /// How long the last of them took.
    pub last_takeover: Takeover,
}

/// Durations of one take-over, measured from the suspicion of the old leader.
#[derive(Debug, Clone, Copy, Default)]
pub struct Takeover {
    /// Until phase 1 was complete.
    pub activated_after: Option<Duration>,
    /// Until this host's learner delivered a value decided after that.
    pub decided_after: Option<Duration>,
}

/// Observes the take-overs of one log, from poll to poll.
#[derive(Default)]
struct TakeoverWatch {
    /// By the node's clock in microseconds, and a moment no later than that by this thread's clock.
    suspected_at: Option<(u64, Instant)>,
    last: Takeover,
}

impl TakeoverWatch {
    /// Processes the events of a poll that began at `poll_started`. On XDP phase 1 may begin and end within one poll,
    /// so its duration is computed from the events' own times.
    fn look<'e>(
        &mut self,
        poll_started: Instant,
        events: impl Iterator<Item = &'e (u64, usize, LeaderEvent)>,
        has_delivered: bool,
    ) {
        // A value delivered in the same poll as the activation may have been decided before it, so only later polls
        // count: the measured time may be too long, never too short.
        let awaits_decision =
            self.last.activated_after.is_some() && self.last.decided_after.is_none();
        if awaits_decision && has_delivered {
            self.last.decided_after = self.suspected_at.map(|(_, at)| at.elapsed());
        }
        for (at_us, _, event) in events {
            match (event, self.suspected_at) {
                (LeaderEvent::Suspected, _) => {
                    self.suspected_at = Some((*at_us, poll_started));
                    self.last = Takeover::default();
                }
                (LeaderEvent::Activate(_), Some((suspected_us, _))) => {
                    let after_us = at_us.saturating_sub(suspected_us);
                    self.last.activated_after = Some(Duration::from_micros(after_us));
                }
                (LeaderEvent::Activate(_), None) | (LeaderEvent::Deactivate, _) => {}
            }
        }
    }
}

/// Why a log delivers nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    Nothing,
    /// Something exists or was submitted, and has not been delivered.
    Log,
    /// Its replica has paused it.
    Replica,
}

/// Observes whether a log makes progress, from publication to publication.
#[derive(Default)]
pub struct Movement {
    next: u64,
    /// When `next` was first waited for, and when last.
    waited: Option<(Instant, Instant)>,
}

impl Movement {
    /// How long the log has made no progress.
    pub fn look(&mut self, now: Instant, next: u64, waits: Waits) -> Duration {
        if waits == Waits::Replica {
            *self = Self::default();
        }
        let is_waited_for = waits == Waits::Log;
        let is_forgotten = |last: Instant| !is_waited_for && now > last + WAIT_FORGOTTEN_AFTER;
        if self.next != next || self.waited.is_some_and(|(_, last)| is_forgotten(last)) {
            self.waited = None;
        }
        self.next = next;
        if is_waited_for {
            let first = self.waited.map_or(now, |(first, _)| first);
            self.waited = Some((first, now));
        }
        self.waited.map_or(Duration::ZERO, |(first, _)| now - first)
    }
}

/// Shared between the node's thread and the others.
pub type Shared = Arc<Mutex<NodeState>>;

/// Returns the state as last published.
pub fn read(shared: &Shared) -> NodeState {
    shared
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// The part that the control plane polls, without copying the rest.
pub struct Progress {
    /// [`NodeState::epoch`]
    pub epoch: u32,
    /// [`NodeState::positions`]
    pub positions: Option<ReplicaPositions>,
    /// [`NodeState::stopped`]
    pub stopped: Vec<StoppedLog>,
}

pub fn progress(shared: &Shared) -> Progress {
    let state = shared.lock().unwrap_or_else(PoisonError::into_inner);
    Progress {
        epoch: state.epoch,
        positions: state.positions.clone(),
        stopped: state.stopped.clone(),
    }
}

/// A [`Node`] that publishes its state as it is polled.
pub struct PublishedNode {
    node: Node,
    node_commands: NodeCommandQueue,
    shared: Shared,
    publish_at: Instant,
    /// One per log.
    movements: Vec<Movement>,
    /// The epoch for which they are observed.
    movements_epoch: u32,
    key_drops: KeyDrops,
    /// One per log.
    takeovers: Vec<TakeoverWatch>,
    /// The log whose leader changed last.
    last_takeover: usize,
    /// Number of values in each log's burst before a poll.
    delivered: Vec<usize>,
    /// Not published yet.
    events: Vec<(u64, usize, LeaderEvent)>,
}

impl PublishedNode {
    /// Wraps a node. Other threads send it commands through `node_commands`.
    pub fn new(node: Node, node_commands: NodeCommandQueue) -> (PublishedNode, Shared) {
        let shared = Shared::default();
        let logs = node.partitions();
        let mut published = PublishedNode {
            node,
            node_commands,
            shared: shared.clone(),
            publish_at: Instant::now(),
            movements: (0..logs).map(|_| Movement::default()).collect(),
            movements_epoch: 0,
            key_drops: KeyDrops::default(),
            takeovers: (0..logs).map(|_| TakeoverWatch::default()).collect(),
            last_takeover: 0,
            delivered: Vec::with_capacity(logs),
            events: Vec::new(),
        };
        published.publish();
        (published, shared)
    }

    /// Returns the logs that make no progress: values lie behind a missing one, or were submitted, and none is
    /// delivered.
    fn stopped(&mut self) -> Vec<StoppedLog> {
        let now = Instant::now();
        let epoch = self.node.host().config().epoch;
        if std::mem::replace(&mut self.movements_epoch, epoch) != epoch {
            self.movements.fill_with(Movement::default);
        }
        let mut stopped = Vec::new();
        let logs = self.node.host().partitions().iter();
        for (number, (log, movement)) in logs.zip(&mut self.movements).enumerate() {
            let Some(learner) = log.learner() else {
                continue;
            };
            let next = learner.next();
            let is_missing = learner.known_highest() >= next || log.proposer().outstanding() > 0;
            let waits = match is_missing {
                _ if learner.is_paused() => Waits::Replica,
                true => Waits::Log,
                false => Waits::Nothing,
            };
            let stands = movement.look(now, next, waits);
            if stands >= STOPPED_AFTER {
                stopped.push(StoppedLog {
                    log: number as u32,
                    instance: next,
                    for_ms: u64::try_from(stands.as_millis()).unwrap_or(u64::MAX),
                    unreadable_at: learner.unreadable_at().to_vec(),
                });
            }
        }
        stopped
    }

    fn publish(&mut self) {
        self.publish_at = Instant::now() + PUBLISH_EVERY;
        let stopped = self.stopped();
        let (now, counters) = (Instant::now(), self.node.counters());
        self.key_drops
            .note(now, counters.iter().map(|(name, count)| (*name, *count)));
        let logs = self.node.host().partitions();
        let all = || 0..logs.len();
        let learners = || logs.iter().filter_map(|log| log.learner());
        let leaderships = logs.iter().filter_map(|log| log.leadership());
        let learns = logs.iter().all(|log| log.learner().is_some());
        let fresh = NodeState {
            published_at: Some(Instant::now()),
            epoch: self.node.host().config().epoch,
            is_member: is_member(self.node.host().config()),
            positions: learns.then(|| {
                let held = || logs.iter().map(|log| log.trim().held_here());
                let next = learners().map(|learner| learner.next());
                ReplicaPositions {
                    applied: held()
                        .zip(next)
                        .map(|(held, next)| held.max(next - 1))
                        .collect(),
                    durable: held().collect(),
                }
            }),
            stopped,
            acceptors: all().filter_map(|p| self.node.acceptor_view(p)).collect(),
            acceptor_disk_failure: self.node.acceptor_disk_failure().map(str::to_owned),
            leaders: all().filter_map(|p| self.node.leader_view(p)).collect(),
            known_leaders: logs.iter().map(known_leader).collect(),
            floors: logs.iter().map(|log| log.trim().floor()).collect(),
            next_delivery: learners().map(|l| l.next()).reduce(|a, b| a + b),
            known_highest: learners().map(|l| l.known_highest()).sum(),
            outstanding: logs.iter().map(|log| log.proposer().outstanding()).sum(),
            keys: self.node.keys().map(|keys| (keys.active(), keys.ids())),
            key_drops: self.key_drops.recent(now),
            counters,
            memory_bytes: self.node.memory_bytes(),
            unresolved: self.node.unresolved().to_vec(),
            leader_events: Vec::new(),
            takeovers: leaderships.map(|l| l.takeovers()).sum(),
            last_takeover: self.takeovers[self.last_takeover].last,
        };
        let events = std::mem::take(&mut self.events);
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = std::mem::take(&mut state.leader_events);
        all.extend(events);
        let surplus = all.len().saturating_sub(EVENTS_MAX);
        all.drain(..surplus);
        *state = NodeState {
            leader_events: all,
            ..fresh
        };
    }
}

/// A host that is only a controller has no role in the node.
fn is_member(config: &HostConfig) -> bool {
    let has_role = [config.soft_roles, config.kernel_roles] != [Roles::default(); 2];
    let is_among = |nodes: &Vec<u8>| nodes.contains(&config.node);
    let mut all = [&config.replicas, &config.acceptors]
        .into_iter()
        .chain(&config.leaders);
    !has_role || all.any(is_among)
}

/// A host that may lead probes the leader; others learn of it from what it decides.
fn known_leader(log: &Partition) -> u8 {
    let probed = log.leadership().map(|leadership| leadership.known_round());
    owner(probed.unwrap_or_else(|| log.proposer().leader_round()))
}

impl ReplicatedLog for PublishedNode {
    fn partitions(&self) -> usize {
        self.node.partitions()
    }
    fn max_value_len_bytes(&self) -> usize {
        self.node.max_value_len_bytes()
    }
    fn submit_room(&self, partition: usize) -> usize {
        self.node.submit_room(partition)
    }
    fn submit(&mut self, partition: usize, value: &[u8]) -> Result<Ticket, SubmitError> {
        self.node.submit(partition, value)
    }
    fn poll(&mut self, bursts: &mut [Burst]) {
        let started = Instant::now();
        self.node_commands.run(&mut self.node);
        self.node_commands.begin_reads(&mut self.node);
        self.delivered.clear();
        self.delivered
            .extend(bursts.iter().map(|burst| burst.decided().len()));
        self.node.poll(bursts);
        self.node_commands.take_reads(bursts);
        let events = self.node.take_leader_events();
        for (log, watch) in self.takeovers.iter_mut().enumerate() {
            let has_delivered = bursts[log].decided().len() > self.delivered[log];
            let own = events.iter().filter(|event| event.1 == log);
            watch.look(started, own, has_delivered);
        }
        self.last_takeover = events.last().map_or(self.last_takeover, |event| event.1);
        self.events.extend(events);
        if Instant::now() >= self.publish_at {
            self.publish();
        }
    }
    fn pause(&mut self, partition: usize, is_paused: bool) {
        self.node.pause(partition, is_paused);
    }
    fn applied(&mut self, partition: usize, instance: u64) {
        self.node.applied(partition, instance);
    }
    fn sends_checkpoint(&mut self) {
        self.node.sends_checkpoint();
    }
    fn reset(&mut self, partition: usize, applied: u64) {
        self.node.reset(partition, applied);
    }
    fn session_refused(&mut self, ticket: Ticket) {
        self.node.session_refused(ticket);
    }
    fn answered(&mut self, ticket: Ticket) {
        self.node.answered(ticket);
    }
    fn confirm_read(&mut self, partition: usize) -> ReadTicket {
        self.node.confirm_read(partition)
    }
    fn wake_fds(&self) -> Vec<RawFd> {
        let mut fds = self.node.wake_fds();
        fds.push(self.node_commands.fd());
        fds
    }
    fn poll_timeout(&self) -> Duration {
        self.node.poll_timeout().min(PUBLISH_EVERY)
    }
    fn is_member(&self) -> bool {
        // In epoch 0 it does not know the configuration yet.
        let config = self.node.host().config();
        config.epoch == 0 || config.replicas.contains(&config.node)
    }
    fn checkpoint_peers(&self) -> Vec<SocketAddr> {
        self.node.checkpoint_peers()
    }
}
