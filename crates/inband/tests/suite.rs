//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `cli::` selects the tests of `cli.rs`.

mod cli;
mod common;
mod control_plane;
mod deploy;
mod exit_status;
mod export;
mod falcon;
mod faults;
mod flair;
mod flair_sets;
mod grammar;
mod health;
mod hosts;
mod keys;
mod layouts;
mod listeners;
mod logs;
mod member;
mod memory;
mod metrics;
mod notify;
mod power;
mod published;
mod reload;
mod restarts;
mod rotation;
mod rtl;
mod run;
mod starting;
mod stopping;
mod watches;
