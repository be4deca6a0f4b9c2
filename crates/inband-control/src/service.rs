//! The control service of one host: this crate's state machines with a thread, a listening socket and a disk. Slow on
//! purpose, and off the packet path.

mod call;
mod files;
mod founding;
mod net;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use inband_storage::{Disk, StorageError};
use inband_transport::accept::stop_listening;
use inband_transport::frames::Links;
use inband_transport::tls::Transport;

pub use call::{call, CallError, HostStatus, Request, Response, Status};
pub use files::FilesError;

use crate::acceptor::AcceptorState;
use crate::configuration::{Configuration, Epoch, Identity, NodeId};
use crate::coordinator::Coordinator;
use crate::member::{MemberAgent, MemberConfig};
use crate::message::{Message, Order, ReplicaPositions, StoppedLog};
use crate::outbox::{Outbox, To};
use crate::raft_node::{self, node_of, RaftError, RaftNode};
use crate::state::{Change, Command, Refusal};
use crate::timing::{Micros, Timing};
use call::cluster_id;
use files::FileNotes;
pub use net::ListenerCounters;
use net::{Announcement, Body, Event, Frame, ListenerState};

/// Interval between Raft ticks.
const RAFT_TICK_US: Micros = 50_000;
/// A call that was not applied within this time has an unknown outcome.
const CALL_US: Micros = 5_000_000;
/// Most events queued for the service's thread.
const EVENTS_MAX: usize = 1024;
/// The log's directory within the control directory.
const RAFT_DIR: &str = "raft";

/// What a service needs at its start.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Name of the cluster: messages from services of other clusters are ignored.
    pub cluster: String,
    pub node: NodeId,
    /// Number of this process run: durable, never reused, ascending.
    pub life: u64,
    /// The address of this service, as others reach it.
    pub control: SocketAddr,
    /// A directory for its exclusive use.
    pub dir: PathBuf,
    /// The highest epoch that the acceptor has voted in, as far as other sources tell.
    pub entered: Epoch,
    /// The cluster's first configuration. Its first controller founds the group once all the others are up; later
    /// configurations come from the controllers.
    pub first: Configuration,
    /// See [`MemberConfig::settings`].
    pub settings: String,
    pub timing: Timing,
    /// The transport between services.
    pub transport: Transport,
}

/// The host's callbacks for its service.
pub trait Hooks: Send {
    /// This configuration is in force, and the host has entered it.
    fn entered(&mut self, configuration: &Configuration);

    /// The cluster refuses this host for this reason.
    fn refused(&mut self, refusal: &Refusal);

    /// Returns the host's positions, if it is a replica and has entered the configuration of which it was last told.
    fn positions(&mut self) -> Option<ReplicaPositions>;

    /// Returns the logs that make no progress, if the host is a replica.
    fn stopped(&mut self) -> Vec<StoppedLog>;
}

