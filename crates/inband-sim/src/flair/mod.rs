//! FLAIR under seeded faults: the real switch role, real replicas and clients, in simulated time, with clocks that run
//! at different rates, on which FLAIR's safety rests.

pub mod counts;
mod faults;
mod history;
mod host;
mod invariant;
mod layout;
pub mod limits;
mod mutation;
mod settle;
mod system;
mod trace;
mod world;

pub use faults::Fault;
pub use history::{Act, History};
pub use host::{Host, MessageKind, Packet, Passing};
pub use invariant::Invariant;
pub use layout::Layout;
pub use mutation::Mutation;
pub use system::{Flair, Options};

/// The world of FLAIR.
pub type World = crate::World<Flair>;
/// What a seed came to.
pub type Report = crate::Report<Invariant>;

/// Play the schedule of a seed.
pub fn run(seed: u64, options: &Options) -> Report {
    crate::run::<Flair>(seed, options)
}
