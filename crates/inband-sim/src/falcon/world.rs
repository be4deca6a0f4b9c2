//! The world: schedulers, workers, clients, links, time. Steps from event to event.

mod clients;
mod hosts;
mod runs;
mod schedulers;
mod silence;
mod workers;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use inband_dataplane::auth::{Digest, Gate};
use inband_falcon::letters::Letters;
use inband_falcon::message::{Outcome, Place};
use inband_falcon::packets::{Codec, HostMessage, Peer};
use inband_falcon::task::Attempt;
use inband_falcon::timing::Nanos;

use self::clients::ClientHost;
use self::schedulers::SchedulerHost;
use self::workers::WorkerHost;
use super::faults::{Fault, Faults};
use super::layout::Layout;
use super::ledger::Ledger;
use super::links::{Filter, Host, Links};
use super::rule::{Breach, Rule, Violation};
use super::stats::Stats;
use super::trace::Trace;
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
    Wake(Host),
    /// A client thinks of something.
    Think(u8),
    /// What this executor of a worker runs, or fetches, has come to an end: the number of the run.
    RunEnds(u8, usize, u64),
    FetchesWork(u8, usize, u64),
    /// A client of this number of start fetches a result.
    FetchesResult(u8, u64, Box<(Peer, Attempt, Outcome)>),
    StartWorker(u8),
    Fault,
    FaultEnds(usize),
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
    /// In numbers.
    pub stats: Stats,
    /// The first rule that was broken.
    pub violation: Option<Violation>,
    pub(super) ledger: Ledger,
    pub(super) trace: Trace,
    pub(super) links: Links,
    pub(super) faults: Faults,
    pub(super) queue: Queue<Event>,
    pub(super) rng_faults: Rng,
    rng: Rng,
    rng_links: Rng,
    schedulers: Vec<SchedulerHost>,
    workers: Vec<WorkerHost>,
    clients: Vec<ClientHost>,
    hosts: BTreeMap<Host, Common>,
    codec: Codec,
    /// What an event has hosts say to each other, by who says it: it leaves when the event is over.
    letters: BTreeMap<Host, Letters>,
    /// Long work and results, by who keeps them and the token.
    blobs: BTreeMap<(Host, u64), Vec<u8>>,
    /// Processes started so far, and other numbers that must not come again.
    numbers: u64,
    /// Clients begin something new.
    is_loaded: bool,
}

impl World {
    /// All hosts have just started. Nothing goes wrong until it is told to.
    pub fn new(seed: u64, layout: Layout) -> World {
        let mut rng = Rng::new(seed, 201);
        let schedulers = (0..layout.schedulers).map(Host::Scheduler);
        let workers = (0..layout.workers).map(Host::Worker);
        let all = schedulers
            .chain(workers)
            .chain((0..layout.clients).map(Host::Client));
        let common = |host| {
            let common = Common {
                clock: Clock::random(&mut rng),
                paused_until: 0,
                wake_at: Nanos::MAX,
            };
            (host, common)
        };
        let hosts: BTreeMap<Host, Common> = all.map(common).collect();
        let mut world = World {
            now: 1,
            layout,
            stats: Stats::default(),
            violation: None,
            ledger: Ledger::new(layout.is_calm),
            trace: Trace::default(),
            links: Links::default(),
            faults: Faults::default(),
            queue: Queue::default(),
            rng_faults: Rng::new(seed, 202),
            rng,
            rng_links: Rng::new(seed, 203),
            schedulers: Vec::new(),
            workers: Vec::new(),
            clients: Vec::new(),
            hosts,
            codec: Codec::new(Gate::for_falcon(None, 1), Digest::PLAIN),
            letters: BTreeMap::new(),
            blobs: BTreeMap::new(),
            numbers: 0,
            is_loaded: true,
        };
        world.start_all();
        world
    }

