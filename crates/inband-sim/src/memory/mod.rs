//! Replicated memory: the real roles of switches and servers, their processes, and clients with several requests in
//! flight on few lines. Servers lose their memory and switches their registers; both keep their promises, except a
//! server that is replaced. A client that was paused tells its state machine so, as a program's connection does.

mod clients;
mod faults;
mod hosts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clap::Args;
use inband_memory::wire;

use crate::linearizable;
use crate::system::Travel;
use crate::{listed, LinkSettings, Rates, Rng, Streams, Strike, System, Time, World};

use clients::{ClientHost, OwnLines};
pub use faults::Fault;
use hosts::{Process, ServerHost, SwitchHost};

const MS: Time = 1_000_000;
/// Simulated time with faults.
const FAULTY_NS: Time = 300 * MS;
/// Simulated time with slow hosts.
const SLOW_NS: Time = 10_000 * MS;
/// Time in which everything must finish once faults end.
const SETTLE_NS: Time = 4_000 * MS;
/// Requests that each client must complete after that.
const REQUESTS_AFTER: u64 = 10;
const SWITCHES: u8 = 2;
const CLIENTS: u8 = 3;
/// The client that alone writes certain lines, which the others read.
const SOLE_WRITER: u8 = 2;
const CHUNKS: u64 = 3;
/// The chunk that only the sole writer writes.
const OWN_CHUNK: u64 = 2;
/// Lines used per chunk.
const LINES: u16 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A memory server, by its node id.
    Server(u8),
    /// A switch, from 0.
    Switch(u8),
    /// A client, from 0.
    Client(u8),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Server(n) => write!(f, "server/{n}"),
            Host::Switch(n) => write!(f, "switch/{n}"),
            Host::Client(n) => write!(f, "client/{n}"),
        }
    }
}

listed! {
    /// What must hold in every schedule.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        Linearizable = "every line is a linearizable register",
        OwnWrites = "a sole writer that repeats writes of unknown outcome never reads back anything older than its last completed write",
        OwnedEpochs = "a switch is active only in an epoch that a majority of servers granted it, and no epoch is used twice",
        EpochsLeft = "no single packet uses up the epochs",
        AtMajority = "what was written or read is at a majority of servers",
        Whole = "a line is read as it was written",
        Liveness = "once faults end, every client is answered",
        NoPanic = "nothing panics",
    }
}

/// A deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mistake {
    /// A restarted switch begins with an epoch that no server granted
    InventedEpoch,
    /// A restarted switch or server forgets its promises
    ForgottenPromise,
    /// A server that has lost its memory answers requests
    EmptyServerAnswers,
    /// A client begins a new session without closing the old one
    SessionLeftOpen,
}

#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// Introduce a deliberate fault
    #[arg(long)]
    pub mistake: Option<Mistake>,
    /// Inject no faults, but make hosts wait for a CPU again and again, to count take-overs
    #[arg(long)]
    pub slow_hosts: bool,
    /// Make clients suspect a switch after a fixed time
    #[arg(long)]
    pub fixed_suspicion: bool,
}

/// Events besides packets.
pub enum Event {
    /// A process gets a packet that its role passed.
    Passed(Host, Host, Vec<u8>),
    /// A client may begin a request.
    Request(Host),
    /// A host waits for a CPU.
    Wait(Host),
    /// A client resumes after a pause.
    Back(Host),
}

pub struct Memory {
    servers: u8,
    block_lines: u64,
    deadline_ns: Time,
    outstanding: usize,
    think_ns: Time,
    mistake: Option<Mistake>,
    fixed_suspicion: bool,
    slow_hosts: bool,
    server: BTreeMap<u8, Option<ServerHost>>,
    switch: BTreeMap<u8, Option<SwitchHost>>,
    client: BTreeMap<u8, ClientHost>,
    /// The promises that processes have stored durably.
    promised: BTreeMap<Host, u64>,
    /// A server that lacks the last chunk until it restarts, like one from before the memory grew.
    small: Option<u8>,
    /// A switch that does not know the last chunk until it restarts, because it was unreachable when the memory grew.
    small_switch: Option<u8>,
    /// Servers that replace one with a lost promise, until they serve.
    replaced: BTreeSet<u8>,
    /// Processes that are paused while their roles keep running.
    process_paused_until: BTreeMap<Host, Time>,
    /// The servers that granted each epoch.
    granted: BTreeMap<u64, BTreeSet<u8>>,
    /// The switch that used each epoch, and the number of its start.
    used: BTreeMap<u64, (u8, u64)>,
    starts: u64,
    values: u64,
    history: BTreeMap<(u64, u16), Vec<linearizable::Event>>,
    /// The values that the sole writer may read from its lines.
    own: OwnLines,
    is_loaded: bool,
}

