//! Whether the programs of switches can use the kernel's routing lookup.

use std::fs;

use super::error::{Doing, XdpError};

fn path(interface: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{interface}/forwarding")
}

/// Returns whether the program can look up routes to clients. The kernel answers only on interfaces that forward.
/// Without that, every packet to a client other than the sender of the current packet goes through the host's process.
pub fn may_look_up_clients(interface: &str) -> bool {
    fs::read_to_string(path(interface)).is_ok_and(|text| text.trim() == "1")
}

/// Enables forwarding on the interface, as a switch needs it (`sysctl net.ipv4.conf.INTERFACE.forwarding=1`).
pub fn allow_forwarding(interface: &str) -> Result<(), XdpError> {
    fs::write(path(interface), "1").doing(format!("setting net.ipv4.conf.{interface}.forwarding"))
}
