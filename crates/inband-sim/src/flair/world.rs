//! The world: replicas, switches, clients, links, time. Steps from event to event.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_dataplane::flair::registers::SessionView;
use inband_dataplane::flair::wire;
use inband_dataplane::flair::{FlairGeometry, FlairSwitch, Verdict};
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;
use inband_flair::client::{self, Client, Op, Outcome, Ticket};
use inband_flair::replica::{self, Config, Counters, Message, Replica};
use inband_flair::timing::{ClientTiming, Nanos, Timing, TUNING};
use inband_raft::node_of;

use super::clock::Clock;
use super::faults::{Fault, Faults};
use super::history::{written, Act, History};
use super::limits::{DEADLINE_NS, LINK_MIN_NS};
use super::links::{Filter, Host, LinkStats, Links, Passing};
use super::mutation::{session_of, Mutation};
use crate::queue::Queue;
use crate::rng::Rng;

/// Node ids of switches follow those of replicas.
const SWITCH_NODES: u8 = 100;
/// Port of everybody.
const PORT: u16 = 7400;

/// Which hosts there are, and how keys lie in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// 3 to 7.
    pub replicas: u8,
    /// At least 1.
    pub switches: u8,
    /// Clients.
    pub clients: u8,
    /// Requests that each has under way at a time.
    pub outstanding: usize,
    /// Keys that they use.
    pub keys: u8,
    /// Key groups of a switch.
    pub groups: usize,
    /// Reads spare a leader that writes.
    pub leader_avoidance: bool,
    /// A tick of Raft. With few of them a new leader is there while a switch still serves the old one's
    /// session.
    pub tick_ns: Nanos,
    /// How long a switch serves after a heartbeat.
    pub step_down_ns: Nanos,
    /// Time of a client between two requests, on average.
    pub think_ns: Nanos,
}

#[derive(Debug)]
pub(super) enum Event {
    Packet {
        from: Host,
        to: Host,
        bytes: Vec<u8>,
    },
    Message {
        from: u8,
        to: u8,
        message: Box<Message>,
    },
    Wake(Host),
    /// A client thinks of something.
    Request(u8),
    Fault,
    FaultEnds(usize),
}

struct ReplicaHost {
    replica: Option<Replica>,
    counters: Counters,
}

struct ClientHost {
    client: Client,
    under_way: BTreeMap<Ticket, usize>,
    /// Requests that were answered.
    answered: u64,
}

/// What each host has.
struct Common {
    clock: Clock,
    paused_until: Nanos,
    wake_at: Nanos,
}

/// In numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Sessions that became active.
    pub activations: u64,
    /// Replicas that came back without memory.
    pub restarts: u64,
    /// Switches that came back without memory.
    pub resets: u64,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What switches did, by reason.
    pub reasons: BTreeMap<&'static str, u64>,
    /// What replicas did.
    pub replicas: Counters,
    /// What links did.
    pub links: LinkStats,
    /// Reads that were sent to a replica that was down.
    pub reads_of_the_dead: u64,
}

/// See the module.
pub struct World {
    /// True time.
    pub now: Nanos,
    /// Which hosts there are.
    pub layout: Layout,
    /// What clients did and saw.
    pub history: History,
    /// In numbers.
    pub stats: Stats,
    /// The first rule that was broken.
    pub violation: Option<String>,
    pub(super) links: Links,
    pub(super) faults: Faults,
    pub(super) mutation: Option<Mutation>,
    pub(super) queue: Queue<Event>,
    pub(super) rng_faults: Rng,
    rng: Rng,
    rng_links: Rng,
    replicas: Vec<ReplicaHost>,
    switches: Vec<Option<FlairSwitch>>,
    clients: Vec<ClientHost>,
    hosts: BTreeMap<Host, Common>,
    /// Switches that are active, as of the last heartbeat.
    active: Vec<u64>,
    values: u64,
    /// Clients begin something new whenever they are idle.
    pub(super) is_loaded: bool,
    out: replica::Out,
    client_out: client::Out,
}

fn address(host: Host) -> SocketAddrV4 {
    let (kind, number) = match host {
        Host::Replica(n) => (1, n),
        Host::Switch(n) => (2, n),
        Host::Client(n) => (3, n),
    };
    SocketAddrV4::new(Ipv4Addr::new(10, 0, kind, number), PORT)
}

