//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `held::` selects the tests of `held.rs`.

mod held;
mod memory;
mod transfers;
