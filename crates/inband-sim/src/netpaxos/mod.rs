//! NetPaxos: the real roles of serializers and minions, and real storage servers, learners and proposers. Storage
//! servers and learners lose their memory; minions start numbering again.

mod clients;
mod faults;
mod hosts;
mod ledger;

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use inband_ground::soft::Soft;
use inband_netpaxos::learner::Learner;
use inband_netpaxos::quorum::Sizes;
use inband_netpaxos::request::Value;
use inband_netpaxos::storage::{Record, Storage, WINDOW};
use inband_netpaxos::{control, wire, NetPaxos as Roles};

use crate::system::Travel;
use crate::{listed, LinkSettings, Rates, Rng, Streams, Strike, System, Time, World};

use clients::Client;
pub use faults::Fault;
use ledger::Ledger;

const MS: Time = 1_000_000;
/// Simulated time with faults.
const FAULTY_NS: Time = 250 * MS;
/// Time in which everything must finish once faults end.
const SETTLE_NS: Time = 6_000 * MS;
/// Requests that each client must complete after that.
const REQUESTS_AFTER: u64 = 10;
const SERIALIZERS: u8 = 3;
const LEARNERS: u8 = 3;
const CLIENTS: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A serializer, from 1.
    Serializer(u8),
    /// A minion, from 1.
    Minion(u8),
    /// A minion's storage server.
    Storage(u8),
    /// A learner, from 1.
    Learner(u8),
    /// A proposer, from 1.
    Client(u8),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Serializer(n) => write!(f, "serializer/{n}"),
            Host::Minion(n) => write!(f, "minion/{n}"),
            Host::Storage(n) => write!(f, "storage/{n}"),
            Host::Learner(n) => write!(f, "learner/{n}"),
            Host::Client(n) => write!(f, "client/{n}"),
        }
    }
}

listed! {
    /// What must hold in every schedule.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        Agreement = "no two learners find different values in an instance",
        Order = "every learner delivers all instances in order, and agrees with the others on which are applied",
        NothingLost = "what a proposer was told to be delivered is in the log",
        ExactlyOnce = "what is applied was submitted as it is, and is applied in one instance only",
        OneVote = "a storage server votes at most once in the fast round of an instance, and not after a promise",
        Stored = "an instance that is decided in fast mode has a fast quorum of votes that are stored",
        OneRound = "no round of recovery is used by two starts of learners",
        ReadsSeeAll = "a read at a learner sees every instance that a learner had delivered when it began",
        Liveness = "once faults end, every client is answered and all learners have all instances",
        NoPanic = "nothing panics",
    }
}

#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// Instances above the forgotten ones that storage servers vote in; by default as many as the program has
    #[arg(long)]
    pub window: Option<u64>,
}

/// Events besides packets.
pub enum Event {
    /// A client may begin a request.
    Request(Host),
    /// A minion starts again.
    Restart(Host),
}

/// In some seeds minions start again before this time.
const EARLY_NS: Time = 10 * MS;

#[derive(Default)]
struct Disk {
    records: Vec<Record>,
}

/// A journal that reaches this length is restarted with a snapshot.
const JOURNAL_RECORDS_MAX: usize = 300;

struct StorageHost {
    process: Storage,
    generation: u16,
}

pub struct NetPaxos {
    sizes: Sizes,
    /// Instances that storage servers vote in.
    window: u64,
    /// Storage servers keep their records across restarts.
    is_durable: bool,
    deadline_ns: Time,
    outstanding: usize,
    think_ns: Time,
    serializer: BTreeMap<u8, Option<Soft<Roles>>>,
    minion: BTreeMap<u8, Option<Soft<Roles>>>,
    storage: BTreeMap<u8, Option<StorageHost>>,
    learner: BTreeMap<u8, Option<Learner>>,
    client: BTreeMap<u8, Client>,
    disk: BTreeMap<u8, Disk>,
    /// The learners' logs on disk, where storage is durable.
    log: BTreeMap<u8, Vec<Value>>,
    /// Numbers that processes have stored durably.
    incarnation: BTreeMap<Host, u64>,
    /// How many learners have started, and the number of each one's last start.
    starts: u64,
    start: BTreeMap<u8, u64>,
    /// The learner and start that has begun each round.
    rounds: BTreeMap<u64, (u8, u64)>,
    ledger: Ledger,
    is_loaded: bool,
}

impl System for NetPaxos {
    const NAME: &'static str = "netpaxos";
    const ABOUT: &'static str =
        "NetPaxos: serializers, minions, their storage servers, learners and proposers";
    const LINKS: LinkSettings = LinkSettings {
        hold_up_max: 20 * MS,
        ..LinkSettings::LAN
    };
    const EVENTS_MAX: u64 = 2_000_000;
    const FAULT_LASTS_MS: (u64, u64) = (2, 50);
    const NO_PANIC: Invariant = Invariant::NoPanic;

    type Host = Host;
    type Packet = Vec<u8>;
    type Event = Event;
    type Fault = Fault;
    type Invariant = Invariant;
    type Options = Options;

