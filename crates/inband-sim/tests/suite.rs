//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `asking::` selects the tests of `asking.rs`.

mod asking;
mod command;
mod common;
mod control;
mod epochs;
mod falcon;
mod falcon_scale;
mod falcon_schedules;
mod flair;
mod flair_leases;
mod flair_reads;
mod flair_schedules;
mod liveness;
mod memory;
mod mutations;
mod netpaxos;
mod power;
mod schedules;
mod seeds;
mod slow_hosts;
mod store;
mod zab;
