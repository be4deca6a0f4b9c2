//! The links between hosts, and the fate of packets on them.

use std::collections::BTreeMap;

use crate::cuts::Cuts;
use crate::queue::Time;
use crate::rng::Rng;
use crate::stats::LinkStats;
use crate::system::Packet;

/// A filter's decision about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The link treats it as usual.
    Pass,
    Lose,
    /// Kept aside until [`crate::World::release`].
    Keep,
    /// It arrives this much later than usual.
    Delay(Time),
    /// It arrives, and a copy arrives this much later.
    Twice(Time),
    /// It arrives with its last bit flipped.
    Damage,
}

/// A packet as a test's filter sees it.
#[derive(Debug, Clone, Copy)]
pub struct Passing<'a, H, P> {
    pub now: Time,
    pub from: H,
    pub to: H,
    pub packet: &'a P,
}

/// Decides the fate of every packet, for directed tests.
pub type Filter<H, P> = Box<dyn FnMut(&Passing<'_, H, P>) -> Fate>;

/// A packet in flight: from, to, packet.
pub type OnItsWay<H, P> = (H, H, P);

/// Rates of random faults, in parts per million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// The packet is lost.
    pub loss_ppm: u64,
    /// The packet arrives twice.
    pub duplicate_ppm: u64,
    /// The packet is delayed for long, so that many others overtake it.
    pub hold_up_ppm: u64,
    /// A bit of the packet flips.
    pub bit_flip_ppm: u64,
}

impl Rates {
    pub const MANY_LOST: Rates = Rates {
        loss_ppm: 300_000,
        ..Rates::NONE
    };
    pub const MANY_REPEATED: Rates = Rates {
        duplicate_ppm: 300_000,
        ..Rates::NONE
    };
    pub const MANY_LATE: Rates = Rates {
        hold_up_ppm: 200_000,
        ..Rates::NONE
    };
    pub const MANY_DAMAGED: Rates = Rates {
        bit_flip_ppm: 200_000,
        ..Rates::NONE
    };
    const NONE: Rates = Rates {
        loss_ppm: 0,
        duplicate_ppm: 0,
        hold_up_ppm: 0,
        bit_flip_ppm: 0,
    };

    /// Returns a seed's base rates: from nothing to a tenth. No bit flips.
    pub fn draw(rng: &mut Rng) -> Rates {
        let mut pick = |ppm: &[u64]| ppm[rng.below(ppm.len() as u64) as usize];
        Rates {
            loss_ppm: pick(&[0, 1_000, 20_000, 100_000]),
            duplicate_ppm: pick(&[0, 10_000, 100_000]),
            hold_up_ppm: pick(&[0, 1_000, 30_000]),
            bit_flip_ppm: 0,
        }
    }

    fn combine(&mut self, other: Rates, with: impl Fn(u64, u64) -> u64) {
        self.loss_ppm = with(self.loss_ppm, other.loss_ppm);
        self.duplicate_ppm = with(self.duplicate_ppm, other.duplicate_ppm);
        self.hold_up_ppm = with(self.hold_up_ppm, other.hold_up_ppm);
        self.bit_flip_ppm = with(self.bit_flip_ppm, other.bit_flip_ppm);
    }

    pub fn raise(&mut self, by: Rates) {
        self.combine(by, |a, b| a + b);
    }

    pub fn lower(&mut self, by: Rates) {
        self.combine(by, u64::saturating_sub);
    }
}

/// Rates for packets of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeRates {
    /// The type, as returned by [`Packet::kind`].
    pub kind: u8,
    /// Lost, in parts per million.
    pub loss_ppm: u64,
    /// Delayed, in parts per million, in addition to the rate for all types.
    pub hold_up_ppm: u64,
}

/// The order in which a link draws random numbers. A seed's schedule depends on it, so an existing world keeps its
/// order; a new world takes [`DrawOrder::ByCopy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawOrder {
    /// Loss, unless the link is cut; the number of copies; then delay and damage of each copy.
    ByCopy,
    /// Loss, even if the link is cut; damage, the same for all copies; delay; then whether there is a second copy.
    ByPacket,
}

