//! The roles under test, in this process and in the kernel.
#![allow(missing_docs)]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Deref;

use inband_ground::auth::Keys;
use inband_ground::soft::{Arrival, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::alone::HostSpec;
use inband_ground::xdp::multicast::GroupMaps;
use inband_ground::xdp::XdpMode;
use inband_netpaxos::role::Kind;
use inband_netpaxos::xdp::{group_of, load, Program};
use inband_netpaxos::{c, NetPaxos};
use inband_testing::frame::{check_ip, HERE, NODE, XDP_REDIRECT};
use inband_testing::role::UnderTest;

/// The group's only member.
const MEMBER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 77), 7707);
const LOOPBACK_INTERFACE: u32 = 1;

pub struct Rig {
    program: Program,
    _group: GroupMaps,
}

impl Deref for Rig {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.program
    }
}

pub fn rig(kind: Kind, keys: Option<Keys>) -> Rig {
    let host = HostSpec {
        node: NODE,
        address: HERE,
        mode: XdpMode::Native,
        keys,
    };
    let program = load(&host, kind).unwrap();
    let maps = group_of(&program).unwrap();
    let member = c::ib_member {
        known: 1,
        ifindex: LOOPBACK_INTERFACE,
        to_address: u32::from_ne_bytes(MEMBER.ip().octets()),
        from_address: u32::from_ne_bytes(HERE.ip().octets()),
        to_port: MEMBER.port().to_be(),
        from_port: HERE.port().to_be(),
        to_mac: [4; 6],
        from_mac: [2; 6],
    };
    let group = c::ib_group {
        count: 1,
        has_local: 0,
        local: member,
        member: [member; c::IB_XDP_MEMBERS as usize],
    };
    maps.set_members(c::IB_NETPAXOS_GROUP, &group, &[LOOPBACK_INTERFACE])
        .unwrap();
    Rig {
        program,
        _group: maps,
    }
}

pub enum Tested {}

impl UnderTest for Tested {
    type System = NetPaxos;
    type Role = Box<Soft<NetPaxos>>;
    type Rig = Rig;
    type Verdict = u32;
    const DROP: u32 = c::IB_DROP;
    const PASS: u32 = c::IB_PASS;
    const BACK: u32 = c::IB_REPLY;
    const GIVEN: bool = false;

    fn handle(
        role: &Self::Role,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (u32, u32, usize) {
        let (result, len_bytes) = role.handle(buffer, len_bytes, arrival);
        (result.verdict, result.reason, len_bytes)
    }

    fn sent_to(_packet: &[u8], frame: &[u8], action: u32) -> Option<u32> {
        if action != XDP_REDIRECT {
            return None;
        }
        assert_eq!(frame[30..34], MEMBER.ip().octets());
        assert_eq!(frame[26..30], HERE.ip().octets());
        check_ip(frame);
        Some(c::IB_NETPAXOS_TO_GROUP)
    }
}
