//! Serializer and minion as XDP programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use inband_ground::xdp::alone::{self, HostSpec};
use inband_ground::xdp::attach::open_link;
use inband_ground::xdp::multicast::{
    check_peers, GroupMaps, Multicast, Peer, Unresolved, Uplink, MEMBERS_MAX,
};
use inband_ground::xdp::XdpError;

use crate::role::{Kind, Registers};
use crate::{c, objects, NetPaxos, LOGS};

/// A program, loaded.
pub type Program = alone::Program<NetPaxos, Registers>;

/// Load the program of a role.
pub fn load(host: &HostSpec, kind: Kind) -> Result<Program, XdpError> {
    let (name, object) = match kind {
        Kind::Serializer => ("serializer", objects::SERIALIZER),
        Kind::Minion { .. } => ("minion", objects::MINION),
    };
    let own = c::ib_netpaxos_settings {
        incarnation: kind.incarnation(),
    };
    let settings = host.settings(LOGS, &own)?;
    Program::load(name, object, host, settings, &[], |loaded| {
        loaded.registers("ib_switch_map")
    })
}

/// The maps that say where the copies of a program go.
pub fn group_of(program: &Program) -> Result<GroupMaps, XdpError> {
    let copies = program.load_beside("copies", objects::COPIES)?;
    let group = c::IB_NETPAXOS_GROUP;
    GroupMaps::new(&copies, &[(group, program.loaded(), "ib_devices_map")])
}

/// Load the program of a role, and that which addresses copies, and attach it to the interface that has its address.
/// `group`: a serializer's minions; a minion's storage and learners.
pub fn attach(
    host: &HostSpec,
    kind: Kind,
    interface: &str,
    group: &[Peer],
) -> Result<Attached, XdpError> {
    check_peers("receivers", group, MEMBERS_MAX)?;
    let program = load(host, kind)?;
    let (netlink, link) = open_link(interface, *host.address.ip(), host.mode)?;
    let maps = group_of(&program)?;
    let uplink = Uplink {
        netlink,
        link,
        interface: interface.to_owned(),
        address: host.address,
        mode: host.mode,
    };
    let multicast = Multicast::new(maps, uplink, None, &[(c::IB_NETPAXOS_GROUP, group)])?;
    let (link, ..) = multicast.links().next().expect("the interface");
    let attached = program.attach_to(link, interface)?;
    Ok(Attached {
        attached,
        multicast,
    })
}

/// A program on its interface, and where its copies go.
pub struct Attached {
    // Before what it sends by.
    attached: alone::Attached<NetPaxos, Registers>,
    multicast: Multicast,
}

impl Attached {
    /// Look the receivers' hardware addresses up, and have the kernel resolve or confirm them: until it returns nothing, and
    /// every second or so from then on. Returns those that are not resolved, which get no packets.
    pub fn refresh_neighbours(&mut self) -> Result<Vec<Unresolved>, XdpError> {
        self.multicast.refresh_neighbours()
    }

    /// The registers, shared with the program.
    pub fn registers(&self) -> &Arc<Registers> {
        self.attached.registers()
    }

    /// Counters by name, and what was sent and did not leave; those that are not zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        self.attached.counters()
    }
}
