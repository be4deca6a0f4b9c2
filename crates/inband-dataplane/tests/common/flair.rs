//! A FLAIR switch under test: in this process, or in the kernel by test runs.

use std::net::SocketAddrV4;

use inband_dataplane::auth::Gate;
use inband_dataplane::flair::{FlairGeometry, FlairSwitch, Verdict};
use inband_dataplane::soft::reason_name;
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;

/// Sizes of the switch.
pub const GEOMETRY: FlairGeometry = FlairGeometry {
    sets: 2,
    groups: 64,
};
/// The number it has drawn.
pub const INCARNATION: u64 = 77;

/// What comes with a packet.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub from: SocketAddrV4,
    pub now_ns: u64,
    pub random: u32,
}

/// What became of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The name of the reason; "" if nothing was counted.
    pub reason: &'static str,
    /// The UDP payload that leaves; nothing for a dropped packet.
    pub packet: Vec<u8>,
}

/// Put a packet through the native role, behind a gate as a host has one.
pub fn native(gate: &mut Gate, switch: &FlairSwitch, packet: &[u8], arrival: Arrival) -> Outcome {
    let before = gate.counters();
    if !gate.admits(packet) {
        let mut counted = gate.counters().into_iter();
        let counted = counted.find(|(name, n)| before.get(name).copied().unwrap_or(0) != *n);
        return Outcome {
            verdict: Verdict::Drop,
            reason: counted.expect("a reason").0,
            packet: Vec::new(),
        };
    }
    let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
    buffer[..packet.len()].copy_from_slice(packet);
    let Arrival {
        from,
        now_ns,
        random,
    } = arrival;
    let (verdict, reason, len) =
        switch.handle(&mut buffer, packet.len(), from, now_ns, random.into());
    let mut packet = Vec::new();
    if verdict != Verdict::Drop {
        packet.extend_from_slice(&buffer[..len]);
        gate.sign(&mut packet);
    }
    Outcome {
        verdict,
        reason: reason_name(reason).unwrap(),
        packet,
    }
}
