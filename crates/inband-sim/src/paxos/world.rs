//! The world: hosts, network, time. Steps from event to event and lets the checks look after each.

use std::collections::{BTreeMap, BTreeSet};

use inband_dataplane::auth::{Gate, Keys, Secret};
use inband_dataplane::wire::{self, Header};
use inband_paxos::log::Burst;
use inband_paxos::outbox::Outbox;
use inband_paxos::timing::Micros;

use crate::paxos::attacker::Attacker;
use crate::paxos::epochs::{Change, Members};
use crate::paxos::event::Event;
use crate::paxos::faults::Faults;
use crate::paxos::forge;
use crate::paxos::history::Histories;
use crate::paxos::invariant::{Broken, Invariant};
use crate::paxos::layout::{Layout, EPOCH};
use crate::paxos::ledger::Ledger;
use crate::paxos::limits::HOST_QUEUE_PACKETS;
use crate::paxos::mutation::Mutation;
use crate::paxos::network::{Fate, Network, Passing};
use crate::paxos::observer::Observer;
use crate::paxos::plane::Plane;
use crate::paxos::rounds::Rounds;
use crate::paxos::simhost::SimHost;
use crate::paxos::stats::Stats;
use crate::paxos::trace::{Happened, Trace};
use crate::queue::Queue;
use crate::rng::Rng;

/// A broken promise of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Simulated time.
    pub at_us: Micros,
    /// Which rule is broken.
    pub invariant: Invariant,
    /// What is wrong.
    pub what: String,
}

/// Streams of random numbers, one a purpose, so that the schedule of one does not shift the others.
pub(crate) struct Streams {
    pub network: Rng,
    pub faults: Rng,
    pub load: Rng,
    pub hosts: Rng,
    pub epochs: Rng,
    pub disks: Rng,
    pub attacker: Rng,
}

/// The last answers to one host's questions for reads.
#[derive(Debug, Default)]
struct ReadAnswers {
    last_at: Micros,
    by_acceptor: BTreeMap<u16, Header>,
}

/// Some keys of a cluster that has a digest key.
fn keys(digest_key: Secret) -> Keys {
    Keys::new(1, &[(1, digest_key)]).expect("one key")
}

/// See the module.
pub struct World {
    /// Simulated time.
    pub now: Micros,
    /// Which hosts there are.
    pub layout: Layout,
    /// The links.
    pub network: Network,
    /// What happened.
    pub trace: Trace,
    /// The same in numbers.
    pub stats: Stats,
    /// What clients and replicas saw.
    pub ledger: Ledger,
    /// What acceptors did, of each log.
    pub observers: Vec<Observer>,
    pub(crate) rounds: Rounds,
    /// Of each log: the highest floor of any acceptor so far; a majority of replicas holds all below.
    pub(crate) floors_held: Vec<u64>,
    pub(crate) violation: Option<Violation>,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) rng: Streams,
    pub(crate) queue: Queue<Event>,
    pub(crate) hosts: Vec<SimHost>,
    pub(crate) faults: Faults,
    pub(crate) attacker: Attacker,
    /// Between every host and the network: all have the same keys, if any.
    gate: Gate,
    /// Mean time between commands of one replica's clients; 0: they rest.
    pub(crate) load_us: Micros,
    /// Nodes that the coordinator of epochs cannot reach, though others can.
    pub hidden: BTreeSet<u8>,
    /// Of each epoch, from the first.
    pub(crate) members: Vec<Members>,
    /// The last change of epoch.
    pub(crate) change: Option<Change>,
    /// The real control plane, in place of the coordinator of epochs.
    pub(crate) plane: Option<Plane>,
    /// Mean time between changes of epoch; 0: none.
    pub(crate) reconfigure_us: Micros,
    pub(crate) kept: Vec<(u8, u8, Vec<u8>)>,
    /// For a mutation: answers to a host's questions for reads of a partition.
    read_answers: BTreeMap<(u8, u16), ReadAnswers>,
    pub(crate) out: Outbox,
    pub(crate) bursts: Vec<Burst>,
    /// What clients of the real store did and saw.
    pub(crate) histories: Histories,
    /// Replicas of the real store that need a peer's: node, incarnation, log.
    pub(crate) checkpoints_wanted: Vec<(u8, u64, usize)>,
}

