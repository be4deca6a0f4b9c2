//! The roles of Inband as packet programs: soft switch, XDP loader, registers.
//!
//! Everything unsafe in the project is in this crate: calls into the native build of
//! the roles in `dataplane/`, registers shared with packet programs, BPF system calls.

/// The C headers of `dataplane/`, as bindgen sees them.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all
)]
pub mod c {
    include!(concat!(env!("OUT_DIR"), "/ground.rs"));
    include!(concat!(env!("OUT_DIR"), "/paxos.rs"));
    include!(concat!(env!("OUT_DIR"), "/flair.rs"));
    include!(concat!(env!("OUT_DIR"), "/falcon.rs"));
}

pub mod auth;
pub mod bench;
pub mod child;
pub mod falcon;
pub mod flair;
pub mod inherit;
pub mod registers;
pub mod round;
pub mod socket;
pub mod soft;
pub mod wire;
pub mod xdp;
