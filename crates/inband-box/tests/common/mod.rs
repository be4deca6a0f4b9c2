//! The role under test, in this process and in the kernel.
#![allow(missing_docs)]

use std::net::SocketAddrV4;
use std::ops::Deref;

use inband_box::soft::soft;
use inband_box::xdp::{Program, Spec};
use inband_box::{c, objects, Zab};
use inband_ground::auth::Keys;
use inband_ground::soft::{Arrival, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::multicast::GroupMaps;
use inband_ground::xdp::XdpMode;
use inband_testing::frame::{check_ip, HERE, NODE, XDP_REDIRECT};
use inband_testing::role::UnderTest;

pub const CAPACITY: usize = 8;
/// Another node: packets for all others go to this address.
const OTHER: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 9, 8, 77), 7707);
const LOOPBACK_INTERFACE: u32 = 1;

pub struct Rig {
    program: Program,
    _groups: GroupMaps,
}

impl Deref for Rig {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.program
    }
}

pub fn spec(keys: Option<Keys>) -> Spec {
    Spec {
        node: NODE,
        capacity: CAPACITY,
        address: HERE,
        mode: XdpMode::Native,
        keys,
        clients: None,
    }
}

pub fn rig(keys: Option<Keys>) -> Rig {
    let program = spec(keys).load_object(objects::BOX_GIVEN).unwrap();
    Rig {
        _groups: groups_of(&program),
        program,
    }
}

/// The maps by which a program sends to another node.
pub fn groups_of(program: &Program) -> GroupMaps {
    let copies = program.load_beside("copies", objects::COPIES).unwrap();
    let which = c::IB_BOX_OTHERS_GROUP;
    let groups = [(which, program.loaded(), "ib_others_map")];
    let groups = GroupMaps::new(&copies, &groups).unwrap();
    let nobody = c::ib_member {
        known: 1,
        ifindex: LOOPBACK_INTERFACE,
        to_address: u32::from_ne_bytes(OTHER.ip().octets()),
        from_address: u32::from_ne_bytes(HERE.ip().octets()),
        to_port: OTHER.port().to_be(),
        from_port: HERE.port().to_be(),
        to_mac: [4; 6],
        from_mac: [2; 6],
    };
    let group = c::ib_group {
        count: 1,
        has_local: 0,
        local: nobody,
        member: [nobody; c::IB_XDP_MEMBERS as usize],
    };
    groups
        .set_members(which, &group, &[LOOPBACK_INTERFACE])
        .unwrap();
    groups
}

pub fn role() -> Box<Soft<Zab>> {
    Box::new(soft(NODE, CAPACITY))
}

pub enum Tested {}

impl UnderTest for Tested {
    type System = Zab;
    type Role = Box<Soft<Zab>>;
    type Rig = Rig;
    type Verdict = u32;
    const DROP: u32 = c::IB_DROP;
    const PASS: u32 = c::IB_PASS;
    const BACK: u32 = c::IB_REPLY;

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
        assert_eq!(frame[30..34], OTHER.ip().octets());
        assert_eq!(frame[26..30], HERE.ip().octets());
        check_ip(frame);
        Some(c::IB_BOX_TO_OTHERS)
    }
}
