//! The cost of the FLAIR switch: routing a packet, compared with forwarding the same packet without parsing it.

use std::net::SocketAddrV4;
use std::os::fd::AsRawFd;

use super::objects;
use crate::dataplane::registers::{GroupView, SessionView};
use crate::dataplane::rig::{Destination, FlairRig};
use crate::dataplane::wire::{digest, emit, flag, key_hash, Header, Type};
use crate::dataplane::xdp::FlairXdpSpec;
use crate::dataplane::{FlairGeometry, GROUPS_DEFAULT};
use inband_ground::bench::{address, driver_of, forwarding, in_turns, keys, time};
use inband_ground::xdp::programs::Loaded;
use inband_ground::xdp::rig::{run, udp_frame};
use inband_ground::xdp::{XdpError, XdpMode};

/// A key of 24 bytes and a value of 1 KiB, as in the paper.
const KEY: &[u8; 24] = b"a key of two dozen bytes";
const VALUE_LEN_BYTES: usize = 1024;
const SESSION: u64 = 5;
const REPLICAS: usize = 3;
/// The XDP return code for sending a packet back out.
const XDP_TX: u32 = 3;
/// Bitmap of all replicas.
const HELD: u8 = (1 << REPLICAS) - 1;

/// The cost of one kind of packet.
#[derive(Debug, Clone, PartialEq)]
pub struct FlairCost {
    /// "read" (of a stable group, by any replica), "read of an unstable group" or "write".
    pub packet: &'static str,
    /// Whether packets carry tags, so that the switch verifies one and writes one.
    pub authenticated: bool,
    /// Time to route a packet in ns, without the overhead of the test.
    pub ns: f64,
    /// Time to forward the same packet unparsed to one neighbour, in ns, in the same run.
    pub forward_ns: f64,
}

/// A kind of packet, and the counters that it may increment.
struct Case {
    packet: &'static str,
    kind: Type,
    stable: bool,
    ordinary: &'static [&'static str],
}

const CASES: [Case; 3] = [
    Case {
        packet: "read",
        kind: Type::Read,
        stable: true,
        ordinary: &["flair_read_to_follower", "flair_read_to_leader"],
    },
    Case {
        packet: "read of an unstable group",
        kind: Type::Read,
        stable: false,
        ordinary: &["flair_read_unstable"],
    },
    Case {
        packet: "write",
        kind: Type::Write,
        stable: true,
        ordinary: &["flair_write_sequenced"],
    },
];

/// Measures every kind of packet, without and with keys.
pub fn flair_costs() -> Result<Vec<FlairCost>, XdpError> {
    let mut costs = Vec::new();
    for case in &CASES {
        for authenticated in [false, true] {
            costs.push(cost(case, authenticated)?);
        }
    }
    Ok(costs)
}

fn cost(case: &Case, authenticated: bool) -> Result<FlairCost, XdpError> {
    let rig = rig(authenticated)?;
    let frame = frame(case);
    let forward = rig.load_beside("bench_forward", inband_ground::objects::BENCH_FORWARD)?;
    let forward = forwarding(forward)?;
    let forwarded = run(&forward.program, &frame, 1)?;
    if forwarded.action != XDP_TX {
        return Err(XdpError::Spec(
            "the baseline did not forward: rebuild inband".into(),
        ));
    }
    let driving = |measured: Option<&Loaded>| {
        let driver = driver_of(
            rig.load_beside("bench_flair", objects::BENCH_FLAIR)?,
            &frame,
            1,
            3,
        )?;
        if let Some(measured) = measured {
            let program = measured.program.as_raw_fd().to_ne_bytes();
            driver.set_bytes("ib_measured_map", 0, &program)?;
        }
        Ok::<Loaded, XdpError>(driver)
    };
    let alone = driving(None)?;
    let (routed, forwarded) = (driving(Some(rig.loaded()))?, driving(Some(&forward))?);
    let [driver_ns, routed_ns, forwarded_ns] = in_turns([
        &mut || time(&alone, &frame),
        &mut || {
            prepare(&rig, case);
            time(&routed, &frame)
        },
        &mut || time(&forwarded, &frame),
    ])?;
    let counters = rig.counters()?;
    if let Some(other) = counters.keys().find(|name| !case.ordinary.contains(name)) {
        return Err(XdpError::Spec(format!(
            "a {} was measured on packets that took another way: {other}",
            case.packet
        )));
    }
    Ok(FlairCost {
        packet: case.packet,
        authenticated,
        ns: routed_ns - driver_ns,
        forward_ns: forwarded_ns - driver_ns,
    })
}

fn rig(authenticated: bool) -> Result<FlairRig, XdpError> {
    let replica = |n: usize| -> SocketAddrV4 { address(3 + n as u8) };
    let rig = FlairRig::load(FlairXdpSpec {
        node: 2,
        geometry: FlairGeometry {
            sets: 1,
            groups: GROUPS_DEFAULT,
        },
        incarnation: 1,
        address: address(2),
        interface: String::new(),
        mode: XdpMode::Native,
        replicas: vec![(0..REPLICAS).map(replica).collect()],
        keys: authenticated.then(keys).transpose()?,
    })?;
    for n in 0..REPLICAS {
        let to = Destination {
            address: replica(n),
            mac: [2, 0, 0, 0, 0, n as u8],
            ifindex: 1, // the interface of test runs
        };
        rig.set_replica(0, n, Some(to))?;
    }
    Ok(rig)
}

/// Sets the registers so that every packet takes the fast path.
fn prepare(rig: &FlairRig, case: &Case) {
    let session = SessionView {
        session: SESSION,
        leader: 0,
        followers: HELD,
        replicas: HELD,
        weights: [1; 8],
        policy: flag::LEADER_AVOIDANCE as u8,
        deadline_ns: u64::MAX,
        ..SessionView::default()
    };
    rig.registers().sessions.restore(0, session);
    let group = GroupView {
        session: SESSION,
        seq: 7,
        stable: case.stable,
        log_index: 9,
        followers: HELD,
    };
    let geometry = FlairGeometry {
        sets: 1,
        groups: GROUPS_DEFAULT,
    };
    let index = geometry.group_of(key_hash(KEY));
    rig.registers().groups.restore(index, group);
}

fn frame(case: &Case) -> Vec<u8> {
    let value = match case.kind {
        Type::Write => vec![7; VALUE_LEN_BYTES],
        _ => Vec::new(),
    };
    let mut header = Header::new(case.kind, 0, 0);
    (header.key_hash, header.digest) = (key_hash(KEY), digest(&value));
    let mut packet = Vec::new();
    emit(&header, KEY, &value, &mut packet);
    udp_frame(address(9), address(2), &packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the figures. Asserts only that they are plausible, because machines are noisy.
    #[test]
    fn costs_are_measured() {
        let costs = match flair_costs() {
            Err(XdpError::Privilege { what }) => {
                return eprintln!("cannot be measured: {what} is not allowed");
            }
            other => other.unwrap(),
        };
        assert!(!costs.is_empty());
        for cost in costs {
            eprintln!("{cost:?}");
            assert!(cost.ns > cost.forward_ns && cost.ns < 100_000.0);
        }
    }
}
