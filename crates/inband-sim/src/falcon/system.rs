//! Implements [`System`] for Falcon.

use std::collections::BTreeMap;

use clap::Args;
use inband_falcon::coalescer::Coalescer;
use inband_falcon::message::Outcome;
use inband_falcon::packets::{Codec, Peer};
use inband_falcon::task::Attempt;
use inband_falcon::timing::{Nanos, MS};
use inband_ground::auth::{Digest, Gate};
use inband_paxos::dataplane::wire::HEADER_LEN_BYTES;

use super::faults::Fault;
use super::host::Host;
use super::invariant::Invariant;
use super::layout::Layout;
use super::ledger::Ledger;
use super::limits::{EVENTS_MAX, FAULTY_NS};
use super::world::{ClientHost, SchedulerHost, WorkerHost};
use super::{trace, World};
use crate::faults::Strike;
use crate::links::{DrawOrder, LinkSettings, Rates};
use crate::rng::Rng;
use crate::system::{System, Travel};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct Options {
    /// Simulated time with faults.
    #[arg(skip = FAULTY_NS)]
    pub faulty_ns: Nanos,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            faulty_ns: FAULTY_NS,
        }
    }
}

/// Events besides packets and timers.
#[derive(Debug)]
pub enum Event {
    /// A client may submit or cancel something.
    Think(u8),
    /// The run of this number, on this executor of a worker, ends.
    RunEnds(u8, usize, u64),
    /// An executor fetches the work of this run.
    FetchesWork(u8, usize, u64),
    /// A client fetches a result. The number is that of the client's start, so that a later process ignores it.
    FetchesResult(u8, u64, Box<(Peer, Attempt, Outcome)>),
    /// A worker that has ended is started again.
    StartWorker(u8),
}

pub struct Falcon {
    pub layout: Layout,
    pub(super) ledger: Ledger,
    pub(super) schedulers: Vec<SchedulerHost>,
    pub(super) workers: Vec<WorkerHost>,
    pub(super) clients: Vec<ClientHost>,
    pub(super) codec: Codec,
    /// Messages between hosts, by sender. They are sent when the current event has been handled.
    pub(super) coalescers: BTreeMap<Host, Coalescer>,
    /// Long work and results, by the host that keeps them and the token.
    pub(super) blobs: BTreeMap<(Host, u64), Vec<u8>>,
    /// The last unique number: of processes, runs and so on.
    pub(super) numbers: u64,
    /// Clients submit new jobs.
    pub(super) is_loaded: bool,
}

impl Falcon {
    pub(super) fn new(layout: Layout) -> Falcon {
        Falcon {
            layout,
            ledger: Ledger::new(layout.is_calm),
            schedulers: Vec::new(),
            workers: Vec::new(),
            clients: Vec::new(),
            codec: Codec::new(
                Gate::of::<inband_falcon::dataplane::Falcon>(None, 1),
                Digest::PLAIN,
            ),
            coalescers: BTreeMap::new(),
            blobs: BTreeMap::new(),
            numbers: 0,
            is_loaded: true,
        }
    }
}

impl System for Falcon {
    const NAME: &'static str = "falcon";
    const ABOUT: &'static str = "Falcon: schedulers, workers and clients";
    const LINKS: LinkSettings = LinkSettings {
        // Digests cover only what follows the header.
        flips_from: HEADER_LEN_BYTES,
        draws: DrawOrder::ByPacket,
        ..LinkSettings::LAN
    };
    const EVENTS_MAX: u64 = EVENTS_MAX;
    const FAULT_LASTS_MS: (u64, u64) = (2, 150);
    const NO_PANIC: Invariant = Invariant::NoPanic;

    type Host = Host;
    type Packet = Vec<u8>;
    type Event = Event;
    type Fault = Fault;
    type Invariant = Invariant;
    type Options = Options;

    fn begin(seed: u64, _options: &Options) -> World {
        let mut rng = Rng::new(seed, 200);
        let layout = Layout::random(seed, &mut rng);
        let mut world = World::new(seed, layout);
        if !layout.is_calm {
            let rates = &mut world.links.rates;
            *rates = Rates::draw(&mut rng);
            let flip_ppm = [0, 0, 10_000][rng.below(3) as usize];
            rates.bit_flip_ppm = if layout.may_be_damaged() { flip_ppm } else { 0 };
            world.inject_faults([10 * MS, 30 * MS, 80 * MS][rng.below(3) as usize]);
        }
        world
    }

