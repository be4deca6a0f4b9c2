//! Paxos under seeded faults: logs, real key-value stores in some seeds (`store`, `stores`, `history`), and members
//! that the real control plane changes (`plane`).
//!
//! A seed is a schedule: a layout, a load, and what goes wrong when. The hosts in it are
//! [`inband_paxos::host::Host`]s, so the packets go through the native build of the very roles that
//! run in the kernel. An omniscient observer checks safety after every event; then faults end and
//! everything must finish.

mod app;
mod attacker;
mod campaign;
mod clients;
mod clock;
mod epochs;
mod event;
mod fault_kind;
mod faults;
mod forge;
mod history;
mod host_faults;
mod invariant;
mod layout;
mod ledger;
pub mod limits;
mod liveness;
mod mutation;
mod network;
mod observer;
mod plane;
mod power;
mod replicas;
mod rounds;
mod run;
mod simhost;
mod stats;
mod store;
mod stores;
mod trace;
mod world;

pub use app::{App, State};
pub use campaign::{Campaign, Summary};
pub use epochs::Members;
pub use fault_kind::{FaultCounts, FaultKind, FAULT_KINDS};
pub use faults::Unkindness;
pub use invariant::{Broken, Invariant};
pub use layout::Layout;
pub use ledger::{Ends, Ledger};
pub use mutation::Mutation;
pub use network::{DropRule, Fate, Filter, Network, Passing, Rates};
pub use observer::Observer;
pub use run::{run, Options, Report};
pub use simhost::SimHost;
pub use stats::Stats;
pub use trace::{round_name, Happened, Trace};
pub use world::{Violation, World};
