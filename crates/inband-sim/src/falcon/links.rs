//! The links between hosts: what becomes of a packet.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_dataplane::falcon::wire::Type;
use inband_dataplane::wire::HEADER_LEN_BYTES;
use inband_falcon::timing::Nanos;

use super::limits::{HOLD_UP_NS, LINK_JITTER_NS, LINK_MIN_NS};
use crate::cuts::Cuts;
use crate::rng::Rng;

/// Port of everybody.
const PORT: u16 = 7480;
/// Where a packet says its type.
const TYPE_AT: usize = 5;

/// A host, by its number among its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A scheduler.
    Scheduler(u8),
    /// A worker.
    Worker(u8),
    /// A client.
    Client(u8),
}

impl Host {
    /// Where it is.
    pub fn address(self) -> SocketAddrV4 {
        let (kind, number) = match self {
            Host::Scheduler(number) => (1, number),
            Host::Worker(number) => (2, number),
            Host::Client(number) => (3, number),
        };
        SocketAddrV4::new(Ipv4Addr::new(10, 0, kind, number), PORT)
    }

    /// Who is there.
    pub fn at(address: SocketAddrV4) -> Option<Host> {
        if address.port() != PORT {
            return None;
        }
        match address.ip().octets() {
            [10, 0, 1, number] => Some(Host::Scheduler(number)),
            [10, 0, 2, number] => Some(Host::Worker(number)),
            [10, 0, 3, number] => Some(Host::Client(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Scheduler(number) => write!(f, "scheduler/{number}"),
            Host::Worker(number) => write!(f, "worker/{number}"),
            Host::Client(number) => write!(f, "client/{number}"),
        }
    }
}

/// A packet as a test's filter sees it.
#[derive(Debug, Clone, Copy)]
pub struct Passing<'a> {
    /// True time.
    pub now: Nanos,
    /// Who sent it.
    pub from: Host,
    /// To whom.
    pub to: Host,
    /// All of it.
    pub bytes: &'a [u8],
}

impl Passing<'_> {
    /// Is it of this type?
    pub fn is(&self, kind: Type) -> bool {
        self.bytes[TYPE_AT] == kind as u8
    }
}

/// What a filter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// As usual.
    Pass,
    /// Lost.
    Lose,
    /// It arrives so much later than usual.
    Delay(Nanos),
    /// It arrives, and once more so much later.
    Twice(Nanos),
    /// It arrives with its last bit flipped.
    Damage,
}

/// Decides about everything that is sent, for directed tests.
pub type Filter = Box<dyn FnMut(&Passing<'_>) -> Fate>;

/// Rates of random damage, in parts per million.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    pub loss_ppm: u64,
    pub duplicate_ppm: u64,
    pub hold_up_ppm: u64,
    /// A bit flips in what a digest covers.
    pub flip_ppm: u64,
}

/// What happened to packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LinkStats {
    pub lost: u64,
    pub duplicated: u64,
    pub held_up: u64,
    pub damaged: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Links {
    pub rates: Rates,
    /// Of each type: how many are lost, in parts per million.
    pub lost_types: BTreeMap<u8, u64>,
    /// Links that are cut.
    pub cuts: Cuts<Host>,
    pub filter: Option<Filter>,
    pub stats: LinkStats,
}

impl Links {
    /// Could they open a connection?
    pub fn is_linked(&self, a: Host, b: Host) -> bool {
        self.cuts.is_linked(a, b) && self.cuts.is_linked(b, a)
    }

    pub fn heal(&mut self) {
        self.cuts.heal();
        self.lost_types.clear();
        self.rates = Rates::default();
        self.filter = None;
    }

    /// After how long each copy arrives; none: lost. The packet may be damaged.
    pub fn fate(
        &mut self,
        rng: &mut Rng,
        now: Nanos,
        from: Host,
        to: Host,
        bytes: &mut [u8],
    ) -> Vec<Nanos> {
        let passing = Passing {
            now,
            from,
            to,
            bytes,
        };
        let said = self.filter.as_mut().map(|filter| filter(&passing));
        let rates = self.rates;
        let kind_ppm = self.lost_types.get(&bytes[TYPE_AT]).copied().unwrap_or(0);
        let is_cut = !self.cuts.is_linked(from, to);
        let is_lost = rng.chance_ppm(rates.loss_ppm) || rng.chance_ppm(kind_ppm);
        if is_cut || is_lost || said == Some(Fate::Lose) {
            self.stats.lost += 1;
            return Vec::new();
        }
        if said == Some(Fate::Damage) {
            *bytes.last_mut().expect("it has a header") ^= 1;
        }
        if rng.chance_ppm(rates.flip_ppm) {
            self.stats.damaged += u64::from(flip_a_bit(rng, bytes));
        }
        let after = LINK_MIN_NS + rng.below(LINK_JITTER_NS);
        match said {
            Some(Fate::Delay(by)) => return vec![after + by],
            Some(Fate::Twice(by)) => return vec![after, after + by],
            _ => {}
        }
        let mut arrivals = vec![self.held_up(rng, after)];
        if rng.chance_ppm(rates.duplicate_ppm) {
            self.stats.duplicated += 1;
            let after = LINK_MIN_NS + rng.below(LINK_JITTER_NS);
            arrivals.push(self.held_up(rng, after));
        }
        arrivals
    }

    fn held_up(&mut self, rng: &mut Rng, after: Nanos) -> Nanos {
        if !rng.chance_ppm(self.rates.hold_up_ppm) {
            return after;
        }
        self.stats.held_up += 1;
        after + rng.below(HOLD_UP_NS)
    }
}

/// Of what lies behind the header: that is what digests cover.
fn flip_a_bit(rng: &mut Rng, bytes: &mut [u8]) -> bool {
    if bytes.len() <= HEADER_LEN_BYTES {
        return false;
    }
    let at = rng.between(HEADER_LEN_BYTES as u64, bytes.len() as u64 - 1) as usize;
    bytes[at] ^= 1 << rng.below(8);
    true
}
