//! The Falcon scheduler as the XDP program of a network interface.
//!
//! [`FalconXdp::load`] loads and attaches it; it is detached when that is dropped or its process dies.
//! It handles everything of Falcon that comes to [`FalconXdpSpec::address`] itself. Two things are left
//! to the host's process, which has a UDP socket bound to that address: it registers workers
//! ([`FalconRegisters::register`]), and it sends on a task for an executor whose hardware address the
//! kernel does not know ([`forward_of`]).

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::c;
use super::objects;
use super::{wire, Falcon, FalconConfig, FalconRegisters, EXECUTORS};
use inband_ground::auth::Keys;
use inband_ground::xdp::attach::{check_address, find_link, Alone};
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::lost;
use inband_ground::xdp::maps::{map_array, update};
use inband_ground::xdp::netlink::Netlink;
use inband_ground::xdp::probe::check_kernel;
use inband_ground::xdp::programs::{counters_of, load_object, Loaded, Settings};
use inband_ground::xdp::{wire_address, wire_port, XdpMode};

pub use inband_ground::xdp::forwarding::{allow_forwarding, may_look_up_clients};

/// What to load.
#[derive(Debug, Clone)]
pub struct FalconXdpSpec {
    /// This host's node id, 1..=254.
    pub node: u8,
    /// Sizes and rules.
    pub config: FalconConfig,
    /// A number drawn at this start.
    pub incarnation: u64,
    /// This host's address as clients and executors know it. Only UDP packets to it are Falcon's.
    pub address: SocketAddrV4,
    /// The interface that has the address. No other program may be on it.
    pub interface: String,
    /// Native or generic.
    pub mode: XdpMode,
    /// With keys, packets without a right tag are dropped, and those that leave carry one.
    pub keys: Option<Keys>,
}

impl FalconXdpSpec {
    fn check(&self) -> Result<(), XdpError> {
        if self.node == 0 || self.node == u8::MAX {
            let node = self.node;
            return Err(XdpError::Spec(format!("node {node} is not one of 1..=254")));
        }
        self.config.validate().map_err(XdpError::Spec)
    }

    pub(crate) fn settings(&self) -> Settings {
        let common = c::ib_settings {
            node: u32::from(self.node),
            partitions: self.config.sets as u32,
            address: wire_address(self.address),
            loop_ifindex: 0,
            generic: u32::from(self.mode == XdpMode::Generic),
            port: wire_port(self.address),
            authenticated: u16::from(self.keys.is_some()),
        };
        Settings::new(common, &self.config.raw(self.incarnation))
    }
}

/// The program without an interface.
pub(crate) struct FalconProgram {
    pub loaded: Loaded,
    pub registers: Arc<FalconRegisters>,
    counters: OwnedFd,
}

impl FalconProgram {
    /// Load a build of it.
    pub fn load(object: &[u8], spec: &FalconXdpSpec) -> Result<FalconProgram, XdpError> {
        spec.check()?;
        let config = spec.config;
        let sizes = [
            ("ib_falcon_sets_map", config.sets),
            ("ib_slots_map", config.sets * config.slots),
            ("ib_workers_map", config.sets * config.groups()),
            ("ib_executors_map", config.sets * config.workers * EXECUTORS),
        ];
        let loaded = load_object("falcon", object, Some(&spec.settings()), &sizes, &[])?;
        let [(_, sets), (_, slots), (_, groups), (_, executors)] = sizes;
        let registers = FalconRegisters {
            sets: map_array(loaded.map("ib_falcon_sets_map")?.as_fd(), sets)?,
            slots: map_array(loaded.map("ib_slots_map")?.as_fd(), slots)?,
            groups: map_array(loaded.map("ib_workers_map")?.as_fd(), groups)?,
            executors: map_array(loaded.map("ib_executors_map")?.as_fd(), executors)?,
            config,
        };
        let program = FalconProgram {
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

    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        counters_of::<Falcon>(&self.counters)
    }
}

/// A Falcon scheduler in the kernel. Dropping it detaches it.
pub struct FalconXdp {
    // The attachment goes before the program.
    attached: Alone,
    program: FalconProgram,
    spec: FalconXdpSpec,
}

impl FalconXdp {
    /// Load the program and attach it.
    pub fn load(spec: FalconXdpSpec) -> Result<FalconXdp, XdpError> {
        spec.check()?;
        check_kernel(spec.mode)?;
        let netlink = Netlink::open().doing("opening a netlink socket")?;
        let link = find_link(&netlink, &spec.interface)?;
        check_address(&spec.interface, *spec.address.ip())?;
        let program = FalconProgram::load(objects::FALCON, &spec)?;
        let settings = spec.settings();
        let attached = Alone::attach(
            &program.loaded,
            &settings,
            &link,
            &spec.interface,
            spec.mode,
        )?;
        Ok(FalconXdp {
            attached,
            program,
            spec,
        })
    }

    /// The registers, shared with the program; whoever holds them may outlive it.
    pub fn registers(&self) -> &Arc<FalconRegisters> {
        &self.program.registers
    }

    /// Counters by name, summed over the CPUs, those that are not zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        let mut counters = self.program.counters()?;
        lost::add(&self.attached.lost, &mut counters)?;
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
    pub fn spec(&self) -> &FalconXdpSpec {
        &self.spec
    }
}

/// A packet that came up to the host's process (UDP payload): where to send it, if it is one that the
/// program has handled and could not send itself. Anything else is to be dropped. Tags are right
/// already.
pub fn forward_of(packet: &[u8], node: u8, registers: &FalconRegisters) -> Option<SocketAddrV4> {
    let (header, _) = wire::parse(packet).ok()?;
    let woken = header.kind == wire::Type::Task && header.has(wire::flag::ORIGIN);
    if !woken || header.node != u16::from(node) {
        return None;
    }
    registers.executor_address(header.set.into(), header.executor as usize)
}
