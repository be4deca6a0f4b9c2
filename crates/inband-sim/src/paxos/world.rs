//! Hosts and the packets between them, with checks after each.

use std::collections::BTreeMap;

use inband_paxos::dataplane::wire::{self, Header};
use inband_paxos::timing::Micros;

use crate::links::Fate;
use crate::paxos::event::{Event, Packet};
use crate::paxos::forge;
use crate::paxos::invariant::Invariant;
use crate::paxos::layout::Layout;
use crate::paxos::limits::HOST_QUEUE_PACKETS;
use crate::paxos::mutation::Mutation;
use crate::paxos::simhost::SimHost;
use crate::paxos::trace::Happened;
use crate::paxos::{counts, Paxos, World};
use crate::rng::Rng;
use crate::system::Packet as _;
use crate::world::Streams;

/// The last answers to one host's questions for reads.
#[derive(Debug, Default)]
pub(crate) struct ReadAnswers {
    pub last_at: Micros,
    pub by_acceptor: BTreeMap<u16, Header>,
}

impl World {
    /// Creates a cluster whose hosts have just started. There are no faults until some are injected.
    pub fn new(
        seed: u64,
        layout: Layout,
        mutation: Option<Mutation>,
        trace_events: usize,
    ) -> World {
        let nodes = layout.nodes();
        let rng = Streams {
            links: Rng::new(seed, 1),
            faults: Rng::new(seed, 2),
            hosts: Rng::new(seed, 4),
        };
        let mut world = World::of(Paxos::new(seed, layout, mutation), rng);
        world.trace.keep = trace_events;
        for node in nodes {
            world.start(node);
        }
        world.found();
        world
    }

    /// Returns the index of a node among the hosts.
    pub(crate) fn index(&self, node: u8) -> Option<usize> {
        self.system.hosts.iter().position(|h| h.node == node)
    }

    /// Returns the host `node`.
    ///
    /// # Panics
    /// If the layout has no such node.
    pub fn host(&self, node: u8) -> &SimHost {
        let at = self
            .index(node)
            .unwrap_or_else(|| panic!("there is no node {node}"));
        &self.system.hosts[at]
    }

    pub(crate) fn transmit(&mut self, from: u8, to: u8, bytes: &[u8]) {
        let Ok((header, value)) = wire::parse(bytes) else {
            let what = format!("node {from} sent node {to} what is no packet");
            self.check(Err(Invariant::NoPanic.broken(what)));
            return;
        };
        let sent = self.system.rounds.sent(from, &header);
        self.check(sent);
        self.stats.links.sent += 1;
        if header.kind == wire::Type::Busy {
            self.stats.count(counts::BUSY, 1);
        }
        if let Some(mutation) = self.system.mutation {
            if forge::asks_for_read(&header) {
                if let Some(answer) = self.answer_of_last_round(mutation, from, to, &header) {
                    self.transmit_whole(to, from, &answer, &forge::packet(&answer, &[]));
                }
                let stamped = self.lowest_stamped(usize::from(header.partition));
                if let (Mutation::ReadOfStamped, Some(stamped)) = (mutation, stamped) {
                    let answer = forge::read_answer(&header, to, stamped);
                    let bytes = forge::packet(&answer, &[]);
                    return self.transmit_whole(to, from, &answer, &bytes);
                }
            }
            if let Some((header, value)) =
                forge::instead(mutation, &self.system.layout, &header, value)
            {
                self.transmit_whole(from, to, &header, &forge::packet(&header, &value));
            } else {
                self.transmit_whole(from, to, &header, bytes);
            }
            if let Some(more) = forge::besides(mutation, &self.system.layout, &header) {
                self.transmit_whole(from, to, &more, &forge::packet(&more, value));
            }
            return;
        }
        self.transmit_whole(from, to, &header, bytes);
    }

    /// For a mutation: this acceptor's answer in the previous round of questions, if the question follows immediately
    /// after it. The reads then arrived while that round was in flight.
    fn answer_of_last_round(
        &self,
        mutation: Mutation,
        from: u8,
        acceptor: u8,
        question: &Header,
    ) -> Option<Header> {
        let answers = self.system.read_answers.get(&(from, question.partition))?;
        let follows = mutation == Mutation::ReadJoinedLate && answers.last_at == self.now;
        let answer = answers.by_acceptor.get(&u16::from(acceptor))?;
        follows.then_some(Header {
            client_seq: question.client_seq,
            ..*answer
        })
    }

    /// Returns the lowest last-stamped instance among nodes that think they lead.
    fn lowest_stamped(&self, partition: usize) -> Option<u64> {
        let hosts = self.system.hosts.iter().filter_map(|sim| sim.host.as_ref());
        hosts
            .map(|host| host.leader_view(partition))
            .filter(|view| view.round != 0)
            .map(|view| view.next - 1)
            .min()
    }

