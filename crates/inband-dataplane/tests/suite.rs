//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `allocations::` selects the tests of `allocations.rs`.

mod allocations;
mod common;
mod epochs;
mod equal;
mod falcon_equal;
mod falcon_listing;
mod falcon_network;
mod falcon_p4;
mod falcon_policies;
mod falcon_race;
mod falcon_vectors;
mod flair_equal;
mod flair_network;
mod flair_p4;
mod flair_race;
mod flair_vectors;
mod layout;
mod network;
mod p4;
mod race;
mod ring;
mod rooms;
mod rtl;
mod sends;
mod vectors;
