//! The simulated cluster.

mod faults;
mod network;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::Deref;
use std::rc::Rc;

use inband_paxos::dataplane::soft::{Geometry, Registers, Roles, SoftSwitch};
use inband_paxos::dataplane::wire::{self, Header, Type};

use super::checker::Checker;
use super::dice::Dice;
use super::paxos::{Packets, Proposer};
use crate::acceptor::{AcceptorState, Holds};
use crate::configuration::{
    Beginning, Configuration, Epoch, Identity, Member as Node, NodeId, Parts,
};
use crate::coordinator::{Coordinator, Waiting};
use crate::member::{Fences, MemberAgent, MemberConfig, NoteError, Notes};
use crate::message::Message;
use crate::outbox::Outbox;
use crate::registers::RegisterState;
use crate::state::{Change, Command, Refusal, State};
use crate::timing::{Micros, Timing};
use inband_paxos::host::spread_leaders;

pub(super) const PARTITIONS: usize = 2;
/// Small, so that slots are reused.
const GEOMETRY: Geometry = Geometry {
    partitions: PARTITIONS,
    ring_slots: 64,
};
pub(super) const COORDINATORS: [NodeId; 2] = [201, 202];
const PROPOSERS: [NodeId; 3] = [211, 212, 213];
/// Hosts with an acceptor that are up but not members at the start.
const SPARES: u8 = 2;
const FIRST_EPOCH: Epoch = 3;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Breaks {
    pub coordinator: crate::coordinator::Broken,
    pub member: crate::member::Broken,
}

/// A soft switch's registers, shared with the member.
pub(super) struct Shared(Rc<SoftSwitch>);

impl Deref for Shared {
    type Target = Registers;
    fn deref(&self) -> &Registers {
        self.0.registers()
    }
}

/// Notes that survive crashes.
pub(super) struct Durable(Rc<RefCell<Fences>>);

impl Notes for Durable {
    fn fences(&self) -> Fences {
        *self.0.borrow()
    }

    fn note(&mut self, fences: Fences) -> Result<(), NoteError> {
        *self.0.borrow_mut() = fences;
        Ok(())
    }
}

pub(super) type SimMember = MemberAgent<RegisterState<Shared>, Durable>;

pub(super) struct Host {
    switch: Rc<SoftSwitch>,
    member: Option<SimMember>,
    /// What a journal would hold while the host is down.
    kept: Option<Holds>,
    fences: Rc<RefCell<Fences>>,
    identity: Identity,
    life: u64,
    cut_off_until: Micros,
}

struct Seat {
    coordinator: Coordinator,
    state: State,
    applied: usize,
    cut_off_until: Micros,
}

enum Event {
    Control(NodeId, NodeId, Message),
    Packet(NodeId, NodeId, Vec<u8>),
    HostTick(NodeId),
    SeatTick(usize),
    Append(Command),
    Apply(usize),
    Propose(usize),
    Fault,
    Restart(NodeId),
}

/// Fault rates, in parts per million.
#[derive(Clone, Copy)]
pub(super) struct Weather {
    pub loss_ppm: u64,
    pub repeat_ppm: u64,
    pub late_ppm: u64,
    pub fault_us: Micros,
}

pub(super) struct Cluster {
    pub now: Micros,
    dice: Dice,
    events: BinaryHeap<Reverse<(Micros, u64)>>,
    waiting: BTreeMap<u64, Event>,
    sequence: u64,
    pub hosts: BTreeMap<NodeId, Host>,
    seats: Vec<Seat>,
    proposers: Vec<Proposer>,
    pub log: Vec<Command>,
    pub state: State,
    configurations: Vec<Configuration>,
    open_proposed: BTreeSet<Epoch>,
    pub checker: Checker,
    pub weather: Option<Weather>,
    /// Acceptors that have lost their memory since the last time all of them voted.
    lost: BTreeSet<NodeId>,
    breaks: Breaks,
    pub wiped: u64,
    pub abandoned: u64,
}

pub(super) fn address(node: NodeId) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node], 7500))
}

fn node(node: NodeId, parts: Parts) -> Node {
    Node {
        node,
        name: format!("node/{node}"),
        data: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, node), 7400),
        control: address(node),
        parts,
        identity: None,
    }
}

