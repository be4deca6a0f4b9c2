//! Worlds of one role that only answers requests, and of clients that retry until they have an answer. The role may
//! restart without its memory.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_ground::answering::{Asked, Client, Role, RETRY};
use inband_ground::auth::Gate;
use inband_ground::soft::{Arrival, Soft};

use crate::{listed, Broken, Listed, Rates, Rng, Streams, Strike, System, Time, World};

const NODE: u8 = 1;
const MS: Time = 1_000_000;
/// Answers that each client must get once faults end.
const ANSWERS_AT_END: u64 = 10;
/// Such roles do not look at a packet's source address.
const NOBODY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

/// A role that only answers, its clients' requests, and the invariants of its answers.
pub trait Asking: Sized + 'static {
    /// See [`System::NAME`].
    const NAME: &'static str;
    /// See [`System::ABOUT`].
    const ABOUT: &'static str;
    const CLIENTS: u8;
    /// What [`Asking::on_answer`] counts.
    const COUNTED: &'static str;
    /// Every client is answered once faults end.
    const LIVENESS: Self::Invariant;
    /// See [`System::NO_PANIC`].
    const NO_PANIC: Self::Invariant;
    type Role: Asked + 'static;
    /// See [`System::Invariant`].
    type Invariant: Listed;
    /// See [`System::Options`].
    type Options: clap::Args + Clone + Default + fmt::Debug + Send + Sync;

    fn begin(options: &Self::Options) -> Self;
    /// Called at the first start and at every restart without memory.
    fn start(&mut self) -> Self::Role;
    /// Creates a client's next request.
    fn request(random: &mut Rng) -> Header<Self>;
    /// Checks the answer to a client's request. Returns how many [`Asking::COUNTED`] it carries, and the invariants
    /// that it breaks.
    fn on_answer(&mut self, answer: Header<Self>) -> (u64, Vec<Broken<Self::Invariant>>);
}

/// The header of a role's packets.
pub type Header<A> = <<A as Asking>::Role as Asked>::Header;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    Role,
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
        RolePaused = "role-paused",
        RoleRestarted = "role-restarted",
        Cut = "client-cut-off",
        PacketsLost = "packets-lost",
        PacketsRepeated = "packets-repeated",
    }
}

struct Asker<R: Asked> {
    client: Client<R>,
    answered: u64,
}

/// The hosts of a world with one role.
pub struct Hosts<A: Asking> {
    asking: A,
    role: Soft<A::Role>,
    gate: Gate,
    askers: Vec<Asker<A::Role>>,
}

impl<A: Asking> World<Hosts<A>> {
    fn ask_next(&mut self, number: u8) {
        let asker = &mut self.system.askers[usize::from(number)];
        asker.client.ask(A::request(&mut self.rng.hosts));
        self.send_request(number);
    }

    fn send_request(&mut self, number: u8) {
        let packet = self.system.askers[usize::from(number)]
            .client
            .packet()
            .to_vec();
        let host = Host::Client(number);
        self.send(host, Host::Role, packet);
        self.sleep(host, self.local(host) + RETRY.as_nanos() as Time);
    }

    fn answered(&self) -> Vec<u64> {
        self.system.askers.iter().map(|a| a.answered).collect()
    }
}

impl<A: Asking> System for Hosts<A> {
    const NAME: &'static str = A::NAME;
    const ABOUT: &'static str = A::ABOUT;
    const NO_PANIC: A::Invariant = A::NO_PANIC;

    type Host = Host;
    type Packet = Vec<u8>;
    type Event = ();
    type Fault = Fault;
    type Invariant = A::Invariant;
    type Options = A::Options;

    fn begin(seed: u64, options: &A::Options) -> World<Hosts<A>> {
        let mut asking = A::begin(options);
        let role = asking.start();
        let gate = Gate::of::<A::Role>(None, role.partitions());
        let hosts = Hosts {
            asking,
            role: role.soft(NODE),
            gate: gate.clone(),
            askers: Vec::new(),
        };
        let mut world = World::of(hosts, Streams::of(seed));
        world.add_host(Host::Role);
        for number in 0..A::CLIENTS {
            world.add_host(Host::Client(number));
            world.system.askers.push(Asker {
                client: Client::new(gate.clone(), u64::from(number) << 32),
                answered: 0,
            });
            world.ask_next(number);
        }
        world.inject_faults(30 * MS);
        world
    }

    fn describe(&self) -> String {
        format!(
            "{} clients, {} partitions",
            A::CLIENTS,
            self.gate.partitions()
        )
    }

    fn on_packet(world: &mut World<Hosts<A>>, from: Host, to: Host, packet: Vec<u8>) {
        let Hosts {
            asking,
            role,
            gate,
            askers,
        } = &mut world.system;
        let Host::Client(number) = to else {
            let arrival = Arrival {
                from: NOBODY,
                now_ns: world.now,
                random: 0,
            };
            if let Some(answer) = role.answer(gate, &packet, arrival) {
                world.send(Host::Role, from, answer);
            }
            return;
        };
        let asker = &mut askers[usize::from(number)];
        let Some(answer) = asker.client.on_packet(&packet) else {
            return; // to an earlier request
        };
        let (counted, broken) = asking.on_answer(answer);
        asker.answered += 1;
        for Broken { invariant, what } in broken {
            world.broken(invariant, format!("to {to}: {what}"));
        }
        world.stats.count(A::COUNTED, counted);
        world.ask_next(number);
    }

    fn on_wake(world: &mut World<Hosts<A>>, host: Host) {
        if let Host::Client(number) = host {
            world.send_request(number);
        }
    }

    fn on_event(_: &mut World<Hosts<A>>, (): ()) {}

    fn strike(world: &mut World<Hosts<A>>, fault: Fault, lasts: Time) -> Option<Strike<Hosts<A>>> {
        match fault {
            Fault::RolePaused => world.pause_for(Host::Role, lasts),
            Fault::RoleRestarted => {
                world.system.role = world.system.asking.start().soft(NODE);
                Some(Strike::Once)
            }
            Fault::Cut => {
                let client = Host::Client(world.rng.faults.below(A::CLIENTS.into()) as u8);
                world.cut(vec![(client, Host::Role), (Host::Role, client)])
            }
            Fault::PacketsLost => world.raise_rates(Rates::MANY_LOST),
            Fault::PacketsRepeated => world.raise_rates(Rates::MANY_REPEATED),
        }
    }

    fn settle(world: &mut World<Hosts<A>>) {
        let before = world.answered();
        let is_served = |world: &World<Hosts<A>>| {
            let mut both = before.iter().zip(world.answered());
            both.all(|(before, after)| after >= before + ANSWERS_AT_END)
        };
        if !world.run_until(world.now + 1000 * MS, is_served) {
            world.broken(A::LIVENESS, "a client waits");
        }
    }
}