impl Memory {
    fn majority(&self) -> usize {
        usize::from(self.servers) / 2 + 1
    }

    /// Returns whether a switch runs that still has to be restarted because the memory has grown. While it is active,
    /// requests for the new lines end at their deadline.
    fn lacks_the_last_chunk(&self, number: u8) -> bool {
        let switch = self.switch.get(&number).and_then(Option::as_ref);
        self.small_switch == Some(number) && switch.is_some_and(SwitchHost::is_its_first_start)
    }
}

impl System for Memory {
    const NAME: &'static str = "memory";
    const ABOUT: &'static str = "Replicated memory: switches, servers and clients";
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

    fn begin(seed: u64, options: &Options) -> World<Memory> {
        let mut rng = Rng::new(seed, 100);
        let mut memory = Memory {
            servers: *rng.pick(&[3, 3, 5]).expect("some"),
            block_lines: *rng.pick(&[16, 64]).expect("some"),
            deadline_ns: *rng.pick(&[40, 120, 10_000]).expect("some") * MS,
            outstanding: *rng.pick(&[1, 3, 6]).expect("some"),
            think_ns: *rng.pick(&[200_000, MS, 3 * MS]).expect("some"),
            mistake: options.mistake,
            fixed_suspicion: options.fixed_suspicion,
            slow_hosts: options.slow_hosts,
            server: BTreeMap::new(),
            switch: BTreeMap::new(),
            client: BTreeMap::new(),
            promised: BTreeMap::new(),
            small: *rng.pick(&[None, None, Some(1)]).expect("some"),
            small_switch: *rng.pick(&[None, None, Some(0), Some(1)]).expect("some"),
            replaced: BTreeSet::new(),
            process_paused_until: BTreeMap::new(),
            granted: BTreeMap::new(),
            used: BTreeMap::new(),
            starts: 0,
            values: 0,
            history: BTreeMap::new(),
            own: OwnLines::default(),
            is_loaded: true,
        };
        if options.slow_hosts {
            (memory.outstanding, memory.think_ns) = (1, 3 * MS);
            memory.deadline_ns = 10_000 * MS;
        }
        let servers = memory.servers;
        let mut world = World::of(memory, Streams::of(seed));
        for node in 1..=servers {
            world.add_host(Host::Server(node));
            world.start_server(node, inband_memory::server_host::Start::New);
        }
        for number in 0..SWITCHES {
            world.add_host(Host::Switch(number));
            world.start_switch(number);
        }
        for number in 0..CLIENTS {
            world.add_host(Host::Client(number));
            world.start_client(number);
        }
        if options.slow_hosts {
            world.slow_down();
            return world;
        }
        world.links.rates = Rates::draw(&mut rng);
        world.links.rates.bit_flip_ppm = [0, 0, 20_000][rng.below(3) as usize];
        world.inject_faults([8 * MS, 15 * MS, 40 * MS][rng.below(3) as usize]);
        world
    }

    fn faulty(options: &Options) -> Time {
        match options.slow_hosts {
            true => SLOW_NS,
            false => FAULTY_NS,
        }
    }

    fn describe(&self) -> String {
        format!(
            "{} servers, blocks of {} lines, {} requests under way, deadline {} ms",
            self.servers,
            self.block_lines,
            self.outstanding,
            self.deadline_ns / MS
        )
    }

