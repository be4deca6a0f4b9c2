//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `durability::` selects the tests of `durability.rs`.

mod durability;
mod gateway;
mod large_store;
