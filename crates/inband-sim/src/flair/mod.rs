//! FLAIR under seeded faults: the real switch role, and real replicas and clients, in simulated time. Clocks run at
//! different rates, because FLAIR's safety depends on their drift.

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

pub type World = crate::World<Flair>;
/// The result of a seed.
pub type Report = crate::Report<Invariant>;

pub fn run(seed: u64, options: &Options) -> Report {
    crate::run::<Flair>(seed, options)
}
