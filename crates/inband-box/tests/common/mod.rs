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
use inband_testing::frame::{HERE, NODE};
use inband_testing::role::{self, group_of_one, is_sent_to_the_one, UnderTest, LOOPBACK_INTERFACE};

pub const CAPACITY: usize = 8;
/// Another node: packets for all others go to this address.
const OTHER: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 9, 8, 77), 7707);

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
    groups
        .set_members(which, &group_of_one(OTHER), &[LOOPBACK_INTERFACE])
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
    const REPLY: u32 = c::IB_REPLY;

    fn handle(
        role: &Self::Role,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (u32, u32, usize) {
        role::handle(role, buffer, len_bytes, arrival)
    }

    fn sent_to(_packet: &[u8], frame: &[u8], action: u32) -> Option<u32> {
        is_sent_to_the_one(OTHER, frame, action).then_some(c::IB_BOX_TO_OTHERS)
    }
}