fn key(number: u8) -> Vec<u8> {
    format!("key/{number}").into_bytes()
}

impl World {
    /// All hosts have just started; replica 0 founds the group. Nothing goes wrong until it is told to.
    pub fn new(seed: u64, layout: Layout, mutation: Option<Mutation>) -> World {
        let mut rng = Rng::new(seed, 101);
        let replicas = (0..layout.replicas).map(Host::Replica);
        let switches = (0..layout.switches).map(Host::Switch);
        let all = replicas
            .chain(switches)
            .chain((0..layout.clients).map(Host::Client));
        let common = |host| {
            let clock = Clock::random(&mut rng);
            let common = Common {
                clock,
                paused_until: 0,
                wake_at: Nanos::MAX,
            };
            (host, common)
        };
        let hosts: BTreeMap<Host, Common> = all.map(common).collect();
        let mut world = World {
            now: 1,
            layout,
            history: History::default(),
            stats: Stats::default(),
            violation: None,
            links: Links::default(),
            faults: Faults::default(),
            mutation,
            queue: Queue::default(),
            rng_faults: Rng::new(seed, 102),
            rng,
            rng_links: Rng::new(seed, 103),
            replicas: Vec::new(),
            switches: Vec::new(),
            clients: Vec::new(),
            hosts,
            active: vec![0; usize::from(layout.switches)],
            values: 0,
            is_loaded: true,
            out: replica::Out::default(),
            client_out: client::Out::default(),
        };
        world.start_all();
        world
    }

    fn start_all(&mut self) {
        for number in 0..self.layout.replicas {
            self.replicas.push(ReplicaHost {
                replica: None,
                counters: Counters::default(),
            });
            self.start_replica(number, number == 0);
        }
        for number in 0..self.layout.switches {
            self.switches.push(None);
            self.start_switch(number);
        }
        for number in 0..self.layout.clients {
            let config = client::Config {
                set: 0,
                switches: self.layout.switches,
                nonce: self.rng.next_u64(),
                timing: ClientTiming {
                    deadline_ns: DEADLINE_NS,
                    ..ClientTiming::default()
                },
            };
            self.clients.push(ClientHost {
                client: Client::new(config),
                under_way: BTreeMap::new(),
                answered: 0,
            });
            for _ in 0..self.layout.outstanding {
                self.queue.push(self.now, Event::Request(number));
            }
        }
    }

    fn local(&self, host: Host) -> Nanos {
        self.hosts[&host].clock.shows(self.now)
    }

    fn start_replica(&mut self, number: u8, founder: bool) {
        let config = Config {
            replica: number,
            replicas: self.layout.replicas,
            node: u16::from(number) + 1,
            set: 0,
            switches: self.layout.switches,
            groups: self.layout.groups,
            founder,
            leader_avoidance: self.layout.leader_avoidance,
            load_awareness: false,
            timing: Timing {
                tick_ns: self.layout.tick_ns,
                step_down_ns: self.layout.step_down_ns,
                ..Timing::default()
            },
            tuning: TUNING,
        };
        let random = self.rng.next_u64();
        let now = self.local(Host::Replica(number));
        let replica = Replica::new(config, random, now).expect("it starts");
        self.replicas[usize::from(number)].replica = Some(replica);
        self.sleep(Host::Replica(number), now);
    }

    /// A switch starts, and knows nothing.
    pub(super) fn start_switch(&mut self, number: u8) {
        let geometry = FlairGeometry {
            sets: 1,
            groups: self.layout.groups,
        };
        let incarnation = self.rng.next_u64() | 1;
        let switch = FlairSwitch::new(SWITCH_NODES + number, geometry, incarnation);
        self.switches[usize::from(number)] = Some(switch);
        self.active[usize::from(number)] = 0;
    }

    /// A switch forgets everything, and is down until it is started.
    pub fn stop_switch(&mut self, number: u8) {
        if let Some(switch) = self.switches[usize::from(number)].take() {
            self.count_reasons(&switch);
        }
    }

