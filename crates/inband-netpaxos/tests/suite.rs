//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `learner::` selects the tests of `learner.rs`.

mod common;
mod learner;
mod p4;
mod process;
mod quorum;
mod recovery;
mod storage;
mod vectors;
