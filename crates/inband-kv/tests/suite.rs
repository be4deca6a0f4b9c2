//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `checkpoints::` selects the tests of `checkpoints.rs`.

mod background_writes;
mod bits;
mod blocking;
mod checkpoints;
mod chunks;
mod client_access;
mod clock_world;
mod clocks;
mod collection_limits;
mod commands;
mod common;
mod discovery;
mod events;
mod export;
mod full_disk;
mod large;
mod limits;
mod locks;
mod partitions;
mod pubsub;
mod reads;
mod redis_programs;
mod samples;
mod scripted;
mod scripts;
mod several;
mod several_reads;
mod sockets;
mod sorted_sets;
mod starting;
mod state_machine;
mod transactions;
mod types;
mod watches;
mod workers;