/// Links without faults. Times are in the system's unit.
#[derive(Debug, Clone, Copy)]
pub struct LinkSettings {
    pub delay_min: Time,
    /// Random addition to the minimum; exclusive bound.
    pub jitter: Time,
    /// Extra delay of a packet that is held up; exclusive bound.
    pub hold_up_max: Time,
    /// Bits flip only from this byte of a packet on.
    pub flips_from: usize,
    pub draws: DrawOrder,
}

impl LinkSettings {
    /// A data-centre network; times in nanoseconds.
    pub const LAN: LinkSettings = LinkSettings {
        delay_min: 20_000,
        jitter: 100_000,
        hold_up_max: 120_000_000,
        flips_from: 0,
        draws: DrawOrder::ByCopy,
    };
}

/// A copy of a packet that will arrive.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Time in flight.
    pub after: Time,
    /// The byte and the bit that flip.
    pub flip: Option<(usize, u8)>,
}

pub struct Links<H, P> {
    settings: LinkSettings,
    pub rates: Rates,
    /// By a number that the fault chooses.
    pub type_rates: BTreeMap<u64, TypeRates>,
    pub cuts: Cuts<H>,
    /// Extra delay by directed pair.
    slow: BTreeMap<(H, H), Time>,
    /// Maximum random delay by directed pair.
    jitter: BTreeMap<(H, H), Time>,
    /// A directed test's filter.
    pub filter: Option<Filter<H, P>>,
    /// Packets that a filter kept.
    pub kept: Vec<OnItsWay<H, P>>,
}

impl<H: Copy + Ord, P: Packet> Links<H, P> {
    pub(crate) fn new(settings: LinkSettings) -> Links<H, P> {
        Links {
            settings,
            rates: Rates::default(),
            type_rates: BTreeMap::new(),
            cuts: Cuts::default(),
            slow: BTreeMap::new(),
            jitter: BTreeMap::new(),
            filter: None,
            kept: Vec::new(),
        }
    }

    /// Delays every packet from one host to the other by this much; 0: as usual.
    pub fn slow_down(&mut self, from: H, to: H, by: Time) {
        self.slow.insert((from, to), by);
    }

    /// Delays every packet from one host to the other by a random time below this: a burst of them is reordered. 0: as
    /// usual.
    pub fn reorder(&mut self, from: H, to: H, below: Time) {
        self.jitter.insert((from, to), below);
    }

    /// Returns whether the two hosts could open a connection.
    pub fn is_linked(&self, a: H, b: H) -> bool {
        self.cuts.is_linked(a, b) && self.cuts.is_linked(b, a)
    }

    /// Returns whether a message on a connection gets through. TCP retransmits, but eventually gives up.
    pub fn passes_connection(&self, rng: &mut Rng, from: H, to: H) -> bool {
        self.cuts.is_linked(from, to) && !rng.chance_ppm(self.rates.loss_ppm)
    }

    /// Repairs all links: no cuts, no random faults, no filter.
    pub fn heal(&mut self) {
        self.cuts.heal();
        self.slow.clear();
        self.jitter.clear();
        self.type_rates.clear();
        self.rates = Rates::default();
        self.filter = None;
    }

    pub fn filtered(&mut self, now: Time, from: H, to: H, packet: &P) -> Fate {
        let Some(filter) = &mut self.filter else {
            return Fate::Pass;
        };
        filter(&Passing {
            now,
            from,
            to,
            packet,
        })
    }

