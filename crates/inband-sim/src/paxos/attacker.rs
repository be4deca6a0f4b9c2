//! An attacker on the network without a key. It records packets and replays them later, more than once, to any host,
//! from any source address. It cannot create or change packets: tags and digests prevent that, and `inband-dataplane`
//! tests them.

use std::collections::BTreeMap;

use inband_paxos::dataplane::wire::Header;
use inband_paxos::timing::Micros;

use crate::paxos::event::{Event, Packet};
use crate::paxos::forge;
use crate::paxos::limits::{ATTACKER_DELAY_MAX_US, ATTACKER_FRESH, ATTACKER_RECORDS_MAX};
use crate::paxos::mutation::Mutation;
use crate::paxos::trace::Happened;
use crate::paxos::World;

/// Once `old` is full, the share of aging packets that replace a random older one, so that a few very old ones remain.
const REPLACE_PPM: u64 = 100_000;
/// How often the attacker picks one of the latest packets, keeps its target, and keeps its source.
const FRESH_PPM: u64 = 500_000;
const SAME_TARGET_PPM: u64 = 300_000;
const SAME_SOURCE_PPM: u64 = 700_000;

struct Recorded {
    from: u8,
    to: u8,
    bytes: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct Attacker {
    /// Mean time between two replayed packets; 0: there is no attacker.
    every_us: Micros,
    /// The latest packets, as a ring.
    fresh: Vec<Recorded>,
    next_fresh: usize,
    /// A sample of the older ones.
    old: Vec<Recorded>,
    /// Answers to reads' questions, the first from each acceptor, by partition and number of the question.
    answers: BTreeMap<(u16, u64), Vec<Recorded>>,
}

impl World {
    /// Makes an attacker replay a packet at this mean interval; 0 stops it.
    pub fn attack_every(&mut self, every_us: Micros) {
        self.system.attacker.every_us = every_us;
        if every_us > 0 {
            let wait_us = self.system.rng.attacker.wait(every_us);
            self.after(wait_us, Event::Attack);
        }
    }

    /// The attacker sees every packet, even those that get lost.
    pub(crate) fn record(&mut self, from: u8, to: u8, header: &Header, bytes: &[u8]) {
        if self.system.attacker.every_us == 0 {
            return;
        }
        let bytes = bytes.to_vec();
        if forge::answers_read(header) {
            self.keep_answer(from, to, header, &bytes);
        } else if forge::asks_for_read(header) {
            self.answer_at_once(from, header);
        }
        let attacker = &mut self.system.attacker;
        let new = Recorded { from, to, bytes };
        if attacker.fresh.len() < ATTACKER_FRESH {
            return attacker.fresh.push(new);
        }
        let at = attacker.next_fresh;
        attacker.next_fresh = (at + 1) % ATTACKER_FRESH;
        let aged = std::mem::replace(&mut attacker.fresh[at], new);
        let rng = &mut self.system.rng.attacker;
        if attacker.old.len() < ATTACKER_RECORDS_MAX {
            attacker.old.push(aged);
        } else if rng.chance_ppm(REPLACE_PPM) {
            let at = rng.below(ATTACKER_RECORDS_MAX as u64) as usize;
            attacker.old[at] = aged;
        }
    }

    fn keep_answer(&mut self, from: u8, to: u8, header: &Header, bytes: &[u8]) {
        let answers = &mut self.system.attacker.answers;
        if answers.len() >= ATTACKER_RECORDS_MAX {
            answers.pop_first();
        }
        let question = (header.partition, header.client_seq);
        let alike = answers.entry(question).or_default();
        if !alike.iter().any(|recorded| recorded.from == from) {
            let bytes = bytes.to_vec();
            alike.push(Recorded { from, to, bytes });
        }
    }

    /// Answers a question before an acceptor can, with the answers that other hosts got to a question of the same
    /// number.
    fn answer_at_once(&mut self, asker: u8, question: &Header) {
        let number = (question.partition, question.client_seq);
        let Some(alike) = self.system.attacker.answers.get(&number) else {
            return;
        };
        let of_others = alike.iter().filter(|recorded| recorded.to != asker);
        let answers: Vec<(u8, Vec<u8>)> = of_others.map(|r| (r.from, r.bytes.clone())).collect();
        for (from, mut bytes) in answers {
            if self.system.mutation == Some(Mutation::ReadOfAnother) {
                bytes = forge::as_if_asked_by(question.client_id, &bytes);
                self.sign(&mut bytes);
            }
            self.replay(from, asker, bytes, 1);
        }
    }

    fn replay(&mut self, from: u8, to: u8, bytes: Vec<u8>, delay_us: Micros) {
        self.stats.links.replayed += 1;
        let happened = Happened::Fault("replay", from, to);
        self.trace.note(self.now, happened);
        self.system.inbound.set_out(to);
        let packet = Packet::whole(bytes, self.stats.links.sent);
        self.deliver(delay_us, from, to, packet);
    }

    /// Replays a recorded packet.
    pub(crate) fn attack(&mut self) {
        let every_us = self.system.attacker.every_us;
        if every_us == 0 {
            return;
        }
        let nodes = self.system.layout.nodes();
        let wait_us = self.system.rng.attacker.wait(every_us);
        self.after(wait_us, Event::Attack);
        let rng = &mut self.system.rng.attacker;
        let is_fresh = rng.chance_ppm(FRESH_PPM) || self.system.attacker.old.is_empty();
        let from_these = if is_fresh {
            &self.system.attacker.fresh
        } else {
            &self.system.attacker.old
        };
        let Some(recorded) = rng.pick(from_these) else {
            return;
        };
        let (mut from, mut to) = (recorded.from, recorded.to);
        if !rng.chance_ppm(SAME_TARGET_PPM) {
            to = *rng.pick(&nodes).expect("a cluster has nodes");
        }
        if !rng.chance_ppm(SAME_SOURCE_PPM) {
            from = *rng.pick(&nodes).expect("a cluster has nodes");
        }
        let bytes = recorded.bytes.clone();
        let delay_us = rng.between(1, ATTACKER_DELAY_MAX_US);
        self.replay(from, to, bytes, delay_us);
    }
}
