//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `allocations::` selects the tests of `allocations.rs`.

mod allocations;
mod config;
mod journal;
mod node;
mod nonsense;
mod sync;
