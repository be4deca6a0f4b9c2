//! Serializer and minion as XDP programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use inband_ground::auth::Keys;
use inband_ground::xdp::alone::{self, HostSpec};
use inband_ground::xdp::multicast::{
    check_peers, GroupMaps, Multicast, Peer, Unresolved, Uplink, MEMBERS_MAX,
};
use inband_ground::xdp::XdpError;

use crate::role::{Kind, Registers};
use crate::{c, objects, NetPaxos, LOGS};

pub type Program = alone::Program<NetPaxos, Registers>;

/// Loads the program of a role.
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

/// Returns the maps that hold the destinations of a program's copies.
pub fn group_of(program: &Program) -> Result<GroupMaps, XdpError> {
    let copies = program.load_beside("copies", objects::COPIES)?;
    let group = c::IB_NETPAXOS_GROUP;
    GroupMaps::new(&copies, &[(group, program.loaded(), "ib_devices_map")])
}

/// Loads the program of a role and the one that addresses its copies, and attaches it to the interface that has its
/// address. `group`: a serializer's minions, or a minion's storage and learners.
pub fn attach(
    host: &HostSpec,
    kind: Kind,
    interface: &str,
    group: &[Peer],
) -> Result<Attached, XdpError> {
    check_peers("receivers", group, MEMBERS_MAX)?;
    let program = load(host, kind)?;
    let uplink = Uplink::open(interface, host.address, host.mode)?;
    let maps = group_of(&program)?;
    let multicast = Multicast::new(maps, uplink, None, &[(c::IB_NETPAXOS_GROUP, group)])?;
    let (link, ..) = multicast.links().next().expect("the interface");
    let attached = program.attach_to(link, interface)?;
    Ok(Attached {
        attached,
        multicast,
    })
}

/// An attached program, and the destinations of its copies.
pub struct Attached {
    // Dropped before the maps that it sends by.
    attached: alone::Attached<NetPaxos, Registers>,
    multicast: Multicast,
}

impl Attached {
    /// Looks up the receivers' hardware addresses, and has the kernel resolve or confirm them. Call it until it returns
    /// an empty list, and about every second from then on. Returns the receivers that are not resolved, which get no
    /// packets.
    pub fn refresh_neighbours(&mut self) -> Result<Vec<Unresolved>, XdpError> {
        self.multicast.refresh_neighbours()
    }

    /// As [`alone::Attached::set_keys`].
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.attached.set_keys(keys)
    }

    /// Returns the registers, which are shared with the program.
    pub fn registers(&self) -> &Arc<Registers> {
        self.attached.registers()
    }

    /// Returns the counters that are not zero, by name, including packets that were sent but did not leave.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        self.attached.counters()
    }
}
