//! The node as an XDP program. Its clock is CLOCK_MONOTONIC.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use inband_ground::auth::Keys;
use inband_ground::raw_link::RawLink;
use inband_ground::registers::Shared;
use inband_ground::soft::Soft;
use inband_ground::xdp::alone::{self, HostSpec};
use inband_ground::xdp::attach::Attachment;
use inband_ground::xdp::error::Doing;
use inband_ground::xdp::maps::{update, UpRing};
use inband_ground::xdp::multicast::{check_peers, GroupMaps, Multicast, Peer, Unresolved, Uplink};
use inband_ground::xdp::{XdpError, XdpMode};

use crate::registers::{Clients, Registers};
use crate::role::Role;
use crate::store::{map_elements, Region};
use crate::{c, objects, soft, Zab, GROUPS, NODES};

/// The loaded program. It is idle until the process says otherwise.
pub type Program = alone::Program<Zab, Registers>;

/// Bytes of the ring buffer that wakes the process.
const NOTES_LEN_BYTES: usize = 4096;

/// Configuration of the program.
#[derive(Debug, Clone)]
pub struct Spec {
    /// This host's node id, one of [`NODES`].
    pub node: u8,
    /// Records that the ring holds, a power of two.
    pub capacity: usize,
    /// This host's address as other nodes know it.
    pub address: SocketAddrV4,
    pub mode: XdpMode,
    /// With keys, packets without a valid tag are dropped, and outgoing packets are tagged.
    pub keys: Option<Keys>,
    /// The clients whom the program serves, in native mode.
    pub clients: Option<UdpClients>,
}

/// The clients over UDP whom the program serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpClients {
    /// Address and mask of their network.
    pub from: (Ipv4Addr, Ipv4Addr),
    /// Where the program answers GETs from this node's own copy (`dataplane/box/gets.h`), and proposes SETs
    /// (`dataplane/box/sets.h`).
    pub local: Option<SocketAddrV4>,
    /// Where it proposes SETs, and passes GETs.
    pub strong: Option<SocketAddrV4>,
    /// Chunks of the table, which is in a map of the program ([`table_of`]) if that answers GETs.
    pub chunks: u64,
}

impl Spec {
    fn check(&self) -> Result<(), XdpError> {
        if !NODES.contains(&self.node) {
            let node = self.node;
            return Err(XdpError::Spec(format!(
                "node {node} is not one of {NODES:?}"
            )));
        }
        if !self.capacity.is_power_of_two() || u32::try_from(self.capacity).is_err() {
            return Err(XdpError::Spec(format!(
                "a ring of {} records is not a power of two below 2^32",
                self.capacity
            )));
        }
        if let Some(elements) = self.table_elements() {
            if u32::try_from(elements).is_err() {
                return Err(XdpError::Spec(format!(
                    "a table of {elements} chunks is too large for the kernel"
                )));
            }
        }
        Ok(())
    }

    fn table_elements(&self) -> Option<u64> {
        let clients = self.clients.filter(|clients| clients.local.is_some());
        clients.map(|clients| map_elements(clients.chunks))
    }

    pub fn load(&self) -> Result<Program, XdpError> {
        self.load_object(match self.clients {
            Some(_) => objects::BOX_GETS,
            None => objects::BOX,
        })
    }

    /// Loads another build of the program, for tests.
    pub fn load_object(&self, object: &[u8]) -> Result<Program, XdpError> {
        self.check()?;
        let host = HostSpec {
            node: self.node,
            address: self.address,
            mode: self.mode,
            keys: self.keys,
        };
        let own = settings_of(self.clients.as_ref());
        let own = c::ib_box_settings {
            capacity: self.capacity as u64,
            ..own
        };
        let settings = host.settings(GROUPS, &own)?;
        let sizes = [
            ("ib_records_map", self.capacity),
            ("ib_ringbuf_map", NOTES_LEN_BYTES),
            // Not in every build.
            ("ib_table_map", self.table_elements().unwrap_or(1) as usize),
            ("ib_clients_map", self.capacity),
        ];
        Program::load("box", object, &host, settings, &sizes, |loaded| {
            Ok(Registers::started(
                loaded.registers("ib_node_map")?,
                loaded.registers("ib_records_map")?,
            ))
        })
    }

