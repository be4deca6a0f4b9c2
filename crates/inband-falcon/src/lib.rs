//! Falcon's host side (docs/falcon.md): clients that submit tasks to a scheduler in the network, and workers whose
//! executors run them.
//!
//! [`client`], [`worker`] (with its [`executor`]s and [`results`]) and [`scheduler`] (with its [`registry`]) are
//! sans-I/O: events go in with the time, actions come out. They own no socket, thread, clock or random source.
//! [`runner`] runs the tasks; [`client_node`], [`worker_node`] and [`scheduler_node`] are the drivers.

pub mod blobs;
pub mod client;
pub mod client_node;
pub mod clock;
pub mod coalescer;
pub mod dataplane;
pub mod executor;
pub mod limits;
pub mod local;
pub mod message;
pub mod observer;
mod outbox;
pub mod packets;
pub mod registry;
pub mod resources;
pub mod results;
pub mod runner;
pub mod scheduler;
pub mod scheduler_node;
pub mod task;
pub mod timing;
pub mod work;
pub mod worker;
pub mod worker_node;