impl World {
    /// A cluster whose hosts have all just started. Nothing goes wrong until it is told to.
    pub fn new(
        seed: u64,
        layout: Layout,
        mutation: Option<Mutation>,
        trace_events: usize,
    ) -> World {
        let nodes = layout.nodes();
        let mut world = World {
            now: 1,
            network: Network::default(),
            trace: Trace::new(trace_events),
            stats: Stats::default(),
            ledger: Ledger::new(layout.partitions),
            observers: (0..layout.partitions)
                .map(|p| Observer::new(p, &layout.acceptor_hosts, layout.ring_slots))
                .collect(),
            rounds: Rounds::default(),
            floors_held: vec![0; layout.partitions],
            members: Vec::new(),
            hidden: BTreeSet::new(),
            change: None,
            reconfigure_us: 0,
            plane: layout.plane.then(|| Plane::new(&layout)),
            violation: None,
            mutation,
            rng: Streams {
                network: Rng::new(seed, 1),
                faults: Rng::new(seed, 2),
                load: Rng::new(seed, 3),
                hosts: Rng::new(seed, 4),
                epochs: Rng::new(seed, 7),
                disks: Rng::new(seed, 5),
                attacker: Rng::new(seed, 9),
            },
            queue: Queue::default(),
            hosts: nodes
                .iter()
                .map(|node| SimHost::new(*node, &layout))
                .collect(),
            faults: Faults::default(),
            attacker: Attacker::default(),
            gate: Gate::new(layout.digest_key.map(keys), layout.partitions),
            load_us: 0,
            kept: Vec::new(),
            read_answers: BTreeMap::new(),
            out: Outbox::new(),
            bursts: Burst::for_logs(layout.partitions),
            histories: Histories::new(layout.partitions),
            checkpoints_wanted: Vec::new(),
            layout,
        };
        let members = Members {
            acceptors: world.layout.acceptors.clone(),
            replicas: world.layout.replicas.clone(),
            leaders: world.layout.leaders.clone(),
        };
        for observer in &mut world.observers {
            observer.epoch_begins(EPOCH, &members.acceptors);
        }
        for sim in &mut world.hosts {
            sim.memory_lost = !members.acceptors.contains(&sim.node);
        }
        world.members.push(members);
        for node in nodes {
            world.start(node);
        }
        world.found();
        world
    }

    /// What was found to be wrong.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Note a violation; the first one counts.
    pub(crate) fn check(&mut self, result: Result<(), Broken>) {
        if let Err(Broken { invariant, what }) = result {
            let at_us = self.now;
            self.violation.get_or_insert(Violation {
                at_us,
                invariant,
                what,
            });
        }
    }

    /// Index of a node among the hosts.
    pub(crate) fn index(&self, node: u8) -> Option<usize> {
        self.hosts.iter().position(|h| h.node == node)
    }

    /// The host `node`.
    ///
    /// # Panics
    /// If the layout has no such node.
    pub fn host(&self, node: u8) -> &SimHost {
        let at = self
            .index(node)
            .unwrap_or_else(|| panic!("there is no node {node}"));
        &self.hosts[at]
    }

    /// Handle the next event. False if a rule is broken or there is none.
    pub fn step(&mut self) -> bool {
        if self.violation.is_some() {
            return false;
        }
        let Some((at, event)) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        self.stats.events += 1;
        match event {
            Event::Packet {
                from,
                to,
                bytes,
                sent,
                damaged,
            } => self.arrive(from, to, bytes, sent, damaged),
            Event::Handle {
                from,
                to,
                bytes,
                damaged,
            } => self.handle(from, to, &bytes, damaged),
            Event::Tick(node) => self.tick(node, at),
            Event::Submit(node) => self.client(node),
            Event::Flush(node, incarnation) => self.flush(node, incarnation),
            Event::Sync(node, incarnation) => self.sync(node, incarnation),
            Event::CheckpointCopied(node, incarnation, partition) => {
                self.checkpoint(node, incarnation, partition);
            }
            Event::Seal(node, epoch) => self.seal(node, epoch),
            Event::Install(node, epoch) => self.install(node, epoch),
            Event::EnterEpoch(node, epoch) => self.enter_epoch(node, epoch),
            Event::ReorderLeaders(node) => self.reorder_at(node),
            Event::Control(from, to, message) => self.control_arrives(from, to, *message),
            Event::MemberTick(node) => self.member_tick(node),
            Event::ControllerTick(at) => self.controller_tick(at),
            Event::Append(command) => self.append(*command),
            Event::Reconfigure => self.reconfigure_at_random(),
            Event::Attack => self.attack(),
            Event::Fault => self.strike(),
            Event::FaultEnds(id) => self.end_fault(id),
        }
        self.violation.is_none()
    }

