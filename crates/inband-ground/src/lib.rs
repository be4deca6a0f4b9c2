//! The parts that all systems in the data plane share: the frame of their packets, keys and tags, registers shared with
//! packet programs, loading and attaching XDP programs, and sockets. A system implements [`System`] and has its own
//! folder in `dataplane/`, which its build script builds with `inband-ground-build`.
//!
//! # Where to begin
//!
//! - A role that only answers requests: [`answering!`], [`answering::Role`] and [`answering::Client`].
//!   docs/adding-a-system.md is a walk-through.
//! - Any other role: [`system!`], [`registers!`] and [`native!`], with [`soft::Soft`] in this process and
//!   [`xdp::alone::Program`] in the kernel.
//! - Packets: [`header!`] defines a header in host order, and [`wire::Message`] reads and writes it.
//!
//! # Authentication
//!
//! Packets are signed as the last step before they leave, and checked as the first when they arrive: in the kernel by
//! the XDP program, in a process by an [`auth::Gate`]. Without keys the tag is a checksum, which detects only
//! accidental damage.
//!
//! ```
//! use inband_ground::auth::{Keys, KeysError, Secret};
//! use inband_ground::wire::{checked, HEADER_LEN_BYTES};
//!
//! # fn main() -> Result<(), KeysError> {
//! // Packets with key 1 or 2 are accepted; 2 signs.
//! let keys = Keys::new(2, &[(1, Secret([7; 16])), (2, Secret([8; 16]))])?;
//! assert_eq!((keys.active(), keys.ids()), (2, vec![1, 2]));
//! let mut packet = [0; HEADER_LEN_BYTES];
//! keys.sign(&mut packet);
//! assert_ne!(packet[HEADER_LEN_BYTES - 8..], [0; 8], "its tag");
//! assert!(checked(&packet).is_err(), "no header is all zeroes");
//! # Ok(())
//! # }
//! ```
//!
//! # Registers
//!
//! [`registers::Shared`] is memory that packet programs modify concurrently. Every access is one atomic 64-bit word;
//! reading several words consistently requires the slot's lock (`dataplane/ground/seqlock.h`).
//!
//! ```
//! use inband_ground::registers::Shared;
//!
//! let words = Shared::<u64>::zeroed(2);
//! words.set(1, 7);
//! assert_eq!([words.get(0), words.get(1)], [0, 7]);
//! ```

/// Bindings for the C headers of `dataplane/ground`.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all
)]
pub mod c {
    include!(concat!(env!("OUT_DIR"), "/ground.rs"));
}

/// The compiled programs of `dataplane/ground`.
pub mod objects {
    include!(concat!(env!("OUT_DIR"), "/ground_objects.rs"));
}

pub mod answering;
pub mod auth;
pub mod bench;
pub mod child;
pub mod inherit;
pub mod raw_link;
pub mod registers;
pub mod socket;
pub mod soft;
mod system;
pub mod wire;
pub mod xdp;

pub use system::{static_name, Counters, System};
