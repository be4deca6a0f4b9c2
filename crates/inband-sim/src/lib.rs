//! Deterministic simulator: the real roles and state machines under seeded faults.
//!
//! A seed is a schedule: a layout, a load, and what goes wrong when. The hosts in it are
//! [`inband_paxos::host::Host`]s, so the packets go through the native build of the very roles that
//! run in the kernel. An omniscient observer checks safety after every event; then faults end and
//! everything must finish. Two runs of one seed are equal, event for event.
//!
//! In some seeds the replicas are those of the real key-value store (`store`, `stores`, `history`), and
//! members change by the real control plane (`plane`).
//!
//! [`flair`] and [`falcon`] are worlds of their own: FLAIR's switches, replicas and clients; Falcon's
//! schedulers, workers and clients. [`falcon_scale`] is for figures of large clusters.

mod app;
mod attacker;
mod campaign;
mod clients;
mod clock;
mod cuts;
mod drifting_clock;
mod epochs;
pub mod falcon;
pub mod falcon_scale;
mod fault_kind;
mod faults;
pub mod flair;
mod forge;
mod history;
mod host_faults;
mod invariant;
mod layout;
mod ledger;
pub mod limits;
mod listed;
mod liveness;
mod mutation;
mod network;
mod observer;
mod panics;
mod plane;
mod power;
mod queue;
mod replicas;
mod rng;
mod rounds;
mod run;
mod simhost;
mod stats;
mod store;
mod stores;
mod trace;
mod violation;
mod world;

pub use app::{App, State};
pub use campaign::{Campaign, Seeds, Summary};
pub use epochs::Members;
pub use fault_kind::{FaultCounts, FaultKind, FAULT_KINDS};
pub use faults::Unkindness;
pub use invariant::{Broken, Invariant};
pub use layout::Layout;
pub use ledger::{Ends, Ledger};
pub use mutation::Mutation;
pub use network::{DropRule, Fate, Filter, Network, Passing, Rates};
pub use observer::Observer;
pub use rng::Rng;
pub use run::{run, Options, Report};
pub use simhost::SimHost;
pub use stats::Stats;
pub use trace::{round_name, Happened, Trace};
pub use world::{Violation, World};
