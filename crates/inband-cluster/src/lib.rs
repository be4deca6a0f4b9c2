//! Clusters on this machine. A system is a type that implements [`system::System`] (its hosts, when it is ready, its
//! status) and [`command::SystemCommand`] (its options and texts on the command line); the [`supervisor`] runs it, and
//! [`command`] has the commands for its clusters.
//!
//! A cluster has a directory, which is locked by its supervisor and names its system ([`inband_host::system_file`]). The supervisor
//! starts each host as a process ([`host_process`]) in a namespace or on loopback ([`network`]), restarts a process
//! that exits unexpectedly ([`restart`]), and serves `status`, `kill`, `restart`, ... on a control socket ([`socket`]).
//! It refuses to kill a host whose end would lose data, unless forced.
//!
//! The store's clusters ([`paxos`]) have a supervisor of their own: hosts join and leave while it runs, and `down` is a
//! protocol.

// For its `println!` and the like, which tolerate a closed pipe.
#[macro_use]
extern crate inband_host;

pub mod background;
pub mod box_cluster;
pub mod certificates;
pub mod client;
pub mod command;
pub mod console;
mod disk;
pub mod falcon;
pub mod flair;
pub mod host_process;
pub mod keys;
pub mod kv;
pub mod link;
pub mod listeners;
mod loopback_ports;
mod meant;
pub mod memory;
pub mod netpaxos;
pub mod network;
pub mod paxos;
pub mod process;
pub mod remains;
pub mod restart;
pub mod scratch;
pub mod socket;
pub mod supervisor;
pub mod system;
pub mod top;
mod wait_notice;
