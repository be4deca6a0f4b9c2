//! FLAIR under seeded faults: the real switch role, real replicas and clients, in simulated time.
//!
//! Apart from the world of Paxos because nothing in it is shared but chance and time: other hosts, other
//! packets, and clocks that run at different rates, on which FLAIR's safety rests.

mod faults;
mod history;
mod layout;
pub mod limits;
mod linearizable;
mod links;
mod mutation;
mod rule;
mod run;
mod stats;
mod trace;
mod world;

pub use faults::Fault;
pub use history::{Act, History};
pub use layout::Layout;
pub use links::{Fate, Filter, Host, MessageKind, Passing};
pub use mutation::Mutation;
pub use rule::{Rule, Violation};
pub use run::{run, Options, Report};
pub use stats::Stats;
pub use world::World;
