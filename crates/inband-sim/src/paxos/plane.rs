//! The control plane in the simulated world: the real coordinator, members and replicated state of inband-control
//! change the members of the cluster, while packets and control messages are lost.
//!
//! Acceptors have journals in some worlds ([`crate::paxos::sim_acceptor`]). Controllers have separate hosts. Their log is a
//! single list that each applies in order, after a delay; Raft itself is tested in inband-control.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;

use inband_control::acceptor::{AcceptorState, Holds};
use inband_control::configuration::{
    Beginning, Configuration, Epoch, Identity, Member as Node, NodeId, Parts,
};
use inband_control::coordinator::Coordinator;
use inband_control::member::{Fences, MemberAgent, MemberConfig, NoteError, Notes};
use inband_control::message::{Message, Order, ReplicaPositions};
use inband_control::outbox::{Outbox, To};
use inband_control::state::{Change, Command, State};
use inband_control::timing::Timing;
use inband_paxos::host::{spread_leaders, EpochConfig, Host};
use inband_paxos::timing::Micros;

use crate::paxos::epochs::Members;
use crate::paxos::event::Event;
use crate::paxos::fault_kind::FaultKind;
use crate::paxos::layout::{Layout, EPOCH};
use crate::paxos::limits::{
    CONTROLLER_DOWN_MAX_US, CONTROL_COMMAND_LOST_PPM, CONTROL_COMMAND_MAX_US, CONTROL_LATE_MAX_US,
    CONTROL_LINK_MAX_US, CONTROL_TICK_MAX_US,
};
use crate::paxos::sim_acceptor::{Desk, SimAcceptor};
use crate::paxos::trace::Happened;
use crate::paxos::{counts, World};

/// The controllers' node ids, which no other host has.
pub(crate) const CONTROLLERS: [NodeId; 3] = [201, 202, 203];

/// The control plane's timing, five times as fast because runs are short.
const TIMING: Timing = Timing {
    report_us: 20_000,
    alive_us: 200_000,
    retry_us: 20_000,
    stall_us: 100_000,
    settle_us: 40_000,
    open_wait_us: 200_000,
    give_up_us: 1_000_000,
    backoff_us: 100_000,
    backoff_max_us: 2_000_000,
};

/// Fences that survive crashes.
pub(crate) struct Durable(Rc<RefCell<Fences>>);

impl Notes for Durable {
    fn fences(&self) -> Fences {
        *self.0.borrow()
    }

    fn note(&mut self, fences: Fences) -> Result<(), NoteError> {
        *self.0.borrow_mut() = fences;
        Ok(())
    }
}

type SimMember = MemberAgent<SimAcceptor, Durable>;

/// A host's part in the control plane.
struct Part {
    /// `None` while the host is down.
    member: Option<SimMember>,
    fences: Rc<RefCell<Fences>>,
    identity: Identity,
    desk: Rc<RefCell<Option<Desk>>>,
    /// What the acceptor of a host that is down has on its disk.
    held: Option<Holds>,
    /// The last configuration that the host was told of; it is stored on disk.
    kept: Configuration,
    /// The epoch in which its acceptor was seen voting since the last start.
    voting_in: Option<Epoch>,
}

struct Seat {
    coordinator: Coordinator,
    state: State,
    applied: usize,
    down_until: Micros,
}

pub(crate) struct Plane {
    parts: BTreeMap<NodeId, Part>,
    seats: Vec<Seat>,
    log: Vec<Command>,
    state: State,
    /// Epochs whose members the observers know.
    announced: BTreeSet<Epoch>,
}

fn control_address(node: NodeId) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node], 7500))
}

fn identity(node: NodeId) -> Identity {
    Identity(u64::from(node) + 1)
}

fn member(node: NodeId, parts: Parts) -> Node {
    Node {
        node,
        name: format!("node/{node}"),
        data: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, node), 7400),
        control: control_address(node),
        parts,
        identity: Some(identity(node)),
    }
}

