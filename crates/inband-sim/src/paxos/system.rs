//! Implements [`System`] for Paxos.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use inband_ground::auth::{Gate, Keys, Secret};
use inband_paxos::log::Burst;
use inband_paxos::outbox::Outbox;
use inband_paxos::timing::Micros;

use crate::faults::Strike;
use crate::links::{DrawOrder, LinkSettings, Rates};
use crate::paxos::attacker::Attacker;
use crate::paxos::epochs::{Change, Members};
use crate::paxos::event::{Event, Packet};
use crate::paxos::fault_kind::FaultKind;
use crate::paxos::history::Histories;
use crate::paxos::inbound::Inbound;
use crate::paxos::invariant::Invariant;
use crate::paxos::layout::{Layout, EPOCH};
use crate::paxos::ledger::Ledger;
use crate::paxos::limits::{
    ATTACKER_EVERY_US, ATTACKER_PPM, EPOCHS_PPM, EVENTS_MAX, FAULTY_PHASE_US, KEYED_PPM,
    LINK_DELAY_MIN_US, LINK_HOLD_UP_MAX_US, LINK_JITTER_US, LOADS_US, PLANE_PPM, RECONFIGURE_US,
    STORE_LOAD_US, STORE_PARTITIONS, STORE_PPM, STORE_READS_PPM, SYNC_PPM,
};
use crate::paxos::mutation::Mutation;
use crate::paxos::observer::Observer;
use crate::paxos::plane::Plane;
use crate::paxos::rounds::Rounds;
use crate::paxos::simhost::SimHost;
use crate::paxos::trace::Happened;
use crate::paxos::world::ReadAnswers;
use crate::paxos::{counts, World};
use crate::rng::Rng;
use crate::system::{System, Travel};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct Options {
    /// Simulated time with faults.
    #[arg(skip = FAULTY_PHASE_US)]
    pub faulty_us: Micros,
    /// Whether replicas run the real store [default: in some seeds]
    #[arg(long, value_name = "BOOL")]
    pub store: Option<bool>,
    /// Whether the real control plane changes the members [default: in some seeds]
    #[arg(long = "control-plane", value_name = "BOOL")]
    pub plane: Option<bool>,
    /// Whether acceptors keep journals [default: in some seeds without the control plane]
    #[arg(long, value_name = "BOOL")]
    pub sync: Option<bool>,
    /// A rule to break.
    #[arg(skip)]
    pub mutation: Option<Mutation>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            faulty_us: FAULTY_PHASE_US,
            store: None,
            plane: None,
            sync: None,
            mutation: None,
        }
    }
}

/// Streams of random numbers that only this system has.
pub(crate) struct Streams {
    pub load: Rng,
    pub epochs: Rng,
    pub disks: Rng,
    pub attacker: Rng,
}

pub struct Paxos {
    pub layout: Layout,
    /// What clients and replicas saw.
    pub ledger: Ledger,
    /// By log: what acceptors did.
    pub observers: Vec<Observer>,
    pub(crate) rounds: Rounds,
    /// By log: the highest floor of any acceptor so far; a majority of replicas holds everything below it.
    pub(crate) floors_held: Vec<u64>,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) rng: Streams,
    pub(crate) hosts: Vec<SimHost>,
    pub(crate) inbound: Inbound,
    /// Where the next fault strikes: a host, and a second one.
    pub(crate) aim: (u8, u8),
    pub(crate) attacker: Attacker,
    /// Between every host and the network; all have the same keys, if any.
    pub(crate) gate: Gate,
    /// Mean time between commands of one replica's clients; 0: none.
    pub(crate) load_us: Micros,
    /// Nodes that only the coordinator of epochs cannot reach.
    pub hidden: BTreeSet<u8>,
    /// By epoch, from the first.
    pub(crate) members: Vec<Members>,
    /// The latest reconfiguration.
    pub(crate) change: Option<Change>,
    /// The real control plane, in place of the coordinator of epochs.
    pub(crate) plane: Option<Plane>,
    /// Mean time between reconfigurations; 0: none.
    pub(crate) reconfigure_us: Micros,
    /// For a mutation: answers to a host's questions for reads of a partition.
    pub(crate) read_answers: BTreeMap<(u8, u16), ReadAnswers>,
    pub(crate) out: Outbox,
    pub(crate) bursts: Vec<Burst>,
    /// What clients of the real store did and saw.
    pub(crate) histories: Histories,
    /// Replicas of the real store that need a peer's: node, incarnation, log.
    pub(crate) checkpoints_wanted: Vec<(u8, u64, usize)>,
}

fn keys(digest_key: Secret) -> Keys {
    Keys::new(1, &[(1, digest_key)]).expect("one key")
}

