//! The links between hosts: what becomes of a packet or a message.

use std::collections::BTreeMap;
use std::fmt;

use inband_dataplane::flair::wire::{Header, Type};
use inband_flair::replica::Message;
use inband_flair::timing::Nanos;

use super::limits::{HOLD_UP_NS, LINK_JITTER_NS, LINK_MIN_NS};
use crate::cuts::Cuts;
use crate::rng::Rng;

/// A host, by its number among its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A replica.
    Replica(u8),
    /// A switch.
    Switch(u8),
    /// A client.
    Client(u8),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Replica(number) => write!(f, "replica/{number}"),
            Host::Switch(number) => write!(f, "switch/{number}"),
            Host::Client(number) => write!(f, "client/{number}"),
        }
    }
}

/// A message between replicas as a test's filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// Raft's, with entries or a snapshot.
    Entries,
    /// Any other of Raft's.
    Raft,
    /// Who it is.
    Announcement,
    /// Leases.
    Grant,
}

impl MessageKind {
    pub(super) fn of(message: &Message) -> MessageKind {
        match message {
            Message::Raft(raft) => {
                let brings = raft.snapshot_index().is_some() || raft.commands().next().is_some();
                if brings {
                    MessageKind::Entries
                } else {
                    MessageKind::Raft
                }
            }
            Message::Announce(_) => MessageKind::Announcement,
            Message::Grant(_) => MessageKind::Grant,
        }
    }
}

/// A packet as a test's filter sees it.
#[derive(Debug, Clone, Copy)]
pub struct Passing {
    /// True time.
    pub now: Nanos,
    /// Who sent it.
    pub from: Host,
    /// To whom.
    pub to: Host,
    /// Its header; `None`: a message between replicas.
    pub header: Option<Header>,
    /// A message between replicas.
    pub message: Option<MessageKind>,
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
}

/// Decides about everything that is sent, for directed tests.
pub type Filter = Box<dyn FnMut(&Passing) -> Fate>;

/// Rates of random damage, in parts per million.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    pub loss_ppm: u64,
    pub duplicate_ppm: u64,
    pub hold_up_ppm: u64,
    /// Of write replies alone.
    pub late_replies_ppm: u64,
}

/// What happened to packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LinkStats {
    pub lost: u64,
    pub duplicated: u64,
    pub held_up: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Links {
    pub rates: Rates,
    /// Links that are cut.
    pub cuts: Cuts<Host>,
    /// Directed pairs whose link is slow, and by how much.
    slow: BTreeMap<(Host, Host), Nanos>,
    pub filter: Option<Filter>,
    pub stats: LinkStats,
}

impl Links {
    /// Everything from one host to the other takes so much longer; 0: as usual.
    pub fn slow_down(&mut self, from: Host, to: Host, by: Nanos) {
        self.slow.insert((from, to), by);
    }

    pub fn heal(&mut self) {
        self.cuts.heal();
        self.slow.clear();
        self.rates = Rates::default();
        self.filter = None;
    }

    /// After how long each copy arrives; none: lost.
    pub fn fate(&mut self, rng: &mut Rng, passing: &Passing) -> Vec<Nanos> {
        let extra = match self.filter.as_mut().map(|filter| filter(passing)) {
            Some(Fate::Lose) => return Vec::new(),
            Some(Fate::Delay(by)) => by,
            Some(Fate::Pass) | None => 0,
        };
        let slow = self.slow.get(&(passing.from, passing.to));
        let extra = extra + slow.copied().unwrap_or(0);
        let rates = self.rates;
        let is_cut = !self.cuts.is_linked(passing.from, passing.to);
        if is_cut || rng.chance_ppm(rates.loss_ppm) {
            self.stats.lost += 1;
            return Vec::new();
        }
        let is_twice = rng.chance_ppm(rates.duplicate_ppm);
        self.stats.duplicated += u64::from(is_twice);
        let is_reply = passing.header.is_some_and(|h| h.kind == Type::WriteReply);
        let late_ppm = rates.hold_up_ppm + if is_reply { rates.late_replies_ppm } else { 0 };
        let mut arrivals = Vec::new();
        for _ in 0..1 + usize::from(is_twice) {
            let mut after = LINK_MIN_NS + rng.below(LINK_JITTER_NS) + extra;
            if rng.chance_ppm(late_ppm) {
                self.stats.held_up += 1;
                after += rng.below(HOLD_UP_NS);
            }
            arrivals.push(after);
        }
        arrivals
    }
}