fn first_configuration(layout: &Layout) -> Configuration {
    let parts = |node: NodeId| Parts {
        acceptor: layout.acceptors.contains(&node),
        replica: layout.replicas.contains(&node),
        leader: layout.leaders.contains(&node),
        controller: false,
    };
    let hosts = layout.nodes().into_iter().map(|n| (n, member(n, parts(n))));
    let controller = Parts {
        controller: true,
        ..Parts::default()
    };
    let controllers = CONTROLLERS.iter().map(|n| (*n, member(*n, controller)));
    let takes_part = |(_, m): &(NodeId, Node)| m.parts != Parts::default();
    Configuration {
        epoch: EPOCH,
        revision: 1,
        members: hosts.filter(takes_part).chain(controllers).collect(),
        leaders: spread_leaders(&layout.leaders, layout.partitions),
        beginning: Beginning::Fresh(vec![1; layout.partitions]),
    }
}

/// Returns the part of a configuration that a host is told.
fn epoch_config(configuration: &Configuration) -> EpochConfig {
    EpochConfig {
        epoch: configuration.epoch,
        acceptors: configuration.acceptors(),
        replicas: configuration.replicas(),
        leaders: configuration.leaders.clone(),
    }
}

fn members_of(configuration: &Configuration) -> Members {
    Members {
        acceptors: configuration.acceptors(),
        replicas: configuration.replicas(),
        leaders: configuration.leaders[0].clone(),
    }
}

impl Plane {
    pub fn new(layout: &Layout) -> Plane {
        let first = first_configuration(layout);
        let part = |node: NodeId| Part {
            member: None,
            fences: Rc::default(),
            identity: identity(node),
            desk: Rc::default(),
            held: None,
            kept: first.clone(),
            voting_in: None,
        };
        let seat = || Seat {
            coordinator: Coordinator::new(TIMING),
            state: State::default(),
            applied: 0,
            down_until: 0,
        };
        Plane {
            parts: layout.nodes().into_iter().map(|n| (n, part(n))).collect(),
            seats: CONTROLLERS.iter().map(|_| seat()).collect(),
            log: Vec::new(),
            state: State::default(),
            announced: BTreeSet::from([EPOCH]),
        }
    }

    /// Returns the configuration with which a host starts.
    pub fn kept(&self, node: NodeId) -> EpochConfig {
        epoch_config(&self.parts[&node].kept)
    }

    /// Returns whether a reconfiguration is in progress that concerns this acceptor.
    pub fn is_changing(&self, node: NodeId) -> bool {
        let pending = self.state.pending.as_ref();
        pending.is_some_and(|p| p.target.is_acceptor(node))
            || (pending.is_some() && self.in_force().is_some_and(|c| c.is_acceptor(node)))
    }

    fn in_force(&self) -> Option<&Configuration> {
        self.state.opened.as_ref()
    }

    /// Returns the state of the control plane, for people.
    pub fn explain(&self) -> String {
        let opened = self.in_force().map_or(0, |opened| opened.epoch);
        let pending = self.state.pending.as_ref();
        let pending = pending.map(|pending| (pending.target.epoch, &pending.phase));
        let waiting = self.seats.iter().map(|seat| seat.coordinator.waiting());
        let waiting: Vec<_> = waiting.collect();
        let mut lines = vec![format!(
            "control plane: epoch {opened}, pending {pending:?}, waiting {waiting:?}"
        )];
        for (node, part) in &self.parts {
            let member = part.member.as_ref();
            let acceptor = member.and_then(|member| member.acceptor());
            if let (Some(member), Some(acceptor)) = (member, acceptor) {
                lines.push(format!(
                    "node {node}: epoch {}, voting {}, holds {:?}, {:?}, installs for {:?}, trouble {:?}",
                    acceptor.epoch(),
                    acceptor.is_voting(),
                    acceptor.holds(),
                    part.fences.borrow(),
                    member.installing_for(),
                    member.trouble()
                ));
            }
        }
        lines.join("\n    ")
    }