    fn on_packet(world: &mut World<Memory>, from: Host, to: Host, packet: Vec<u8>) {
        match to {
            Host::Server(node) => world.at_server(from, node, packet),
            Host::Switch(number) => world.at_switch(from, number, packet),
            Host::Client(number) => world.at_client(from, number, &packet),
        }
    }

    fn on_wake(world: &mut World<Memory>, host: Host) {
        match host {
            Host::Client(number) => world.client_ticks(number),
            host => world.process_acts(host, Process::Ticks),
        }
    }

    fn on_event(world: &mut World<Memory>, event: Event) {
        match event {
            Event::Passed(host, from, packet) => {
                world.process_acts(host, Process::Gets(from, packet));
            }
            Event::Request(Host::Client(number)) => world.client_thinks(number),
            Event::Wait(host) => world.waits_for_cpu(host),
            Event::Back(Host::Client(number)) => world.client_is_back(number),
            Event::Request(_) | Event::Back(_) => unreachable!("only clients think, and are told"),
        }
    }

    fn host_of(event: &Event) -> Option<Host> {
        match event {
            Event::Passed(host, ..) | Event::Request(host) | Event::Back(host) => Some(*host),
            Event::Wait(_) => None,
        }
    }

    fn strike(world: &mut World<Memory>, fault: Fault, lasts: Time) -> Option<Strike<Memory>> {
        world.strike(fault, lasts)
    }

    fn heal(world: &mut World<Memory>) {
        world.end_faults();
        world.system.process_paused_until.clear();
        for node in 1..=world.system.servers {
            if world.system.server[&node].is_none() {
                world.start_server(node, inband_memory::server_host::Start::Recover);
            }
        }
        for number in 0..SWITCHES {
            // Not where take-overs are counted.
            if world.system.lacks_the_last_chunk(number) && !world.system.slow_hosts {
                world.stop(Host::Switch(number));
            }
            if world.system.switch[&number].is_none() {
                world.start_switch(number);
            }
        }
        for host in world.processes() {
            world.process_acts(host, Process::Ticks);
        }
    }

    fn settle(world: &mut World<Memory>) {
        let done = |world: &World<Memory>| -> Vec<u64> {
            let clients = world.system.client.values();
            clients.map(|client| client.done).collect()
        };
        let before = done(world);
        let until = world.now + SETTLE_NS;
        let is_served = |world: &World<Memory>| {
            let done = done(world).into_iter().zip(&before);
            done.into_iter()
                .all(|(done, before)| done >= before + REQUESTS_AFTER)
        };
        if !world.run_until(until, is_served) {
            return world.broken(Invariant::Liveness, "a client waits");
        }
        world.system.is_loaded = false;
        let is_over = |world: &World<Memory>| {
            let idle = world
                .system
                .client
                .values()
                .all(|client| client.client.outstanding() == 0);
            let mut servers = world.system.server.values().flatten();
            idle && servers.all(|server| server.host.is_serving())
        };
        if !world.run_until(until, is_over) {
            world.broken(
                Invariant::Liveness,
                "a request does not end, or a server does not recover",
            );
        }
    }

    fn on_travel(
        world: &mut World<Memory>,
        travel: Travel,
        from: Host,
        to: Host,
        packet: &Vec<u8>,
    ) {
        let arrow = travel.arrow();
        let words = [travel as u64, crate::Packet::hash(packet)];
        world.note(&words, || {
            let said = match wire::parse(packet) {
                Ok((h, _)) => format!(
                    "{}{} e{} s{:x} r{} c{} l{:x} t{:x} p{}",
                    wire::type_name(h.kind),
                    if h.flags == 0 {
                        String::new()
                    } else {
                        format!("|{}", h.flags)
                    },
                    h.epoch,
                    h.session & 0xf_ffff,
                    h.request,
                    h.chunk,
                    h.lines,
                    h.timestamp,
                    h.phase
                ),
                Err(e) => e.to_string(),
            };
            format!("{from} {arrow} {to}  {said}")
        });
    }

    fn finish(world: &mut World<Memory>) {
        world.count_all();
        world.check_epochs();
        world.check_history();
    }
}