    /// Returns the copies of this packet that arrive, given the filter's `fate`. None if it is lost, as it always is if
    /// `is_full`.
    pub fn copies(
        &self,
        rng: &mut Rng,
        stats: &mut LinkStats,
        (from, to, packet): (H, H, &P),
        fate: Fate,
        is_full: bool,
    ) -> Vec<Arrival> {
        let kind = if self.type_rates.is_empty() {
            None
        } else {
            packet.kind()
        };
        let is_cut = fate == Fate::Lose || !self.cuts.is_linked(from, to);
        if self.is_lost(rng, kind, is_cut, is_full) {
            return Vec::new();
        }
        let mut copies = Vec::with_capacity(2);
        match self.settings.draws {
            DrawOrder::ByCopy => {
                let count = 1 + usize::from(rng.chance_ppm(self.rates.duplicate_ppm));
                for _ in 0..count {
                    let after = self.delay(rng, stats, kind);
                    let flip = self.flip(rng, stats, packet);
                    copies.push(Arrival { after, flip });
                }
            }
            DrawOrder::ByPacket => {
                let flip = self.flip(rng, stats, packet);
                let after = self.delay(rng, stats, kind);
                copies.push(Arrival { after, flip });
                if rng.chance_ppm(self.rates.duplicate_ppm) {
                    let after = self.delay(rng, stats, kind);
                    copies.push(Arrival { after, flip });
                }
            }
        }
        stats.duplicated += copies.len() as u64 - 1;
        let slow = self.slow.get(&(from, to)).copied().unwrap_or(0);
        copies.iter_mut().for_each(|copy| copy.after += slow);
        if let Some(below) = self.jitter.get(&(from, to)).filter(|below| **below > 0) {
            let mut delay = || rng.below(*below);
            copies.iter_mut().for_each(|copy| copy.after += delay());
        }
        self.obey(fate, packet, &mut copies);
        copies
    }

    fn obey(&self, fate: Fate, packet: &P, copies: &mut Vec<Arrival>) {
        match fate {
            Fate::Delay(by) => copies.iter_mut().for_each(|copy| copy.after += by),
            Fate::Twice(by) => copies.push(Arrival {
                after: copies[0].after + by,
                ..copies[0]
            }),
            Fate::Damage => {
                let last = packet.len_bytes().saturating_sub(1);
                copies.iter_mut().for_each(|c| c.flip = Some((last, 0)));
            }
            Fate::Pass | Fate::Lose | Fate::Keep => {}
        }
    }

    fn is_lost(&self, rng: &mut Rng, kind: Option<u8>, is_cut: bool, is_full: bool) -> bool {
        let of_type = |rng: &mut Rng| {
            let mut rates = self.type_rates.values();
            rates.any(|rates| Some(rates.kind) == kind && rng.chance_ppm(rates.loss_ppm))
        };
        let loss_ppm = self.rates.loss_ppm;
        match self.settings.draws {
            DrawOrder::ByCopy => of_type(rng) || is_full || is_cut || rng.chance_ppm(loss_ppm),
            DrawOrder::ByPacket => rng.chance_ppm(loss_ppm) || of_type(rng) || is_full || is_cut,
        }
    }

    fn delay(&self, rng: &mut Rng, stats: &mut LinkStats, kind: Option<u8>) -> Time {
        let after = self.settings.delay_min + rng.below(self.settings.jitter);
        let of_type = self.type_rates.values().filter(|r| Some(r.kind) == kind);
        let of_type_ppm: u64 = of_type.map(|rates| rates.hold_up_ppm).sum();
        if !rng.chance_ppm(self.rates.hold_up_ppm + of_type_ppm) {
            return after;
        }
        stats.held_up += 1;
        after + rng.below(self.settings.hold_up_max)
    }

    fn flip(&self, rng: &mut Rng, stats: &mut LinkStats, packet: &P) -> Option<(usize, u8)> {
        if !rng.chance_ppm(self.rates.bit_flip_ppm) {
            return None;
        }
        let from = self.settings.flips_from;
        let flipping = packet
            .len_bytes()
            .checked_sub(from)
            .filter(|len| *len > 0)?;
        stats.damaged += 1;
        let at = from + rng.below(flipping as u64) as usize;
        Some((at, rng.below(8) as u8))
    }
}