    /// Returns whether this host's acceptor holds the state with which the epoch in force began, or what a majority sealed
    /// in that epoch had.
    pub fn holds(&self, node: NodeId) -> bool {
        let epoch = self.in_force().map_or(EPOCH, |c| c.epoch);
        let part = &self.parts[&node];
        let holds = match &part.member {
            Some(member) => member.acceptor().and_then(SimAcceptor::holds),
            None => part.held,
        };
        holds.is_some_and(|holds| holds.serves(epoch))
    }
}

impl World {
    /// Starts the control plane.
    pub(crate) fn found(&mut self) {
        let Some(plane) = &self.system.plane else {
            return;
        };
        let hosts: Vec<NodeId> = plane.parts.keys().copied().collect();
        let first = first_configuration(&self.system.layout);
        self.append(Command::Found(first));
        for at in 0..CONTROLLERS.len() {
            self.after(1, Event::ControllerTick(at));
        }
        for node in hosts {
            self.after(1, Event::MemberTick(node));
        }
    }

    /// The host of a member has started.
    pub(crate) fn start_member(&mut self, node: NodeId) {
        let at = self.index(node).expect("it has started");
        let life = self.system.hosts[at].incarnation;
        let geometry = self.system.layout.geometry();
        let has_acceptor = self.system.layout.acceptor_hosts.contains(&node);
        let switch = self.system.hosts[at]
            .host
            .as_ref()
            .and_then(|host| host.switch());
        let registers = switch
            .map(|s| s.registers().clone())
            .filter(|_| has_acceptor);
        let journal = self.system.hosts[at].host.as_ref().and_then(Host::journal);
        let holds = journal.and_then(|(journal, _)| journal.holds());
        let Some(part) = self
            .system
            .plane
            .as_mut()
            .and_then(|p| p.parts.get_mut(&node))
        else {
            return;
        };
        let config = MemberConfig {
            node,
            identity: part.identity,
            life,
            control: control_address(node),
            controllers: CONTROLLERS.map(|c| (c, control_address(c))).to_vec(),
            settings: String::new(),
            timing: TIMING,
        };
        let acceptor = registers
            .map(|registers| SimAcceptor::new(registers, geometry, holds, part.desk.clone()));
        part.member = Some(MemberAgent::new(
            config,
            acceptor,
            Durable(part.fences.clone()),
        ));
        part.voting_in = None;
        let kept = part.kept.clone();
        self.with_member(node, node, |member, now, out| {
            member.on_order(now, Order::Enter(kept), out);
        });
    }

    /// The host of a member has crashed.
    pub(crate) fn crash_member(&mut self, node: NodeId) {
        let keeps_journal = self.keeps_journal(node);
        if let Some(part) = self
            .system
            .plane
            .as_mut()
            .and_then(|p| p.parts.get_mut(&node))
        {
            let member = part.member.take().filter(|_| keeps_journal);
            part.held = member.and_then(|member| member.acceptor()?.holds());
            part.voting_in = None;
        }
    }

    /// The disk of a host that is down was damaged.
    pub(crate) fn damage_member(&mut self, node: NodeId) {
        let plane = self.system.plane.as_mut();
        if let Some(part) = plane.and_then(|plane| plane.parts.get_mut(&node)) {
            part.held = None;
        }
    }

