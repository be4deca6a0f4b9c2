//! The FLAIR switch as the XDP program of a network interface.
//!
//! [`FlairXdp::load`] loads and attaches it; it is detached when that is dropped or its process dies.
//! It handles everything of FLAIR that comes to [`FlairXdpSpec::address`] itself. One thing is left to
//! the host's process, which has a UDP socket bound to that address: a reply to a client whose hardware
//! address the kernel does not know comes up as it would have left, with the switch's own node id, and
//! is to be sent on to the client in its header ([`forward_of`]).

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::c;
use super::objects;
use super::{wire, Flair, FlairGeometry, FlairRegisters, REPLICAS_MAX};
use inband_ground::auth::Keys;
use inband_ground::xdp::attach::{check_address, find_link, Alone};
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::lost;
use inband_ground::xdp::maps::{map_array, update};
use inband_ground::xdp::netlink::{LinkInfo, Netlink};
use inband_ground::xdp::probe::check_kernel;
use inband_ground::xdp::programs::{counters_of, load_object, Loaded, Settings};
use inband_ground::xdp::{nobody, resolve_into, wire_address, wire_port, XdpMode};

pub use inband_ground::xdp::forwarding::{allow_forwarding, may_look_up_clients};

/// What to load.
#[derive(Debug, Clone)]
pub struct FlairXdpSpec {
    /// This host's node id, 1..=254, which no replica has.
    pub node: u8,
    /// Sizes of the registers.
    pub geometry: FlairGeometry,
    /// A number drawn at this start.
    pub incarnation: u64,
    /// This host's address as clients and replicas know it. Only UDP packets to it are FLAIR's.
    pub address: SocketAddrV4,
    /// The interface that has the address. No other program may be on it.
    pub interface: String,
    /// Native or generic.
    pub mode: XdpMode,
    /// The replicas of each set, by their numbers. They are reached by the same interface.
    pub replicas: Vec<Vec<SocketAddrV4>>,
    /// With keys, packets without a right tag are dropped, and those that leave carry one.
    pub keys: Option<Keys>,
}

impl FlairXdpSpec {
    fn check(&self) -> Result<(), XdpError> {
        let no = |message: String| Err(XdpError::Spec(message));
        if self.node == 0 || self.node == u8::MAX {
            return no(format!("node {} is not one of 1..=254", self.node));
        }
        self.geometry.validate().map_err(XdpError::Spec)?;
        if self.replicas.len() != self.geometry.sets {
            return no(format!(
                "replicas of {} sets are given for a switch of {}",
                self.replicas.len(),
                self.geometry.sets
            ));
        }
        if let Some(many) = self.replicas.iter().find(|set| set.len() > REPLICAS_MAX) {
            return no(format!(
                "{} replicas of a set are more than the limit of {REPLICAS_MAX}",
                many.len()
            ));
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> Settings {
        let common = c::ib_settings {
            node: u32::from(self.node),
            partitions: self.geometry.sets as u32,
            address: wire_address(self.address),
            loop_ifindex: 0,
            generic: u32::from(self.mode == XdpMode::Generic),
            port: wire_port(self.address),
            authenticated: u16::from(self.keys.is_some()),
        };
        let own = c::ib_flair_settings {
            incarnation: self.incarnation,
            groups: self.geometry.groups as u32,
            reserved: 0,
        };
        Settings::new(common, &own)
    }
}

/// A replica whose hardware address is not known (yet); packets to it are dropped and counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnresolvedReplica {
    /// Its set.
    pub set: usize,
    /// Its number there.
    pub replica: usize,
    /// Its address.
    pub address: SocketAddrV4,
    /// Why.
    pub why: String,
}

/// The program without an interface.
pub(crate) struct FlairProgram {
    pub loaded: Loaded,
    pub registers: Arc<FlairRegisters>,
    counters: OwnedFd,
}

impl FlairProgram {
    /// Load a build of it.
    pub fn load(object: &[u8], spec: &FlairXdpSpec) -> Result<FlairProgram, XdpError> {
        spec.check()?;
        let FlairGeometry { sets, groups } = spec.geometry;
        let sizes = [
            ("ib_sessions_map", sets),
            ("ib_flair_groups_map", sets * groups),
            ("ib_replicas_map", sets * REPLICAS_MAX),
        ];
        let loaded = load_object("flair", object, Some(&spec.settings()), &sizes, &[])?;
        let registers = FlairRegisters {
            sessions: map_array(loaded.map("ib_sessions_map")?.as_fd(), sets)?.into(),
            groups: map_array(loaded.map("ib_flair_groups_map")?.as_fd(), sets * groups)?.into(),
        };
        let program = FlairProgram {
            counters: loaded.map("ib_counters_map")?,
            registers: Arc::new(registers),
            loaded,
        };
        if let Some(keys) = &spec.keys {
            program.set_keys(keys)?;
        }
        Ok(program)
    }

    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        update(&self.loaded.map("ib_keys_map")?, &0u32, keys.raw()).doing("setting the keys")
    }

