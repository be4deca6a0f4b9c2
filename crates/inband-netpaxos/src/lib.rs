//! NetPaxos: Paxos with switches that decide nothing (docs/netpaxos.md; chapter 4 of the dissertation). A serializer
//! copies requests to minions, each minion numbers the requests that pass it, its storage server votes, and learners
//! count the votes.

// For the registers of the native roles.
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
    /// There is one log.
    NetPaxos,
    c::ib_netpaxos_keys_check,
    c::ib_netpaxos_reason_name
);

/// Number of logs. Packets of other logs are refused.
pub const LOGS: usize = c::IB_NETPAXOS_LOGS as usize;
/// Maximum length of a request's value in bytes.
pub const VALUE_LEN_MAX_BYTES: usize = c::IB_NETPAXOS_VALUE_LEN_MAX_BYTES as usize;