    fn with_member(
        &mut self,
        node: NodeId,
        from: NodeId,
        act: impl FnOnce(&mut SimMember, Micros, &mut Outbox),
    ) {
        let at = self.index(node).expect("members are hosts");
        let shows = self.system.hosts[at].clock.shows(self.now);
        let keeps_journal = self.keeps_journal(node);
        let part = self
            .system
            .plane
            .as_mut()
            .and_then(|p| p.parts.get_mut(&node));
        let Some(part) = part else { return };
        let Some(member) = &mut part.member else {
            return;
        };
        let mut out = Outbox::new();
        let sim = &mut self.system.hosts[at];
        if keeps_journal {
            let (host, disk) = (sim.host.take(), sim.power.journal.take());
            *part.desk.borrow_mut() = Option::zip(host, disk).map(|lent| Desk::new(lent, shows));
        }
        act(member, shows, &mut out);
        let entered = member.take_entered().cloned();
        if let Some(configuration) = &entered {
            part.kept = configuration.clone();
        }
        let desk = part.desk.borrow_mut().take();
        let is_written = desk.map(|desk| {
            sim.host = Some(desk.host);
            sim.power.journal = Some(desk.disk);
            desk.is_written
        });
        if is_written == Some(true) {
            let mut observers = self.system.observers.iter_mut();
            let seen = observers.try_for_each(|observer| observer.synced(node));
            self.check(seen);
        }
        self.look_at_member(at);
        if is_written.is_some() {
            self.with_host(node, None, None, |host, now, out| host.release(now, out));
        }
        if let Some(configuration) = entered {
            self.enter(at, &configuration);
        }
        for (to, message) in out.drain() {
            let to = match to {
                To::Node(to, _) => to,
                To::Sender => from,
            };
            self.send_control(node, to, message);
        }
    }

    /// A member's changes to its acceptor's registers are not steps of the protocol: the observers continue from the
    /// result.
    fn look_at_member(&mut self, at: usize) {
        let node = self.system.hosts[at].node;
        if !self.system.layout.acceptor_hosts.contains(&node) {
            return;
        }
        let switch = self.system.hosts[at]
            .host
            .as_ref()
            .and_then(|host| host.switch());
        let Some(registers) = switch.map(|switch| switch.registers().clone()) else {
            return;
        };
        let view = registers.acceptor.acceptor(0);
        let part = self
            .system
            .plane
            .as_mut()
            .and_then(|p| p.parts.get_mut(&node));
        let part = part.expect("it has a part");
        let epoch = view.epoch as Epoch;
        let mut observers = self.system.observers.iter_mut();
        let seen = if !view.voting {
            part.voting_in = None;
            observers.for_each(|observer| observer.sealed(node, &registers));
            Ok(())
        } else if part.voting_in != Some(epoch) {
            part.voting_in = Some(epoch);
            self.system.hosts[at].memory_lost = false;
            self.system.hosts[at].votes_in = epoch;
            let happened = Happened::Epoch(node, "votes in", epoch);
            self.trace.note(self.now, happened);
            observers.try_for_each(|observer| observer.installed(node, &registers))
        } else {
            Ok(())
        };
        self.check(seen);
    }

    /// Tells a host of a configuration.
    fn enter(&mut self, at: usize, configuration: &Configuration) {
        let node = self.system.hosts[at].node;
        let config = epoch_config(configuration);
        let is_new = self.system.hosts[at].epoch < config.epoch;
        self.system.hosts[at].epoch = config.epoch;
        if is_new {
            let happened = Happened::Epoch(node, "enters", config.epoch);
            self.trace.note(self.now, happened);
        }
        self.with_host(node, None, None, |host, now, out| {
            host.enter_epoch(now, &config, out);
            if host.config().epoch == config.epoch {
                host.reorder_leaders(now, &config.leaders, out);
            }
        });
    }

    pub(crate) fn member_tick(&mut self, node: NodeId) {
        let wait_us = self.system.rng.epochs.between(1, CONTROL_TICK_MAX_US);
        self.after(wait_us, Event::MemberTick(node));
        let at = self.index(node).expect("members are hosts");
        let sim = &self.system.hosts[at];
        if sim.frozen > 0 || sim.host.is_none() || sim.clock.stands() {
            return;
        }
        let is_replica = self.system.layout.replicas.contains(&node);
        let positions = ReplicaPositions {
            applied: sim.apps.iter().map(|app| app.live.applied).collect(),
            durable: sim.apps.iter().map(|app| app.durable.applied).collect(),
        };
        self.with_member(node, node, |member, now, out| {
            if is_replica {
                member.set_positions(positions);
            }
            member.on_tick(now, out);
        });
    }

