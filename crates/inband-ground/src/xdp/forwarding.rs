//! May the programs of switches ask the kernel for the way to somebody?

use std::fs;

use super::error::{Doing, XdpError};

fn path(interface: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{interface}/forwarding")
}

/// May the program look up the way to clients? The kernel answers only on interfaces that forward;
/// without, every packet to somebody who has not just sent one goes through the host's process.
pub fn may_look_up_clients(interface: &str) -> bool {
    fs::read_to_string(path(interface)).is_ok_and(|text| text.trim() == "1")
}

/// Let the interface forward, as a switch does (`sysctl net.ipv4.conf.INTERFACE.forwarding=1`).
pub fn allow_forwarding(interface: &str) -> Result<(), XdpError> {
    fs::write(path(interface), "1").doing(format!("setting net.ipv4.conf.{interface}.forwarding"))
}