impl Paxos {
    pub(crate) fn new(seed: u64, layout: Layout, mutation: Option<Mutation>) -> Paxos {
        let nodes = layout.nodes();
        let members = Members {
            acceptors: layout.acceptors.clone(),
            replicas: layout.replicas.clone(),
            leaders: layout.leaders.clone(),
        };
        let observer = |partition| {
            let mut observer = Observer::new(partition, &layout.acceptor_hosts, layout.ring_slots);
            observer.epoch_begins(EPOCH, &members.acceptors);
            observer
        };
        let host = |node: &u8| {
            let mut host = SimHost::new(*node, &layout);
            host.memory_lost = !members.acceptors.contains(node);
            host
        };
        Paxos {
            ledger: Ledger::new(layout.partitions),
            observers: (0..layout.partitions).map(observer).collect(),
            rounds: Rounds::default(),
            floors_held: vec![0; layout.partitions],
            mutation,
            rng: Streams {
                load: Rng::new(seed, 3),
                disks: Rng::new(seed, 5),
                epochs: Rng::new(seed, 7),
                attacker: Rng::new(seed, 9),
            },
            hosts: nodes.iter().map(host).collect(),
            inbound: Inbound::default(),
            aim: (0, 0),
            attacker: Attacker::default(),
            gate: Gate::of::<inband_paxos::dataplane::Paxos>(
                layout.digest_key.map(keys),
                layout.partitions,
            ),
            load_us: 0,
            hidden: BTreeSet::new(),
            members: vec![members],
            change: None,
            plane: layout.plane.then(|| Plane::new(&layout)),
            reconfigure_us: 0,
            read_answers: BTreeMap::new(),
            out: Outbox::new(),
            bursts: Burst::for_logs(layout.partitions),
            histories: Histories::new(layout.partitions),
            checkpoints_wanted: Vec::new(),
            layout,
        }
    }
}

/// Returns a seed's link rates, and the mean time between its faults.
fn fault_rates(rng: &mut Rng) -> (Rates, Micros) {
    let loss_ppm = [0, 1_000, 10_000, 100_000, 250_000][rng.below(5) as usize];
    let rates = Rates {
        loss_ppm,
        duplicate_ppm: [0, 10_000, 100_000][rng.below(3) as usize],
        hold_up_ppm: [0, 1_000, 20_000, 100_000][rng.below(4) as usize],
        bit_flip_ppm: [0, 0, 1_000, 10_000][rng.below(4) as usize],
    };
    (rates, [0, 8_000, 25_000, 80_000][rng.below(4) as usize])
}

/// Decides whether this seed runs the real store, and if so with how many partitions.
fn runs_store(seed: u64, options: &Options, layout: &mut Layout) -> bool {
    let mut rng = Rng::new(seed, 11);
    let by_seed = options.mutation.is_none() && rng.chance_ppm(STORE_PPM);
    layout.store = options.store.unwrap_or(by_seed);
    if layout.store {
        let several = rng.chance_ppm(750_000);
        let partitions = if several { STORE_PARTITIONS } else { 1 };
        layout.partitions = inband_kv::partition::logs_of(partitions);
        layout.store_reads_ppm = *rng.pick(&STORE_READS_PPM).expect("there are some");
    }
    layout.store
}

impl System for Paxos {
    const NAME: &'static str = "paxos";
    const ABOUT: &'static str = "Paxos: logs, stores and control plane";
    const TICKS_PER_US: u64 = 1;
    const LINKS: LinkSettings = LinkSettings {
        delay_min: LINK_DELAY_MIN_US,
        jitter: LINK_JITTER_US,
        hold_up_max: LINK_HOLD_UP_MAX_US,
        flips_from: 0,
        draws: DrawOrder::ByCopy,
    };
    const EVENTS_MAX: u64 = EVENTS_MAX;
    const NO_PANIC: Invariant = Invariant::NoPanic;

    type Host = u8;
    type Packet = Packet;
    type Event = Event;
    type Fault = FaultKind;
    type Invariant = Invariant;
    type Options = Options;

