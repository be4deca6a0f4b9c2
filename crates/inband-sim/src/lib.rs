//! Deterministic simulator: the real roles and state machines under seeded faults.
//!
//! A seed is a schedule: which hosts there are, what clients do, and what goes wrong when. Two runs of one seed are
//! equal, event for event. Each system has a world in a folder of its own; what they have in common is here.
//! [`falcon_scale`] is for figures of large clusters.

mod campaign;
mod cuts;
mod drifting_clock;
pub mod falcon;
pub mod falcon_scale;
pub mod flair;
mod listed;
mod panics;
pub mod paxos;
mod queue;
mod rng;
mod trace;
mod violation;

pub use campaign::Seeds;
pub use rng::Rng;