    /// A switch is back, and knows nothing. If its machine has restarted, too, its clock shows something else.
    pub fn reset_switch(&mut self, number: u8, with_machine: bool) {
        self.stop_switch(number);
        self.stats.resets += 1;
        let clock = Clock::random(&mut self.rng);
        let host = self.hosts.get_mut(&Host::Switch(number));
        if with_machine {
            host.expect("a switch").clock = clock;
        }
        self.start_switch(number);
    }

    /// A replica is gone, with everything it knew.
    pub fn stop_replica(&mut self, number: u8) {
        let host = &mut self.replicas[usize::from(number)];
        if let Some(replica) = host.replica.take() {
            add(&mut host.counters, replica.counters());
        }
    }

    /// A replica that was stopped is back, and knows nothing.
    pub fn restart_replica(&mut self, number: u8) {
        if self.replicas[usize::from(number)].replica.is_none() {
            self.stats.restarts += 1;
            self.start_replica(number, false);
        }
    }

    /// Would the group go on without this replica, as every other one sees it? Logs in memory bear the loss of a
    /// minority, those counted that are not back as voters yet.
    pub fn may_stop_replica(&self, number: u8) -> bool {
        let is_lame = |host: &ReplicaHost| {
            let ids = host.replica.as_ref().map(Replica::raft_ids);
            ids.is_none_or(|(id, voters, _)| !voters.contains(&id))
        };
        let all = self.replicas.iter().enumerate();
        let others_lame = all.filter(|(n, host)| *n != usize::from(number) && is_lame(host));
        if (others_lame.count() + 1) * 2 >= self.replicas.len() {
            return false;
        }
        let others = || {
            let up = self.replicas.iter().enumerate();
            up.filter(|(n, _)| *n != usize::from(number))
                .filter_map(|(_, host)| host.replica.as_ref())
        };
        let alive: Vec<u64> = others().map(|replica| replica.raft_ids().0).collect();
        let mut voting = others().map(|replica| replica.raft_ids().1);
        let has_majority = |voters: Vec<u64>| {
            let left = voters.iter().filter(|id| alive.contains(id)).count();
            voters.is_empty() || left * 2 > voters.len()
        };
        let is_known = others().any(|replica| !replica.raft_ids().1.is_empty());
        is_known && voting.all(has_majority)
    }

    /// The replica that serves a session.
    pub fn leader(&self) -> Option<u8> {
        let serves = |host: &ReplicaHost| {
            let status = host.replica.as_ref().map(|r| r.status(0));
            status.is_some_and(|status| status.serving.is_some())
        };
        self.replicas.iter().rposition(serves).map(|n| n as u8)
    }

    /// A running replica.
    pub fn replica(&self, number: u8) -> Option<&Replica> {
        self.replicas[usize::from(number)].replica.as_ref()
    }

    /// A running switch.
    pub fn switch(&self, number: u8) -> Option<&FlairSwitch> {
        self.switches[usize::from(number)].as_ref()
    }

    /// The session that a switch has.
    pub fn session(&self, number: u8) -> SessionView {
        self.switch(number).map(session_of).unwrap_or_default()
    }

    /// Switches that are active now.
    pub fn active(&self) -> Vec<u8> {
        let is_active = |number: &u8| {
            let now = self.local(Host::Switch(*number));
            let switch = self.switches[usize::from(*number)].as_ref();
            switch.is_some_and(|switch| session_of(switch).is_active(now))
        };
        (0..self.layout.switches).filter(is_active).collect()
    }

    /// Is every replica up and a voter, and does one of them serve?
    pub fn is_whole(&self) -> bool {
        let replicas = usize::from(self.layout.replicas);
        let is_voter = |host: &ReplicaHost| {
            host.replica.as_ref().is_some_and(|replica| {
                let (id, voters, learners) = replica.raft_ids();
                voters.len() == replicas && learners.is_empty() && voters.contains(&id)
            })
        };
        self.replicas.iter().all(is_voter) && self.leader().is_some()
    }

    /// Requests of each client that were answered.
    pub fn answered(&self) -> Vec<u64> {
        self.clients.iter().map(|client| client.answered).collect()
    }

    /// No request is under way.
    pub fn is_idle(&self) -> bool {
        self.clients.iter().all(|c| c.under_way.is_empty())
    }

