//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `raft::` selects the tests of `raft.rs`.

mod raft;
mod seal;
mod service;