    /// Run for this long. False if a rule is broken.
    pub fn run_for(&mut self, time_us: Micros) -> bool {
        let until = self.now + time_us;
        self.run_until(until, |_| false);
        self.now = self.now.max(until);
        self.violation.is_none()
    }

    /// Run until `done` says so, at most until `until`. True if it did.
    pub fn run_until(&mut self, until: Micros, mut done: impl FnMut(&World) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if self.queue.next_at().is_none_or(|at| at > until) || !self.step() {
                return false;
            }
        }
    }

    /// Send a packet on its way.
    pub(crate) fn transmit(&mut self, from: u8, to: u8, bytes: &[u8]) {
        let Ok((header, value)) = wire::parse(bytes) else {
            let what = format!("node {from} sent node {to} what is no packet");
            self.check(Err(Invariant::NoPanic.broken(what)));
            return;
        };
        let sent = self.rounds.sent(from, &header);
        self.check(sent);
        self.stats.packets += 1;
        self.stats.busy += u64::from(header.kind == wire::Type::Busy);
        if let Some(mutation) = self.mutation {
            if forge::asks_for_read(&header) {
                if let Some(answer) = self.answer_of_last_round(mutation, from, to, &header) {
                    self.transmit_whole(to, from, &answer, &forge::packet(&answer, &[]));
                }
                let stamped = self.lowest_stamped(usize::from(header.partition));
                if let (Mutation::ReadOfStamped, Some(stamped)) = (mutation, stamped) {
                    let answer = forge::read_answer(&header, to, stamped);
                    let bytes = forge::packet(&answer, &[]);
                    return self.transmit_whole(to, from, &answer, &bytes);
                }
            }
            if let Some((header, value)) = forge::instead(mutation, &self.layout, &header, value) {
                self.transmit_whole(from, to, &header, &forge::packet(&header, &value));
            } else {
                self.transmit_whole(from, to, &header, bytes);
            }
            if let Some(more) = forge::besides(mutation, &self.layout, &header) {
                self.transmit_whole(from, to, &more, &forge::packet(&more, value));
            }
            return;
        }
        self.transmit_whole(from, to, &header, bytes);
    }

    /// For a mutation: what this acceptor answered in the round before the one of this question, if
    /// the question follows upon its end: then the reads came while that was under way.
    fn answer_of_last_round(
        &self,
        mutation: Mutation,
        from: u8,
        acceptor: u8,
        question: &Header,
    ) -> Option<Header> {
        let answers = self.read_answers.get(&(from, question.partition))?;
        let follows = mutation == Mutation::ReadJoinedLate && answers.last_at == self.now;
        let answer = answers.by_acceptor.get(&u16::from(acceptor))?;
        follows.then_some(Header {
            client_seq: question.client_seq,
            ..*answer
        })
    }

    /// What the leader that is furthest behind, of those that think they lead, has stamped last.
    fn lowest_stamped(&self, partition: usize) -> Option<u64> {
        let hosts = self.hosts.iter().filter_map(|sim| sim.host.as_ref());
        hosts
            .map(|host| host.leader_view(partition))
            .filter(|view| view.round != 0)
            .map(|view| view.next - 1)
            .min()
    }

    fn transmit_whole(&mut self, from: u8, to: u8, header: &Header, bytes: &[u8]) {
        let mut signed = bytes.to_vec();
        self.gate.sign(&mut signed);
        let bytes = &signed[..];
        self.record(from, to, header, bytes);
        let passing = Passing {
            now: self.now,
            from,
            to,
            header: *header,
        };
        match self
            .network
            .filter
            .as_mut()
            .map_or(Fate::Pass, |f| f(&passing))
        {
            Fate::Pass => {}
            Fate::Lose => return self.lose(from, to, header),
            Fate::Keep => return self.kept.push((from, to, bytes.to_vec())),
        }
        if let Some(held) = [from, to]
            .into_iter()
            .find(|n| self.host(*n).links_held > 0)
        {
            return self.hold(held, from, to, bytes);
        }
        let arrivals = self
            .network
            .fate(&mut self.rng.network, from, to, header, bytes);
        if arrivals.is_empty() {
            self.lose(from, to, header);
            return;
        }
        self.stats.duplicated += arrivals.len() as u64 - 1;
        for arrival in arrivals {
            self.stats.damaged += u64::from(arrival.damaged);
            self.stats.delayed += u64::from(arrival.held_up);
            self.network.set_out(to);
            let packet = Event::Packet {
                from,
                to,
                bytes: arrival.bytes,
                sent: self.stats.packets,
                damaged: arrival.damaged,
            };
            self.queue.push(self.now + arrival.delay_us, packet);
        }
    }

    fn lose(&mut self, from: u8, to: u8, header: &Header) {
        self.stats.lost += 1;
        self.trace.note(self.now, Happened::Lost(to, from, *header));
        if let Some(answer) = forge::answer_to_lost(self.mutation, header, to) {
            let mut bytes = forge::packet(&answer, &[]);
            self.sign(&mut bytes);
            self.network.set_out(from);
            let event = Event::Packet {
                from: to,
                to: from,
                bytes,
                sent: self.stats.packets,
                damaged: false,
            };
            self.queue.push(self.now + 1, event);
        }
    }

    /// What a host does last to a packet that leaves.
    pub(crate) fn sign(&self, bytes: &mut [u8]) {
        self.gate.sign(bytes);
    }

    /// Keep a packet until `holder` is released.
    pub(crate) fn hold(&mut self, holder: u8, from: u8, to: u8, bytes: &[u8]) {
        self.stats.held += 1;
        if let Some(at) = self.index(holder) {
            let waiting = &mut self.hosts[at].waiting;
            if waiting.len() < HOST_QUEUE_PACKETS {
                waiting.push((from, to, bytes.to_vec()));
            }
        }
    }

    /// Send the packets that a filter kept, in their order.
    pub fn release(&mut self) {
        let filter = self.network.filter.take();
        for (from, to, bytes) in std::mem::take(&mut self.kept) {
            self.transmit(from, to, &bytes);
        }
        self.network.filter = filter;
    }

    /// Packets that a filter has kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    fn arrive(&mut self, from: u8, to: u8, bytes: Vec<u8>, sent: u64, damaged: bool) {
        let overtaken = self.network.arrived(from, to, sent);
        self.stats.reordered += u64::from(overtaken);
        match self.time_for_packet(to) {
            Some(at) if at == self.now => self.handle(from, to, &bytes, damaged),
            Some(at) => {
                let event = Event::Handle {
                    from,
                    to,
                    bytes,
                    damaged,
                };
                self.queue.push(at, event);
            }
            None => {
                if let Ok((header, _)) = wire::parse(&bytes) {
                    self.lose(from, to, &header);
                }
            }
        }
    }

    fn handle(&mut self, from: u8, to: u8, bytes: &[u8], damaged: bool) {
        let Ok((header, _)) = wire::parse(bytes) else {
            return self.refuse(from, to, damaged, "no packet");
        };
        if self.mutation == Some(Mutation::ReadJoinedLate) && forge::answers_read(&header) {
            let answers = self.read_answers.entry((to, header.partition)).or_default();
            answers.last_at = self.now;
            answers.by_acceptor.insert(header.node, header);
        }
        let host = self.host(to);
        let waits = host.frozen > 0 || host.links_held > 0;
        if waits && !damaged {
            return self.hold(to, from, to, bytes);
        }
        if host.host.is_none() || waits {
            return self.lose(from, to, &header);
        }
        if !self.gate.admits(bytes) {
            return self.refuse(from, to, damaged, "no packet of this cluster");
        }
        self.trace
            .note(self.now, Happened::Arrived(to, from, header));
        let look_at = Some((usize::from(header.partition), header.instance));
        self.with_host(to, Some(from), look_at, |host, now, out| {
            host.on_packet(now, bytes, out);
        });
    }

    /// A host refuses a packet at its door: nothing but damage may be the reason.
    fn refuse(&mut self, from: u8, to: u8, damaged: bool, what: &str) {
        self.stats.refused += 1;
        if !damaged {
            let what = format!("what node {from} has sent is {what} to node {to}");
            self.check(Err(Invariant::NoPanic.broken(what)));
        }
    }
}
