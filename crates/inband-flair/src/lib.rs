//! FLAIR's host side (docs/flair.md): a key-value store on Raft. Its leader keeps a switch informed, so that the switch
//! can spread reads over all replicas that hold the latest value.
//!
//! The protocol is sans-I/O: (now, event) in, packets and messages out. [`replica::Replica`] combines the server-side
//! state machines; [`client::Client`] is the client side. The drivers are [`replica_node`], [`switch_node`], and
//! [`gateway`] for Redis clients.

pub mod client;
pub mod client_node;
pub mod clock;
pub mod config;
pub mod dataplane;
pub mod digests;
pub mod entry;
pub mod gateway;
pub mod groups;
pub mod lflair;
pub mod limits;
pub mod packets;
pub mod peer_links;
pub mod peers;
pub mod reads;
pub mod replica;
pub mod replica_node;
pub mod sets;
pub mod store;
pub mod switch_node;
pub mod timing;
