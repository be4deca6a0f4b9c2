//! The switch as an XDP program.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::Arc;

use inband_ground::auth::Keys;
use inband_ground::xdp::alone::{self, HostSpec};
use inband_ground::xdp::multicast::{check_peers, GroupMaps, Multicast, Peer, Unresolved, Uplink};
use inband_ground::xdp::{XdpError, XdpMode};

use crate::registers::SwitchRegisters;
use crate::soft_switch::SwitchSpec;
use crate::{c, objects, Memory, SERVERS, SPACES, SWITCH_NODES};

/// The loaded program. It is not active until its registers have an epoch.
pub type Program = alone::Program<Memory, SwitchRegisters>;

/// Configuration of the program.
#[derive(Debug, Clone)]
pub struct Spec {
    pub switch: SwitchSpec,
    /// This host's address as clients and servers know it.
    pub address: SocketAddrV4,
    /// Native or generic.
    pub mode: XdpMode,
    /// With keys, packets without a valid tag are dropped, and outgoing packets are tagged.
    pub keys: Option<Keys>,
}

impl Spec {
    fn check(&self) -> Result<(), XdpError> {
        let SwitchSpec {
            node,
            servers,
            sessions,
            slots,
            ..
        } = self.switch;
        if !SWITCH_NODES.contains(&node) || !SERVERS.contains(&servers) {
            return Err(XdpError::Spec(format!(
                "switch {node} of {servers} servers: switches are nodes {SWITCH_NODES:?}, and there are {SERVERS:?} servers"
            )));
        }
        super::check_count("blocks", self.switch.sizes().blocks())?;
        super::check_count("sessions", sessions)?;
        super::check_count("slots", slots)
    }

    pub fn load(&self) -> Result<Program, XdpError> {
        self.load_object(objects::SWITCH)
    }

    /// Loads another build of the program, for tests.
    pub fn load_object(&self, object: &[u8]) -> Result<Program, XdpError> {
        self.check()?;
        let switch = &self.switch;
        let host = HostSpec {
            node: switch.node,
            address: self.address,
            mode: self.mode,
            keys: self.keys,
        };
        let own = c::ib_memory_settings {
            chunks: switch.chunks,
            servers: switch.servers as u32,
            block_shift: switch.sizes().block_shift(),
        };
        let settings = host.settings(SPACES, &own)?;
        let sizes = [
            ("ib_blocks_map", switch.sizes().blocks()),
            ("ib_sessions_map", switch.sessions),
            ("ib_slots_map", switch.slots),
        ];
        Program::load("switch", object, &host, settings, &sizes, |loaded| {
            Ok(SwitchRegisters {
                switch: loaded.registers("ib_switch_map")?,
                blocks: loaded.registers("ib_blocks_map")?,
                sessions: loaded.registers("ib_sessions_map")?,
                slots: loaded.registers("ib_slots_map")?,
            })
        })
    }

    /// Loads the program and the one that addresses its copies, and attaches it to the interface that has its address.
    /// `servers`: the servers' addresses.
    pub fn attach(&self, interface: &str, servers: &[Peer]) -> Result<Attached, XdpError> {
        check_peers("servers", servers, self.switch.servers)?;
        let program = self.load()?;
        let uplink = Uplink::open(interface, self.address, self.mode)?;
        let copies = program.load_beside("copies", objects::COPIES)?;
        let group = c::IB_MEMORY_SERVERS_GROUP;
        let maps = GroupMaps::new(&copies, &[(group, program.loaded(), "ib_servers_map")])?;
        let multicast = Multicast::new(maps, uplink, None, &[(group, servers)])?;
        let (link, ..) = multicast.links().next().expect("the interface");
        let attached = program.attach_to(link, interface)?;
        Ok(Attached {
            attached,
            multicast,
        })
    }
}

/// The attached program, and the destinations of its copies.
pub struct Attached {
    attached: alone::Attached<Memory, SwitchRegisters>,
    multicast: Multicast,
}

impl Attached {
    /// Looks up the servers' hardware addresses, and has the kernel resolve or confirm them. Call it until it returns
    /// an empty list, and about every second from then on. Returns the servers that are not resolved, which get no
    /// packets.
    pub fn refresh_neighbours(&mut self) -> Result<Vec<Unresolved>, XdpError> {
        self.multicast.refresh_neighbours()
    }

    /// As [`alone::Attached::set_keys`].
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.attached.set_keys(keys)
    }

    /// Returns the registers, which are shared with the program.
    pub fn registers(&self) -> &Arc<SwitchRegisters> {
        self.attached.registers()
    }

    /// Returns the counters that are not zero, by name, including packets that were sent but did not leave.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        self.attached.counters()
    }
}
