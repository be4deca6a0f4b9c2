//! What the systems in the data plane share, and no system: the frame of their packets, keys and tags, registers shared
//! with packet programs, loading and attaching XDP programs, sockets. A system implements [`System`] and has its own
//! folder in `dataplane/`, which its build script builds with `inband-ground-build`.

/// The C headers of `dataplane/ground`, as bindgen sees them.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all
)]
pub mod c {
    include!(concat!(env!("OUT_DIR"), "/ground.rs"));
}

/// The programs of `dataplane/ground`, compiled.
pub mod objects {
    include!(concat!(env!("OUT_DIR"), "/ground_objects.rs"));
}

pub mod answering;
pub mod auth;
pub mod bench;
pub mod child;
pub mod inherit;
pub mod registers;
pub mod socket;
pub mod soft;
mod system;
pub mod wire;
pub mod xdp;

pub use system::{static_name, Counters, System};
