//! A FLAIR switch under test: in this process, or in the kernel by test runs.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_flair::dataplane::rig::{Destination, FlairRig};
use inband_flair::dataplane::wire::parse;
use inband_flair::dataplane::xdp::{forward_of, FlairXdpSpec};
use inband_flair::dataplane::Flair;
use inband_flair::dataplane::{FlairRegisters, FlairSwitch, Verdict, REPLICAS_MAX};
use inband_ground::auth::{Gate, Keys};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::XdpMode;
use inband_ground::System as _;
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

use super::{check_ip, check_sizes, check_turned, refused_for, FRAME_LEN_BYTES, HERE, NODE};
use super::{XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX};

pub use super::flair_sequence::{GEOMETRY, INCARNATION};

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
    if let Some(reason) = refused_for(gate, packet) {
        return Outcome {
            verdict: Verdict::Drop,
            reason,
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
        reason: Flair::reason_name(reason).unwrap(),
        packet,
    }
}

/// Test runs come from this interface.
const IFINDEX: u32 = 1;

/// What the switch under test is.
pub fn spec(keys: Option<Keys>) -> FlairXdpSpec {
    FlairXdpSpec {
        node: NODE,
        geometry: GEOMETRY,
        incarnation: INCARNATION,
        address: HERE,
        interface: String::new(),
        mode: XdpMode::Native,
        replicas: vec![Vec::new(); GEOMETRY.sets],
        keys,
    }
}

/// Where a replica is; every second one behind another interface.
fn destination(set: usize, replica: usize) -> Destination {
    let (set, replica) = (set as u8, replica as u8);
    Destination {
        address: SocketAddrV4::new(Ipv4Addr::new(10, 9, 7, 1 + set * 8 + replica), 7800),
        mac: [2, 0, 0, 1, set, replica],
        ifindex: IFINDEX + u32::from(replica % 2),
    }
}

/// The XDP program, fed by test runs.
pub struct Kernel {
    rig: FlairRig,
}

impl Kernel {
    /// Load it; with keys, packets carry tags.
    pub fn load(keys: Option<Keys>) -> Kernel {
        let rig = FlairRig::load_given(spec(keys)).unwrap_or_else(|e| panic!("{e}"));
        for set in 0..GEOMETRY.sets {
            for replica in 0..REPLICAS_MAX {
                let to = Some(destination(set, replica));
                rig.set_replica(set, replica, to).unwrap();
            }
        }
        Kernel { rig }
    }

    pub fn set_keys(&self, keys: &Keys) {
        self.rig.set_keys(keys).unwrap();
    }

    pub fn registers(&self) -> &FlairRegisters {
        self.rig.registers()
    }

    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.rig.counters().unwrap()
    }

    /// The frame that brings a packet.
    pub fn frame(packet: &[u8], arrival: Arrival) -> Vec<u8> {
        udp_frame(arrival.from, HERE, packet)
    }

    /// Put a frame through the program, which carries `packet` unless it is damaged.
    pub fn handle(&self, frame: &[u8], packet: &[u8], arrival: Arrival) -> Outcome {
        let before = self.counters();
        let (verdict, packet) = self.run(frame, packet, arrival);
        let after = self.counters();
        let mut counted: Vec<_> = after
            .iter()
            .filter(|(name, n)| before.get(*name).copied().unwrap_or(0) + 1 == **n)
            .map(|(name, _)| *name)
            .collect();
        let by_host = counted.iter().position(|n| *n == "flair_client_by_host");
        assert_eq!(
            by_host.is_some(),
            matches!(verdict, Verdict::ToClient(_)),
            "nobody knows the way to the clients of test runs"
        );
        by_host.map(|at| counted.remove(at));
        assert!(counted.len() <= 1, "one reason a packet: {counted:?}");
        Outcome {
            verdict,
            reason: counted.first().copied().unwrap_or(""),
            packet,
        }
    }

    /// Without looking at counters: verdict and packet.
    pub fn run(&self, frame: &[u8], packet: &[u8], arrival: Arrival) -> (Verdict, Vec<u8>) {
        self.rig.set_given(arrival.now_ns, arrival.random).unwrap();
        let run = self.rig.run(frame, 1).unwrap();
        match run.action {
            XDP_DROP => (Verdict::Drop, Vec::new()),
            XDP_PASS if run.frame == frame && forward_of(packet, NODE).is_none() => {
                (Verdict::Pass, packet.to_vec())
            }
            XDP_PASS => {
                check_sizes(&run.frame);
                check_ip(&run.frame);
                assert_eq!(run.frame[..12], frame[..12], "still to this host");
                assert_eq!(run.frame[26..38], frame[26..38], "still to this host");
                let packet = run.frame[FRAME_LEN_BYTES..].to_vec();
                let (header, ..) = parse(&packet).unwrap();
                (Verdict::ToClient(header.client), packet)
            }
            XDP_TX | XDP_REDIRECT => {
                check_sizes(&run.frame);
                check_ip(&run.frame);
                let packet = run.frame[FRAME_LEN_BYTES..].to_vec();
                (sent_to(&run.frame, &packet, frame, run.action), packet)
            }
            other => panic!("unexpected: {other}"),
        }
    }
}

/// Whom a frame that left is addressed to.
fn sent_to(frame: &[u8], packet: &[u8], before: &[u8], action: u32) -> Verdict {
    let (header, ..) = parse(packet).unwrap();
    let (set, replica) = (usize::from(header.set), usize::from(header.replica));
    let to = destination(set, replica);
    if frame[..6] != to.mac {
        assert_eq!(action, XDP_TX);
        check_turned(before, frame);
        return Verdict::Back;
    }
    let address = |at: usize, port_at: usize| {
        let ip: [u8; 4] = frame[at..at + 4].try_into().unwrap();
        SocketAddrV4::new(ip.into(), super::half(frame, port_at))
    };
    assert_eq!((address(26, 34), address(30, 36)), (HERE, to.address));
    let same = to.ifindex == IFINDEX;
    assert_eq!(action, if same { XDP_TX } else { XDP_REDIRECT });
    Verdict::ToReplica { set, replica }
}
