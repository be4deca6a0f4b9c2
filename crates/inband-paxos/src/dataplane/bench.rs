//! The cost of the programs, measured by test runs on this machine: a program is run many times on a frame in memory,
//! without an interface. Ratios to the baselines of the same run are meaningful; absolute figures depend on the machine
//! and its load.

pub mod capacity;

use std::net::SocketAddrV4;
use std::os::fd::AsRawFd;

use inband_ground::bench::{address, driver_of, in_turns, keys, time};
use inband_ground::objects::BARE;
use inband_ground::xdp::programs::{load_object, Loaded};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::XdpError;

use super::objects;
use super::registers::{AcceptorView, LeaderView};
use super::soft::{Geometry, Roles};
use super::wire::{digest, emit, Header, Type};
use super::xdp::rig::Rig;

/// Value lengths measured, in bytes.
const VALUE_LENGTHS: [usize; 3] = [64, 512, 1376];
const EPOCH: u32 = 1;
/// Counters of packets on the normal path.
const ORDINARY: [&str; 5] = [
    "leader_stamped",
    "acceptor_voted",
    "quorum_counted",
    "quorum_reached",
    "quorum_late",
];
const VOTERS: [u8; 3] = [3, 4, 5];
const GEOMETRY: Geometry = Geometry {
    partitions: 1,
    ring_slots: 1024,
};

/// The overhead for a packet that is not Inband's.
#[derive(Debug, Clone, PartialEq)]
pub struct PassthroughCost {
    /// "tcp" or "udp".
    pub packet: &'static str,
    /// With a program that passes everything, in ns per packet.
    pub bare_ns: f64,
    /// With the dispatch program, in ns per packet.
    pub dispatch_ns: f64,
}

/// The cost of a role's packet, dispatch included.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleCost {
    /// "leader", "acceptor" or "quorum" (a third of its packets pass a value to user space).
    pub role: &'static str,
    /// Packets carry tags, which are checked first and recomputed last.
    pub authenticated: bool,
    /// Length of the packets' values in bytes.
    pub value_len_bytes: usize,
    pub ring_slots: usize,
    /// In ns per packet, without the overhead of the test itself.
    pub ns: f64,
    /// The overhead of the test itself, which was subtracted, in ns per packet.
    pub driver_ns: f64,
}

/// Returns the cost of a packet that is not Inband's: the dispatch program compared with one that passes everything.
pub fn passthrough_cost() -> Result<Vec<PassthroughCost>, XdpError> {
    let roles = Roles {
        leader: true,
        acceptor: true,
        quorum: true,
    };
    let rig = Rig::load(2, address(2), roles, GEOMETRY, None)?;
    let bare = load_object("bare", BARE, None, &[], &[])?;
    let udp = udp_frame(
        address(9),
        SocketAddrV4::new(*address(2).ip(), 53),
        &[0; 64],
    );
    let mut tcp = udp.clone();
    tcp[23] = libc::IPPROTO_TCP as u8;
    [("tcp", tcp), ("udp", udp)]
        .into_iter()
        .map(|(packet, frame)| {
            let [bare_ns, dispatch_ns] = in_turns([&mut || time(&bare, &frame), &mut || {
                time(rig.programs.entry(), &frame)
            }])?;
            Ok(PassthroughCost {
                packet,
                bare_ns,
                dispatch_ns,
            })
        })
        .collect()
}

/// Returns the cost of a packet for each role and several value lengths, first without and then with a key.
pub fn role_costs() -> Result<Vec<RoleCost>, XdpError> {
    let mut costs = Vec::new();
    for role in ["leader", "acceptor", "quorum"] {
        for value_len_bytes in VALUE_LENGTHS {
            for authenticated in [false, true] {
                costs.push(role_cost(role, value_len_bytes, authenticated)?);
            }
        }
    }
    Ok(costs)
}

fn role_cost(
    role: &'static str,
    value_len_bytes: usize,
    authenticated: bool,
) -> Result<RoleCost, XdpError> {
    let roles = Roles {
        leader: role == "leader",
        acceptor: role == "acceptor",
        quorum: role == "quorum",
    };
    let keys = authenticated.then(keys).transpose()?;
    let rig = Rig::load_with_keys(2, address(2), roles, GEOMETRY, None, keys.as_ref())?;
    let kind = match role {
        "leader" => Type::Request,
        "acceptor" => Type::Phase2A,
        _ => Type::Phase2B,
    };
    prepare(&rig);
    let value = vec![7u8; value_len_bytes];
    let mut header = Header::new(kind, u16::from(VOTERS[0]), EPOCH);
    (header.round, header.digest) = (1, digest(&value));
    let mut packet = Vec::new();
    emit(&header, &value, &mut packet);
    let frame = udp_frame(address(9), address(2), &packet);
    let per_instance = if roles.quorum { VOTERS.len() } else { 1 };
    let alone = driver(&rig, &frame, per_instance)?;
    let driving = driver(&rig, &frame, per_instance)?;
    let entry = rig.programs.entry().program.as_raw_fd().to_ne_bytes();
    driving.set_bytes("ib_measured_map", 0, &entry)?;
    let mut drive = || {
        if roles.leader {
            prepare(&rig); // an empty window: answering BUSY is not what is measured
        }
        let time = time(&driving, &frame)?;
        rig.decided(|_| ());
        Ok(time)
    };
    let [driver_ns, total_ns] = in_turns([&mut || time(&alone, &frame), &mut drive])?;
    let counters = rig.counters()?;
    if let Some(other) = counters.keys().find(|name| !ORDINARY.contains(name)) {
        return Err(XdpError::Spec(format!(
            "the {role} was measured on packets that took another way: {other}"
        )));
    }
    Ok(RoleCost {
        role,
        authenticated,
        value_len_bytes,
        ring_slots: GEOMETRY.ring_slots,
        ns: total_ns - driver_ns,
        driver_ns,
    })
}

/// Registers with which all packets take the normal path.
fn prepare(rig: &Rig) {
    let epoch = u64::from(EPOCH);
    let leader = LeaderView {
        round: 1,
        next: 1,
        floor: 1,
        epoch,
    };
    rig.registers().leader.restore(0, leader);
    let acceptor = AcceptorView {
        promise: 1,
        floor: 1,
        highest: 0,
        epoch,
        voting: true,
    };
    rig.registers().acceptor.restore(0, acceptor);
    rig.registers().quorum.configure(epoch, &VOTERS);
}

/// Loads bench.bpf.c beside the rig's programs and sets its frame.
fn driver(rig: &Rig, frame: &[u8], per_instance: usize) -> Result<Loaded, XdpError> {
    let driver = rig.load_beside("bench", objects::BENCH)?;
    driver_of(driver, frame, per_instance, VOTERS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the figures and checks only that they are plausible, because machines are noisy.
    #[test]
    fn costs_are_measured() {
        let passthrough = match passthrough_cost() {
            Err(XdpError::Privilege { what }) => {
                return eprintln!("cannot be measured: {what} is not allowed");
            }
            other => other.unwrap(),
        };
        for cost in passthrough {
            eprintln!("{cost:?}");
            assert!(cost.dispatch_ns >= 1.0 && cost.bare_ns >= 1.0);
        }
        for cost in role_costs().unwrap() {
            eprintln!("{cost:?}");
            assert!(cost.ns >= 1.0 && cost.ns < 100_000.0);
        }
    }
}
