//! Paxos with its fast path in the data plane: a replicated log to submit to and deliver from.
//!
//! The roles on the fast path (leader, acceptor, quorum counter) are C code in `dataplane/paxos`, and run in the kernel
//! or in this process ([`dataplane`], [`backend`]). Everything rare is here, sans-I/O: each state machine takes a time
//! and an event, and pushes what it sends to an [`outbox::Outbox`], so the simulator runs the same code.
//!
//! - [`proposer`] opens a session and submits values until each is decided or has failed; [`learner`] delivers
//!   decisions in order; [`recovery`] asks for what is missing; [`trim`] bounds what acceptors must keep.
//! - [`leadership`] elects leaders and runs phase 1. [`quorum`] and [`rounds`] hold the arithmetic of majorities and
//!   rounds.
//! - [`durable`] and [`journal`] put votes on disk before they are sent (`--durability sync`).
//! - [`host`] joins these for one host, [`node`] runs a host on sockets, and [`library`] is the log as the C library
//!   and the store use it. [`config`] is a host's TOML file.
//!
//! docs/protocol.md has the rules that this code must keep, cited here as *protocol.md, N*.

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
