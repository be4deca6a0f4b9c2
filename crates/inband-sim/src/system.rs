//! What a system brings to be simulated.

use std::fmt;

use crate::faults::Strike;
use crate::links::LinkSettings;
use crate::listed::Listed;
use crate::queue::Time;
use crate::trace::{mix, word_of};
use crate::world::World;

/// Simulated time with faults, of a seed.
const FAULTY_US: u64 = 800_000;

/// A packet, or whatever else hosts send each other.
pub trait Packet: Clone {
    /// Its type, for faults that strike packets of one type; `None`: it has none.
    fn kind(&self) -> Option<u8>;
    /// Its length.
    fn len_bytes(&self) -> usize;
    /// A bit flips on the way.
    fn flip(&mut self, byte: usize, bit: u8);
    /// A hash of it, for the trace.
    fn hash(&self) -> u64;
    /// It in words, for the trace.
    fn describe(&self) -> String;
}

/// Where a packet of any of Inband's systems says its type.
const TYPE_AT: usize = 5;

impl Packet for Vec<u8> {
    fn kind(&self) -> Option<u8> {
        self.get(TYPE_AT).copied()
    }

    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn flip(&mut self, byte: usize, bit: u8) {
        self[byte] ^= 1 << bit;
    }

    fn hash(&self) -> u64 {
        self.iter().fold(0, |sum, byte| mix(sum, (*byte).into()))
    }

    fn describe(&self) -> String {
        format!("{} bytes of type {:?}", self.len(), self.kind())
    }
}

/// How a world says what has become of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Travel {
    /// It is on its way.
    Sent,
    /// It is lost.
    Lost,
    /// It has arrived.
    Arrived,
}

impl Travel {
    /// As an arrow in a trace.
    pub fn arrow(self) -> &'static str {
        match self {
            Travel::Sent => "->",
            Travel::Lost => "-x",
            Travel::Arrived => "=>",
        }
    }
}

/// A system that can be simulated: its hosts, clients, faults and invariants. Links, time, the trace, the schedule of
/// faults, statistics and campaigns are [`World`]'s and the crate's.
pub trait System: Sized + 'static {
    /// Its name on the command line.
    const NAME: &'static str;
    /// What it is, for the command line's help.
    const ABOUT: &'static str;
    /// Units of simulated time in a microsecond: its hosts' own unit.
    const TICKS_PER_US: u64 = 1000;
    /// Its links when nothing is wrong.
    const LINKS: LinkSettings = LinkSettings::LAN;
    /// Events of a run; one with more does not end.
    const EVENTS_MAX: u64 = 4_000_000;
    /// A fault lasts from the first to the second, unless [`System::next_fault`] says otherwise.
    const FAULT_LASTS_MS: (u64, u64) = (5, 200);
    /// A host that stood still handles packets that came meanwhile first, then its timers so much later.
    const TIMERS_AFTER_PAUSE: Time = 1;
    /// The invariant that a panic breaks.
    const NO_PANIC: Self::Invariant;

    /// A host.
    type Host: Copy + Ord + fmt::Debug + fmt::Display + 'static;
    /// What they send each other.
    type Packet: Packet;
    /// What else happens: requests of clients, tasks that end.
    type Event;
    /// What goes wrong on purpose. [`crate::listed!`] declares such an enum.
    type Fault: Listed;
    /// What must be true in every schedule. [`crate::listed!`] declares such an enum.
    type Invariant: Listed;
    /// How seeds are played, as the command line offers it.
    type Options: clap::Args + Clone + Default + fmt::Debug + Send + Sync;

    /// The world of a seed: layout, hosts, load, rates and [`World::inject_faults`].
    fn begin(seed: u64, options: &Self::Options) -> World<Self>;
    /// Simulated time with faults.
    fn faulty(_options: &Self::Options) -> Time {
        FAULTY_US * Self::TICKS_PER_US
    }
    /// The cluster of this seed, in a few words.
    fn describe(&self) -> String;

    /// A packet reaches a host that is not paused.
    fn on_packet(world: &mut World<Self>, from: Self::Host, to: Self::Host, packet: Self::Packet);
    /// A host that [`World::sleep`] was called for wakes.
    fn on_wake(_world: &mut World<Self>, _host: Self::Host) {}
    /// An event of its own happens.
    fn on_event(world: &mut World<Self>, event: Self::Event);
    /// A fault strikes, if it can now.
    fn strike(world: &mut World<Self>, fault: Self::Fault, lasts: Time) -> Option<Strike<Self>>;
    /// Faults are over. A system whose hosts go down starts them, too.
    fn heal(world: &mut World<Self>) {
        world.end_faults();
    }
    /// Everything must finish now. If not, an invariant is broken.
    fn settle(world: &mut World<Self>);

    /// The host that an event of its own is of: it waits while that host is paused.
    fn host_of(_event: &Self::Event) -> Option<Self::Host> {
        None
    }

    /// Send a packet on its way.
    fn send(world: &mut World<Self>, from: Self::Host, to: Self::Host, packet: Self::Packet) {
        world.put_on_link(from, to, packet);
    }

    /// A packet was sent, was lost, or has arrived: for the trace.
    fn on_travel(
        world: &mut World<Self>,
        travel: Travel,
        from: Self::Host,
        to: Self::Host,
        packet: &Self::Packet,
    ) {
        let arrow = travel.arrow();
        let way = format!("{from} {arrow} {to}");
        world.note(&[word_of(&way), packet.hash()], || {
            format!("{way}  {}", packet.describe())
        });
    }

    /// After every event.
    fn after_event(_world: &mut World<Self>) {}

    /// A host stands still, or its clock jumps.
    fn on_pause(_world: &mut World<Self>, _host: Self::Host) {}

    /// The next fault, and how long it lasts.
    fn next_fault(world: &mut World<Self>) -> (Self::Fault, Time) {
        let rng = &mut world.rng.faults;
        let fault = *rng.pick(Self::Fault::LIST).expect("there are some");
        let (shortest, longest) = Self::FAULT_LASTS_MS;
        (
            fault,
            rng.between(shortest, longest) * 1000 * Self::TICKS_PER_US,
        )
    }

    /// A fault begins, or one ends: for the trace.
    fn on_fault(world: &mut World<Self>, fault: Option<Self::Fault>) {
        match fault.map(Listed::description) {
            Some(name) => {
                let words = [10, word_of(name)];
                world.note(&words, || format!("FAULT {name}"));
            }
            None => world.note(&[11, 0], || "a fault ends".to_owned()),
        }
    }

    /// The time of the next fault comes.
    fn on_fault_due(world: &mut World<Self>) {
        world.next_fault();
        world.plan_fault();
    }

    /// Play the time with faults, until then.
    fn play(world: &mut World<Self>, until: Time) {
        world.run_until(until, |world| world.stats.events > Self::EVENTS_MAX);
    }

    /// All is over: count what hosts counted, check histories.
    fn finish(_world: &mut World<Self>) {}
}
