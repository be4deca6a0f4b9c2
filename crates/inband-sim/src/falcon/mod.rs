//! Falcon under seeded faults: the real scheduler's role and process, real clients and workers, in simulated time.
//!
//! What drives sockets and threads is played here (`world/`), in the manner of `inband_falcon`'s drivers: which host a
//! packet goes to, what tasks do, where long work and results are fetched.

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

/// The world of Falcon.
pub type World = crate::World<Falcon>;
/// What a seed came to.
pub type Report = crate::Report<Invariant>;

/// Play the schedule of a seed.
pub fn run(seed: u64, options: &Options) -> Report {
    crate::run::<Falcon>(seed, options)
}
