//! Falcon under seeded faults: the real scheduler's role and process, real clients and workers, in simulated
//! time.
//!
//! A world of its own, as FLAIR's is: other hosts, other packets. What drives sockets and threads is played here
//! (`world/`), in the manner of `inband_falcon`'s drivers: which host a packet goes to, what tasks do, where
//! long work and results are fetched.

mod faults;
mod layout;
mod ledger;
pub mod limits;
mod links;
mod rule;
mod run;
mod shadow;
mod stats;
mod trace;
mod work;
mod world;

pub use faults::Fault;
pub use layout::Layout;
pub use links::{Fate, Filter, Host, Passing};
pub use rule::{Rule, Violation};
pub use run::{run, Options, Report};
pub use shadow::Shadow;
pub use stats::Stats;
pub use work::{Ends, Plan};
pub use world::World;
