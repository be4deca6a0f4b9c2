//! The world of schedulers, workers, clients and links, stepped from event to event.

mod clients;
mod hosts;
mod runs;
mod schedulers;
mod silence;
mod workers;

use std::net::SocketAddrV4;

use inband_falcon::message::Place;
use inband_falcon::packets::HostMessage;
use inband_ground::auth::Digest;

use super::host::{Filter, Host};
use super::invariant::Invariant;
use super::layout::Layout;
use super::system::Event;
use super::{Falcon, World};
use crate::rng::Rng;
use crate::world::Streams;

pub(super) use self::clients::ClientHost;
pub(super) use self::schedulers::SchedulerHost;
pub(super) use self::workers::WorkerHost;

impl World {
    /// Creates a world whose hosts have just started. There are no faults until some are injected.
    pub fn new(seed: u64, layout: Layout) -> World {
        let rng = Streams {
            hosts: Rng::new(seed, 201),
            faults: Rng::new(seed, 202),
            links: Rng::new(seed, 203),
        };
        let mut world = World::of(Falcon::new(layout), rng);
        let schedulers = (0..layout.schedulers).map(Host::Scheduler);
        let workers = (0..layout.workers).map(Host::Worker);
        let clients = (0..layout.clients).map(Host::Client);
        for host in schedulers.chain(workers).chain(clients) {
            world.add_host(host);
        }
        world.start_all();
        world
    }

    fn start_all(&mut self) {
        for number in 0..self.system.layout.schedulers {
            self.system.schedulers.push(SchedulerHost::default());
            self.start_scheduler(number);
        }
        for number in 0..self.system.layout.workers {
            self.system.workers.push(WorkerHost::default());
            self.start_worker(number);
        }
        for number in 0..self.system.layout.clients {
            self.system.clients.push(ClientHost::default());
            self.start_client(number);
            self.after(0, Event::Think(number));
        }
    }

    fn scheduler_of(&self, number: u8) -> Host {
        Host::Scheduler(number % self.system.layout.schedulers)
    }

    fn number(&mut self) -> u64 {
        self.system.numbers += 1;
        self.system.numbers
    }

    /// Lets a test decide the fate of packets.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.links.filter = filter;
    }

    /// Keeps the last events for [`World::trace`].
    pub fn keep_trace(&mut self, events: usize) {
        self.trace.keep = events;
    }

    /// Returns the last events, one per line.
    pub fn trace(&self) -> Vec<String> {
        self.trace.lines()
    }

    /// Sends a message to another host, packed with others of the same event.
    fn tell(&mut self, from: Host, to: SocketAddrV4, executor: u32, message: &HostMessage) {
        let coalescer = self.system.coalescers.entry(from).or_default();
        let full = coalescer.put(&mut self.system.codec, to, executor, message);
        if let (Some(packet), Some(to)) = (full, Host::at(to)) {
            self.send(from, to, packet);
        }
    }

    pub(super) fn send_coalesced(&mut self) {
        let mut packets = Vec::new();
        for (from, mut coalescer) in std::mem::take(&mut self.system.coalescers) {
            coalescer.take(&mut self.system.codec, |to, packet| {
                packets.push((from, to, packet.to_vec()));
            });
        }
        for (from, to, packet) in packets {
            if let Some(to) = Host::at(to) {
                self.send(from, to, packet);
            }
        }
    }

    /// Stores long work or a long result at a host.
    fn keep(&mut self, host: Host, bytes: Vec<u8>) -> Place {
        let token = self.number();
        let place = Place {
            address: host.address().into(),
            token,
            len_bytes: bytes.len() as u64,
            digest: Digest::PLAIN.of(&bytes),
        };
        self.system.blobs.insert((host, token), bytes);
        place
    }

    /// Checks, as a host ends, that it keeps no more blobs for others to fetch than the `left` tasks or results that it
    /// has.
    fn nothing_is_left_behind(&mut self, host: Host, left: usize) {
        let kept = self
            .system
            .blobs
            .keys()
            .filter(|(of, _)| *of == host)
            .count();
        if kept > left {
            let what = format!("{host:?} keeps {kept} long pieces of {left}");
            self.broken(Invariant::NothingLeftBehind, what);
        }
    }

    fn forget(&mut self, host: Host, place: &Place) {
        self.system.blobs.remove(&(host, place.token));
    }

    /// Fetches what another host keeps; `None` if that is not possible now.
    fn fetch(&self, by: Host, place: &Place) -> Option<Vec<u8>> {
        let std::net::SocketAddr::V4(address) = place.address else {
            return None;
        };
        let host = Host::at(address)?;
        let bytes = self.system.blobs.get(&(host, place.token))?;
        let is_up = !self.is_paused(host);
        (is_up && self.links.is_linked(by, host)).then(|| bytes.clone())
    }
}
