//! Consensus in a box: the real role and the real process of each node, and clients that set and get keys through a
//! node's gateway. Nodes lose everything but what they have stored.

mod clients;
mod datagrams;
mod faults;
mod hosts;
mod ledger;
mod operator;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clap::Args;
use inband_box::control::Control;
use inband_box::membership::{ids, Membership};
use inband_box::node::{Quorum, Start, To};
use inband_box::promise::Stored;
use inband_box::wire::{self, Type};

use crate::system::Travel;
use crate::{linearizable, listed, LinkSettings, Rates, Rng, Streams, Strike, System, Time, World};

use clients::Client;
use datagrams::Datagrams;
pub use faults::Fault;
use hosts::{Disks, NodeHost, Process};
use ledger::Ledger;

const MS: Time = 1_000_000;
/// Simulated time with faults.
const FAULTY_NS: Time = 300 * MS;
/// Time in which everything must finish once faults end.
const SETTLE_NS: Time = 4_000 * MS;
/// Requests that each client must complete after that.
const REQUESTS_AFTER: u64 = 10;
const CLIENTS: u8 = 5;
/// The highest id of a node.
const PLACES: u8 = 7;
const KEYS: u64 = 5;

/// A node, by its id; above [`PLACES`], a client that sends datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host(pub u8);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client() {
            None => write!(f, "node/{}", self.0),
            Some(number) => write!(f, "client {number}"),
        }
    }
}

listed! {
    /// What must hold in every schedule.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        Integrity = "what is applied was submitted, and is executed once",
        Sets = "a role proposes exactly the SETs of datagrams, in an epoch that it leads and has not left, and only its node acknowledges one, once that is executed; none in the log is left out",
        TotalOrder = "all nodes apply the same records at the same zxids",
        Agreement = "the state is equal at equal zxids",
        PrimaryOrder = "epochs never decrease along the log, and what a gateway submits is executed in its order",
        Quorum = "a record is committed by as many members as the log says at its place",
        OneChange = "members change one at a time, and no id is given twice",
        NothingLost = "a leader has every record that was committed",
        OnDisk = "with its log on disk, a node says of no record that it has it before it is there",
        OneLeader = "an epoch has one leader",
        Linearizable = "strong reads and writes of a key are linearizable",
        Prefix = "a local read sees the state after some prefix of the log, never an older one than before",
        Liveness = "once faults end, every client is answered and all nodes have all records",
        NoPanic = "nothing panics",
    }
}

/// A deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mistake {
    /// A restarted node forgets its promises
    ForgottenPromise,
    /// A restarted node reuses its old session
    ForgottenSession,
    /// A node that believes it leads answers strong reads without asking others
    StaleRead,
}

#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// Introduce a deliberate fault
    #[arg(long)]
    pub mistake: Option<Mistake>,
}

/// Events besides packets.
pub enum Event {
    /// A process gets a packet that its role passed.
    Passed(Host, Vec<u8>),
    /// A process is woken by its role, or has handled all packets of its turn.
    Advanced(Host),
    /// A process gets a datagram that its role passed: node, client, token, text.
    Datagram(Host, u8, u64, Vec<u8>),
    /// A promise is on the disk of the node that had this start, which took this long; the packets may leave now.
    Stored(Host, u64, Time, Vec<(To, Vec<u8>)>),
    /// A node that is told to stop looks whether it may: the number of its start, and when it stops at the latest.
    Stops(Host, u64, Time),
    /// A machine makes a snapshot.
    TakesSnapshot(Host),
    /// A table is written to disk.
    Checkpoint(Host),
    /// A client may begin a request.
    Request(u8),
    /// A client's request times out.
    GiveUp(u8, u64),
    /// The operator thinks of something.
    Operator,
}

