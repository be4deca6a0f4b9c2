//! The world: replicas, switches, clients, links, time. Steps from event to event.

mod clients;
mod hosts;
mod sending;
mod switches;

use std::collections::{BTreeMap, BTreeSet};

use inband_dataplane::flair::wire;
use inband_dataplane::flair::FlairSwitch;
use inband_flair::client::{self, Client, Ticket};
use inband_flair::replica::{self, Counters, Message, Replica};
use inband_flair::timing::{ClientTiming, Nanos};

use inband_storage::SimulatedDisk;

use super::faults::{Fault, Faults};
use super::history::History;
use super::layout::Layout;
use super::limits::DEADLINE_NS;
use super::links::{Filter, Host, Links};
use super::mutation::Mutation;
use super::rule::{Rule, Violation};
use super::stats::{add_replica, Stats};
use super::trace::{self, Happened, Trace};
use crate::drifting_clock::Clock;
use crate::queue::Queue;
use crate::rng::Rng;

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
    pub violation: Option<Violation>,
    pub(super) trace: Trace,
    pub(super) links: Links,
    pub(super) faults: Faults,
    pub(super) mutation: Option<Mutation>,
    pub(super) queue: Queue<Event>,
    pub(super) rng_faults: Rng,
    rng: Rng,
    rng_links: Rng,
    replicas: Vec<ReplicaHost>,
    /// Of the replicas, if they have any.
    disks: Vec<SimulatedDisk>,
    switches: Vec<Option<FlairSwitch>>,
    clients: Vec<ClientHost>,
    hosts: BTreeMap<Host, Common>,
    /// Switches that are active, as of the last heartbeat.
    active: Vec<u64>,
    /// Switches whose clocks stood still.
    suspended: BTreeSet<u8>,
    values: u64,
    /// Clients begin something new whenever they are idle.
    pub(super) is_loaded: bool,
    out: replica::Out,
    client_out: client::Out,
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
        let with_disks = if layout.sync { layout.replicas } else { 0 };
        let disks = (0..with_disks).map(|_| SimulatedDisk::new());
        let mut world = World {
            now: 1,
            layout,
            history: History::default(),
            stats: Stats::default(),
            violation: None,
            trace: Trace::default(),
            links: Links::default(),
            faults: Faults::default(),
            mutation,
            queue: Queue::default(),
            rng_faults: Rng::new(seed, 102),
            rng,
            rng_links: Rng::new(seed, 103),
            replicas: Vec::new(),
            disks: disks.collect(),
            switches: Vec::new(),
            clients: Vec::new(),
            hosts,
            active: vec![0; usize::from(layout.switches)],
            suspended: BTreeSet::new(),
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
                reads: self.layout.reads,
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

    /// A test decides about packets.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.links.filter = filter;
    }

    /// A rule is broken.
    pub(super) fn broken(&mut self, rule: Rule, what: String) {
        let at_ns = self.now;
        let violation = Violation { rule, at_ns, what };
        self.violation.get_or_insert(violation);
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
                let (a, b) = (Host::Replica(from), Host::Replica(to));
                self.trace.note(self.now, trace::message(a, b, &message));
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
        if let Ok((header, ..)) = wire::parse(&bytes) {
            self.trace
                .note(self.now, Happened::Arrived(from, to, header));
        }
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
        replica.advance(now, &mut out).expect("its disk works");
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
            add_replica(&mut self.stats.replicas, host.counters);
            add_replica(&mut self.stats.replicas, running.unwrap_or_default());
        }
        self.stats.links = self.links.stats;
    }

    pub(super) fn note_fault(&mut self, fault: Fault) {
        let begins = Happened::FaultBegins(fault.name());
        self.trace.note(self.now, begins);
        *self.stats.faults.entry(fault.name()).or_default() += 1;
    }
}
