//! TCP connections between hosts, off the packet path: checkpoints and the control plane. Who the peer is
//! ([`tls`], [`certificates`]), how slow it may be ([`paced`]), and messages over it ([`frames`]).

pub mod certificates;
pub mod frames;
pub mod paced;
pub mod tls;