pub struct Zab {
    /// Those that begin together.
    nodes: u8,
    /// How many must have a record at first.
    quorum: Quorum,
    /// The operator acts so often; `None`: there is none.
    operates_ns: Option<Time>,
    /// The last change of members or quorum that began, and its place in the log, where another record may be in the end.
    changes: Option<(u64, Membership)>,
    /// Members that have left.
    left: BTreeSet<u8>,
    /// Nodes whose directory was lost.
    lost: BTreeSet<u8>,
    /// By epoch: what each node has said that it has.
    acknowledged: BTreeMap<u64, [u64; 8]>,
    suspect_after_ns: Time,
    /// Time in which a promise is stored. Meanwhile the process is blocked.
    stores_in_ns: Time,
    capacity: usize,
    window: u64,
    think_ns: Time,
    mistake: Option<Mistake>,
    node: BTreeMap<u8, Option<NodeHost>>,
    client: BTreeMap<u8, Client>,
    /// What processes have stored durably.
    stored: BTreeMap<u8, Stored>,
    /// Processes that are paused while their roles keep running.
    process_paused_until: BTreeMap<u8, Time>,
    /// Logs are on disk.
    is_durable: bool,
    /// Processes handle several packets in a turn before they sync their log. With a short log this may keep a joining node
    /// from ever catching up, so directed tests do without.
    has_turns: bool,
    disk: BTreeMap<u8, Disks>,
    starts: u64,
    /// The leader of each epoch, and the number of its start.
    led: BTreeMap<u64, (u8, u64)>,
    ledger: Ledger,
    tokens: u64,
    history: BTreeMap<u64, Vec<linearizable::Event>>,
    datagrams: Datagrams,
    is_loaded: bool,
}

impl Zab {
    /// Who takes part by what is applied.
    fn membership(&self) -> Membership {
        let founding = Membership::founding(self.nodes, self.quorum);
        self.ledger.membership().unwrap_or(founding)
    }

    /// Running nodes.
    fn up(&self) -> Vec<u8> {
        let up = self.node.iter().filter(|(_, node)| node.is_some());
        up.map(|(id, _)| *id).collect()
    }
}

impl World<Zab> {
    /// Returns a cluster without faults, for directed tests.
    pub fn quiet(seed: u64) -> World<Zab> {
        World::drawn(seed, &mut Rng::new(seed, 100), &Options::default())
    }

    /// Returns the number of epochs that had a leader.
    pub fn epochs_led(&self) -> usize {
        self.system.led.len()
    }

    /// Who takes part by what is applied.
    pub fn membership(&self) -> Membership {
        self.system.membership()
    }

    /// How many records are committed and applied somewhere.
    pub fn records(&self) -> u64 {
        self.system.ledger.len()
    }

    pub fn nodes(&self) -> u8 {
        self.system.nodes
    }

    /// How many records a node keeps in its log.
    pub fn log_records(&self) -> usize {
        self.system.capacity
    }

    /// Whether a node runs.
    pub fn is_up(&self, node: u8) -> bool {
        self.system.node[&node].is_some()
    }

    fn drawn(seed: u64, rng: &mut Rng, options: &Options) -> World<Zab> {
        let mut zab = Zab {
            nodes: *rng.pick(&[3, 3, 4, 5, 7]).expect("some"),
            quorum: *rng
                .pick(&[Quorum::Majority, Quorum::Majority, Quorum::All])
                .expect("some"),
            operates_ns: None,
            changes: None,
            left: BTreeSet::new(),
            lost: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            suspect_after_ns: *rng.pick(&[2, 5, 10]).expect("some") * MS,
            stores_in_ns: 0,
            capacity: *rng.pick(&[32, 256, 4096]).expect("some"),
            window: *rng.pick(&[4, 8, 64]).expect("some"),
            think_ns: *rng.pick(&[200_000, MS, 3 * MS]).expect("some"),
            mistake: options.mistake,
            node: BTreeMap::new(),
            client: BTreeMap::new(),
            stored: BTreeMap::new(),
            process_paused_until: BTreeMap::new(),
            is_durable: rng.below(2) == 0,
            has_turns: false,
            disk: BTreeMap::new(),
            starts: 0,
            led: BTreeMap::new(),
            ledger: Ledger::default(),
            tokens: 0,
            history: BTreeMap::new(),
            datagrams: Datagrams::default(),
            is_loaded: true,
        };
        zab.window = zab.window.min(zab.capacity as u64 / 4);
        let nodes = zab.nodes;
        let mut world = World::of(zab, Streams::of(seed));
        for host in 1..=PLACES + CLIENTS {
            world.add_host(Host(host));
        }
        for node in 1..=nodes {
            world.start_node(node, Start::Founding);
        }
        for number in 0..CLIENTS {
            world.start_client(number);
        }
        world
    }
}

