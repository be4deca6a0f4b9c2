//! The FLAIR switch as the XDP program of a network interface.
//!
//! [`FlairXdp::load`] loads and attaches the program. It is detached when the [`FlairXdp`] is dropped or the process
//! dies. The program handles every FLAIR packet for [`FlairXdpSpec::address`], with one exception: a reply to a client
//! whose hardware address the kernel does not know is passed up, rewritten and with the switch's own node id. The
//! host's process, which has a UDP socket bound to that address, must forward it to the client in the header
//! ([`forward_of`]).

use std::net::SocketAddrV4;
use std::ops::Deref;

use super::c;
use super::objects;
use super::{wire, Flair, FlairGeometry, FlairRegisters, REPLICAS_MAX};
use inband_ground::auth::Keys;
use inband_ground::xdp::alone::{Attached, HostSpec, Program};
use inband_ground::xdp::attach::open_link;
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::maps::update;
use inband_ground::xdp::netlink::{LinkInfo, Netlink};
use inband_ground::xdp::{nobody, resolve_into, wire_address, wire_port, XdpMode};

pub use inband_ground::xdp::forwarding::{allow_forwarding, may_look_up_clients};

/// What to load.
#[derive(Debug, Clone)]
pub struct FlairXdpSpec {
    /// This host's node id, 1..=254, different from those of the replicas.
    pub node: u8,
    pub geometry: FlairGeometry,
    /// A random number, different at every start.
    pub incarnation: u64,
    /// The address that clients and replicas use for this host. Only UDP packets to it are handled.
    pub address: SocketAddrV4,
    /// The interface that has the address. It must not have another XDP program.
    pub interface: String,
    pub mode: XdpMode,
    /// The replicas of each set, by number. All are reached through this interface.
    pub replicas: Vec<Vec<SocketAddrV4>>,
    /// With keys, packets without a valid tag are dropped, and packets that leave carry a tag.
    pub keys: Option<Keys>,
}

impl FlairXdpSpec {
    fn check(&self) -> Result<(), XdpError> {
        let no = |message: String| Err(XdpError::Spec(message));
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

    /// Loads a build of the program, without an interface.
    pub fn program(&self, object: &[u8]) -> Result<FlairProgram, XdpError> {
        self.check()?;
        let host = HostSpec {
            node: self.node,
            address: self.address,
            mode: self.mode,
            keys: self.keys,
        };
        let FlairGeometry { sets, groups } = self.geometry;
        let own = c::ib_flair_settings {
            incarnation: self.incarnation,
            groups: groups as u32,
            reserved: 0,
        };
        let sizes = [
            ("ib_sessions_map", sets),
            ("ib_flair_groups_map", sets * groups),
            ("ib_replicas_map", sets * REPLICAS_MAX),
        ];
        let settings = host.settings(sets, &own)?;
        Program::load("flair", object, &host, settings, &sizes, |loaded| {
            Ok(FlairRegisters {
                sessions: loaded.registers("ib_sessions_map")?,
                groups: loaded.registers("ib_flair_groups_map")?,
            })
        })
    }
}

/// A replica whose hardware address is not known yet. Packets to it are dropped and counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnresolvedReplica {
    pub set: usize,
    /// Its number in the set.
    pub replica: usize,
    pub address: SocketAddrV4,
    pub why: String,
}

/// The program without an interface.
pub type FlairProgram = Program<Flair, FlairRegisters>;

/// Sets where packets to a replica go.
pub(crate) fn set_replica(
    program: &FlairProgram,
    set: usize,
    replica: usize,
    member: &c::ib_member,
) -> Result<(), XdpError> {
    let at = (set * REPLICAS_MAX + replica) as u32;
    update(&program.loaded().map("ib_replicas_map")?, &at, member).doing("setting a replica")
}

/// A FLAIR switch in the kernel. Dropping it detaches the program.
pub struct FlairXdp {
    attached: Attached<Flair, FlairRegisters>,
    replicas: Replicas,
    spec: FlairXdpSpec,
}

impl FlairXdp {
    /// Loads the program and attaches it.
    pub fn load(spec: FlairXdpSpec) -> Result<FlairXdp, XdpError> {
        spec.check()?;
        let (netlink, link) = open_link(&spec.interface, *spec.address.ip(), spec.mode)?;
        let program = spec.program(objects::FLAIR)?;
        let member = |address: &SocketAddrV4| c::ib_member {
            to_address: wire_address(*address),
            to_port: wire_port(*address),
            ..nobody(&link, spec.address)
        };
        let mut replicas = Replicas {
            members: spec
                .replicas
                .iter()
                .map(|set| set.iter().map(member).collect())
                .collect(),
            link,
            netlink,
        };
        replicas.refresh(&program, &spec)?;
        Ok(FlairXdp {
            attached: program.attach_to(&replicas.link, &spec.interface)?,
            replicas,
            spec,
        })
    }

    /// Looks up the replicas' hardware addresses in the kernel's neighbour table, and makes the kernel resolve or
    /// confirm them. Call it until it returns an empty list, and about every second after that. Returns the unresolved
    /// replicas; one that was resolved before keeps its address. Call it in the interface's network namespace, as
    /// [`FlairXdp::load`].
    pub fn refresh_neighbours(&mut self) -> Result<Vec<UnresolvedReplica>, XdpError> {
        self.replicas.refresh(self.attached.program(), &self.spec)
    }

    /// Size of the registers in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.registers().memory_bytes()
    }
}

impl Deref for FlairXdp {
    type Target = Attached<Flair, FlairRegisters>;

    fn deref(&self) -> &Self::Target {
        &self.attached
    }
}

/// The replicas' hardware addresses, as far as they are known.
struct Replicas {
    /// Indexed by set and number.
    members: Vec<Vec<c::ib_member>>,
    link: LinkInfo,
    netlink: Netlink,
}

impl Replicas {
    fn refresh(
        &mut self,
        program: &FlairProgram,
        spec: &FlairXdpSpec,
    ) -> Result<Vec<UnresolvedReplica>, XdpError> {
        let mut unresolved = Vec::new();
        for (set, addresses) in spec.replicas.iter().enumerate() {
            for (replica, address) in addresses.iter().enumerate() {
                let member = &mut self.members[set][replica];
                let (ip, interface) = (*address.ip(), &spec.interface);
                match resolve_into(member, ip, &self.netlink, &self.link, interface) {
                    Ok(true) => set_replica(program, set, replica, member)?,
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
}

/// Returns where the host's process must forward this UDP payload, if the program has handled the packet but could not
/// send it. Drop any other packet. The tag is already valid.
pub fn forward_of(packet: &[u8], node: u8) -> Option<SocketAddrV4> {
    let (header, ..) = wire::parse(packet).ok()?;
    let reply = matches!(header.kind, wire::Type::ReadReply | wire::Type::WriteReply);
    (reply && header.node == u16::from(node)).then_some(header.client)
}
