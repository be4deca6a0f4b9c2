//! TCP connections between hosts, off the packet path: checkpoints and the control plane.

pub mod paced;
