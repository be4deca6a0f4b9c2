//! Proposer, learner, recovery and leader election over the packet roles: submit, deliver, recover.

pub mod backend;
mod by_ticket;
pub mod config;
pub mod dataplane;
pub mod decided_log;
pub mod durable;
pub mod host;
pub mod journal;
pub mod leadership;
pub mod learner;
pub mod library;
pub mod mtu;
pub mod node;
pub mod outbox;
pub mod partition;
pub mod proposer;
pub mod quorum;
pub mod reader;
pub mod recovery;
pub mod rounds;
pub mod saved_position;
pub mod timing;
pub mod trim;

pub use inband_host::{log, session};
