//! A system that consists of one XDP program, alone on its interface, with its settings, map sizes, registers and
//! counters.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::attach::{find_link, open_link, Alone, Attachment};
use super::error::{Doing, XdpError};
use super::lost;
use super::maps::update;
use super::netlink::{LinkInfo, Netlink};
use super::programs::{counters_of, load_object, Loaded, Settings};
use super::rig::{run, verified_insns, TestRun};
use super::{wire_address, wire_port, XdpMode};
use crate::auth::Keys;
use crate::wire::PARTITIONS;
use crate::{c, System};

/// The host's properties that every program needs.
#[derive(Debug, Clone, Copy)]
pub struct HostSpec {
    /// Its node id, 1..=254.
    pub node: u8,
    /// The address that others use for this host. Only UDP packets to it belong to the system.
    pub address: SocketAddrV4,
    pub mode: XdpMode,
    /// With keys, packets without a valid tag are dropped, and packets that leave carry a tag.
    pub keys: Option<Keys>,
}

impl HostSpec {
    /// Returns the constants of a program. `own` is the struct of the system's `settings.h`.
    pub fn settings<T: Copy>(&self, partitions: usize, own: &T) -> Result<Settings, XdpError> {
        if self.node == 0 || self.node == u8::MAX {
            let node = self.node;
            return Err(XdpError::Spec(format!("node {node} is not one of 1..=254")));
        }
        if !PARTITIONS.contains(&partitions) {
            let what = format!("{partitions} partitions are not {PARTITIONS:?}");
            return Err(XdpError::Spec(what));
        }
        let common = c::ib_settings {
            node: u32::from(self.node),
            partitions: partitions as u32,
            address: wire_address(self.address),
            loop_ifindex: 0,
            generic: u32::from(self.mode == XdpMode::Generic),
            port: wire_port(self.address),
            authenticated: u16::from(self.keys.is_some()),
        };
        Ok(Settings::new(common, own))
    }
}

/// The loaded program of system `S` with its registers `R`.
pub struct Program<S, R> {
    loaded: Loaded,
    registers: Arc<R>,
    counters: OwnedFd,
    settings: Settings,
    host: HostSpec,
    system: PhantomData<fn() -> S>,
}

impl<S: System, R> Program<S, R> {
    /// `sizes` are the numbers of elements of maps. `registers` maps the program's registers, with
    /// [`Loaded::registers`].
    pub fn load(
        name: &'static str,
        object: &[u8],
        host: &HostSpec,
        settings: Settings,
        sizes: &[(&str, usize)],
        registers: impl FnOnce(&Loaded) -> Result<R, XdpError>,
    ) -> Result<Program<S, R>, XdpError> {
        let loaded = load_object(name, object, Some(&settings), sizes, &[])?;
        if let Some(keys) = &host.keys {
            loaded.set_keys(keys)?;
        }
        Ok(Program {
            registers: Arc::new(registers(&loaded)?),
            counters: loaded.map("ib_counters_map")?,
            loaded,
            settings,
            host: *host,
            system: PhantomData,
        })
    }

    /// Attaches the program to the interface that has the host's address.
    pub fn attach(self, interface: &str) -> Result<Attached<S, R>, XdpError> {
        let (_, link) = open_link(interface, *self.host.address.ip(), self.host.mode)?;
        self.attach_to(&link, interface)
    }

    /// Attaches the program to an interface returned by [`open_link`].
    pub fn attach_to(self, link: &LinkInfo, interface: &str) -> Result<Attached<S, R>, XdpError> {
        let mode = self.host.mode;
        let alone = Alone::attach(&self.loaded, &self.settings, link, interface, mode)?;
        Ok(Attached {
            alone,
            program: self,
        })
    }

    /// Returns the program and its maps.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Returns the registers, shared with the program. They may outlive it.
    pub fn registers(&self) -> &Arc<R> {
        &self.registers
    }

    /// Counters by name, summed over the CPUs, without those that are zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        counters_of::<S>(&self.counters)
    }

    /// Replaces the keys. Has no effect on a program that was loaded without keys.
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        match self.host.keys {
            Some(_) => self.loaded.set_keys(keys),
            None => Ok(()),
        }
    }

    /// Runs the program on a frame, without an interface.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, XdpError> {
        run(&self.loaded.program, frame, repeat)
    }

    /// Instructions that this kernel's verifier processed for the program, over all paths.
    pub fn verified_insns(&self) -> Result<u32, XdpError> {
        verified_insns(&self.loaded.program)
    }

    /// Sets the time and the random word for the next packets, in a build that takes them as input
    /// (`IB_GIVEN_ARRIVAL`).
    pub fn set_given(&self, now_ns: u64, random: u32) -> Result<(), XdpError> {
        let random = u64::from(random);
        let given = c::ib_given { now_ns, random };
        let map = self.loaded.map("ib_given_map")?;
        update(&map, &0u32, &given).doing("setting what packets come with")
    }

    /// Loads another program that shares this program's maps of the same names.
    pub fn load_beside(&self, name: &'static str, object: &[u8]) -> Result<Loaded, XdpError> {
        load_object(name, object, Some(&self.settings), &[], &[&self.loaded])
    }

    /// Attaches such a program to another interface, in native mode. It is detached when the result is dropped.
    pub fn attach_beside(&self, other: &Loaded, interface: &str) -> Result<Attachment, XdpError> {
        let netlink = Netlink::open().doing("opening a netlink socket")?;
        let link = find_link(&netlink, interface)?;
        Attachment::xdp(&other.program, link.index, interface, XdpMode::Native)
    }
}

/// The program on its interface. Dropping it detaches the program.
pub struct Attached<S, R> {
    // Must be dropped before the program's maps.
    alone: Alone,
    program: Program<S, R>,
}

impl<S: System, R> Attached<S, R> {
    pub fn program(&self) -> &Program<S, R> {
        &self.program
    }

    /// See [`Program::registers`].
    pub fn registers(&self) -> &Arc<R> {
        &self.program.registers
    }

    /// See [`Program::set_keys`].
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.program.set_keys(keys)
    }

    /// See [`Program::counters`]; adds frames that the kernel or the driver dropped instead of sending.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        let mut counters = self.program.counters()?;
        lost::add(&self.alone.lost, &mut counters)?;
        Ok(counters)
    }
}
