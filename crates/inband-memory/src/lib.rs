//! Replicated memory: lines of 64 bytes, each a linearizable register that outlives a minority of its servers
//! (`dataplane/memory/wire.h`; section 2.3 and chapter 7 of the dissertation).
//!
//! A client sends a READ or WRITE of a line to the active switch, which runs ABD with the servers: it reads from a
//! majority and writes to a majority. Only one switch is active, in an [`epoch`] that servers enforce.
//!
//! - [`client`], [`line_client`]: reads and writes lines and retransmits, with [`congestion`] control. [`memory`] is
//!   the interface for programs; [`heap`] puts a program's pages into lines (`inband memory run`).
//! - [`soft_switch`], [`soft_server`]: the roles in this process; [`xdp`]: in the kernel. [`switch_host`],
//!   [`server_host`]: what accompanies a role: activation, recovery of an empty server, status.
//! - [`cluster`]: the file that clients read; [`plan`]: what a cluster needs in memory.
//!
//! docs/memory.md says what is guaranteed, and what a user must provide.

// For calls into the native roles.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

inband_ground::bindings!("memory");

pub mod bench;
pub mod client;
pub mod cluster;
pub mod congestion;
pub mod epoch;
pub mod heap;
pub mod line_client;
pub mod lines;
pub mod memory;
pub mod plan;
pub mod registers;
pub mod round_trip;
pub mod server_host;
pub mod soft_server;
pub mod soft_switch;
pub mod status;
pub mod switch_host;
pub mod wire;
pub mod xdp;

use std::ops::RangeInclusive;

inband_ground::system!(
    /// There is one space.
    Memory,
    c::ib_memory_keys_check,
    c::ib_memory_reason_name
);

/// How many servers a cluster may have; their node ids start at 1.
pub const SERVERS: RangeInclusive<usize> = 1..=c::IB_MEMORY_SERVERS_MAX as usize;
/// Node ids of switches.
pub const SWITCH_NODES: RangeInclusive<u8> =
    c::IB_MEMORY_SWITCH_FIRST as u8..=c::IB_MEMORY_SWITCH_LAST as u8;
/// Number of spaces. Packets of other spaces are refused.
pub const SPACES: usize = 1;
