//! The world of replicas, switches, clients and links, stepped from event to event.

mod clients;
mod hosts;
mod sending;
mod switches;

use std::collections::BTreeMap;

use inband_flair::client::{self, Client, Ticket};
use inband_flair::dataplane::FlairSwitch;
use inband_flair::replica::{self, Counters, Message, Replica};
use inband_flair::timing::{ClientTiming, Nanos};

use super::host::{Filter, Host};
use super::layout::Layout;
use super::limits::DEADLINE_NS;
use super::mutation::Mutation;
use super::system::Request;
use super::{Flair, World};
use crate::rng::Rng;
use crate::world::Streams;

/// A replica, and the counters of its former processes.
pub(super) struct ReplicaHost {
    replica: Option<Replica>,
    counters: Vec<Counters>,
}

impl ReplicaHost {
    /// Returns the counters of all its processes.
    pub fn counted(&self) -> impl Iterator<Item = Counters> + '_ {
        let running = self.replica.as_ref().map(Replica::counters);
        self.counters.iter().copied().chain(running)
    }
}

pub(super) struct ClientHost {
    client: Client,
    under_way: BTreeMap<Ticket, usize>,
    /// Number of answered requests.
    answered: u64,
}

impl World {
    /// Creates a world whose hosts have just started; replica 0 founds the group. There are no faults until some are
    /// injected.
    pub fn new(seed: u64, layout: Layout, mutation: Option<Mutation>) -> World {
        let rng = Streams {
            hosts: Rng::new(seed, 101),
            faults: Rng::new(seed, 102),
            links: Rng::new(seed, 103),
        };
        let mut world = World::of(Flair::new(layout, mutation), rng);
        let replicas = (0..layout.replicas).map(Host::Replica);
        let switches = (0..layout.switches).map(Host::Switch);
        let clients = (0..layout.clients).map(Host::Client);
        for host in replicas.chain(switches).chain(clients) {
            world.add_host(host);
        }
        world.start_all();
        world
    }

    fn start_all(&mut self) {
        for number in 0..self.system.layout.replicas {
            self.system.replicas.push(ReplicaHost {
                replica: None,
                counters: Vec::new(),
            });
            self.start_replica(number, number == 0);
        }
        for number in 0..self.system.layout.switches {
            self.system.switches.push(None);
            self.start_switch(number);
        }
        for number in 0..self.system.layout.clients {
            let config = client::Config {
                set: 0,
                switches: self.system.layout.switches,
                reads: self.system.layout.reads,
                nonce: self.rng.hosts.next_u64(),
                timing: ClientTiming {
                    deadline_ns: DEADLINE_NS,
                    ..ClientTiming::default()
                },
            };
            self.system.clients.push(ClientHost {
                client: Client::new(config),
                under_way: BTreeMap::new(),
                answered: 0,
            });
            for _ in 0..self.system.layout.outstanding {
                self.after(0, Request(number));
            }
        }
    }

    /// Returns the replica that serves as leader.
    pub fn leader(&self) -> Option<u8> {
        let serves = |host: &ReplicaHost| {
            let status = host.replica.as_ref().map(|r| r.status(0));
            status.is_some_and(|status| status.serving.is_some())
        };
        self.system
            .replicas
            .iter()
            .rposition(serves)
            .map(|n| n as u8)
    }

    pub fn replica(&self, number: u8) -> Option<&Replica> {
        self.system.replicas[usize::from(number)].replica.as_ref()
    }

    /// Returns whether every replica is up and a voter, and one of them leads.
    pub fn is_whole(&self) -> bool {
        let replicas = usize::from(self.system.layout.replicas);
        let is_voter = |host: &ReplicaHost| {
            host.replica.as_ref().is_some_and(|replica| {
                let (id, voters, learners) = replica.raft_ids();
                voters.len() == replicas && learners.is_empty() && voters.contains(&id)
            })
        };
        self.system.replicas.iter().all(is_voter) && self.leader().is_some()
    }

    /// Lets a test decide the fate of packets.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.links.filter = filter;
    }

    pub(super) fn on_message(&mut self, from: Host, to: Host, message: Message) {
        if let (Host::Replica(from), Host::Replica(to)) = (from, to) {
            self.at_replica(to, |replica, now, _| {
                replica.on_message(now, from, message);
            });
        }
    }

    pub(super) fn on_bytes(&mut self, from: Host, to: Host, bytes: Vec<u8>) {
        match (from, to) {
            (Host::Switch(switch), Host::Replica(number)) => {
                self.at_replica(number, |replica, now, out| {
                    replica.on_packet(now, switch, &bytes, out);
                });
            }
            (_, Host::Client(number)) => self.at_client(number, |client, now, out| {
                client.on_packet(now, &bytes, out);
            }),
            (_, Host::Switch(number)) => self.at_switch(from, number, bytes),
            (_, Host::Replica(_)) => {}
        }
    }

    pub(super) fn at_replica(
        &mut self,
        number: u8,
        event: impl FnOnce(&mut Replica, Nanos, &mut replica::Out),
    ) {
        let now = self.local(Host::Replica(number));
        let Some(replica) = &mut self.system.replicas[usize::from(number)].replica else {
            return;
        };
        let mut out = std::mem::take(&mut self.system.out);
        event(replica, now, &mut out);
        replica.advance(now, &mut out).expect("its disk works");
        let due = replica.due();
        let own = Host::Replica(number);
        self.sleep(own, due);
        for (switch, packet) in out.packets.iter() {
            self.send_bytes(own, Host::Switch(switch), packet.to_vec());
        }
        for (to, message) in out.messages.drain(..) {
            self.send_message(number, to, message);
        }
        out.clear();
        self.system.out = out;
    }

    fn count_reasons(&mut self, switch: &FlairSwitch) {
        for (name, count) in switch.counters() {
            self.stats.count(name, count);
        }
    }
}
