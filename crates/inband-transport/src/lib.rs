//! TCP connections between hosts, off the packet path: checkpoints and the control plane. Authentication of peers
//! ([`tls`], [`certificates`]), their minimum rate ([`paced`]), their maximum number ([`accept`]), and messages
//! ([`frames`]).

pub mod accept;
pub mod certificates;
mod connect;
pub mod frames;
pub mod paced;
pub mod tls;
