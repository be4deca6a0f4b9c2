//! Falcon's host side (docs/falcon.md): clients that submit tasks to a scheduler in the network, and workers whose
//! executors run them.
//!
//! [`client`], [`executor`], [`results`] and [`registry`] are sans-I/O: events go in with the time, actions come out. They own no
//! socket, thread, clock or random source. [`runner`] does the work.

pub mod blobs;
pub mod client;
pub mod executor;
pub mod limits;
pub mod message;
pub mod registry;
pub mod results;
pub mod runner;
pub mod task;
pub mod timing;
pub mod work;
