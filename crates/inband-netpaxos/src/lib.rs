//! NetPaxos: Paxos with switches that decide nothing (docs/netpaxos.md; chapter 4 of the dissertation). A serializer
//! copies requests to minions, each minion numbers the requests that pass it, its storage server votes, and learners
//! count the votes.
//!
//! Submitting to the log of `inband up netpaxos --log-only`, and reading it as a learner has delivered it. Nobody calls
//! for recovery: learners recover an instance that stays undecided.
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use inband_netpaxos::client::Client;
//! use inband_netpaxos::cluster::{Cluster, DATA};
//! use inband_netpaxos::proposer::Outcome;
//! use inband_netpaxos::status::log_at;
//!
//! let cluster = Cluster::load(Path::new(DATA))?;
//! let timeout = Duration::from_secs(5);
//! let mut client = Client::connect(&cluster, timeout)?;
//! for outcome in client.submit_all([&b"hello"[..], b"world"], timeout)? {
//!     match outcome {
//!         Outcome::Delivered(instance) => println!("decided in instance {instance}"),
//!         Outcome::Unknown => println!("it may be in the log, now or later"),
//!     }
//! }
//! let (log, _next) = log_at(&cluster.sockets["learner/1"], 1)?;
//! for (instance, value) in log {
//!     println!("{instance}: {} bytes", value.len());
//! }
//! # anyhow::Ok(())
//! ```

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
