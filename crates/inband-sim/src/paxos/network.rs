//! The network between hosts: what becomes of a packet.

use std::collections::BTreeMap;

use inband_dataplane::wire::{Header, Type};
use inband_paxos::timing::Micros;

use crate::cuts::Cuts;
use crate::paxos::limits::{
    HOST_QUEUE_PACKETS, LINK_DELAY_MIN_US, LINK_HOLD_UP_MAX_US, LINK_JITTER_US,
};
use crate::rng::Rng;

/// What a test's filter says about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The network does with it as usual.
    Pass,
    /// Lost.
    Lose,
    /// Kept aside until [`crate::paxos::world::World::release`].
    Keep,
}

/// A packet as a filter sees it.
#[derive(Debug, Clone, Copy)]
pub struct Passing {
    /// Time it was sent.
    pub now: Micros,
    /// Who sends it.
    pub from: u8,
    /// To whom.
    pub to: u8,
    /// Its header.
    pub header: Header,
}

/// Decides about every packet, for directed tests.
pub type Filter = Box<dyn FnMut(&Passing) -> Fate>;

/// Rates of random damage, in parts per million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Lost.
    pub loss_ppm: u64,
    /// Arrives twice.
    pub duplicate_ppm: u64,
    /// Held up for long, so that many others overtake it.
    pub hold_up_ppm: u64,
    /// A bit of the packet flips on the way: of its header, its value or its padding.
    pub bit_flip_ppm: u64,
}

/// A rule that loses packets of one type for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropRule {
    /// Which type.
    pub kind: Type,
    /// How many of them.
    pub ppm: u64,
}

/// State of the links.
#[derive(Default)]
pub struct Network {
    /// Rates that hold all the time.
    pub base: Rates,
    /// Rates of faults under way, added to the base.
    pub extra: BTreeMap<u64, Rates>,
    /// Rules under way.
    pub rules: BTreeMap<u64, DropRule>,
    /// Links that are cut.
    pub cuts: Cuts<u8>,
    /// Packets on their way to each host.
    on_the_way: Vec<usize>,
    /// The last packet to arrive, of those between two hosts, in the order in which they were sent.
    newest: BTreeMap<(u8, u8), u64>,
    /// A test's own say.
    pub filter: Option<Filter>,
}

/// A copy of a packet that will arrive.
#[derive(Debug)]
pub struct Arrival {
    /// Time on the way.
    pub delay_us: Micros,
    /// The packet.
    pub bytes: Vec<u8>,
    /// A bit was flipped.
    pub damaged: bool,
    /// For much longer than others.
    pub held_up: bool,
}

impl Network {
    /// A packet to this host is on its way.
    pub fn set_out(&mut self, to: u8) {
        let to = usize::from(to);
        if self.on_the_way.len() <= to {
            self.on_the_way.resize(to + 1, 0);
        }
        self.on_the_way[to] += 1;
    }

    /// A packet has arrived, which so many others were `sent` before. Was it overtaken?
    pub fn arrived(&mut self, from: u8, to: u8, sent: u64) -> bool {
        self.on_the_way[usize::from(to)] -= 1;
        let newest = self.newest.entry((from, to)).or_default();
        let overtaken = sent < *newest;
        *newest = sent.max(*newest);
        overtaken
    }

    /// All links work, nothing is lost.
    pub fn heal(&mut self) {
        self.cuts.heal();
        self.extra.clear();
        self.rules.clear();
        self.base = Rates::default();
        self.filter = None;
    }

    fn rates(&self) -> Rates {
        self.extra.values().fold(self.base, |a, b| Rates {
            loss_ppm: a.loss_ppm + b.loss_ppm,
            duplicate_ppm: a.duplicate_ppm + b.duplicate_ppm,
            hold_up_ppm: a.hold_up_ppm + b.hold_up_ppm,
            bit_flip_ppm: a.bit_flip_ppm + b.bit_flip_ppm,
        })
    }

    /// Does a message of the control plane get through? TCP loses none that it can bring over, but gives up.
    pub fn passes_control(&self, rng: &mut Rng, from: u8, to: u8) -> bool {
        self.cuts.is_linked(from, to) && !rng.chance_ppm(self.rates().loss_ppm)
    }

    /// The copies of this packet that will arrive: none, one or two.
    pub fn fate(
        &mut self,
        rng: &mut Rng,
        from: u8,
        to: u8,
        header: &Header,
        bytes: &[u8],
    ) -> Vec<Arrival> {
        let rates = self.rates();
        let full = self.on_the_way.get(usize::from(to)) >= Some(&HOST_QUEUE_PACKETS);
        let dropped = self
            .rules
            .values()
            .any(|rule| rule.kind == header.kind && rng.chance_ppm(rule.ppm));
        if full || dropped || !self.cuts.is_linked(from, to) || rng.chance_ppm(rates.loss_ppm) {
            return Vec::new();
        }
        let copies = 1 + usize::from(rng.chance_ppm(rates.duplicate_ppm));
        let mut arrivals = Vec::with_capacity(copies);
        for _ in 0..copies {
            let mut delay_us = LINK_DELAY_MIN_US + rng.below(LINK_JITTER_US);
            let held_up = rng.chance_ppm(rates.hold_up_ppm);
            if held_up {
                delay_us += rng.below(LINK_HOLD_UP_MAX_US);
            }
            let mut arrival = Arrival {
                delay_us,
                bytes: bytes.to_vec(),
                damaged: false,
                held_up,
            };
            if rng.chance_ppm(rates.bit_flip_ppm) {
                flip_a_bit(rng, &mut arrival.bytes);
                arrival.damaged = true;
            }
            arrivals.push(arrival);
        }
        arrivals
    }
}

fn flip_a_bit(rng: &mut Rng, bytes: &mut [u8]) {
    let at = rng.below(bytes.len() as u64) as usize;
    bytes[at] ^= 1 << rng.below(8);
}
