//! TCP connections between hosts, off the packet path: checkpoints and the control plane. Who the peer is
//! ([`tls`], [`certificates`]), how slow it may be ([`paced`]), how many
//! there may be ([`accept`]), and messages over it ([`frames`]).

pub mod accept;
pub mod certificates;
mod connect;
pub mod frames;
pub mod paced;
pub mod tls;
