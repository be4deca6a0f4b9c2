//! Which backend a host uses: what was asked for, or the best that works.

use inband_dataplane::xdp;

use crate::config::Dataplane;

/// Resolve `auto`; the second part says why, in one line.
pub fn resolve(asked: Dataplane, interface: Option<&str>) -> (Dataplane, String) {
    if asked != Dataplane::Auto {
        return (asked, "as configured".into());
    }
    let Some(interface) = interface else {
        return (Dataplane::Udp, "no host.interface is configured".into());
    };
    match xdp::probe(interface) {
        Ok(probe) if probe.native.works() => {
            (Dataplane::Xdp, format!("native XDP works on {interface}"))
        }
        Ok(probe) if probe.generic.works() => (
            Dataplane::XdpGeneric,
            format!("native XDP on {interface}: {}", probe.native),
        ),
        Ok(probe) => (
            Dataplane::Udp,
            format!("XDP on {interface}: {}", probe.generic),
        ),
        Err(error) => (Dataplane::Udp, error.to_string()),
    }
}