impl Cluster {
    pub fn new(seed: u64, acceptors: u8, breaks: Breaks) -> Cluster {
        let acceptor = Parts {
            acceptor: true,
            ..Parts::default()
        };
        let seat = Parts {
            leader: true,
            controller: true,
            ..Parts::default()
        };
        let members = (1..=acceptors).map(|n| node(n, acceptor));
        let members = members.chain(COORDINATORS.iter().map(|n| node(*n, seat)));
        let configuration = Configuration {
            epoch: FIRST_EPOCH,
            revision: 0,
            members: members.map(|m| (m.node, m)).collect(),
            leaders: spread_leaders(&COORDINATORS, PARTITIONS),
            beginning: Beginning::Fresh(vec![1; PARTITIONS]),
        };
        let mut cluster = Cluster {
            now: 1,
            dice: Dice::new(seed),
            events: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            sequence: 0,
            hosts: BTreeMap::new(),
            seats: Vec::new(),
            proposers: PROPOSERS.iter().map(|n| Proposer::new(*n)).collect(),
            log: Vec::new(),
            state: State::default(),
            configurations: Vec::new(),
            open_proposed: BTreeSet::new(),
            checker: Checker::default(),
            weather: None,
            lost: BTreeSet::new(),
            breaks,
            wiped: 0,
            abandoned: 0,
        };
        for at in 0..COORDINATORS.len() {
            let seat = cluster.new_seat();
            cluster.seats.push(seat);
            cluster.later(1000, Event::SeatTick(at));
        }
        for at in 0..PROPOSERS.len() {
            cluster.later(1000, Event::Propose(at));
        }
        for host in 1..=acceptors + SPARES {
            cluster.add_host(host);
        }
        cluster.append(Command::Found(configuration));
        // The controllers register like all others; their hosts are not simulated.
        for seat in COORDINATORS {
            let identity = Identity(u64::from(seat));
            cluster.append(Command::Register {
                node: seat,
                identity,
            });
        }
        cluster.later(1000, Event::Fault);
        cluster
    }

    fn new_seat(&self) -> Seat {
        #[allow(unused_mut)]
        let mut coordinator = Coordinator::new(Timing::default());
        coordinator.broken = self.breaks.coordinator;
        Seat {
            coordinator,
            state: State::default(),
            applied: 0,
            cut_off_until: 0,
        }
    }

    fn add_host(&mut self, id: NodeId) {
        let host = Host {
            switch: Rc::new(new_switch(id)),
            member: None,
            kept: None,
            fences: Rc::default(),
            identity: Identity(self.dice.number()),
            life: 0,
            cut_off_until: 0,
        };
        self.hosts.insert(id, host);
        self.start(id);
    }

    fn later(&mut self, after: Micros, event: Event) {
        self.sequence += 1;
        self.waiting.insert(self.sequence, event);
        self.events.push(Reverse((self.now + after, self.sequence)));
    }

    /// Handles the next event. Returns false after a violation.
    pub fn step(&mut self) -> bool {
        let Some(Reverse((at, number))) = self.events.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        match self.waiting.remove(&number) {
            Some(Event::Control(from, to, message)) => self.control_arrives(from, to, message),
            Some(Event::Packet(from, to, packet)) => self.packet_arrives(from, to, &packet),
            Some(Event::HostTick(node)) => {
                self.with_member(node, |member, now, out| member.on_tick(now, out));
                let after = self.dice.between(5_000, 30_000);
                self.later(after, Event::HostTick(node));
            }
            Some(Event::SeatTick(at)) => {
                self.seat_tick(at);
                let after = self.dice.between(5_000, 30_000);
                self.later(after, Event::SeatTick(at));
            }
            Some(Event::Append(command)) => self.append(command),
            Some(Event::Apply(at)) => self.apply(at),
            Some(Event::Propose(at)) => self.propose_value(at),
            Some(Event::Fault) => self.fault(),
            Some(Event::Restart(node)) => self.start(node),
            None => {}
        }
        self.checker.violation.is_none()
    }

    pub fn run_for(&mut self, time_us: Micros) -> bool {
        let until = self.now + time_us;
        self.run_until(until, |_| false);
        self.checker.violation.is_none()
    }