impl System for Zab {
    const NAME: &'static str = "box";
    const ABOUT: &'static str = "Consensus in a box: ZAB's broadcast, election and synchronisation";
    const LINKS: LinkSettings = LinkSettings {
        hold_up_max: 60 * MS,
        ..LinkSettings::LAN
    };
    const EVENTS_MAX: u64 = 1_000_000;
    const FAULT_LASTS_MS: (u64, u64) = (2, 60);
    const NO_PANIC: Invariant = Invariant::NoPanic;

    type Host = Host;
    type Packet = Vec<u8>;
    type Event = Event;
    type Fault = Fault;
    type Invariant = Invariant;
    type Options = Options;

    fn begin(seed: u64, options: &Options) -> World<Zab> {
        let mut rng = Rng::new(seed, 100);
        let mut world = World::<Zab>::drawn(seed, &mut rng, options);
        world.system.has_turns = world.system.is_durable;
        world.links.rates = Rates::draw(&mut rng);
        world.links.rates.bit_flip_ppm = [0, 0, 20_000][rng.below(3) as usize];
        world.system.operates_ns = [None, Some(10 * MS), Some(30 * MS)][rng.below(3) as usize];
        if world.system.operates_ns.is_some() {
            world.after(10 * MS, Event::Operator);
        }
        world.inject_faults([8 * MS, 15 * MS, 40 * MS][rng.below(3) as usize]);
        world.system.stores_in_ns = [0, 0, 0, 3 * MS, 20 * MS][rng.below(5) as usize];
        world
    }

    fn faulty(_options: &Options) -> Time {
        FAULTY_NS
    }

    fn describe(&self) -> String {
        format!(
            "{} nodes, {}, a log of {}, quorum {:?}, suspicion after {} ms, promises stored in {} ms, window {}",
            self.nodes,
            if self.is_durable {
                "on disk"
            } else {
                "in memory"
            },
            self.capacity,
            self.quorum,
            self.suspect_after_ns / MS,
            self.stores_in_ns / MS,
            self.window
        )
    }

    fn on_packet(world: &mut World<Zab>, from: Host, to: Host, packet: Vec<u8>) {
        match (from.client(), to.client()) {
            (_, Some(number)) => world.client_gets(number, &packet),
            (Some(number), None) => world.datagram_arrives(number, to.0, &packet),
            (None, None) => world.at_node(to.0, packet),
        }
    }

    fn on_wake(world: &mut World<Zab>, host: Host) {
        world.process_acts(host.0, Process::Ticks);
    }

    fn on_event(world: &mut World<Zab>, event: Event) {
        match event {
            Event::Passed(host, packet) => world.process_acts(host.0, Process::Gets(packet)),
            Event::Datagram(host, number, token, text) => {
                world.datagram_passed(host.0, number, token, text);
            }
            Event::Stored(host, start, took, packets) => {
                world.has_stored(host.0, start, took, packets);
            }
            Event::Stops(host, start, by) => world.stops(host.0, start, by),
            Event::Advanced(host) => world.process_acts(host.0, Process::Ticks),
            Event::TakesSnapshot(host) => world.takes_snapshot(host.0),
            Event::Checkpoint(host) => world.checkpoint(host.0),
            Event::Request(number) => world.client_thinks(number),
            Event::GiveUp(number, token) => world.client_gives_up(number, token),
            Event::Operator => world.operate(),
        }
    }

