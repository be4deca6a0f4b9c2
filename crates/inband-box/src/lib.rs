//! Consensus in a box: ZAB's broadcast in the data plane (`dataplane/box`), and the process around it, which elects
//! leaders, brings logs up to date, and applies what is committed.
//!
//! - [`role`] is the broadcast phase and the operations on it that a process may use; [`soft`] and [`xdp`] are its two
//!   data planes. Records are numbered by epoch and position, and committed once a majority has stored them.
//! - [`node`] is the process's part, sans-I/O: elections, synchronization, reads, changes of the [`membership`].
//! - [`apply`] executes the log on the table ([`store`]), which the kernel's program may read; [`sessions`] makes
//!   retries take effect once.
//! - [`journal`] and [`durable`] keep log and table on disk; [`stored`] what a node keeps there in any case.
//! - [`memcached`] and [`gateway`] serve clients over TCP and UDP. [`process`] is all of it as the program
//!   `inband-box`.
//!
//! docs/box.md says what is guaranteed. `inband-sim box` checks it under faults.

// For the registers of the native role, and the store's memory.
#![allow(unsafe_code)]
// Items whose names say everything have no comment.
#![allow(missing_docs)]
#![warn(clippy::undocumented_unsafe_blocks)]

inband_ground::bindings!("box");

pub mod announce;
pub mod apply;
pub mod bench;
pub mod changes;
pub mod command;
pub mod control;
mod disk_times;
pub mod durable;
mod durable_acks;
mod election;
pub mod gateway;
mod handover;
pub mod journal;
pub mod kernel;
pub mod limits;
pub mod local;
pub mod membership;
pub mod memcached;
pub mod metrics;
pub mod network;
pub mod node;
mod node_config;
mod node_status;
mod output;
pub mod ports;
pub mod process;
pub mod promise;
mod reads;
pub mod registers;
pub mod role;
pub mod sessions;
pub mod snapshot;
pub mod soft;
pub mod status;
pub mod store;
pub mod stored;
pub mod submitter;
mod sync;
mod to_node;
pub mod wire;
pub mod xdp;

use std::ops::RangeInclusive;

use inband_ground::c::{ib_arrival, ib_result};

inband_ground::system!(
    /// There is one group.
    Zab,
    c::ib_box_keys_check,
    c::ib_box_reason_name
);

inband_ground::native!(
    Zab,
    c::ib_box_soft,
    registers::Registers,
    ib_arrival,
    ib_result,
    c::ib_box_handle
);

/// Node ids.
pub const NODES: RangeInclusive<u8> = 1..=c::IB_BOX_NODES_MAX as u8;
/// Number of groups. Packets of other groups are refused.
pub const GROUPS: usize = 1;
/// Maximum length of a record's value in bytes.
pub const RECORD_LEN_MAX_BYTES: usize = c::IB_BOX_RECORD_LEN_MAX_BYTES as usize;
/// An epoch is p * this + the node that proposed it.
pub const PROPOSERS: u64 = c::IB_BOX_PROPOSERS as u64;

/// Returns the node that owns an epoch; 0: none.
pub fn owner_of(epoch: u64) -> u8 {
    (epoch % PROPOSERS) as u8
}