    pub fn run_until(&mut self, until: Micros, done: impl Fn(&Cluster) -> bool) -> bool {
        while self.now < until {
            if done(self) {
                return true;
            }
            if !self.step() {
                return false;
            }
        }
        done(self)
    }

    // The replicated log.

    fn propose_command(&mut self, command: Command) {
        if let Command::Open { epoch } = command {
            self.open_proposed.insert(epoch);
        }
        let (lost_ppm, wait) = match self.weather {
            Some(_) => (200_000, self.dice.wait(20_000)),
            None => (0, 500),
        };
        if !self.dice.chance_ppm(lost_ppm) {
            self.later(wait, Event::Append(command));
        }
    }

    fn append(&mut self, command: Command) {
        if self.state.apply(&command).is_err() {
            return;
        }
        let opened = self.state.opened.clone().expect("founded first");
        if matches!(
            command,
            Command::Found(_) | Command::Open { .. } | Command::Restart { .. }
        ) {
            self.checker.opened(&opened);
            self.configurations.push(opened);
        }
        self.abandoned += u64::from(matches!(command, Command::Abandon { .. }));
        self.log.push(command);
        for at in 0..self.seats.len() {
            let after = match self.weather {
                Some(_) => self.dice.wait(10_000),
                None => 500,
            };
            self.later(after, Event::Apply(at));
        }
    }

    fn apply(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        let Some(command) = self.log.get(seat.applied) else {
            return;
        };
        let applied = seat.state.apply(command);
        applied.expect("applies here as it did in the log");
        seat.applied += 1;
        seat.coordinator.on_applied();
        self.seat_tick(at);
    }

    fn seat_tick(&mut self, at: usize) {
        let mut out = Outbox::new();
        let seat = &mut self.seats[at];
        let command = seat.coordinator.on_tick(self.now, &seat.state, &mut out);
        self.send_all(COORDINATORS[at], COORDINATORS[at], &mut out);
        command.into_iter().for_each(|c| self.propose_command(c));
    }

    // Proposers and replicas.

    fn propose_value(&mut self, at: usize) {
        let after = self.dice.wait(20_000);
        self.later(after, Event::Propose(at));
        // A proposer may have an outdated configuration.
        let back = if self.dice.chance_ppm(700_000) {
            0
        } else {
            self.dice.below(3) as usize
        };
        let newest = self.configurations.len() - 1;
        let configuration = self.configurations[newest.saturating_sub(back)].clone();
        let partition = self.dice.below(PARTITIONS as u64) as u16;
        let first = self.checker.first_open(usize::from(partition));
        let instance = first.saturating_sub(4).max(1) + self.dice.below(12);
        let dice = self.dice.below(100);
        let proposer = &mut self.proposers[at];
        let packets = match dice {
            0..=24 => proposer.lead(&configuration, partition),
            25..=59 => proposer.recover(&configuration, (partition, instance)),
            60..=97 => proposer.learn(&configuration, (partition, instance)),
            _ => {
                proposer.restart();
                Packets::new()
            }
        };
        let from = proposer.node;
        self.send_packets(from, packets);
        if dice % 4 == 0 {
            self.trim(&configuration, partition, first);
        }
    }

    /// Trim: the replicas have applied everything before the first open instance, or less.
    fn trim(&mut self, configuration: &Configuration, partition: u16, first: u64) {
        let kind = Type::Trim;
        let mut header = Header::new(kind, u16::from(PROPOSERS[0]), configuration.epoch);
        header.partition = partition;
        header.floor = first.saturating_sub(self.dice.below(8)).max(1);
        let mut packet = Vec::new();
        wire::emit(&header, &[], &mut packet);
        let packets = configuration
            .acceptors()
            .iter()
            .map(|n| (*n, packet.clone()))
            .collect();
        self.send_packets(PROPOSERS[0], packets);
    }

    // Hosts.

    fn start(&mut self, id: NodeId) {
        let broken = self.breaks.member;
        let host = self.hosts.get_mut(&id).expect("a host");
        if host.member.is_some() {
            return;
        }
        host.life += 1;
        let config = MemberConfig {
            node: id,
            identity: host.identity,
            life: host.life,
            control: address(id),
            controllers: COORDINATORS.iter().map(|c| (*c, address(*c))).collect(),
            settings: String::new(),
            timing: Timing::default(),
        };
        let mut acceptor = RegisterState::new(Shared(host.switch.clone()), GEOMETRY);
        if let Some(holds) = host.kept.take() {
            acceptor.installed(holds).expect("memory");
        }
        let notes = Durable(host.fences.clone());
        let mut member = MemberAgent::new(config, Some(acceptor), notes);
        member.broken = broken;
        host.member = Some(member);
        if host.life == 1 {
            self.later(500, Event::HostTick(id));
        }
    }