    /// Loads the program and the one that addresses its copies, and attaches it to the interface that has its address.
    /// `others`: the addresses of the other nodes.
    pub fn attach(&self, interface: &str, others: &[Peer]) -> Result<Attached, XdpError> {
        check_peers("nodes", others, usize::from(*NODES.end()) - 1)?;
        let program = self.load()?;
        let uplink = Uplink::open(interface, self.address, self.mode)?;
        let copies = program.load_beside("copies", objects::COPIES)?;
        let group = c::IB_BOX_OTHERS_GROUP;
        let maps = GroupMaps::new(&copies, &[(group, program.loaded(), "ib_others_map")])?;
        let multicast = Multicast::new(maps, uplink, None, &[(group, others)])?;
        let all = others.to_vec();
        let role = role_of(&program, self.node)?;
        let notes = UpRing::new(program.loaded().map("ib_ringbuf_map")?, NOTES_LEN_BYTES)?;
        let polling = program.loaded().registers("ib_polling_map")?;
        let (link, ..) = multicast.links().next().expect("the interface");
        let attached = program.attach_to(link, interface)?;
        Ok(Attached {
            attached,
            multicast,
            all,
            role,
            notes,
            polling,
            direct: None,
            clients: self.clients,
        })
    }
}

/// Returns the settings for clients.
fn settings_of(clients: Option<&UdpClients>) -> c::ib_box_settings {
    let raw = |address: Ipv4Addr| u32::from_ne_bytes(address.octets());
    let nobody = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    let nowhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let (from, mask) = clients.map_or(nobody, |clients| clients.from);
    let local = clients.and_then(|c| c.local).unwrap_or(nowhere);
    let strong = clients.and_then(|c| c.strong).unwrap_or(nowhere);
    c::ib_box_settings {
        capacity: 0,
        from: raw(from) & raw(mask),
        from_mask: raw(mask),
        local_address: raw(*local.ip()),
        strong_address: raw(*strong.ip()),
        local_port: local.port().to_be(),
        strong_port: strong.port().to_be(),
        reserved: 0,
    }
}

/// Returns the memory for the table of a program that answers GETs.
pub fn table_of(program: &Program) -> Result<Region, XdpError> {
    let chunks: Shared<c::ib_box_chunk> = program.loaded().registers("ib_table_map")?;
    Ok(Region::of_map(chunks))
}

/// Returns the clients of the records that a program has made from SETs.
pub fn clients_of(program: &Program) -> Result<Clients, XdpError> {
    program.loaded().registers("ib_clients_map")
}

/// Returns the role in this process, over the program's registers.
pub fn role_of(program: &Program, node: u8) -> Result<Soft<Zab>, XdpError> {
    let loaded = program.loaded();
    let registers = Registers {
        node: loaded.registers("ib_node_map")?,
        records: loaded.registers("ib_records_map")?,
        clients: None,
    };
    Ok(soft::over(node, registers))
}

/// The attached program, and the destinations of its copies.
pub struct Attached {
    // Dropped before the maps that it sends by.
    attached: alone::Attached<Zab, Registers>,
    multicast: Multicast,
    /// The other nodes that have an address.
    all: Vec<Peer>,
    role: Soft<Zab>,
    notes: UpRing,
    polling: Shared<u64>,
    direct: Option<Direct>,
    clients: Option<UdpClients>,
}

/// The program on links to single nodes.
struct Direct {
    _attachments: Vec<Attachment>,
    are_up: Shared<u64>,
}

