//! NetPaxos: Paxos with switches that decide nothing (docs/netpaxos.md; chapter 4 of the dissertation). A serializer copies
//! requests to minions, each minion numbers what passes it, its storage server votes, learners count the votes.

// The registers of the native roles.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

inband_ground::bindings!("netpaxos");

pub mod client;
pub mod cluster;
pub mod control;
pub mod faithful;
pub mod learner;
pub mod proposer;
pub mod quorum;
pub mod request;
pub mod role;
pub mod status;
pub mod storage;
pub mod wire;
pub mod xdp;

inband_ground::system!(
    /// It has one log.
    NetPaxos,
    c::ib_netpaxos_keys_check,
    c::ib_netpaxos_reason_name
);

/// Packets of other logs are refused: there is one.
pub const LOGS: usize = c::IB_NETPAXOS_LOGS as usize;
/// Longest value of a request in bytes.
pub const VALUE_LEN_MAX_BYTES: usize = c::IB_NETPAXOS_VALUE_LEN_MAX_BYTES as usize;
