//! Implements [`System`] for FLAIR.

use std::collections::BTreeSet;

use clap::Args;
use inband_flair::client;
use inband_flair::dataplane::FlairSwitch;
use inband_flair::reads::Reads;
use inband_flair::replica;
use inband_flair::timing::{Nanos, MS};
use inband_storage::SimulatedDisk;

use super::faults::Fault;
use super::history::History;
use super::host::{Host, Packet};
use super::invariant::Invariant;
use super::layout::Layout;
use super::limits::{EVENTS_MAX, FAULTY_NS};
use super::mutation::Mutation;
use super::trace::{self, Happened};
use super::world::{ClientHost, ReplicaHost};
use super::{counts, World};
use crate::faults::Strike;
use crate::links::{LinkSettings, Rates};
use crate::rng::Rng;
use crate::system::{System, Travel};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct Options {
    /// Simulated time with faults.
    #[arg(skip = FAULTY_NS)]
    pub faulty_ns: Nanos,
    /// A rule to break.
    #[arg(skip)]
    pub mutation: Option<Mutation>,
    /// How reads are answered: flair, leader, majority or follower-leases
    #[arg(long, default_value_t)]
    pub reads: Reads,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            faulty_ns: FAULTY_NS,
            mutation: None,
            reads: Reads::Flair,
        }
    }
}

pub struct Flair {
    pub layout: Layout,
    pub history: History,
    pub(super) mutation: Option<Mutation>,
    pub(super) replicas: Vec<ReplicaHost>,
    /// The replicas' disks, if they have any.
    pub(super) disks: Vec<SimulatedDisk>,
    pub(super) switches: Vec<Option<FlairSwitch>>,
    pub(super) clients: Vec<ClientHost>,
    /// Switches that were active at the last heartbeat.
    pub(super) active: Vec<u64>,
    /// Switches whose machines were suspended.
    pub(super) suspended: BTreeSet<u8>,
    pub(super) values: u64,
    /// Idle clients begin new requests.
    pub(super) is_loaded: bool,
    /// The first acknowledgement of a write stops replica 0, which founded the group.
    pub(super) stops_founder: bool,
    pub(super) out: replica::Out,
    pub(super) client_out: client::Out,
}

/// A client may begin a request.
pub struct Request(pub(super) u8);

impl Flair {
    pub(super) fn new(layout: Layout, mutation: Option<Mutation>) -> Flair {
        let with_disks = if layout.sync { layout.replicas } else { 0 };
        Flair {
            layout,
            history: History::default(),
            mutation,
            replicas: Vec::new(),
            disks: (0..with_disks).map(|_| SimulatedDisk::new()).collect(),
            switches: Vec::new(),
            clients: Vec::new(),
            active: vec![0; usize::from(layout.switches)],
            suspended: BTreeSet::new(),
            values: 0,
            is_loaded: true,
            stops_founder: false,
            out: replica::Out::default(),
            client_out: client::Out::default(),
        }
    }
}

impl System for Flair {
    const NAME: &'static str = "flair";
    const ABOUT: &'static str = "FLAIR: switches, replicas and clients";
    const EVENTS_MAX: u64 = EVENTS_MAX;
    const FAULT_LASTS_MS: (u64, u64) = (5, 200);
    // Recorded seeds depend on it.
    const TIMERS_AFTER_PAUSE: Nanos = 0;
    const NO_PANIC: Invariant = Invariant::NoPanic;

    type Host = Host;
    type Packet = Packet;
    type Event = Request;
    type Fault = Fault;
    type Invariant = Invariant;
    type Options = Options;

    fn begin(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed, 100);
        let mut layout = Layout::random(&mut rng);
        layout.reads = options.reads;
        if layout.reads == Reads::FollowerLeases {
            layout.groups = layout.groups.max(2);
        }
        let mut world = World::new(seed, layout, options.mutation);
        world.links.rates = Rates::draw(&mut rng);
        world.inject_faults([25 * MS, 60 * MS, 120 * MS][rng.below(3) as usize]);
        world.system.stops_founder = rng.below(6) == 0;
        world
    }

    fn faulty(options: &Options) -> Nanos {
        options.faulty_ns
    }

    fn describe(&self) -> String {
        let layout = &self.layout;
        format!(
            "{} replicas, {} clients, {} keys in {} groups",
            layout.replicas, layout.clients, layout.keys, layout.groups
        )
    }

    fn on_packet(world: &mut World, from: Host, to: Host, packet: Packet) {
        match packet {
            Packet::Bytes(bytes) => world.on_bytes(from, to, bytes),
            Packet::Message(message) => world.on_message(from, to, *message),
        }
    }

    fn on_wake(world: &mut World, host: Host) {
        match host {
            Host::Replica(number) => world.at_replica(number, |replica, now, out| {
                replica.tick(now, out);
            }),
            Host::Client(number) => world.at_client(number, |client, now, out| {
                client.tick(now, out);
            }),
            Host::Switch(_) => {}
        }
    }

    fn on_event(world: &mut World, Request(client): Request) {
        world.on_request(client);
    }

    fn strike(world: &mut World, fault: Fault, lasts: Nanos) -> Option<Strike<Flair>> {
        world.strike(fault, lasts)
    }

    fn heal(world: &mut World) {
        world.end_faults();
        for number in 0..world.system.layout.replicas {
            world.restart_replica(number, true);
        }
        for number in 0..world.system.layout.switches {
            world.restart_switch(number);
        }
    }

    fn settle(world: &mut World) {
        world.must_settle();
    }

    fn send(world: &mut World, from: Host, to: Host, packet: Packet) {
        match world.forged_answer(to, &packet) {
            Some(forged) => world.deliver(LinkSettings::LAN.delay_min, to, from, forged),
            None => world.put_on_link(from, to, packet),
        }
    }

    fn on_travel(world: &mut World, travel: Travel, from: Host, to: Host, packet: &Packet) {
        let happened = match (travel, packet.header(), packet) {
            (Travel::Sent, Some(header), _) => Happened::Sent(from, to, header),
            (Travel::Lost, Some(header), _) => Happened::Lost(from, to, header),
            (Travel::Arrived, Some(header), _) => Happened::Arrived(from, to, header),
            (Travel::Arrived, None, Packet::Message(message)) => trace::message(from, to, message),
            _ => return,
        };
        world.trace.note(world.now, happened);
    }

    fn finish(world: &mut World) {
        for number in 0..world.system.layout.switches {
            world.stop_switch(number);
        }
        let replicas = std::mem::take(&mut world.system.replicas);
        for counted in replicas.iter().flat_map(ReplicaHost::counted) {
            world.stats.counts += &counts::of_replica(counted);
        }
        for (how, count) in &world.system.history.ends {
            world.stats.count(how, *count);
        }
        if let Err(what) = world.system.history.check() {
            world.broken(Invariant::Linearizable, what);
        }
    }
}
