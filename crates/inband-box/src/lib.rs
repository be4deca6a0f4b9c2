//! Consensus in a box: ZAB's broadcast in the data plane (`dataplane/box`), and around it the process that elects leaders,
//! brings logs up to date, and applies what is committed.

// The registers of the native role, and the store's memory.
#![allow(unsafe_code)]
// What says it all by its name has no comment.
#![allow(missing_docs)]
#![warn(clippy::undocumented_unsafe_blocks)]

inband_ground::bindings!("box");

pub mod apply;
pub mod bench;
pub mod command;
pub mod control;
pub mod durable;
mod election;
pub mod gateway;
pub mod journal;
pub mod kernel;
pub mod limits;
pub mod local;
pub mod memcached;
pub mod network;
pub mod node;
pub mod ports;
pub mod process;
pub mod promise;
mod reads;
pub mod registers;
pub mod role;
pub mod sessions;
pub mod snapshot;
pub mod soft;
pub mod store;
pub mod submitter;
mod sync;
pub mod wire;
pub mod xdp;

use std::ops::RangeInclusive;

use inband_ground::c::{ib_arrival, ib_result};

inband_ground::system!(
    /// It has one group.
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
/// Packets of other groups are refused: there is one.
pub const GROUPS: usize = 1;
/// Longest value of a record in bytes.
pub const RECORD_LEN_MAX_BYTES: usize = c::IB_BOX_RECORD_LEN_MAX_BYTES as usize;
/// An epoch is p * this + the node that proposed it.
pub const PROPOSERS: u64 = c::IB_BOX_PROPOSERS as u64;

/// The node that an epoch belongs to; 0: nobody's.
pub fn owner_of(epoch: u64) -> u8 {
    (epoch % PROPOSERS) as u8
}
