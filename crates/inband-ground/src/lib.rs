//! What the systems in the data plane share, and no system: the frame of their packets, keys and tags, registers shared
//! with packet programs, loading and attaching XDP programs, sockets. A system implements [`System`] and has its own
//! folder in `dataplane/`, which its build script builds with `inband-ground-build`.
//!
//! # Where to begin
//!
//! - A role that only answers: [`answering!`], [`answering::Role`] and [`answering::Client`]. docs/adding-a-system.md goes
//!   through all of it.
//! - Any other role: [`system!`], [`registers!`] and [`native!`], with [`soft::Soft`] in this process and
//!   [`xdp::alone::Program`] in the kernel.
//! - Packets: [`header!`] makes a header in host order, [`wire::Message`] reads and writes it.
//!
//! # What enters and leaves a host
//!
//! What leaves is signed last, what arrives is checked first. The kernel does so in the XDP program, a process with an
//! [`auth::Gate`]. Without keys the tag is a checksum, against damage only.
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
//! [`registers::Shared`] is memory that packet programs change meanwhile. Every access is one atomic 64-bit word;
//! values of several words are of one moment only under the slot's lock (`dataplane/ground/seqlock.h`).
//!
//! ```
//! use inband_ground::registers::Shared;
//!
//! let words = Shared::<u64>::zeroed(2);
//! words.set(1, 7);
//! assert_eq!([words.get(0), words.get(1)], [0, 7]);
//! ```

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
pub mod raw_link;
pub mod registers;
pub mod socket;
pub mod soft;
mod system;
pub mod wire;
pub mod xdp;

pub use system::{static_name, Counters, System};
