//! Falcon under seeded faults: the real scheduler role and process, and real clients and workers, in simulated time.
//!
//! The drivers of `inband_falcon`, which run sockets and threads, are simulated in `world/`: which host a packet goes
//! to, what tasks do, and where long work and results are fetched.

mod faults;
mod host;
mod invariant;
mod layout;
mod ledger;
pub mod limits;
mod settle;
mod shadow;
mod system;
mod trace;
mod work;
mod world;

pub use faults::Fault;
pub use host::{Host, Passing};
pub use invariant::Invariant;
pub use layout::Layout;
pub use shadow::Shadow;
pub use system::{Falcon, Options};
pub use work::{Ends, Plan};

pub type World = crate::World<Falcon>;
/// The result of a seed.
pub type Report = crate::Report<Invariant>;

pub fn run(seed: u64, options: &Options) -> Report {
    crate::run::<Falcon>(seed, options)
}