    fn faulty(options: &Options) -> Nanos {
        options.faulty_ns
    }

    fn describe(&self) -> String {
        let layout = &self.layout;
        format!(
            "{:?}{}, {} schedulers, {} workers of {}, {} clients",
            layout.falcon.policy,
            if layout.is_calm { ", calm" } else { "" },
            layout.schedulers,
            layout.workers,
            layout.executors,
            layout.clients
        )
    }

    fn on_packet(world: &mut World, from: Host, to: Host, bytes: Vec<u8>) {
        match to {
            Host::Scheduler(number) => world.at_scheduler(number, from, &bytes),
            Host::Worker(number) => world.on_worker_packet(number, from, &bytes),
            Host::Client(number) => world.on_client_packet(number, from, &bytes),
        }
    }

    fn on_wake(world: &mut World, host: Host) {
        match host {
            Host::Scheduler(number) => world.tick_scheduler(number),
            Host::Worker(number) => world.tick_worker(number),
            Host::Client(number) => world.at_client(number, |client, now| client.tick(now)),
        }
    }

    fn on_event(world: &mut World, event: Event) {
        match event {
            Event::Think(number) => world.on_think(number),
            Event::RunEnds(number, slot, run) => world.on_run_ends(number, slot, run),
            Event::FetchesWork(number, slot, run) => world.on_fetches_work(number, slot, run),
            Event::FetchesResult(number, process, what) => {
                world.on_fetches_result(number, process, *what);
            }
            Event::StartWorker(number) => world.start_worker(number),
        }
    }

    fn host_of(event: &Event) -> Option<Host> {
        match event {
            Event::Think(number) | Event::FetchesResult(number, ..) => Some(Host::Client(*number)),
            Event::RunEnds(number, ..) | Event::FetchesWork(number, ..) => {
                Some(Host::Worker(*number))
            }
            Event::StartWorker(_) => None,
        }
    }

    fn next_fault(world: &mut World) -> (Fault, Nanos) {
        let rng = &mut world.rng.faults;
        let fault = *rng.pick(&Fault::ALL).expect("there are some");
        let (shortest, longest) = Falcon::FAULT_LASTS_MS;
        let lasts_ns = rng.between(shortest, longest) * MS;
        match fault {
            // What the client left in the queue is discovered one task at a time.
            Fault::ClientLostForLong => (fault, 6 * lasts_ns),
            _ => (fault, lasts_ns),
        }
    }

    fn strike(world: &mut World, fault: Fault, lasts: Nanos) -> Option<Strike<Falcon>> {
        world.strike(fault, lasts)
    }

    fn on_fault(world: &mut World, fault: Option<Fault>) {
        if let Some(name) = fault.map(Fault::name) {
            let words = [99, name.len() as u64];
            world.note(&words, || format!("FAULT {name}"));
        }
    }

    fn on_pause(world: &mut World, host: Host) {
        if let Host::Worker(number) = host {
            world.is_held_up(number);
        }
    }

    fn heal(world: &mut World) {
        world.end_faults();
        let layout = world.system.layout;
        for number in 0..layout.schedulers {
            world.start_scheduler(number);
        }
        for number in 0..layout.workers {
            world.slow_down(number, 1);
            world.start_worker(number);
        }
        for number in 0..layout.clients {
            world.start_client(number);
        }
    }

    fn settle(world: &mut World) {
        world.must_settle();
    }

    fn send(world: &mut World, from: Host, to: Host, mut bytes: Vec<u8>) {
        if !world.has_host(to) {
            return; // an address was damaged
        }
        // Sign last, as every driver does: without a key the tag is a checksum.
        world.system.codec.sign(&mut bytes);
        world.put_on_link(from, to, bytes);
    }

    fn on_travel(world: &mut World, travel: Travel, from: Host, to: Host, bytes: &Vec<u8>) {
        let (now, codec) = (world.now, &world.system.codec);
        trace::packet(&mut world.trace, now, travel, (from, to), bytes, codec);
    }

    fn after_event(world: &mut World) {
        world.send_coalesced();
    }

    fn finish(world: &mut World) {
        let layout = world.system.layout;
        for number in 0..layout.schedulers {
            world.stop_scheduler(number);
        }
        for number in 0..layout.workers {
            world.stop_worker(number);
        }
        for number in 0..layout.clients {
            world.stop_client(number);
        }
        world.stats.counts += &world.system.ledger.ends;
    }
}
