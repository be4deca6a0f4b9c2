//! The sequencer: the real role and clients that ask it until they are answered. It may lose its memory, and is then
//! another incarnation. The smallest world (docs/adding-a-system.md).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clap::Args;
use inband_ground::auth::Gate;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_sequencer::client::{Client, RETRY_NS};
use inband_sequencer::SoftSequencer;

use crate::{listed, Rates, Streams, Strike, System, Time, World};

const MS: Time = 1_000_000;
const CLIENTS: u8 = 3;
const LOGS: usize = 2;
/// Requests that each client must get an answer to once faults end.
const ANSWERS_AT_END: u64 = 10;

/// A host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// The sequencer's.
    Sequencer,
    /// A client's.
    Client(u8),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

listed! {
    /// What goes wrong on purpose.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault, said by name {
        SequencerPaused = "sequencer-paused",
        SequencerRestarted = "sequencer-restarted",
        Cut = "client-cut-off",
        PacketsLost = "packets-lost",
        PacketsRepeated = "packets-repeated",
    }
}

listed! {
    /// What must be true in every schedule.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        Unique = "no number of a log is given twice by one incarnation",
        Liveness = "once faults end, every client is answered",
        NoPanic = "nothing panics",
    }
}

/// How seeds are played.
#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// A deliberate fault: a sequencer that restarts draws no new incarnation
    #[arg(long)]
    pub same_incarnation: bool,
}

struct Asker {
    client: Client,
    answered: u64,
}

/// The hosts, and which numbers clients were given.
pub struct Sequencer {
    same_incarnation: bool,
    incarnation: u64,
    switch: SoftSequencer,
    askers: BTreeMap<Host, Asker>,
    given: BTreeSet<(u64, u16, u64)>,
}

fn gate() -> Gate {
    Gate::of::<inband_sequencer::Sequencer>(None, LOGS)
}

fn switch(incarnation: u64) -> SoftSequencer {
    SoftSequencer::new(1, LOGS, incarnation)
}

fn ask_next(world: &mut World<Sequencer>, host: Host) {
    let rng = &mut world.rng.hosts;
    let (log, count) = (rng.below(LOGS as u64) as u16, rng.between(1, 5));
    let asker = world.system.askers.get_mut(&host).expect("a client");
    asker.client.ask(log, count);
    send(world, host);
}

fn send(world: &mut World<Sequencer>, host: Host) {
    let packet = world.system.askers[&host].client.packet();
    world.send(host, Host::Sequencer, packet);
    world.sleep(host, world.local(host) + RETRY_NS);
}

fn answer(world: &mut World<Sequencer>, from: Host, packet: &[u8]) {
    let mut buffer = [0; PACKET_LEN_MAX_BYTES];
    buffer[..packet.len()].copy_from_slice(packet);
    let mut gate = gate();
    if gate.admits(packet) && world.system.switch.handle(&mut buffer, packet.len()).0 {
        let mut answer = buffer[..packet.len()].to_vec();
        gate.sign(&mut answer);
        world.send(Host::Sequencer, from, answer);
    }
}

impl System for Sequencer {
    const NAME: &'static str = "sequencer";
    const ABOUT: &'static str = "A sequencer that gives out numbers, the smallest system";
    const NO_PANIC: Invariant = Invariant::NoPanic;

    type Host = Host;
    type Packet = Vec<u8>;
    type Event = ();
    type Fault = Fault;
    type Invariant = Invariant;
    type Options = Options;

    fn begin(seed: u64, options: &Options) -> World<Sequencer> {
        let sequencer = Sequencer {
            same_incarnation: options.same_incarnation,
            incarnation: 1,
            switch: switch(1),
            askers: BTreeMap::new(),
            given: BTreeSet::new(),
        };
        let mut world = World::of(sequencer, Streams::of(seed));
        world.add_host(Host::Sequencer);
        for number in 0..CLIENTS {
            let client = Client::new(gate(), u64::from(number) << 32);
            let host = Host::Client(number);
            world.add_host(host);
            world.system.askers.insert(
                host,
                Asker {
                    client,
                    answered: 0,
                },
            );
            ask_next(&mut world, host);
        }
        world.inject_faults(30 * MS);
        world
    }

    fn describe(&self) -> String {
        format!("{CLIENTS} clients, {LOGS} logs")
    }

    fn on_packet(world: &mut World<Sequencer>, from: Host, to: Host, packet: Vec<u8>) {
        let Some(asker) = world.system.askers.get_mut(&to) else {
            return answer(world, from, &packet);
        };
        let Some(answer) = asker.client.on_packet(&packet) else {
            return; // an answer to an earlier request
        };
        asker.answered += 1;
        for number in answer.number..answer.number + answer.count {
            let given = (answer.incarnation, answer.log, number);
            if !world.system.given.insert(given) {
                let what = format!("{number} of log {} to {to}, and before", answer.log);
                world.broken(Invariant::Unique, what);
            }
        }
        world.stats.count("numbers given", answer.count);
        ask_next(world, to);
    }

    fn on_wake(world: &mut World<Sequencer>, host: Host) {
        send(world, host);
    }

    fn on_event(_: &mut World<Sequencer>, (): ()) {}

    fn strike(
        world: &mut World<Sequencer>,
        fault: Fault,
        lasts: Time,
    ) -> Option<Strike<Sequencer>> {
        match fault {
            Fault::SequencerPaused => world.pause_for(Host::Sequencer, lasts),
            Fault::SequencerRestarted => {
                let sequencer = &mut world.system;
                sequencer.incarnation += u64::from(!sequencer.same_incarnation);
                sequencer.switch = switch(sequencer.incarnation);
                Some(Strike::Once)
            }
            Fault::Cut => {
                let client = Host::Client(world.rng.faults.below(CLIENTS.into()) as u8);
                world.cut(vec![(client, Host::Sequencer), (Host::Sequencer, client)])
            }
            Fault::PacketsLost => world.raise_rates(Rates {
                loss_ppm: 300_000,
                ..Rates::default()
            }),
            Fault::PacketsRepeated => world.raise_rates(Rates {
                duplicate_ppm: 300_000,
                ..Rates::default()
            }),
        }
    }

    fn settle(world: &mut World<Sequencer>) {
        let answered = |world: &World<Sequencer>| {
            let askers = world.system.askers.values();
            askers.map(|asker| asker.answered).collect::<Vec<_>>()
        };
        let before = answered(world);
        let is_served = |world: &World<Sequencer>| {
            let mut both = before.iter().zip(answered(world));
            both.all(|(before, after)| after >= before + ANSWERS_AT_END)
        };
        if !world.run_until(world.now + 1000 * MS, is_served) {
            world.broken(Invariant::Liveness, "a client waits");
        }
    }
}
