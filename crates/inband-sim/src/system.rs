//! The interface between a system and the simulator.

use std::fmt;

use crate::faults::Strike;
use crate::links::LinkSettings;
use crate::listed::Listed;
use crate::queue::Time;
use crate::trace::{mix, word_of};
use crate::world::World;

/// Simulated time with faults per seed.
const FAULTY_US: u64 = 800_000;

/// A packet, or another kind of message between hosts.
pub trait Packet: Clone {
    /// Returns its type, for faults that affect packets of one type; `None` if it has none.
    fn kind(&self) -> Option<u8>;
    fn len_bytes(&self) -> usize;
    fn flip(&mut self, byte: usize, bit: u8);
    /// Returns a hash of it, for the trace.
    fn hash(&self) -> u64;
    /// Returns a readable description, for the trace.
    fn describe(&self) -> String;
}

/// Offset of the type in the packets of all of Inband's systems.
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
        // A word at a time: hashing bytes took 30 % of a run's time.
        let words = self.chunks_exact(8);
        let rest = words.remainder();
        let hash = words.fold(self.len() as u64, |hash, word| {
            mix(
                hash,
                u64::from_le_bytes(word.try_into().expect("eight bytes")),
            )
        });
        rest.iter()
            .fold(hash, |hash, byte| mix(hash, (*byte).into()))
    }

    fn describe(&self) -> String {
        format!("{} bytes of type {:?}", self.len(), self.kind())
    }
}

/// The stages of a packet's journey, for [`System::on_travel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Travel {
    Sent,
    Lost,
    Arrived,
}

impl Travel {
    /// Returns an arrow for a trace.
    pub fn arrow(self) -> &'static str {
        match self {
            Travel::Sent => "->",
            Travel::Lost => "-x",
            Travel::Arrived => "=>",
        }
    }
}

/// A system that can be simulated: its hosts, clients, faults and invariants. [`World`] and the rest of the crate
/// provide links, time, the trace, the schedule of faults, statistics and campaigns.
pub trait System: Sized + 'static {
    /// The system's name on the command line.
    const NAME: &'static str;
    /// A description for the command line's help.
    const ABOUT: &'static str;
    /// Units of simulated time per microsecond: the unit that the system's hosts use.
    const TICKS_PER_US: u64 = 1000;
    /// The links without faults.
    const LINKS: LinkSettings = LinkSettings::LAN;
    /// Maximum events per run; a run with more is assumed not to end.
    const EVENTS_MAX: u64 = 4_000_000;
    /// Shortest and longest duration of a fault, unless [`System::next_fault`] chooses another.
    const FAULT_LASTS_MS: (u64, u64) = (5, 200);
    /// After a pause a host first handles the packets that arrived, and its timers this much later.
    const TIMERS_AFTER_PAUSE: Time = 1;
    /// The invariant that a panic breaks.
    const NO_PANIC: Self::Invariant;

    type Host: Copy + Ord + fmt::Debug + fmt::Display + 'static;
    /// What hosts send each other.
    type Packet: Packet;
    /// Other events: requests of clients, tasks that end.
    type Event;
    /// The faults to inject. [`crate::listed!`] declares such an enum.
    type Fault: Listed;
    /// What must hold in every schedule. [`crate::listed!`] declares such an enum.
    type Invariant: Listed;
    /// The options of a run, as command-line arguments.
    type Options: clap::Args + Clone + Default + fmt::Debug + Send + Sync;

    /// Builds the world of a seed: layout, hosts, load, rates and [`World::inject_faults`].
    fn begin(seed: u64, options: &Self::Options) -> World<Self>;
    /// Simulated time with faults.
    fn faulty(_options: &Self::Options) -> Time {
        FAULTY_US * Self::TICKS_PER_US
    }
    /// Returns a short description of the cluster.
    fn describe(&self) -> String;

    /// A packet reaches a host that is not paused.
    fn on_packet(world: &mut World<Self>, from: Self::Host, to: Self::Host, packet: Self::Packet);
    /// A host reaches the time set by [`World::sleep`].
    fn on_wake(_world: &mut World<Self>, _host: Self::Host) {}
    /// Handles an event of the system.
    fn on_event(world: &mut World<Self>, event: Self::Event);
    /// Injects a fault, if that is possible now.
    fn strike(world: &mut World<Self>, fault: Self::Fault, lasts: Time) -> Option<Strike<Self>>;
    /// Ends all faults. A system whose hosts go down must also start them.
    fn heal(world: &mut World<Self>) {
        world.end_faults();
    }
    /// Checks that everything finishes. If not, an invariant is broken.
    fn settle(world: &mut World<Self>);

    /// Returns the host of an event of the system: the event waits while that host is paused.
    fn host_of(_event: &Self::Event) -> Option<Self::Host> {
        None
    }

    fn send(world: &mut World<Self>, from: Self::Host, to: Self::Host, packet: Self::Packet) {
        world.put_on_link(from, to, packet);
    }

    /// Notes in the trace that a packet was sent, was lost, or has arrived.
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

    /// Called after every event.
    fn after_event(_world: &mut World<Self>) {}

    /// A host is paused, or its clock jumps.
    fn on_pause(_world: &mut World<Self>, _host: Self::Host) {}

    /// Draws the next fault and its duration.
    fn next_fault(world: &mut World<Self>) -> (Self::Fault, Time) {
        let rng = &mut world.rng.faults;
        let fault = *rng.pick(Self::Fault::LIST).expect("there are some");
        let (shortest, longest) = Self::FAULT_LASTS_MS;
        (
            fault,
            rng.between(shortest, longest) * 1000 * Self::TICKS_PER_US,
        )
    }

    /// Notes in the trace that a fault begins, or that one ends.
    fn on_fault(world: &mut World<Self>, fault: Option<Self::Fault>) {
        match fault.map(Listed::description) {
            Some(name) => {
                let words = [10, word_of(name)];
                world.note(&words, || format!("FAULT {name}"));
            }
            None => world.note(&[11, 0], || "a fault ends".to_owned()),
        }
    }

    /// The next fault is due.
    fn on_fault_due(world: &mut World<Self>) {
        world.next_fault();
        world.plan_fault();
    }

    /// Plays the phase with faults, until then.
    fn play(world: &mut World<Self>, until: Time) {
        world.run_until(until, |world| world.stats.events > Self::EVENTS_MAX);
    }

    /// Called at the end of a run: collects the counters of hosts and checks histories.
    fn finish(_world: &mut World<Self>) {}
}