    fn with_member(&mut self, node: NodeId, act: impl FnOnce(&mut SimMember, Micros, &mut Outbox)) {
        self.with_member_from(node, node, act);
    }

    fn with_member_from(
        &mut self,
        node: NodeId,
        from: NodeId,
        act: impl FnOnce(&mut SimMember, Micros, &mut Outbox),
    ) {
        let mut out = Outbox::new();
        let host = self.hosts.get_mut(&node);
        let Some(member) = host.and_then(|h| h.member.as_mut()) else {
            return;
        };
        act(member, self.now, &mut out);
        let epoch = member.acceptor().map_or(0, |a| a.epoch());
        self.checker.carries(node, epoch);
        self.send_all(node, from, &mut out);
        if self.all_vote() {
            self.lost.clear();
        }
    }

    /// Returns whether every acceptor of the configuration in force votes in it.
    pub fn all_vote(&self) -> bool {
        let Some(opened) = &self.state.opened else {
            return false;
        };
        let votes = |node: &NodeId| {
            let view = self.hosts[node].switch.registers().acceptor.acceptor(0);
            view.voting && view.epoch == u64::from(opened.epoch)
        };
        opened.acceptors().iter().all(votes)
    }

    /// Requests a change from a coordinator. If it agrees, the change is in progress.
    pub fn request(&mut self, change: Change) -> Result<(), Refusal> {
        let seat = &self.seats[0];
        let command = seat.coordinator.request(self.now, &seat.state, change)?;
        self.propose_command(command);
        Ok(())
    }

    /// Restarts with empty acceptors after what was chosen.
    pub fn restart_fresh(&mut self) -> Result<(), Refusal> {
        let first = (0..PARTITIONS).map(|p| self.checker.end(p)).collect();
        let seat = &self.seats[0];
        let command = seat.coordinator.restart(self.now, &seat.state, 0, first)?;
        self.propose_command(command);
        Ok(())
    }

    /// Returns what the coordinators wait for.
    pub fn waiting(&self) -> &Waiting {
        self.seats[0].coordinator.waiting()
    }

    pub fn member(&self, id: NodeId) -> Option<&SimMember> {
        self.hosts[&id].member.as_ref()
    }

    pub fn votes(&self, id: NodeId) -> bool {
        let view = self.hosts[&id].switch.registers().acceptor.acceptor(0);
        view.voting
    }

    /// Returns an acceptor to add, as its host reports itself.
    pub fn candidate(&self, id: NodeId) -> Node {
        let acceptor = Parts {
            acceptor: true,
            ..Parts::default()
        };
        let mut member = node(id, acceptor);
        member.identity = Some(self.hosts[&id].identity);
        member
    }

    pub fn describe(&self) -> String {
        let mut text = format!(
            "now {} us, opened {:?}, pending {:?}\n",
            self.now,
            self.state.opened.as_ref().map(|o| (o.epoch, o.acceptors())),
            self.state.pending.as_ref().map(|p| (
                p.target.epoch,
                p.target.acceptors(),
                p.phase.clone()
            ))
        );
        for (id, host) in &self.hosts {
            let view = host.switch.registers().acceptor.acceptor(0);
            let member = host.member.as_ref();
            text += &format!(
                "  {id}: {view:?} holds {:?} fences {:?} trouble {:?} installing {:?}\n",
                member.and_then(|m| m.acceptor()?.holds()),
                host.fences.borrow(),
                member.and_then(|m| m.trouble()),
                member.and_then(|m| m.installing_for()),
            );
        }
        for seat in &self.seats {
            text += &format!("  coordinator: {:?}\n", seat.coordinator.waiting());
        }
        text
    }
}

fn new_switch(node: NodeId) -> SoftSwitch {
    let roles = Roles {
        acceptor: true,
        ..Roles::default()
    };
    SoftSwitch::new(node, roles, GEOMETRY)
}
