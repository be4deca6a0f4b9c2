//! Chooses the backend of a host, for both `inband run` and `inband doctor`, so that they cannot differ.

use std::net::Ipv4Addr;

use crate::dataplane::xdp::XdpHost;
use inband_ground::xdp::XdpError;
use inband_host::backend::resolve;
pub use inband_host::backend::{Choice, Place, KERNEL_MIN_NATIVE};

use crate::config::{Config, Dataplane};
use crate::node::{kernel_roles, xdp_spec, NodeError};

/// Returns the backend for a host that is about to start. An error means that the requested backend does not work.
pub fn of_host(config: &Config) -> Result<Choice, NodeError> {
    // An explicitly configured backend is loaded by the node shortly afterwards.
    let load_first = config.host.dataplane == Dataplane::Auto;
    try_out(config, load_first)
}

/// Returns the same without starting the host: tries everything that its start would try.
pub fn try_host(config: &Config) -> Result<Choice, NodeError> {
    try_out(config, true)
}

fn try_out(config: &Config, load_first: bool) -> Result<Choice, NodeError> {
    let asked = config.host.dataplane;
    let roles = kernel_roles(config);
    let some = roles.leader || roles.acceptor || roles.quorum;
    if asked == Dataplane::Auto && !some {
        let why = "no role of this host can run in the kernel: durability is \"sync\"";
        return Ok(Choice::udp(why));
    }
    let this = config.this();
    let others = config.acceptors().chain(config.replicas());
    let others = others.filter(|node| node.id != this.id);
    let mut peers: Vec<Ipv4Addr> = others.map(|node| *node.address.ip()).collect();
    peers.sort();
    peers.dedup();
    let place = config.host.interface.as_deref().map(|interface| Place {
        interface,
        address: this.address,
        peers,
    });
    let keys = crate::node::packet_keys(config)?;
    resolve(asked, place.as_ref(), |mode, _| {
        if !load_first {
            return Ok(());
        }
        // Its registers are in epoch 0, which no packet carries, so it ignores all packets.
        let spec = xdp_spec(config, mode, keys).map_err(|e| XdpError::Spec(e.to_string()))?;
        XdpHost::load(spec).map(drop)
    })
    .map_err(NodeError::Xdp)
}
