//! Worlds of one role that only answers, and clients that ask it until they are answered. The role may lose its memory.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_ground::soft::Arrival;

use crate::{listed, Broken, Listed, Rates, Rng, Streams, Strike, System, Time, World};

const MS: Time = 1_000_000;
/// Answers that each client must get once faults end.
const ANSWERS_AT_END: u64 = 10;
/// Roles that only answer do not look at the source of a packet.
const NOBODY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

/// A role that only answers, its clients, and what clients may be told.
pub trait Asking: Sized + 'static {
    /// As [`System::NAME`].
    const NAME: &'static str;
    /// As [`System::ABOUT`].
    const ABOUT: &'static str;
    /// How many clients ask.
    const CLIENTS: u8;
    /// Simulated time after which a client asks again, by its own clock.
    const RETRY_NS: Time;
    /// What is counted of an answer.
    const COUNTED: &'static str;
    /// Once faults end, every client is answered.
    const LIVENESS: Self::Invariant;
    /// As [`System::NO_PANIC`].
    const NO_PANIC: Self::Invariant;
    /// As [`System::Invariant`].
    type Invariant: Listed;
    /// As [`System::Options`].
    type Options: clap::Args + Clone + Default + fmt::Debug + Send + Sync;
    /// A client.
    type Client;

    /// The role, new.
    fn begin(options: &Self::Options) -> Self;
    /// As [`System::describe`].
    fn describe(&self) -> String;
    /// Client `number`, new.
    fn client(number: u8) -> Self::Client;
    /// A client has another request.
    fn ask(client: &mut Self::Client, random: &mut Rng);
    /// The packet of its request.
    fn packet(client: &Self::Client) -> Vec<u8>;
    /// What the role answers to a packet.
    fn answer(&mut self, packet: &[u8], arrival: Arrival) -> Option<Vec<u8>>;
    /// A client gets a packet. If it is the answer to its request: how much of [`Asking::COUNTED`], and what is wrong.
    fn on_answer(
        &mut self,
        client: &mut Self::Client,
        packet: &[u8],
    ) -> Option<(u64, Vec<Broken<Self::Invariant>>)>;
    /// The role starts again, without its memory.
    fn restart(&mut self);
}

/// A host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// The role's.
    Role,
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
        RolePaused = "role-paused",
        RoleRestarted = "role-restarted",
        Cut = "client-cut-off",
        PacketsLost = "packets-lost",
        PacketsRepeated = "packets-repeated",
    }
}

struct Asker<C> {
    client: C,
    answered: u64,
}

/// The hosts of such a world.
pub struct Hosts<A: Asking> {
    role: A,
    askers: Vec<Asker<A::Client>>,
}

impl<A: Asking> World<Hosts<A>> {
    fn ask_next(&mut self, number: u8) {
        let asker = &mut self.system.askers[usize::from(number)];
        A::ask(&mut asker.client, &mut self.rng.hosts);
        self.send_request(number);
    }

    fn send_request(&mut self, number: u8) {
        let packet = A::packet(&self.system.askers[usize::from(number)].client);
        let host = Host::Client(number);
        self.send(host, Host::Role, packet);
        self.sleep(host, self.local(host) + A::RETRY_NS);
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
        let hosts = Hosts {
            role: A::begin(options),
            askers: Vec::new(),
        };
        let mut world = World::of(hosts, Streams::of(seed));
        world.add_host(Host::Role);
        for number in 0..A::CLIENTS {
            world.add_host(Host::Client(number));
            world.system.askers.push(Asker {
                client: A::client(number),
                answered: 0,
            });
            world.ask_next(number);
        }
        world.inject_faults(30 * MS);
        world
    }

    fn describe(&self) -> String {
        format!("{} clients, {}", A::CLIENTS, self.role.describe())
    }

    fn on_packet(world: &mut World<Hosts<A>>, from: Host, to: Host, packet: Vec<u8>) {
        let Hosts { role, askers } = &mut world.system;
        let Host::Client(number) = to else {
            let arrival = Arrival {
                from: NOBODY,
                now_ns: world.now,
                random: 0,
            };
            if let Some(answer) = role.answer(&packet, arrival) {
                world.send(Host::Role, from, answer);
            }
            return;
        };
        let asker = &mut askers[usize::from(number)];
        let Some((counted, broken)) = role.on_answer(&mut asker.client, &packet) else {
            return; // an answer to an earlier request
        };
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
                world.system.role.restart();
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
