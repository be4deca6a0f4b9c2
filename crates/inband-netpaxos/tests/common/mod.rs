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
use inband_testing::frame::{HERE, NODE};
use inband_testing::role::{self, group_of_one, is_sent_to_the_one, UnderTest, LOOPBACK_INTERFACE};

/// The group's only member.
const MEMBER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 77), 7707);

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
    maps.set_members(
        c::IB_NETPAXOS_GROUP,
        &group_of_one(MEMBER),
        &[LOOPBACK_INTERFACE],
    )
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
    const REPLY: u32 = c::IB_REPLY;
    const GIVEN: bool = false;

    fn handle(
        role: &Self::Role,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (u32, u32, usize) {
        role::handle(role, buffer, len_bytes, arrival)
    }

    fn sent_to(_packet: &[u8], frame: &[u8], action: u32) -> Option<u32> {
        is_sent_to_the_one(MEMBER, frame, action).then_some(c::IB_NETPAXOS_TO_GROUP)
    }
}
