//! TCP connections between hosts, off the packet path: checkpoints and the control plane. Who the peer is
//! ([`tls`], [`certificates`]), and how slow it may be ([`paced`]).

pub mod certificates;
pub mod paced;
pub mod tls;
