//! What a new system's world takes, written with the public interface only: a server that hands out numbers, clients
//! that ask for them until they are answered. A server that forgets is noticed.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use inband_sim::command::{self, Entry};
use inband_sim::{listed, run, run_with_trace, Rates, Seeds, Streams, Strike, System, Time, World};

const MS: Time = 1_000_000;
const RETRY_NS: Time = 5 * MS;
const CLIENTS: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    Server,
    Client(u8),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

listed! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault, said by name {
        ServerPaused = "server-paused",
        ServerRestarted = "server-restarted",
        Cut = "client-cut-off",
        PacketsLost = "packets-lost",
    }
}

listed! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        Unique = "no number is handed out for two requests",
        Liveness = "once faults end, every client is answered",
        NoPanic = "nothing panics",
    }
}

#[derive(Debug, Clone, Default, Args)]
struct Options {
    /// A server that restarts begins with 1 again
    #[arg(long)]
    forgets: bool,
}

/// A request that a client has under way, and its answers so far.
#[derive(Default)]
struct Client {
    request: u64,
    answered: u64,
}

#[derive(Default)]
struct Numbers {
    forgets: bool,
    next: u64,
    clients: BTreeMap<Host, Client>,
    handed_out: BTreeMap<u64, (Host, u64)>,
}

fn packet(kind: u8, request: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 0, kind];
    bytes.extend(request.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes
}

fn numbers_of(bytes: &[u8]) -> (u64, u64) {
    let at = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (at(6), at(14))
}

impl Numbers {
    fn ask(world: &mut World<Numbers>, client: Host) {
        let request = world.system.clients[&client].request;
        world.send(client, Host::Server, packet(1, request, 0));
        let due = world.local(client) + RETRY_NS;
        world.sleep(client, due);
    }
}

impl System for Numbers {
    const NAME: &'static str = "numbers";
    const ABOUT: &'static str = "A server that hands out numbers";
    const NO_PANIC: Invariant = Invariant::NoPanic;

    type Host = Host;
    type Packet = Vec<u8>;
    type Event = ();
    type Fault = Fault;
    type Invariant = Invariant;
    type Options = Options;

    fn begin(seed: u64, options: &Options) -> World<Numbers> {
        let numbers = Numbers {
            forgets: options.forgets,
            ..Numbers::default()
        };
        let mut world = World::of(numbers, Streams::of(seed));
        world.add_host(Host::Server);
        for client in (0..CLIENTS).map(Host::Client) {
            world.add_host(client);
            world.system.clients.insert(client, Client::default());
            Numbers::ask(&mut world, client);
        }
        world.inject_faults(30 * MS);
        world
    }

    fn describe(&self) -> String {
        format!("{CLIENTS} clients")
    }

    fn on_packet(world: &mut World<Numbers>, from: Host, to: Host, bytes: Vec<u8>) {
        let (request, number) = numbers_of(&bytes);
        let numbers = &mut world.system;
        let Some(client) = numbers.clients.get_mut(&to) else {
            numbers.next += 1;
            let number = numbers.next;
            return world.send(to, from, packet(2, request, number));
        };
        if request != client.request {
            return; // an answer to an earlier one
        }
        client.request += 1;
        client.answered += 1;
        if let Some(other) = numbers.handed_out.insert(number, (to, request)) {
            let what = format!("{number} for {other:?} and for request {request} of {to}");
            world.broken(Invariant::Unique, what);
        }
        world.stats.count("numbers handed out", 1);
        Numbers::ask(world, to);
    }

    fn on_wake(world: &mut World<Numbers>, host: Host) {
        Numbers::ask(world, host);
    }

    fn on_event(_: &mut World<Numbers>, (): ()) {}

    fn strike(world: &mut World<Numbers>, fault: Fault, lasts: Time) -> Option<Strike<Numbers>> {
        match fault {
            Fault::ServerPaused => world.pause_for(Host::Server, lasts),
            Fault::ServerRestarted => {
                if world.system.forgets {
                    world.system.next = 0;
                }
                Some(Strike::Once)
            }
            Fault::Cut => {
                let client = Host::Client(world.rng.faults.below(CLIENTS.into()) as u8);
                world.cut(vec![(client, Host::Server), (Host::Server, client)])
            }
            Fault::PacketsLost => world.raise_rates(Rates {
                loss_ppm: 300_000,
                ..Rates::default()
            }),
        }
    }

    fn settle(world: &mut World<Numbers>) {
        let answered = |world: &World<Numbers>| {
            let clients = world.system.clients.values();
            clients.map(|client| client.answered).collect::<Vec<_>>()
        };
        let before = answered(world);
        let is_served = |world: &World<Numbers>| {
            let after = answered(world);
            before.iter().zip(&after).all(|(b, a)| a >= &(b + 10))
        };
        if !world.run_until(world.now + 1000 * MS, is_served) {
            world.broken(Invariant::Liveness, "a client waits");
        }
    }
}

#[test]
fn a_new_world_is_played_and_a_broken_rule_is_noticed() {
    let seeds = Seeds {
        first: 1,
        count: Some(50),
        jobs: 2,
    };
    let sound = seeds.play::<Numbers>(&Options::default(), || false, |_| ());
    assert_eq!((sound.seeds, sound.failures), (50, 0));
    for fault in Fault::ALL {
        assert!(sound.stats.faults.of(fault.name()) > 50, "{fault}");
    }
    assert!(sound.stats.of("numbers handed out") > 10_000);
    let forgets = Options { forgets: true };
    let violations = (1..=50).filter_map(|seed| run::<Numbers>(seed, &forgets).violation);
    let found: Vec<Invariant> = violations.map(|violation| violation.invariant).collect();
    assert!(found.len() > 25 && found.iter().all(|i| *i == Invariant::Unique));
}

#[test]
fn a_new_worlds_seed_is_one_schedule_with_a_trace() {
    let options = Options { forgets: true };
    let first = run_with_trace::<Numbers>(3, &options, 1000);
    assert_eq!(first, run_with_trace::<Numbers>(3, &options, 1000));
    let kinds = ["Client(0) -> Server", "Server => Client(1)", "FAULT "];
    for kind in kinds {
        assert!(first.trace.iter().any(|line| line.contains(kind)), "{kind}");
    }
    // A violation brings its trace along.
    assert!(first.violation.is_some());
    assert!(!run::<Numbers>(3, &options).trace.is_empty());
}

/// As its own program would: one line registers it.
#[test]
fn a_new_world_is_registered_by_a_line() {
    let play = |args: &[&str]| {
        let args = ["inband-sim", "numbers"].iter().chain(args);
        command::main(&[Entry::of::<Numbers>()], args.map(Into::into).collect())
    };
    play(&["--seeds", "3"]).expect("it is sound");
    let failed = play(&["--seeds", "9", "--forgets"]).expect_err("it is not");
    assert!(
        failed.to_string().contains("violate an invariant"),
        "{failed}"
    );
}