    pub fn set_replica(
        &self,
        set: usize,
        replica: usize,
        member: &c::ib_member,
    ) -> Result<(), XdpError> {
        let at = (set * REPLICAS_MAX + replica) as u32;
        update(&self.loaded.map("ib_replicas_map")?, &at, member).doing("setting a replica")
    }

    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        counters_of::<Flair>(&self.counters)
    }
}

/// A FLAIR switch in the kernel. Dropping it detaches it.
pub struct FlairXdp {
    // The attachment goes before the program.
    attached: Option<Alone>,
    program: FlairProgram,
    /// By set and number.
    members: Vec<Vec<c::ib_member>>,
    link: LinkInfo,
    netlink: Netlink,
    spec: FlairXdpSpec,
}

impl FlairXdp {
    /// Load the program and attach it.
    pub fn load(spec: FlairXdpSpec) -> Result<FlairXdp, XdpError> {
        spec.check()?;
        check_kernel(spec.mode)?;
        let netlink = Netlink::open().doing("opening a netlink socket")?;
        let link = find_link(&netlink, &spec.interface)?;
        check_address(&spec.interface, *spec.address.ip())?;
        let program = FlairProgram::load(objects::FLAIR, &spec)?;
        let member = |address: &SocketAddrV4| c::ib_member {
            to_address: wire_address(*address),
            to_port: wire_port(*address),
            ..nobody(&link, spec.address)
        };
        let members = spec
            .replicas
            .iter()
            .map(|set| set.iter().map(member).collect())
            .collect();
        let mut switch = FlairXdp {
            attached: None,
            program,
            members,
            link,
            netlink,
            spec,
        };
        switch.refresh_neighbours()?;
        switch.attach()?;
        Ok(switch)
    }

    fn attach(&mut self) -> Result<(), XdpError> {
        self.attached = Some(Alone::attach(
            &self.program.loaded,
            &self.spec.settings(),
            &self.link,
            &self.spec.interface,
            self.spec.mode,
        )?);
        Ok(())
    }

    /// Look the replicas' hardware addresses up in the kernel's tables, and have the kernel resolve or
    /// confirm them. Call until it returns nothing, and every second or so from then on. Returns the
    /// replicas that are not resolved; one that was stays addressed as before. To be called in the
    /// interface's network namespace, as [`FlairXdp::load`].
    pub fn refresh_neighbours(&mut self) -> Result<Vec<UnresolvedReplica>, XdpError> {
        let mut unresolved = Vec::new();
        let interface = &self.spec.interface;
        for (set, addresses) in self.spec.replicas.iter().enumerate() {
            for (replica, address) in addresses.iter().enumerate() {
                let member = &mut self.members[set][replica];
                match resolve_into(member, *address.ip(), &self.netlink, &self.link, interface) {
                    Ok(true) => self.program.set_replica(set, replica, member)?,
                    Ok(false) => {}
                    Err(why) => unresolved.push(UnresolvedReplica {
                        set,
                        replica,
                        address: *address,
                        why,
                    }),
                }
            }
        }
        Ok(unresolved)
    }

    /// The registers, shared with the program; whoever holds them may outlive it.
    pub fn registers(&self) -> &Arc<FlairRegisters> {
        &self.program.registers
    }

    /// Counters by name, summed over the CPUs, those that are not zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        let mut counters = self.program.counters()?;
        if let Some(attached) = &self.attached {
            lost::add(&attached.lost, &mut counters)?;
        }
        Ok(counters)
    }

    /// Other keys from now on. Without keys at the start there are none.
    pub fn set_keys(&mut self, keys: Keys) -> Result<(), XdpError> {
        if self.spec.keys.is_some() {
            self.program.set_keys(&keys)?;
            self.spec.keys = Some(keys);
        }
        Ok(())
    }

    /// Bytes of memory that the registers take.
    pub fn memory_bytes(&self) -> usize {
        self.program.registers.memory_bytes()
    }

    /// What was loaded.
    pub fn spec(&self) -> &FlairXdpSpec {
        &self.spec
    }
}

/// A packet that came up to the host's process (UDP payload): where to send it, if it is one that the
/// program has handled and could not send itself. Anything else is to be dropped. Tags are right
/// already.
pub fn forward_of(packet: &[u8], node: u8) -> Option<SocketAddrV4> {
    let (header, ..) = wire::parse(packet).ok()?;
    let reply = matches!(header.kind, wire::Type::ReadReply | wire::Type::WriteReply);
    (reply && header.node == u16::from(node)).then_some(header.client)
}