    fn transmit_whole(&mut self, from: u8, to: u8, header: &Header, bytes: &[u8]) {
        let mut signed = bytes.to_vec();
        self.system.gate.sign(&mut signed);
        let bytes = &signed[..];
        self.record(from, to, header, bytes);
        let packet = Packet::whole(signed, self.stats.links.sent);
        let fate = self.links.filtered(self.now, from, to, &packet);
        match fate {
            Fate::Lose => return self.lose(from, to, header),
            Fate::Keep => return self.links.kept.push((from, to, packet)),
            _ => {}
        }
        if let Some(held) = [from, to]
            .into_iter()
            .find(|n| self.host(*n).links_held > 0)
        {
            return self.hold(held, from, to, &packet.bytes);
        }
        let is_full = self.system.inbound.is_full(to);
        let (rng, stats) = (&mut self.rng.links, &mut self.stats.links);
        let copies = self
            .links
            .copies(rng, stats, (from, to, &packet), fate, is_full);
        if copies.is_empty() {
            return self.lose(from, to, header);
        }
        for copy in copies {
            self.system.inbound.set_out(to);
            let mut packet = packet.clone();
            if let Some((byte, bit)) = copy.flip {
                packet.flip(byte, bit);
            }
            self.deliver(copy.after, from, to, packet);
        }
    }

    fn lose(&mut self, from: u8, to: u8, header: &Header) {
        self.stats.links.lost += 1;
        self.trace.note(self.now, Happened::Lost(to, from, *header));
        if let Some(answer) = forge::answer_to_lost(self.system.mutation, header, to) {
            let mut bytes = forge::packet(&answer, &[]);
            self.sign(&mut bytes);
            self.system.inbound.set_out(from);
            let packet = Packet::whole(bytes, self.stats.links.sent);
            self.deliver(1, to, from, packet);
        }
    }

    /// The last step before a packet leaves a host.
    pub(crate) fn sign(&self, bytes: &mut [u8]) {
        self.system.gate.sign(bytes);
    }

    /// Keeps a packet until `holder` is released.
    pub(crate) fn hold(&mut self, holder: u8, from: u8, to: u8, bytes: &[u8]) {
        self.stats.links.held += 1;
        if let Some(at) = self.index(holder) {
            let waiting = &mut self.system.hosts[at].waiting;
            if waiting.len() < HOST_QUEUE_PACKETS {
                waiting.push((from, to, bytes.to_vec()));
            }
        }
    }

    /// Returns the number of packets that a filter has kept.
    pub fn kept(&self) -> usize {
        self.links.kept.len()
    }

    pub(crate) fn arrive(&mut self, from: u8, to: u8, packet: Packet) {
        let Packet {
            bytes,
            sent,
            damaged,
        } = packet;
        let overtaken = self.system.inbound.arrived(from, to, sent);
        self.stats.links.overtaken += u64::from(overtaken);
        match self.time_for_packet(to) {
            Some(at) if at == self.now => self.handle(from, to, &bytes, damaged),
            Some(at) => {
                let event = Event::Handle {
                    from,
                    to,
                    bytes,
                    damaged,
                };
                self.at(at, event);
            }
            None => {
                if let Ok((header, _)) = wire::parse(&bytes) {
                    self.lose(from, to, &header);
                }
            }
        }
    }

    pub(crate) fn handle(&mut self, from: u8, to: u8, bytes: &[u8], damaged: bool) {
        let Ok((header, _)) = wire::parse(bytes) else {
            return self.refuse(from, to, damaged, "no packet");
        };
        if self.system.mutation == Some(Mutation::ReadJoinedLate) && forge::answers_read(&header) {
            let answers = self
                .system
                .read_answers
                .entry((to, header.partition))
                .or_default();
            answers.last_at = self.now;
            answers.by_acceptor.insert(header.node, header);
        }
        let host = self.host(to);
        let waits = host.frozen > 0 || host.links_held > 0;
        if waits && !damaged {
            return self.hold(to, from, to, bytes);
        }
        if host.host.is_none() || waits {
            return self.lose(from, to, &header);
        }
        if !self.system.gate.admits(bytes) {
            return self.refuse(from, to, damaged, "no packet of this cluster");
        }
        self.trace
            .note(self.now, Happened::Arrived(to, from, header));
        let look_at = Some((usize::from(header.partition), header.instance));
        self.with_host(to, Some(from), look_at, |host, now, out| {
            host.on_packet(now, bytes, out);
        });
    }

    /// A host dropped a packet before handling it: the only valid reason is damage.
    fn refuse(&mut self, from: u8, to: u8, damaged: bool, what: &str) {
        self.stats.count(counts::REFUSED, 1);
        if !damaged {
            let what = format!("what node {from} has sent is {what} to node {to}");
            self.check(Err(Invariant::NoPanic.broken(what)));
        }
    }
}
