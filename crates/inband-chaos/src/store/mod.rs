//! Clients of the key-value store, on whichever log it runs, and their keys.

pub mod client;
pub mod keys;
