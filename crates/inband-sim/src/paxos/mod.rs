//! Paxos under seeded faults: logs, real key-value stores in some seeds (`store`, `stores`, `history`), and members
//! that the real control plane changes (`plane`).
//!
//! A seed is a schedule: a layout, a load, and faults at certain times. Its hosts are [`inband_paxos::host::Host`]s, so
//! packets go through the native build of the very roles that run in the kernel. An omniscient observer checks safety
//! after every event; then faults end and everything must finish.

mod app;
mod attacker;
mod clients;
mod clock;
pub mod counts;
mod epochs;
mod event;
mod fault_kind;
mod faults;
mod forge;
mod history;
mod host_faults;
mod inbound;
mod invariant;
mod layout;
mod ledger;
pub mod limits;
mod liveness;
mod mutation;
mod observer;
mod plane;
mod power;
mod replicas;
mod rounds;
mod sim_acceptor;
mod simhost;
mod store;
mod stores;
mod system;
mod trace;
mod world;

use inband_paxos::dataplane::wire::{self, Header};

pub use app::{App, State};
pub use epochs::Members;
pub use event::Packet;
pub use fault_kind::FaultKind;
pub use invariant::{Broken, Invariant};
pub use layout::Layout;
pub use ledger::{Ends, Ledger};
pub use mutation::Mutation;
pub use observer::Observer;
pub use simhost::SimHost;
pub use system::{Options, Paxos};
pub use trace::{round_name, Happened};

pub type World = crate::World<Paxos>;
/// The result of a seed.
pub type Report = crate::Report<Invariant>;
/// A packet as a test's filter sees it.
pub type Passing<'a> = crate::links::Passing<'a, u8, Packet>;

impl Passing<'_> {
    /// Returns the packet's header.
    ///
    /// # Panics
    /// If the packet has none. The world notices that first.
    pub fn header(&self) -> Header {
        let (header, _) = wire::parse(&self.packet.bytes).expect("it was sent by a host");
        header
    }
}

pub fn run(seed: u64, options: &Options) -> Report {
    crate::run::<Paxos>(seed, options)
}