    fn start_all(&mut self) {
        for number in 0..self.layout.schedulers {
            self.schedulers.push(SchedulerHost::default());
            self.start_scheduler(number);
        }
        for number in 0..self.layout.workers {
            self.workers.push(WorkerHost::default());
            self.start_worker(number);
        }
        for number in 0..self.layout.clients {
            self.clients.push(ClientHost::default());
            self.start_client(number);
            self.queue.push(self.now, Event::Think(number));
        }
    }

    /// The scheduler of a worker or client.
    fn scheduler_of(&self, number: u8) -> Host {
        Host::Scheduler(number % self.layout.schedulers)
    }

    fn local(&self, host: Host) -> Nanos {
        self.hosts[&host].clock.shows(self.now)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A test decides about packets.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.links.filter = filter;
    }

    /// Keep the last events, for people.
    pub fn keep_trace(&mut self, events: usize) {
        self.trace.keep = events;
    }

    /// The last events, one a line.
    pub fn trace(&self) -> Vec<String> {
        self.trace.lines()
    }

    /// A rule is broken.
    pub(super) fn broken(&mut self, rule: Rule, what: String) {
        let at_ns = self.now;
        let violation = Violation { rule, at_ns, what };
        self.violation.get_or_insert(violation);
    }

    fn must(&mut self, held: Result<(), Breach>) {
        if let Err((rule, what)) = held {
            self.broken(rule, what);
        }
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
        let host = match &event {
            Event::Packet { to, .. } => Some(*to),
            Event::Wake(host) => Some(*host),
            Event::Think(number) | Event::FetchesResult(number, ..) => Some(Host::Client(*number)),
            Event::RunEnds(number, ..) | Event::FetchesWork(number, ..) => {
                Some(Host::Worker(*number))
            }
            Event::StartWorker(_) | Event::Fault | Event::FaultEnds(_) => None,
        };
        let paused_until = host.map_or(0, |host| self.hosts[&host].paused_until);
        if paused_until > self.now {
            // As drivers do: what has come is handled before what is due.
            let after_packets_ns = Nanos::from(matches!(event, Event::Wake(_)));
            let at = paused_until + after_packets_ns;
            if let Event::Wake(host) = event {
                self.hosts.get_mut(&host).expect("a host").wake_at = at;
            }
            return self.queue.push(at, event);
        }
        match event {
            Event::Packet { from, to, bytes } => self.on_packet(from, to, bytes),
            Event::Wake(host) => self.on_wake(host),
            Event::Think(number) => self.on_think(number),
            Event::RunEnds(number, slot, run) => self.on_run_ends(number, slot, run),
            Event::FetchesWork(number, slot, run) => self.on_fetches_work(number, slot, run),
            Event::FetchesResult(number, process, what) => {
                self.on_fetches_result(number, process, *what);
            }
            Event::StartWorker(number) => self.start_worker(number),
            Event::Fault => self.next_fault(),
            Event::FaultEnds(number) => self.end_fault(number),
        }
        self.send_letters();
    }

    /// Say this to another host, together with what else this event brings.
    fn tell(&mut self, from: Host, to: SocketAddrV4, executor: u32, message: &HostMessage) {
        let letters = self.letters.entry(from).or_default();
        let full = letters.put(&mut self.codec, to, executor, message);
        if let (Some(packet), Some(to)) = (full, Host::at(to)) {
            self.send(from, to, packet);
        }
    }

    fn send_letters(&mut self) {
        let mut packets = Vec::new();
        for (from, mut letters) in std::mem::take(&mut self.letters) {
            letters.take(&mut self.codec, |to, packet| {
                packets.push((from, to, packet.to_vec()));
            });
        }
        for (from, to, packet) in packets {
            if let Some(to) = Host::at(to) {
                self.send(from, to, packet);
            }
        }
    }