    fn host_of(event: &Event) -> Option<Host> {
        match event {
            Event::Passed(host, ..)
            | Event::Datagram(host, ..)
            | Event::Stored(host, ..)
            | Event::Stops(host, ..)
            | Event::Advanced(host)
            | Event::TakesSnapshot(host)
            | Event::Checkpoint(host) => Some(*host),
            Event::Request(_) | Event::GiveUp(..) | Event::Operator => None,
        }
    }

    fn strike(world: &mut World<Zab>, fault: Fault, lasts: Time) -> Option<Strike<Zab>> {
        world.strike(fault, lasts)
    }

    fn heal(world: &mut World<Zab>) {
        world.end_faults();
        world.system.process_paused_until.clear();
        world.system.operates_ns = None;
        let nodes: Vec<u8> = world.system.node.keys().copied().collect();
        for node in &nodes {
            if world.system.node[node].is_none() {
                world.start_node(*node, Start::Recovering);
            }
        }
        for node in nodes {
            world.process_acts(node, Process::Ticks);
        }
    }

    fn settle(world: &mut World<Zab>) {
        let done = |world: &World<Zab>| -> Vec<u64> {
            let clients = world.system.client.values();
            clients.map(|client| client.done).collect()
        };
        let before = done(world);
        let until = world.now + SETTLE_NS;
        let is_served = |world: &World<Zab>| {
            let done = done(world).into_iter().zip(&before);
            done.into_iter()
                .all(|(done, before)| done >= before + REQUESTS_AFTER)
        };
        if !world.run_until(until, is_served) {
            let what = format!("a client waits: {}", world.standing());
            return world.broken(Invariant::Liveness, what);
        }
        world.system.is_loaded = false;
        let is_over = |world: &World<Zab>| {
            let idle = world.system.client.values().all(|c| c.asked.is_none());
            let all = world.system.ledger.len();
            let membership = world.system.membership();
            let mut members = ids(membership.reach()).map(|id| &world.system.node[&id]);
            idle && membership.joining == 0
                && members.all(|node| {
                    node.as_ref().is_some_and(|n| {
                        let is_settled = !n.node.is_recovering() && n.node.outstanding() == 0;
                        n.applied == all && is_settled
                    })
                })
        };
        if !world.run_until(until, is_over) {
            let what = format!("not all have all records: {}", world.standing());
            world.broken(Invariant::Liveness, what);
        }
    }

    fn on_travel(world: &mut World<Zab>, travel: Travel, from: Host, to: Host, packet: &Vec<u8>) {
        let arrow = travel.arrow();
        let words = [travel as u64, crate::Packet::hash(packet)];
        world.note(&words, || {
            let said = match wire::parse(packet) {
                _ if from.client().or(to.client()).is_some() => "datagram".to_owned(),
                Ok((h, value)) if h.kind == Type::Control => {
                    let control = Control::decode(&h, value);
                    let name = control.map_or("?", |control| control.name());
                    format!(
                        "{name} e{} z{} re{} c{} r{}",
                        h.epoch, h.zxid, h.record_epoch, h.committed, h.round
                    )
                }
                Ok((h, _)) => format!(
                    "{:?}|{} e{} z{} re{} c{} r{} o{}/{}/{}",
                    h.kind,
                    h.flags,
                    h.epoch,
                    h.zxid,
                    h.record_epoch,
                    h.committed,
                    h.round,
                    h.origin,
                    h.origin_session,
                    h.origin_seq
                ),
                Err(e) => e.to_string(),
            };
            format!("{from} {arrow} {to}  {said}")
        });
    }

    fn finish(world: &mut World<Zab>) {
        world.count_all();
        world.check_history();
    }
}