    pub(crate) fn controller_tick(&mut self, at: usize) {
        let wait_us = self.system.rng.epochs.between(1, CONTROL_TICK_MAX_US);
        self.after(wait_us, Event::ControllerTick(at));
        let now = self.now;
        let Some(plane) = &mut self.system.plane else {
            return;
        };
        let seat = &mut plane.seats[at];
        if seat.down_until > now {
            return;
        }
        while let Some(command) = plane.log.get(seat.applied) {
            // Not everything at once: a controller may lag behind.
            if !self.system.rng.epochs.chance_ppm(700_000) {
                break;
            }
            seat.state
                .apply(command)
                .expect("it was no error in the log");
            seat.applied += 1;
            seat.coordinator.on_applied();
        }
        let mut out = Outbox::new();
        let command = seat.coordinator.on_tick(now, &seat.state, &mut out);
        self.send_from_controller(at, &mut out);
        self.propose(command);
    }

    fn send_from_controller(&mut self, at: usize, out: &mut Outbox) {
        for (to, message) in out.drain() {
            if let To::Node(to, _) = to {
                self.send_control(CONTROLLERS[at], to, message);
            }
        }
    }

    fn send_control(&mut self, from: NodeId, to: NodeId, message: Message) {
        let rng = &mut self.system.rng.epochs;
        if !self.links.passes_connection(rng, from, to) {
            return;
        }
        let late = rng.chance_ppm(20_000);
        let most_us = if late {
            CONTROL_LATE_MAX_US
        } else {
            CONTROL_LINK_MAX_US
        };
        let delay_us = rng.between(1, most_us);
        let arrives = Event::Control(from, to, Box::new(message));
        self.after(delay_us, arrives);
    }

    /// A control message arrives.
    pub(crate) fn control_arrives(&mut self, from: NodeId, to: NodeId, message: Message) {
        let Some(at) = CONTROLLERS.iter().position(|c| *c == to) else {
            if !self.host(to).is_well() {
                return;
            }
            return self.with_member(to, from, |member, now, out| match message {
                Message::Order(order) => member.on_order(now, order, out),
                Message::Pull(pull) => member.on_pull(pull, out),
                Message::Pulled { pull, whole, piece } => {
                    member.on_pulled(now, from, pull, whole, &piece, out);
                }
                Message::Report(_) => {}
            });
        };
        let now = self.now;
        let (Some(plane), Message::Report(report)) = (&mut self.system.plane, message) else {
            return;
        };
        let seat = &mut plane.seats[at];
        if seat.down_until > now {
            return;
        }
        let mut out = Outbox::new();
        let state = &seat.state;
        let command = seat.coordinator.on_report(now, report, state, &mut out);
        self.send_from_controller(at, &mut out);
        self.propose(command);
    }

    fn propose(&mut self, command: Option<Command>) {
        let rng = &mut self.system.rng.epochs;
        let is_lost = rng.chance_ppm(CONTROL_COMMAND_LOST_PPM);
        let wait_us = rng.between(1, CONTROL_COMMAND_MAX_US);
        if let Some(command) = command.filter(|_| !is_lost) {
            let append = Event::Append(Box::new(command));
            self.after(wait_us, append);
        }
    }

    /// Appends a command to the controllers' log.
    pub(crate) fn append(&mut self, command: Command) {
        let Some(plane) = &mut self.system.plane else {
            return;
        };
        if plane.state.apply(&command).is_err() {
            return; // another change came first
        }
        plane.log.push(command.clone());
        let pending = plane.state.pending.as_ref().map(|p| p.target.clone());
        let opened = plane.state.opened.clone().expect("founded first");
        for configuration in [pending, Some(opened.clone())].into_iter().flatten() {
            if plane.announced.insert(configuration.epoch) {
                let acceptors = configuration.acceptors();
                for observer in &mut self.system.observers {
                    observer.epoch_begins(configuration.epoch, &acceptors);
                }
                self.stats.count(counts::EPOCHS, 1);
                self.stats.faults.add(FaultKind::Reconfiguration.name(), 1);
            }
        }
        let members = members_of(&opened);
        self.system.layout.acceptors.clone_from(&members.acceptors);
        self.system.layout.replicas.clone_from(&members.replicas);
        self.system.layout.leaders.clone_from(&members.leaders);
        match command {
            Command::Open { .. } | Command::Restart { .. } => self.system.members.push(members),
            _ => *self.system.members.last_mut().expect("the first epoch") = members,
        }
    }

