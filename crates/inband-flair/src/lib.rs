//! FLAIR's host side (docs/flair.md): a store of keys on Raft whose leader keeps a switch informed, so
//! that the switch can spread reads over all replicas that hold the last value.
//!
//! Everything here is sans-I/O: (now, event) in, packets and messages out. A [`replica::Replica`] puts
//! the parts together; a [`client::Client`] is the other end.

pub mod client;
pub mod entry;
pub mod groups;
pub mod lflair;
pub mod limits;
pub mod packets;
pub mod peers;
pub mod replica;
pub mod store;
pub mod timing;