    /// A test decides about packets.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.links.filter = filter;
    }

    /// A host does nothing until then; what comes waits.
    pub fn pause(&mut self, host: Host, until: Nanos) {
        if let Some(common) = self.hosts.get_mut(&host) {
            common.paused_until = common.paused_until.max(until);
        }
    }

    /// Nothing is wrong any more: links work, everybody is up and awake.
    pub fn heal(&mut self) {
        self.links.heal();
        self.faults = Faults::default();
        for common in self.hosts.values_mut() {
            common.paused_until = common.paused_until.min(self.now);
        }
        for number in 0..self.layout.replicas {
            self.restart_replica(number);
        }
        for number in 0..self.layout.switches {
            if self.switches[usize::from(number)].is_none() {
                self.reset_switch(number, true);
            }
        }
    }

    /// Clients stop beginning anything, or go on.
    pub fn set_load(&mut self, is_loaded: bool) {
        let begins = is_loaded && !self.is_loaded;
        self.is_loaded = is_loaded;
        for client in (0..self.layout.clients).filter(|_| begins) {
            self.queue.push(self.now, Event::Request(client));
        }
    }

    /// A rule is broken.
    pub(super) fn broken(&mut self, what: String) {
        let now = self.now;
        self.violation
            .get_or_insert_with(|| format!("at {now} ns: {what}"));
    }

    /// Go on until then, or until `is_enough`, or a rule is broken.
    pub fn run_until(&mut self, until: Nanos, mut is_enough: impl FnMut(&World) -> bool) -> bool {
        while self.queue.next_at().is_some_and(|at| at <= until) {
            if self.violation.is_some() {
                return false;
            }
            if is_enough(self) {
                return true;
            }
            self.step();
        }
        self.now = until.max(self.now);
        is_enough(self)
    }

    /// Go on for so long.
    pub fn run_for(&mut self, ns: Nanos) {
        self.run_until(self.now + ns, |_| false);
    }

    fn step(&mut self) {
        let Some((at, event)) = self.queue.pop() else {
            return;
        };
        self.now = at.max(self.now);
        self.stats.events += 1;
        let paused_until = match &event {
            Event::Packet { to, .. } => self.hosts[to].paused_until,
            Event::Message { to, .. } => self.hosts[&Host::Replica(*to)].paused_until,
            Event::Wake(host) => self.hosts[host].paused_until,
            Event::Request(_) | Event::Fault | Event::FaultEnds(_) => 0,
        };
        if paused_until > self.now {
            if let Event::Wake(host) = event {
                self.hosts.get_mut(&host).expect("a host").wake_at = paused_until;
            }
            return self.queue.push(paused_until, event);
        }
        match event {
            Event::Packet { from, to, bytes } => self.on_packet(from, to, bytes),
            Event::Message { from, to, message } => {
                self.at_replica(to, |replica, now, _| {
                    replica.on_message(now, from, *message);
                });
            }
            Event::Wake(host) => self.on_wake(host),
            Event::Request(client) => self.on_request(client),
            Event::Fault => self.next_fault(),
            Event::FaultEnds(number) => self.end_fault(number),
        }
    }

    fn on_packet(&mut self, from: Host, to: Host, bytes: Vec<u8>) {
        match (from, to) {
            (Host::Switch(switch), Host::Replica(number)) => {
                self.at_replica(number, |replica, now, out| {
                    replica.on_packet(now, switch, &bytes, out);
                });
            }
            (_, Host::Client(number)) => self.at_client(number, |client, now, out| {
                client.on_packet(now, &bytes, out);
            }),
            (_, Host::Switch(number)) => self.at_switch(from, number, bytes),
            (_, Host::Replica(_)) => {}
        }
    }

    fn on_wake(&mut self, host: Host) {
        let common = self.hosts.get_mut(&host).expect("a host");
        if common.wake_at > self.now {
            return; // it was put off
        }
        common.wake_at = Nanos::MAX;
        match host {
            Host::Replica(number) => self.at_replica(number, |replica, now, out| {
                replica.tick(now, out);
            }),
            Host::Client(number) => self.at_client(number, |client, now, out| {
                client.tick(now, out);
            }),
            Host::Switch(_) => {}
        }
    }

    /// Wake a host when its clock shows this.
    fn sleep(&mut self, host: Host, due: Nanos) {
        let now = self.now;
        let common = self.hosts.get_mut(&host).expect("a host");
        let at = common.clock.when(due).max(now);
        if at < common.wake_at {
            common.wake_at = at;
            self.queue.push(at, Event::Wake(host));
        }
    }

    fn at_replica(
        &mut self,
        number: u8,
        event: impl FnOnce(&mut Replica, Nanos, &mut replica::Out),
    ) {
        let now = self.local(Host::Replica(number));
        let Some(replica) = &mut self.replicas[usize::from(number)].replica else {
            return;
        };
        let mut out = std::mem::take(&mut self.out);
        event(replica, now, &mut out);
        replica.advance(now, &mut out).expect("a log in memory");
        let due = replica.due();
        let own = Host::Replica(number);
        self.sleep(own, due);
        for (switch, packet) in out.packets.iter() {
            self.send(own, Host::Switch(switch), packet.to_vec());
        }
        for (to, message) in out.messages.drain(..) {
            self.send_message(number, to, message);
        }
        out.clear();
        self.out = out;
    }

    fn at_client(&mut self, number: u8, event: impl FnOnce(&mut Client, Nanos, &mut client::Out)) {
        let own = Host::Client(number);
        let now = self.local(own);
        let mut out = std::mem::take(&mut self.client_out);
        let host = &mut self.clients[usize::from(number)];
        event(&mut host.client, now, &mut out);
        if let Some(due) = host.client.due() {
            self.sleep(own, due);
        }
        for (switch, packet) in out.packets.iter() {
            self.send(own, Host::Switch(switch), packet.to_vec());
        }
        for (ticket, outcome) in out.outcomes.drain(..) {
            self.on_outcome(number, ticket, &outcome);
        }
        out.packets.clear();
        self.client_out = out;
    }

    fn on_outcome(&mut self, number: u8, ticket: Ticket, outcome: &Outcome) {
        let host = &mut self.clients[usize::from(number)];
        let request = host.under_way.remove(&ticket).expect("it was begun");
        let is_answered = matches!(outcome, Outcome::Value(_) | Outcome::Written);
        host.answered += u64::from(is_answered);
        self.history.ends(self.now, request, outcome);
        let think = self.rng.wait(self.layout.think_ns);
        self.queue.push(self.now + think, Event::Request(number));
    }

    fn on_request(&mut self, number: u8) {
        let host = &self.clients[usize::from(number)];
        if !self.is_loaded || host.under_way.len() >= self.layout.outstanding {
            return;
        }
        let key_number = self.rng.below(u64::from(self.layout.keys)) as u8;
        self.values += 1;
        let act = match self.rng.below(100) {
            0..=54 => Act::Get,
            55..=89 => Act::Put(self.values),
            _ => Act::Delete,
        };
        self.request(number, key_number, act);
    }

    /// A client begins a request.
    pub fn request(&mut self, number: u8, key_number: u8, act: Act) {
        let op = match act {
            Act::Get => Op::Get(key(key_number)),
            Act::Put(value) => Op::Put(key(key_number), written(value)),
            Act::Delete => Op::Delete(key(key_number)),
        };
        let request = self.history.begins(self.now, key_number, act);
        let mut ticket = None;
        self.at_client(number, |client, now, out| {
            ticket = Some(client.submit(now, op, out).expect("it is short"));
        });
        let host = &mut self.clients[usize::from(number)];
        host.under_way.insert(ticket.expect("set above"), request);
    }

    fn at_switch(&mut self, from: Host, number: u8, mut bytes: Vec<u8>) {
        let own = Host::Switch(number);
        let now_ns = self.local(own);
        let random = self.rng_links.next_u64();
        let Some(switch) = &self.switches[usize::from(number)] else {
            return;
        };
        let Ok((mut header, key, data)) = wire::parse(&bytes) else {
            return self.broken("a packet to a switch is none".into());
        };
        if let Some(mutation) = self.mutation {
            let (key, data) = (key.to_vec(), data.to_vec());
            let (groups, replicas) = (self.layout.groups, self.layout.replicas);
            mutation.at_switch(switch, &mut header, groups, replicas, now_ns);
            bytes.clear();
            wire::emit(&header, &key, &data, &mut bytes);
        }
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let source = address(from);
        let (verdict, _, len) = switch.handle(&mut buffer, bytes.len(), source, now_ns, random);
        let to = match verdict {
            Verdict::Drop | Verdict::Pass => return,
            Verdict::Back => from,
            Verdict::ToReplica { replica, .. } => Host::Replica(replica as u8),
            Verdict::ToClient(client) => Host::Client(client.ip().octets()[3]),
        };
        if header.kind == wire::Type::Heartbeat {
            self.look_at_switches(number);
        }
        self.send(own, to, buffer[..len].to_vec());
    }

    /// A heartbeat was taken: at most one switch may serve.
    fn look_at_switches(&mut self, number: u8) {
        let active = self.active();
        if active.len() > 1 {
            let sessions: Vec<u64> = active
                .iter()
                .filter_map(|n| self.switches[usize::from(*n)].as_ref())
                .map(|switch| session_of(switch).session)
                .collect();
            self.broken(format!("switches {active:?} serve sessions {sessions:?}"));
        }
        if let Some(switch) = &self.switches[usize::from(number)] {
            let session = session_of(switch).session;
            let last = &mut self.active[usize::from(number)];
            if active.contains(&number) && *last != session {
                *last = session;
                self.stats.activations += 1;
            }
        }
    }

    fn send(&mut self, from: Host, to: Host, bytes: Vec<u8>) {
        let header = wire::parse(&bytes).ok().map(|(header, ..)| header);
        if let (Host::Switch(_), Host::Replica(number)) = (from, to) {
            let is_read = header.is_some_and(|h| h.kind == wire::Type::Read);
            let is_dead = self.replicas[usize::from(number)].replica.is_none();
            self.stats.reads_of_the_dead += u64::from(is_read && is_dead);
        }
        if let Some(forged) = self.forged_answer(to, header.as_ref()) {
            let event = Event::Packet {
                from: to,
                to: from,
                bytes: forged,
            };
            return self.queue.push(self.now + LINK_MIN_NS, event);
        }
        let passing = Passing {
            now: self.now,
            from,
            to,
            header,
        };
        for after in self.links.fate(&mut self.rng_links, &passing) {
            let bytes = bytes.clone();
            self.queue
                .push(self.now + after, Event::Packet { from, to, bytes });
        }
    }

    fn forged_answer(&self, to: Host, header: Option<&wire::Header>) -> Option<Vec<u8>> {
        let (Host::Switch(number), Some(mutation)) = (to, self.mutation) else {
            return None;
        };
        let answer = mutation.answer(self.switch(number)?, header?, self.local(to))?;
        let mut bytes = Vec::new();
        wire::emit(&answer, &[], &[], &mut bytes);
        Some(bytes)
    }

    fn send_message(&mut self, from: u8, to: u8, message: Message) {
        let passing = Passing {
            now: self.now,
            from: Host::Replica(from),
            to: Host::Replica(to),
            header: None,
        };
        if let Message::Raft(raft) = &message {
            debug_assert_eq!(node_of(raft.to), to);
        }
        for after in self.links.fate(&mut self.rng_links, &passing) {
            let message = Box::new(message.clone());
            self.queue
                .push(self.now + after, Event::Message { from, to, message });
        }
    }

    fn count_reasons(&mut self, switch: &FlairSwitch) {
        for (name, count) in switch.counters() {
            *self.stats.reasons.entry(name).or_default() += count;
        }
    }

    /// Everything in numbers, once all is over.
    pub fn finish(&mut self) {
        for number in 0..self.layout.switches {
            self.stop_switch(number);
        }
        for host in &self.replicas {
            let running = host.replica.as_ref().map(Replica::counters);
            add(&mut self.stats.replicas, host.counters);
            add(&mut self.stats.replicas, running.unwrap_or_default());
        }
        self.stats.links = self.links.stats;
    }

    pub(super) fn note_fault(&mut self, fault: Fault) {
        *self.stats.faults.entry(fault.name()).or_default() += 1;
    }
}

fn add(sum: &mut Counters, more: Counters) {
    sum.reads_leader += more.reads_leader;
    sum.reads_follower += more.reads_follower;
    sum.reads_advanced += more.reads_advanced;
    sum.reads_refused += more.reads_refused;
    sum.writes += more.writes;
    sum.writes_dropped += more.writes_dropped;
    sum.refreshes += more.refreshes;
    sum.bad_packets += more.bad_packets;
}
