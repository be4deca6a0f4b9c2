//! A FLAIR switch under test.

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_flair::dataplane::rig::{Destination, FlairRig};
use inband_flair::dataplane::wire::parse;
use inband_flair::dataplane::xdp::{forward_of, FlairXdpSpec};
use inband_flair::dataplane::{Flair, FlairRegisters, FlairSwitch, Verdict, REPLICAS_MAX};
use inband_ground::auth::Keys;
use inband_ground::soft::Arrival;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::XdpMode;
use inband_testing::frame::{half, HERE, NODE, XDP_REDIRECT, XDP_TX};
use inband_testing::role::UnderTest;

pub use super::flair_sequence::{GEOMETRY, INCARNATION};

/// The ingress interface of test runs.
const IFINDEX: u32 = 1;

pub struct FlairUnderTest;

impl UnderTest for FlairUnderTest {
    type System = Flair;
    type Role = FlairSwitch;
    type Rig = FlairRig;
    type Verdict = Verdict;
    const DROP: Verdict = Verdict::Drop;
    const PASS: Verdict = Verdict::Pass;
    const REPLY: Verdict = Verdict::Reply;
    const BY_HOST: Option<&'static str> = Some("flair_client_by_host");

    fn handle(
        switch: &FlairSwitch,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (Verdict, u32, usize) {
        let Arrival {
            from,
            now_ns,
            random,
        } = arrival;
        switch.handle(buffer, len_bytes, from, now_ns, random.into())
    }

    fn by_host(packet: &[u8], _registers: &FlairRegisters) -> Option<Verdict> {
        forward_of(packet, NODE).map(Verdict::ToClient)
    }

    fn sent_to(packet: &[u8], frame: &[u8], action: u32) -> Option<Verdict> {
        let (header, ..) = parse(packet).unwrap();
        let (set, replica) = (usize::from(header.set), usize::from(header.replica));
        let to = destination(set, replica);
        if frame[..6] != to.mac {
            return None;
        }
        let address = |at: usize, port_at: usize| {
            let ip: [u8; 4] = frame[at..at + 4].try_into().unwrap();
            SocketAddrV4::new(ip.into(), half(frame, port_at))
        };
        assert_eq!((address(26, 34), address(30, 36)), (HERE, to.address));
        let same = to.ifindex == IFINDEX;
        assert_eq!(action, if same { XDP_TX } else { XDP_REDIRECT });
        Some(Verdict::ToReplica { set, replica })
    }
}

/// The configuration of the switch under test.
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

/// Its program, with the addresses of all replicas. With keys, packets carry tags.
pub fn rig(keys: Option<Keys>) -> FlairRig {
    let rig = FlairRig::load_given(spec(keys)).unwrap_or_else(|e| panic!("{e}"));
    for set in 0..GEOMETRY.sets {
        for replica in 0..REPLICAS_MAX {
            let to = Some(destination(set, replica));
            rig.set_replica(set, replica, to).unwrap();
        }
    }
    rig
}

/// A replica's destination; every second one is behind another interface.
fn destination(set: usize, replica: usize) -> Destination {
    let (set, replica) = (set as u8, replica as u8);
    Destination {
        address: SocketAddrV4::new(Ipv4Addr::new(10, 9, 7, 1 + set * 8 + replica), 7800),
        mac: [2, 0, 0, 1, set, replica],
        ifindex: IFINDEX + u32::from(replica % 2),
    }
}
