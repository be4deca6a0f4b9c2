//! The Falcon scheduler as the XDP program of a network interface.
//!
//! [`FalconXdp::load`] loads and attaches it; it is detached when that is dropped or its process dies. It handles
//! everything of Falcon that arrives at [`FalconXdpSpec::address`]. Two things are left to the host's process, which
//! has a UDP socket bound to that address: it registers workers ([`FalconRegisters::register`]), and it forwards a task
//! to an executor whose hardware address the kernel does not know ([`forward_of`]).

use std::net::SocketAddrV4;
use std::ops::Deref;

use super::objects;
use super::{wire, Falcon, FalconConfig, FalconRegisters, EXECUTORS};
use inband_ground::auth::Keys;
use inband_ground::xdp::alone::{Attached, HostSpec, Program};
use inband_ground::xdp::attach::open_link;
use inband_ground::xdp::error::XdpError;
use inband_ground::xdp::XdpMode;

pub use inband_ground::xdp::forwarding::{allow_forwarding, may_look_up_clients};

#[derive(Debug, Clone)]
pub struct FalconXdpSpec {
    /// This host's node id, 1..=254.
    pub node: u8,
    pub config: FalconConfig,
    /// A number drawn at this start.
    pub incarnation: u64,
    /// This host's address as clients and executors know it. Only UDP packets to it are Falcon's.
    pub address: SocketAddrV4,
    /// The interface that has the address. It must have no other program.
    pub interface: String,
    /// Native or generic.
    pub mode: XdpMode,
    /// With keys, packets without a valid tag are dropped, and those that leave carry one.
    pub keys: Option<Keys>,
}

/// The program without an interface.
pub type FalconProgram = Program<Falcon, FalconRegisters>;

impl FalconXdpSpec {
    /// Loads a build of the program, without an interface.
    pub fn program(&self, object: &[u8]) -> Result<FalconProgram, XdpError> {
        let config = self.config;
        config.validate().map_err(XdpError::Spec)?;
        let host = HostSpec {
            node: self.node,
            address: self.address,
            mode: self.mode,
            keys: self.keys,
        };
        let sizes = [
            ("ib_falcon_sets_map", config.sets),
            ("ib_slots_map", config.sets * config.slots),
            ("ib_workers_map", config.sets * config.groups()),
            ("ib_executors_map", config.sets * config.workers * EXECUTORS),
        ];
        let settings = host.settings(config.sets, &config.raw(self.incarnation))?;
        Program::load("falcon", object, &host, settings, &sizes, |loaded| {
            Ok(FalconRegisters {
                sets: loaded.registers("ib_falcon_sets_map")?,
                slots: loaded.registers("ib_slots_map")?,
                groups: loaded.registers("ib_workers_map")?,
                executors: loaded.registers("ib_executors_map")?,
                config,
            })
        })
    }
}

/// A Falcon scheduler in the kernel. Dropping it detaches it.
pub struct FalconXdp(Attached<Falcon, FalconRegisters>);

impl FalconXdp {
    /// Loads the program and attaches it.
    pub fn load(spec: FalconXdpSpec) -> Result<FalconXdp, XdpError> {
        spec.config.validate().map_err(XdpError::Spec)?;
        let (_, link) = open_link(&spec.interface, *spec.address.ip(), spec.mode)?;
        let program = spec.program(objects::FALCON)?;
        program.attach_to(&link, &spec.interface).map(FalconXdp)
    }

    pub fn memory_bytes(&self) -> usize {
        self.registers().memory_bytes()
    }
}

impl Deref for FalconXdp {
    type Target = Attached<Falcon, FalconRegisters>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Returns where to send a packet that was passed to the host's process (UDP payload), if the program has handled it
/// and could not send it itself. Everything else is to be dropped. The tags are already valid.
pub fn forward_of(packet: &[u8], node: u8, registers: &FalconRegisters) -> Option<SocketAddrV4> {
    let (header, _) = wire::parse(packet).ok()?;
    let woken = header.kind == wire::Type::Task && header.has(wire::flag::ORIGIN);
    if !woken || header.node != u16::from(node) {
        return None;
    }
    registers.executor_address(header.set.into(), header.executor as usize)
}