    /// Requests other members or leaders, or takes a controller down for a while.
    pub(crate) fn change_at_random(&mut self) {
        let now = self.now;
        let Some(plane) = &mut self.system.plane else {
            return;
        };
        let rng = &mut self.system.rng.epochs;
        let at = rng.below(CONTROLLERS.len() as u64) as usize;
        let opened = plane.state.opened.as_ref().expect("founded first");
        let acceptors = opened.acceptors();
        // Hosts that have no other role. Ids of hosts that have left are never reused.
        let is_only_acceptor = |n: &&NodeId| {
            !self.system.layout.replica_hosts.contains(n)
                && !self.system.layout.leader_hosts.contains(n)
        };
        let removable: Vec<NodeId> = acceptors.iter().filter(is_only_acceptor).copied().collect();
        let spares = self.system.layout.acceptor_hosts.iter();
        let spares: Vec<NodeId> = spares.filter(|n| !acceptors.contains(n)).copied().collect();
        let acceptor = Parts {
            acceptor: true,
            ..Parts::default()
        };
        let change = match (
            rng.below(6),
            rng.pick(&spares).copied(),
            rng.pick(&removable).copied(),
        ) {
            (0, _, _) => {
                // This controller returns like a newly elected leader: it knows the log, but has not heard from any
                // host.
                let down_us = rng.below(CONTROLLER_DOWN_MAX_US);
                self.stats.faults.add(FaultKind::ControllerCrash.name(), 1);
                let seat = &mut plane.seats[at];
                seat.coordinator = Coordinator::new(TIMING);
                seat.down_until = now + down_us;
                return;
            }
            (1, _, _) => {
                let to = *rng
                    .pick(&self.system.layout.leaders)
                    .expect("a cluster has leaders");
                self.stats.faults.add(FaultKind::LeaderMove.name(), 1);
                return self.prefer_leader(to);
            }
            (2, Some(spare), _) => Change::Add(member(spare, acceptor)),
            (3, Some(spare), Some(old)) => Change::Replace {
                old,
                new: member(spare, acceptor),
            },
            (_, _, Some(old)) if acceptors.len() > 3 => Change::Remove(old),
            _ => return,
        };
        let seat = &plane.seats[at];
        let wished = seat.coordinator.request(now, &seat.state, change);
        self.propose(wished.ok());
    }

    /// Requests that another node lead.
    pub(crate) fn prefer_leader(&mut self, to: NodeId) {
        let command = Command::MoveLeader {
            partition: None,
            to,
        };
        self.propose(Some(command));
    }

    /// Returns whether no reconfiguration is in progress, and every acceptor in force that is up votes.
    pub(crate) fn plane_is_settled(&self) -> bool {
        let Some(plane) = &self.system.plane else {
            return true;
        };
        let votes = |node: &NodeId| {
            let part = &plane.parts[node];
            part.member.is_none() || part.voting_in == plane.in_force().map(|c| c.epoch)
        };
        plane.state.pending.is_none() && self.system.layout.acceptors.iter().all(votes)
    }

    /// Stops all controllers for a while.
    pub fn stop_controllers(&mut self, for_us: Micros) {
        let until = self.now + for_us;
        for seat in self.system.plane.iter_mut().flat_map(|p| &mut p.seats) {
            seat.down_until = until;
        }
    }

    pub(crate) fn controllers_up(&mut self) {
        for seat in self.system.plane.iter_mut().flat_map(|p| &mut p.seats) {
            seat.down_until = 0;
        }
    }
}