/// Why a service did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The socket could not be opened.
    #[error("control service: cannot listen at {address}: {source}; is another host running with it, and does this machine have the address?")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    /// Its files are damaged or inaccessible.
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Its Raft log could not be opened.
    #[error(transparent)]
    Raft(#[from] RaftError),
    /// A thread could not be created.
    #[error("control service: no thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running service. Stopped on drop.
pub struct Service {
    events: SyncSender<Event>,
    stop: Arc<AtomicBool>,
    listener: TcpListener,
    threads: Vec<thread::JoinHandle<()>>,
    identity: Identity,
    counters: Arc<ListenerCounters>,
}

impl Service {
    /// Starts a host's service. `acceptor` does not vote yet: it starts when the cluster's configuration says so.
    pub fn start<A: AcceptorState + Send + 'static>(
        config: ServiceConfig,
        acceptor: Option<A>,
        hooks: Box<dyn Hooks>,
    ) -> Result<Service, ServiceError> {
        let control = config.control;
        let listener = TcpListener::bind(control).map_err(|source| ServiceError::Listen {
            address: control,
            source,
        })?;
        let cluster = cluster_id(&config.cluster);
        let counters: Arc<ListenerCounters> = Arc::default();
        let transport = config.transport.clone();
        let worker = Worker::new(config, acceptor, hooks, counters.clone())?;
        let identity = worker.identity;
        let (events, arriving) = mpsc::sync_channel(EVENTS_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let shared = ListenerState {
            cluster,
            events: events.clone(),
            stop: stop.clone(),
            counters: counters.clone(),
            incoming_bytes: Arc::default(),
            transport,
        };
        let for_stop = listener.try_clone()?;
        let listening = net::listen(listener, shared)?;
        let working = thread::Builder::new()
            .name("control".into())
            .spawn(move || worker.run(&arriving))?;
        Ok(Service {
            events,
            stop,
            listener: for_stop,
            threads: vec![working, listening],
            identity,
            counters,
        })
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Counters of what was refused at its socket.
    pub fn counters(&self) -> Arc<ListenerCounters> {
        self.counters.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.events.send(Event::Stop);
        stop_listening(&self.listener);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Waiting {
    answer: Sender<Response>,
    is_halt: bool,
    until: Micros,
}

struct Worker<A> {
    config: ServiceConfig,
    cluster: u64,
    identity: Identity,
    started: Instant,
    /// The configuration of which the host was last told, until it has entered one again.
    cached: Option<Configuration>,
    member: MemberAgent<A, FileNotes>,
    hooks: Box<dyn Hooks>,
    disk: Disk,
    links: Links<Frame>,
    counters: Arc<ListenerCounters>,
    /// Messages from this host to itself.
    local: Vec<Message>,
    /// Set if this host is a controller.
    raft: Option<RaftNode>,
    /// Set if it leads the controllers.
    coordinator: Option<Coordinator>,
    announced: BTreeMap<NodeId, Announcement>,
    wait_log_at: Micros,
    /// Before the founding: a controller with different settings, as it was logged.
    other_settings: Option<(NodeId, String)>,
    /// The last known addresses of the controllers' services.
    services: BTreeMap<NodeId, SocketAddr>,
    calls: BTreeMap<u64, Waiting>,
    refused: Option<Refusal>,
    ticket: u64,
    tick_at: Micros,
    announce_at: Micros,
}

impl<A: AcceptorState> Worker<A> {
    fn new(
        config: ServiceConfig,
        acceptor: Option<A>,
        hooks: Box<dyn Hooks>,
        counters: Arc<ListenerCounters>,
    ) -> Result<Worker<A>, ServiceError> {
        let mut disk = Disk::open(&config.dir)?;
        let identity = files::identity(&mut disk, rand::random())?;
        let notes = FileNotes::open(Box::new(Disk::open(&config.dir)?), config.entered)?;
        let cached = files::configuration(&disk)?;
        let controllers = config.first.controllers();
        let service = |node: &NodeId| (*node, config.first.members[node].control);
        let services: BTreeMap<_, _> = controllers.iter().map(service).collect();
        let member = MemberConfig {
            node: config.node,
            identity,
            life: config.life,
            control: config.control,
            controllers: services.iter().map(|(n, a)| (*n, *a)).collect(),
            settings: config.settings.clone(),
            timing: config.timing,
        };
        let member = MemberAgent::new(member, acceptor, notes);
        let is_controller = cached.as_ref().unwrap_or(&config.first).controllers();
        let raft = if is_controller.contains(&config.node) {
            let storage = Disk::open(&config.dir.join(RAFT_DIR))?;
            let random = rand::random();
            Some(raft_node::open(Box::new(storage), config.node, random)?)
        } else {
            None
        };
        Ok(Worker {
            cluster: cluster_id(&config.cluster),
            identity,
            started: Instant::now(),
            cached,
            member,
            hooks,
            disk,
            links: Links::new(config.transport.clone(), "control-link"),
            counters,
            local: Vec::new(),
            raft,
            coordinator: None,
            announced: BTreeMap::new(),
            wait_log_at: 0,
            services,
            calls: BTreeMap::new(),
            other_settings: None,
            refused: None,
            // Tickets of an earlier process run may still be applied.
            ticket: rand::random(),
            tick_at: 0,
            announce_at: 0,
            config,
        })
    }

    fn now(&self) -> Micros {
        self.started.elapsed().as_micros() as Micros
    }

    fn run(mut self, events: &Receiver<Event>) {
        if let Some(cached) = self.cached.take() {
            // If the control plane is down, the host continues in this configuration.
            let now = self.now();
            let mut out = Outbox::new();
            self.member.on_order(now, Order::Enter(cached), &mut out);
            self.send(&mut out, (self.config.node, self.config.control));
            self.settle();
        }
        loop {
            match events.recv_timeout(self.sleep()) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(event) => self.on_event(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.on_tick();
            self.settle();
        }
    }

    fn sleep(&self) -> Duration {
        let coordinator = self.coordinator.as_ref().map_or(Micros::MAX, |c| c.due());
        let due = self.member.due().min(coordinator).min(self.tick_at);
        Duration::from_micros(due.saturating_sub(self.now()).min(RAFT_TICK_US))
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Frame(frame, _share) => self.on_frame(frame),
            Event::Call(request, answer) => self.on_call(request, answer),
            Event::Stop => {}
        }
    }

    fn on_frame(&mut self, frame: Frame) {
        let Some(control) = frame.control else {
            return;
        };
        match frame.body {
            // A node may not speak for another node's log, or report for it.
            Body::Raft(message) if node_of(message.from) != frame.from => {}
            Body::Host(Message::Report(report)) if report.node != frame.from => {}
            Body::Host(message) => self.on_message(frame.from, control, message),
            Body::Raft(message) => {
                if let Some(raft) = &mut self.raft {
                    self.services.insert(node_of(message.from), control);
                    raft.on_message(message);
                }
            }
            Body::Announce(announcement) => {
                self.services.insert(frame.from, control);
                self.announced.insert(frame.from, announcement);
            }
            Body::Call(_) | Body::Answer(_) => {}
        }
    }

    fn on_message(&mut self, from: NodeId, control: SocketAddr, message: Message) {
        let now = self.now();
        let mut out = Outbox::new();
        let mut command = None;
        match message {
            Message::Report(report) => {
                if let Some(refusal) = self.refusal_of(&report) {
                    let to = To::Node(report.node, report.control);
                    out.send(to, Message::Order(Order::Refused(refusal)));
                } else if let (Some(coordinator), Some(raft)) = (&mut self.coordinator, &self.raft)
                {
                    command = coordinator.on_report(now, report, raft.state(), &mut out);
                }
            }
            Message::Order(order) => self.member.on_order(now, order, &mut out),
            Message::Pull(pull) => self.member.on_pull(pull, &mut out),
            Message::Pulled { pull, whole, piece } => {
                let member = &mut self.member;
                member.on_pulled(now, from, pull, whole, &piece, &mut out);
            }
        }
        self.send(&mut out, (from, control));
        if let Some(command) = command {
            self.propose(&command);
        }
    }

    fn send(&mut self, out: &mut Outbox, sender: (NodeId, SocketAddr)) {
        for (to, message) in out.drain() {
            let (node, address) = match to {
                To::Node(node, address) => (node, address),
                To::Sender => sender,
            };
            if node == self.config.node {
                self.local.push(message);
            } else {
                let frame = Frame {
                    cluster: self.cluster,
                    from: self.config.node,
                    control: Some(self.config.control),
                    body: Body::Host(message),
                };
                self.send_frame(address, frame);
            }
        }
    }

    fn send_body(&mut self, to: NodeId, body: Body) {
        let Some(address) = self.services.get(&to) else {
            return;
        };
        let frame = Frame {
            cluster: self.cluster,
            from: self.config.node,
            control: Some(self.config.control),
            body,
        };
        self.send_frame(*address, frame);
    }

    fn send_frame(&mut self, to: SocketAddr, frame: Frame) {
        if !self.links.send(to, frame) {
            self.counters.link_refused();
        }
    }

    fn propose(&mut self, command: &Command) -> Option<u64> {
        self.ticket = self.ticket.wrapping_add(1);
        let ticket = self.ticket;
        let proposed = self.raft.as_mut()?.propose(ticket, command);
        proposed.then_some(ticket)
    }

    fn on_tick(&mut self) {
        let now = self.now();
        let mut out = Outbox::new();
        if let Some(positions) = self.hooks.positions() {
            self.member.set_positions(positions);
        }
        self.member.set_stopped(self.hooks.stopped());
        if now >= self.member.due() {
            self.member.on_tick(now, &mut out);
        }
        if now >= self.tick_at {
            self.tick_at = now + RAFT_TICK_US;
            if let Some(raft) = &mut self.raft {
                raft.tick();
            }
            self.announce(now);
            self.log_what_is_missing(now);
            self.gather();
            self.calls.retain(|_, call| now < call.until);
        }
        let mut command = None;
        if let (Some(coordinator), Some(raft)) = (&mut self.coordinator, &self.raft) {
            command = coordinator.on_tick(now, raft.state(), &mut out);
        }
        self.send(&mut out, (self.config.node, self.config.control));
        if let Some(command) = command {
            self.propose(&command);
        }
    }

    /// Processes the results of an event: sends, applies, and handles this host's messages to itself.
    fn settle(&mut self) {
        loop {
            self.advance();
            self.enter();
            let local = std::mem::take(&mut self.local);
            if local.is_empty() {
                return;
            }
            for message in local {
                self.on_message(self.config.node, self.config.control, message);
            }
        }
    }

    fn advance(&mut self) {
        let Some(raft) = &mut self.raft else { return };
        // The disk accepts no writes: everything waits, and the next tick retries.
        let Ok(outcome) = raft.advance() else { return };
        let state = raft.state();
        if let (Some(coordinator), false) = (&mut self.coordinator, outcome.applied.is_empty()) {
            coordinator.on_applied();
        }
        for applied in outcome.applied {
            let Some(call) = self.calls.remove(&applied.ticket) else {
                continue;
            };
            let epoch = state.highest_epoch;
            let response = match applied.output.result {
                Ok(()) if call.is_halt => Response::Halted { epoch },
                Ok(()) => Response::Accepted { epoch },
                Err(refusal) => Response::Refused(refusal),
            };
            // A client that has disconnected needs no answer.
            let _ = call.answer.send(response);
        }
        let leads = raft.is_up_to_date();
        if !leads {
            self.coordinator = None;
            self.calls.clear();
        } else if self.coordinator.is_none() {
            self.coordinator = Some(Coordinator::new(self.config.timing));
        }
        for message in outcome.messages {
            self.send_body(node_of(message.to), Body::Raft(message));
        }
    }

    /// Tells the host of its configuration, and stores it.
    fn enter(&mut self) {
        if self.refused.as_ref() != self.member.refused() {
            self.refused = self.member.refused().cloned();
            if let Some(refusal) = &self.refused {
                self.hooks.refused(refusal);
            }
        }
        let Some(configuration) = self.member.take_entered() else {
            return;
        };
        // Stored so that the host can start while the control plane is down; if that fails, the host is told again
        // later.
        let _ = files::keep_configuration(&mut self.disk, configuration);
        for node in configuration.controllers() {
            let control = configuration.members[&node].control;
            self.services.insert(node, control);
        }
        self.hooks.entered(configuration);
    }

    fn on_call(&mut self, request: Request, answer: Sender<Response>) {
        let now = self.now();
        let leads = self.coordinator.is_some();
        let raft = self.raft.as_ref().filter(|_| leads);
        let Some(raft) = raft.filter(|raft| self.can_answer(&request, raft)) else {
            let leader = self.raft.as_ref().and_then(RaftNode::leader);
            let elsewhere = leader.and_then(|node| self.services.get(&node).copied());
            let known = || self.services.values().next().copied();
            let elsewhere = if self.raft.is_none() {
                known()
            } else {
                elsewhere
            };
            let _ = answer.send(Response::Elsewhere(elsewhere));
            return;
        };
        if request == Request::Status {
            let _ = answer.send(Response::Status(Box::new(self.status(now, raft))));
            return;
        }
        let response = match self.command(now, raft, request) {
            Err(refusal) => Response::Refused(refusal),
            Ok(command) => match self.propose(&command) {
                Some(ticket) => {
                    let until = now + CALL_US;
                    let waiting = Waiting {
                        answer,
                        is_halt: matches!(command, Command::Halt { .. }),
                        until,
                    };
                    self.calls.insert(ticket, waiting);
                    return;
                }
                None => Response::Elsewhere(None),
            },
        };
        let _ = answer.send(response);
    }

    /// A new leader is asked again for the status: it would call every host silent that it has not heard yet.
    fn can_answer(&self, request: &Request, raft: &RaftNode) -> bool {
        let coordinator = self.coordinator.as_ref();
        *request != Request::Status || coordinator.is_some_and(|c| c.knows_who_is_up(raft.state()))
    }

    fn command(&self, now: Micros, raft: &RaftNode, request: Request) -> Result<Command, Refusal> {
        let state = raft.state();
        let coordinator = self.coordinator.as_ref().ok_or(Refusal::NotFounded)?;
        let identified = |mut member: crate::configuration::Member| {
            let report = coordinator.alive(now, member.node);
            member.identity = report.map(|report| report.identity);
            member
        };
        let change = match request {
            Request::Add(member) => Change::Add(identified(member)),
            Request::Remove(node) => Change::Remove(node),
            Request::Replace { old, new } => Change::Replace {
                old,
                new: identified(new),
            },
            Request::MoveLeader { partition, to } => {
                return Ok(Command::MoveLeader { partition, to });
            }
            Request::Restart {
                at_least,
                first_instances,
            } => return coordinator.restart(now, state, at_least, first_instances),
            Request::Status => return Err(Refusal::NotFounded),
        };
        coordinator.request(now, state, change)
    }

    fn status(&self, now: Micros, raft: &RaftNode) -> Status {
        let state = raft.state();
        let coordinator = self.coordinator.as_ref();
        let host = |heard: &crate::coordinator::LastReport| HostStatus {
            node: heard.report.node,
            identity: heard.report.identity,
            silent_ms: now.saturating_sub(heard.at) / 1000,
            acceptor: heard.report.acceptor.clone(),
            stopped: heard.report.stopped.clone(),
        };
        let waiting = coordinator.map(|c| c.waiting().clone());
        Status {
            leader: self.config.node,
            voters: raft.peers().0.into_iter().map(node_of).collect(),
            opened: state.opened.clone(),
            pending: state.pending.clone(),
            waiting: waiting.unwrap_or(crate::coordinator::Waiting::Nothing),
            hosts: coordinator.map_or_else(Vec::new, |c| c.hosts().values().map(host).collect()),
        }
    }
}