    fn on_packet(&mut self, from: Host, to: Host, bytes: Vec<u8>) {
        self.trace
            .packet(self.now, "=>", from, to, &bytes, &self.codec);
        match to {
            Host::Scheduler(number) => self.at_scheduler(number, from, &bytes),
            Host::Worker(number) => self.on_worker_packet(number, from, &bytes),
            Host::Client(number) => self.on_client_packet(number, from, &bytes),
        }
    }

    fn on_wake(&mut self, host: Host) {
        let common = self.hosts.get_mut(&host).expect("a host");
        if common.wake_at > self.now {
            return; // it was put off
        }
        common.wake_at = Nanos::MAX;
        match host {
            Host::Scheduler(number) => self.tick_scheduler(number),
            Host::Worker(number) => self.tick_worker(number),
            Host::Client(number) => self.at_client(number, |client, now| client.tick(now)),
        }
    }

    /// Wake a host when its clock shows this.
    fn sleep(&mut self, host: Host, due: Nanos) {
        let now = self.now;
        let common = self.hosts.get_mut(&host).expect("a host");
        let at = common.clock.when(due).max(now);
        if due < Nanos::MAX && at < common.wake_at {
            common.wake_at = at;
            self.queue.push(at, Event::Wake(host));
        }
    }

    fn send(&mut self, from: Host, to: Host, mut bytes: Vec<u8>) {
        if !self.hosts.contains_key(&to) {
            return; // an address was damaged
        }
        // Last, as every driver does: without a key the tag is a checksum.
        self.codec.sign(&mut bytes);
        let arrivals = self
            .links
            .fate(&mut self.rng_links, self.now, from, to, &mut bytes);
        let how = if arrivals.is_empty() { "-x" } else { "->" };
        self.trace
            .packet(self.now, how, from, to, &bytes, &self.codec);
        for after in arrivals {
            let bytes = bytes.clone();
            self.queue
                .push(self.now + after, Event::Packet { from, to, bytes });
        }
    }

    /// Keep something long at a host.
    fn keep(&mut self, host: Host, bytes: Vec<u8>) -> Place {
        let token = self.number();
        let place = Place {
            address: host.address().into(),
            token,
            len_bytes: bytes.len() as u64,
            digest: Digest::PLAIN.of(&bytes),
        };
        self.blobs.insert((host, token), bytes);
        place
    }

    /// A host ends: what it keeps for others to fetch is of results or tasks, of which it has so many.
    fn nothing_is_left_behind(&mut self, host: Host, left: usize) {
        let kept = self.blobs.keys().filter(|(of, _)| *of == host).count();
        if kept > left {
            let what = format!("{host:?} keeps {kept} long pieces of {left}");
            self.broken(Rule::NothingLeftBehind, what);
        }
    }

    fn forget(&mut self, host: Host, place: &Place) {
        self.blobs.remove(&(host, place.token));
    }

    /// Fetch what another host keeps; `None`: it cannot be had now.
    fn fetch(&self, by: Host, place: &Place) -> Option<Vec<u8>> {
        let std::net::SocketAddr::V4(address) = place.address else {
            return None;
        };
        let host = Host::at(address)?;
        let bytes = self.blobs.get(&(host, place.token))?;
        let is_up = self.hosts[&host].paused_until <= self.now;
        (is_up && self.links.is_linked(by, host)).then(|| bytes.clone())
    }

    /// Everything in numbers, once all is over.
    pub fn finish(&mut self) {
        for number in 0..self.layout.schedulers {
            self.stop_scheduler(number);
        }
        for number in 0..self.layout.workers {
            self.stop_worker(number);
        }
        for number in 0..self.layout.clients {
            self.stop_client(number);
        }
        self.stats.links = self.links.stats;
        self.stats.ends = self.ledger.ends.clone();
    }

    pub(super) fn note_fault(&mut self, fault: Fault) {
        let name = fault.name();
        self.trace.note(self.now, [99, name.len() as u64], || {
            format!("FAULT {name}")
        });
        *self.stats.faults.entry(name).or_default() += 1;
    }
}
