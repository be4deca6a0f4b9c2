//! Deterministic simulator: the real roles and state machines under seeded faults.
//!
//! A seed is a schedule: which hosts there are, what clients do, and what goes wrong when. Two runs of one seed are
//! equal, event for event. A world is [`World<S>`] with a [`System`]: links, faults, trace, statistics and campaigns are
//! common; hosts, clients, faults of its own and invariants are in the system's folder.
//!
//! ```
//! use inband_sim::run;
//! use inband_sim::sequencer::{Options, Sequencer};
//!
//! // A world of a sound system breaks no invariant.
//! let sound = Options::default();
//! assert!((1..=20).all(|seed| run::<Sequencer>(seed, &sound).violation.is_none()));
//! // With a deliberate fault some seed does. The same seed does so again.
//! let faulty = Options { same_incarnation: true };
//! let found = (1..=20).find(|seed| run::<Sequencer>(*seed, &faulty).violation.is_some());
//! let seed = found.expect("a seed that gives a number twice");
//! assert_eq!(run::<Sequencer>(seed, &faulty), run::<Sequencer>(seed, &faulty));
//! ```
//!
//! To add a world, implement [`System`], or [`asking::Asking`] for a role that only answers, and register it in
//! [`SYSTEMS`]. Nothing in a world may depend on anything but its seed: time is [`World`]'s, and random numbers come from
//! its streams.
//!
//! [`falcon_scale`] is for figures of large clusters.

pub mod asking;
mod campaign;
pub mod command;
mod cuts;
mod drifting_clock;
pub mod falcon;
pub mod falcon_scale;
pub mod faults;
pub mod flair;
mod linearizable;
pub mod links;
mod listed;
pub mod memory;
pub mod netpaxos;
mod panics;
pub mod paxos;
mod queue;
mod rng;
mod run;
pub mod sequencer;
pub mod stats;
pub mod system;
pub mod trace;
mod violation;
mod world;
pub mod zab;

pub use campaign::{Seeds, Summary};
pub use faults::Strike;
pub use links::{Fate, LinkSettings, Rates};
pub use listed::Listed;
pub use queue::Time;
pub use rng::Rng;
pub use run::{run, run_with_trace, Report};
pub use stats::Stats;
pub use system::{Packet, System};
pub use violation::{Broken, Violation};
pub use world::{Streams, World};

/// The systems that `inband-sim` plays. The first is the default.
pub static SYSTEMS: &[command::Entry] = &[
    command::Entry::of::<paxos::Paxos>(),
    command::Entry::of::<flair::Flair>(),
    command::Entry::of::<falcon::Falcon>(),
    command::Entry::of::<sequencer::Sequencer>(),
    command::Entry::of::<memory::Memory>(),
    command::Entry::of::<zab::Zab>(),
    command::Entry::of::<netpaxos::NetPaxos>(),
];
