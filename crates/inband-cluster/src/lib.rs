//! Clusters on this machine. A system is a type that implements [`system::System`] (its hosts, when it is ready, its
//! status) and [`command::SystemCommand`] (its options and texts on the command line); the [`supervisor`] runs it, and
//! [`command`] has the commands for its clusters.

// For its `println!` and the like, which tolerate a closed pipe.
#[macro_use]
extern crate inband_host;

pub mod background;
pub mod box_cluster;
pub mod certificates;
pub mod client;
pub mod command;
pub mod console;
pub mod falcon;
pub mod flair;
pub mod host_process;
pub mod keys;
pub mod kv;
pub mod link;
pub mod listeners;
mod loopback_ports;
pub mod memory;
pub mod netpaxos;
pub mod network;
pub mod paxos;
pub mod restart;
pub mod scratch;
pub mod socket;
pub mod supervisor;
pub mod system;
pub mod top;