impl Attached {
    /// Looks up the other nodes' hardware addresses, and has the kernel resolve or confirm them. Call it until it
    /// returns an empty list, and about every second from then on. Returns the nodes that are not resolved, which get
    /// no packets.
    pub fn refresh_neighbours(&mut self) -> Result<Vec<Unresolved>, XdpError> {
        self.multicast.refresh_neighbours()
    }

    /// Sets the nodes, as a bitmap, to which the program sends packets for all others.
    pub fn set_others(&mut self, nodes: u8) -> Result<(), XdpError> {
        let others = self.all.iter().filter(|peer| nodes >> peer.node & 1 != 0);
        let others: Vec<Peer> = others.copied().collect();
        let group = c::IB_BOX_OTHERS_GROUP;
        self.multicast.set_groups(&[(group, &others)])
    }

    /// Returns the role over the program's registers.
    pub fn role(&self) -> &Soft<Zab> {
        &self.role
    }

    /// Returns another role over the same registers, which may outlive the program.
    pub fn another_role(&self) -> Result<Soft<Zab>, XdpError> {
        role_of(self.attached.program(), self.role.node())
    }

    /// Returns the registers, which are shared with the program.
    pub fn registers(&self) -> &Arc<Registers> {
        self.attached.registers()
    }

    /// Returns the ring, which becomes readable when `committed` or a round has advanced, unless the process polls.
    /// Call [`Attached::take_notes`] then.
    pub fn notes(&mut self) -> &mut UpRing {
        &mut self.notes
    }

    /// Takes the notes that have woken us.
    pub fn take_notes(&mut self) {
        self.notes.poll(|_| {});
    }

    /// Sets whether the process polls and need not be woken. Before it sleeps it must clear this, and then check the
    /// registers once more.
    pub fn set_polling(&self, yes: bool) {
        self.polling.set(0, yes.into());
    }

    /// Returns whether the program answers GETs.
    pub fn answers_gets(&self) -> bool {
        self.clients.is_some_and(|clients| clients.local.is_some())
    }

    /// Returns the memory for the table, if the program answers GETs.
    pub fn table(&self) -> Result<Option<Region>, XdpError> {
        match self.answers_gets() {
            true => table_of(self.attached.program()).map(Some),
            false => Ok(None),
        }
    }

    /// Returns the clients of the records that the program proposes itself, if it serves clients.
    pub fn clients(&self) -> Result<Option<Clients>, XdpError> {
        let program = self.attached.program();
        self.clients.map(|_| clients_of(program)).transpose()
    }

    /// As [`alone::Attached::set_keys`].
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.attached.set_keys(keys)
    }

    /// Also serves these links, one to each other node, with frames without IP and UDP. Packets for all nodes that
    /// arrive by a link leave by the links once these are said to be up ([`Attached::set_links_up`]); until then they
    /// pass.
    pub fn attach_links<'a>(
        &mut self,
        links: impl Iterator<Item = &'a RawLink> + Clone,
    ) -> Result<(), XdpError> {
        let program = self.attached.program();
        let direct = program.load_beside("box_direct", objects::BOX_DIRECT)?;
        let devices = direct.map("ib_links_map")?;
        for (at, link) in (0u32..).zip(links.clone()) {
            // struct bpf_devmap_val: interface, egress program (0: none).
            update(&devices, &at, &[link.index(), 0]).doing("filling a multicast map")?;
        }
        let attach = |link: &RawLink| program.attach_beside(&direct, link.interface());
        self.direct = Some(Direct {
            _attachments: links.map(attach).collect::<Result<_, _>>()?,
            are_up: direct.registers("ib_links_up_map")?,
        });
        Ok(())
    }

    /// Sets whether all links are up.
    pub fn set_links_up(&self, yes: bool) {
        if let Some(direct) = &self.direct {
            direct.are_up.set(0, yes.into());
        }
    }

    /// Returns the counters that are not zero, by name, including packets that were sent but did not leave. Packets
    /// that this process has handled itself are counted by its role.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        self.attached.counters()
    }
}