    fn begin(seed: u64, options: &Options) -> World<NetPaxos> {
        let mut rng = Rng::new(seed, 100);
        let sizes = Sizes {
            failures: *rng.pick(&[1, 1, 1, 2]).expect("some"),
        };
        let system = NetPaxos {
            sizes,
            window: options.window.unwrap_or(WINDOW),
            is_durable: rng.below(2) == 0,
            deadline_ns: *rng.pick(&[40, 200, 10_000]).expect("some") * MS,
            outstanding: *rng.pick(&[1, 2, 4]).expect("some"),
            think_ns: *rng.pick(&[100_000, MS, 3 * MS]).expect("some"),
            serializer: BTreeMap::new(),
            minion: BTreeMap::new(),
            storage: BTreeMap::new(),
            learner: BTreeMap::new(),
            client: BTreeMap::new(),
            disk: BTreeMap::new(),
            log: BTreeMap::new(),
            incarnation: BTreeMap::new(),
            starts: 0,
            start: BTreeMap::new(),
            rounds: BTreeMap::new(),
            ledger: Ledger::default(),
            is_loaded: true,
        };
        let mut world = World::of(system, Streams::of(seed));
        for host in world.all_hosts() {
            world.add_host(host);
        }
        for host in world.all_hosts() {
            world.start(host, true);
        }
        if rng.below(4) == 0 {
            // While its numbers are low, so that it soon reaches those that it had used, if it uses them again.
            for minion in (1..=sizes.minions()).map(Host::Minion) {
                world.at(rng.below(EARLY_NS), Event::Restart(minion));
            }
        }
        world.links.rates = Rates::draw(&mut rng);
        world.links.rates.bit_flip_ppm = [0, 0, 20_000][rng.below(3) as usize];
        world.inject_faults([5 * MS, 10 * MS, 30 * MS][rng.below(3) as usize]);
        world
    }

    fn faulty(_options: &Options) -> Time {
        FAULTY_NS
    }

    fn describe(&self) -> String {
        format!(
            "{} minions, storage {}, {} requests under way, deadline {} ms",
            self.sizes.minions(),
            if self.is_durable {
                "on disk"
            } else {
                "in memory"
            },
            self.outstanding,
            self.deadline_ns / MS
        )
    }

    fn on_packet(world: &mut World<NetPaxos>, _from: Host, to: Host, packet: Vec<u8>) {
        match to {
            Host::Serializer(_) | Host::Minion(_) => world.at_role(to, &packet),
            Host::Storage(minion) => world.at_storage(minion, &packet),
            Host::Learner(number) => world.at_learner(number, &packet),
            Host::Client(number) => world.at_client(number, &packet),
        }
    }

    fn on_wake(world: &mut World<NetPaxos>, host: Host) {
        match host {
            Host::Storage(minion) => world.storage_ticks(minion),
            Host::Learner(number) => world.learner_ticks(number),
            Host::Client(number) => world.client_ticks(number),
            Host::Serializer(_) | Host::Minion(_) => {}
        }
    }

    fn on_event(world: &mut World<NetPaxos>, event: Event) {
        match event {
            Event::Request(Host::Client(number)) => world.client_thinks(number),
            Event::Request(_) => unreachable!("only clients think"),
            Event::Restart(host) => {
                world.stop(host);
                world.start(host, false);
            }
        }
    }

    fn host_of(event: &Event) -> Option<Host> {
        match event {
            Event::Request(host) | Event::Restart(host) => Some(*host),
        }
    }

    fn strike(world: &mut World<NetPaxos>, fault: Fault, lasts: Time) -> Option<Strike<NetPaxos>> {
        world.strike(fault, lasts)
    }

    fn heal(world: &mut World<NetPaxos>) {
        world.end_faults();
        for host in world.all_hosts() {
            if !world.is_up(host) {
                world.start(host, false);
            }
        }
    }

    fn settle(world: &mut World<NetPaxos>) {
        let done = |world: &World<NetPaxos>| -> Vec<u64> {
            world.system.client.values().map(|c| c.done).collect()
        };
        let before = done(world);
        let until = world.now + SETTLE_NS;
        let is_served = |world: &World<NetPaxos>| {
            let mut both = done(world).into_iter().zip(&before);
            both.all(|(done, before)| done >= before + REQUESTS_AFTER)
        };
        if !world.run_until(until, is_served) {
            let what = format!("a client waits: {:?} after {before:?}", done(world));
            return world.broken(Invariant::Liveness, what);
        }
        world.system.is_loaded = false;
        if !world.run_until(until, World::<NetPaxos>::is_over) {
            let what = world.what_is_left();
            world.broken(Invariant::Liveness, what);
        }
    }

    fn on_travel(
        world: &mut World<NetPaxos>,
        travel: Travel,
        from: Host,
        to: Host,
        packet: &Vec<u8>,
    ) {
        let arrow = travel.arrow();
        let words = [travel as u64, crate::Packet::hash(packet)];
        world.note(&words, || {
            let said = match wire::parse(packet) {
                Ok((header, _)) if header.kind == wire::Type::Control => {
                    let message = control::Control::of(packet);
                    message.map_or("damaged".to_owned(), |(_, control)| format!("{control:?}"))
                }
                Ok((h, value)) => format!(
                    "{:?} c{:x} r{} #{}.{} {value:?}",
                    h.kind,
                    h.client & 0xf_ffff,
                    h.request,
                    h.incarnation,
                    h.number
                ),
                Err(error) => error.to_string(),
            };
            format!("{from} {arrow} {to}  {said}")
        });
    }

    fn finish(world: &mut World<NetPaxos>) {
        world.count_all();
    }
}