    fn begin(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed, 0);
        let mut layout = Layout::random(&mut rng);
        let needs_journal = options.mutation == Some(Mutation::LyingDisk);
        layout.sync = needs_journal || Rng::new(seed, 6).chance_ppm(SYNC_PPM);
        layout.sync &= options.plane != Some(true);
        layout.sync = options.sync.unwrap_or(layout.sync);
        let mut rng_epochs = Rng::new(seed, 8);
        let needs_epochs = matches!(
            options.mutation,
            Some(Mutation::OpenedEarly | Mutation::RecoveringSealed)
        );
        let needs_epochs = needs_epochs || options.plane == Some(true);
        let changes = needs_epochs || rng_epochs.chance_ppm(EPOCHS_PPM);
        // Only the real control plane's acceptors may keep journals.
        let changes = changes && (!layout.sync || options.plane == Some(true));
        if changes {
            layout.add_spare_acceptor();
            // The epoch mutations need the simulated coordinator, which the real control plane would replace.
            let by_seed = !needs_epochs && Rng::new(seed, 12).chance_ppm(PLANE_PPM);
            layout.plane = options.plane.unwrap_or(by_seed);
        }
        let mut rng_security = Rng::new(seed, 10);
        let needs_attacker = options.mutation == Some(Mutation::ReadOfAnother);
        let has_attacker = rng_security.chance_ppm(ATTACKER_PPM) || needs_attacker;
        if rng_security.chance_ppm(KEYED_PPM) {
            layout.digest_key = Some(Secret([seed as u8; 16]));
        }
        let (rates, every_us) = fault_rates(&mut rng);
        let load_us = LOADS_US[rng.below(3) as usize];
        let load_us = match runs_store(seed, options, &mut layout) {
            true => STORE_LOAD_US,
            false => load_us,
        };
        let mut world = World::new(seed, layout, options.mutation, 0);
        world.links.rates = rates;
        world.inject_faults(every_us);
        world.load(load_us);
        if changes {
            world.reconfigure_every(RECONFIGURE_US);
        }
        if has_attacker {
            world.attack_every(ATTACKER_EVERY_US);
        }
        world
    }

    fn faulty(options: &Options) -> Micros {
        options.faulty_us
    }

    fn describe(&self) -> String {
        self.layout.describe()
    }

    fn play(world: &mut World, until: Micros) {
        world.step_until(until, |world| world.stats.events > EVENTS_MAX);
    }

    fn on_packet(world: &mut World, from: u8, to: u8, packet: Packet) {
        world.arrive(from, to, packet);
    }

    fn on_wake(_: &mut World, _: u8) {}

    fn on_event(world: &mut World, event: Event) {
        match event {
            Event::Handle {
                from,
                to,
                bytes,
                damaged,
            } => world.handle(from, to, &bytes, damaged),
            Event::Tick(node, at) => world.tick(node, at),
            Event::Submit(node) => world.client(node),
            Event::Flush(node, incarnation) => world.flush(node, incarnation),
            Event::Sync(node, incarnation) => world.sync(node, incarnation),
            Event::CheckpointCopied(node, incarnation, partition) => {
                world.checkpoint(node, incarnation, partition);
            }
            Event::Seal(node, epoch) => world.seal(node, epoch),
            Event::Install(node, epoch) => world.install(node, epoch),
            Event::EnterEpoch(node, epoch) => world.enter_epoch(node, epoch),
            Event::ReorderLeaders(node) => world.reorder_at(node),
            Event::Control(from, to, message) => world.control_arrives(from, to, *message),
            Event::MemberTick(node) => world.member_tick(node),
            Event::ControllerTick(at) => world.controller_tick(at),
            Event::Append(command) => world.append(*command),
            Event::Reconfigure => world.reconfigure_at_random(),
            Event::Attack => world.attack(),
        }
    }

    fn on_fault_due(world: &mut World) {
        world.plan_fault();
        world.next_fault();
    }

    fn next_fault(world: &mut World) -> (FaultKind, Micros) {
        world.draw_fault()
    }

    fn strike(world: &mut World, kind: FaultKind, _lasts: Micros) -> Option<Strike<Paxos>> {
        Some(match world.begin(kind)? {
            Strike::Once => Strike::Once,
            Strike::Lasts(undo) => Strike::Lasts(undo.then(|world| {
                let ends = Happened::Fault("end of fault", 0, 0);
                world.trace.note(world.now, ends);
            })),
        })
    }

    fn on_fault(world: &mut World, kind: Option<FaultKind>) {
        if let Some(kind) = kind {
            let (node, other) = world.system.aim;
            let happened = Happened::Fault(kind.name(), node, other);
            world.trace.note(world.now, happened);
        }
    }

    fn send(world: &mut World, from: u8, to: u8, packet: Packet) {
        world.transmit(from, to, &packet.bytes);
    }

    /// Hosts note packets themselves, when they handle them.
    fn on_travel(_: &mut World, _: Travel, _: u8, _: u8, _: &Packet) {}

    fn heal(world: &mut World) {
        world.reconfigure_every(0);
        let dead = world.choose_the_dead();
        world.end_all_faults(&dead);
    }

    fn settle(world: &mut World) {
        world.must_settle();
    }

    fn finish(world: &mut World) {
        let (ends, applied) = (world.system.ledger.ends, world.system.ledger.len());
        let stats = &mut world.stats;
        stats.count(counts::SUCCESS, ends.success);
        stats.count(counts::UNKNOWN, ends.unknown);
        stats.count(counts::READS, ends.reads);
        stats.count(counts::APPLIED, applied);
        stats.count(counts::WITH_STORE, u64::from(world.system.layout.store));
    }
}
