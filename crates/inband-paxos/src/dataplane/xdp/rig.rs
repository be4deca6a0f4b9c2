//! The programs without an interface: frames are passed through them with `BPF_PROG_TEST_RUN`. For tests and
//! measurements.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use inband_ground::auth::Keys;
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::maps::UpRing;
use inband_ground::xdp::programs::{load_object, Loaded, Settings};
use inband_ground::xdp::rig::{run, TestRun};
use inband_ground::xdp::{wire_address, wire_port};

use super::programs::{Build, Programs};
use crate::dataplane::c;
use crate::dataplane::soft::{Geometry, Registers, Roles};

/// The programs of a host that has no interface.
pub struct Rig {
    pub(crate) programs: Programs,
    up: Mutex<Option<UpRing>>,
    settings: Settings,
}

/// A test's own program, which shares the rig's maps by name.
pub struct Beside(Loaded);

/// The ring buffer of decided values in bytes.
const RING_BUFFER_BYTES: usize = 8 << 20;

impl Rig {
    /// Loads the programs of `roles` for a host with this node id and address. `variant`: another build of the only
    /// role's program.
    pub fn load(
        node: u8,
        address: SocketAddrV4,
        roles: Roles,
        geometry: Geometry,
        variant: Option<&[u8]>,
    ) -> Result<Rig, XdpError> {
        Rig::load_with_keys(node, address, roles, geometry, variant, None)
    }

    /// Returns the same; with keys, packets carry tags.
    pub fn load_with_keys(
        node: u8,
        address: SocketAddrV4,
        roles: Roles,
        geometry: Geometry,
        variant: Option<&[u8]>,
        keys: Option<&Keys>,
    ) -> Result<Rig, XdpError> {
        let build = Build {
            roles,
            geometry,
            settings: geometry.settings(c::ib_settings {
                node: u32::from(node),
                partitions: geometry.partitions as u32,
                address: wire_address(address),
                loop_ifindex: 0,
                generic: 0,
                port: wire_port(address),
                authenticated: u16::from(keys.is_some()),
            }),
            ring_buffer_bytes: RING_BUFFER_BYTES,
        };
        let mut programs = Programs::load(&build, variant)?;
        if let Some(keys) = keys {
            programs.set_keys(keys)?;
        }
        let up = Mutex::new(programs.up.take());
        Ok(Rig {
            programs,
            up,
            settings: build.settings,
        })
    }

    /// Passes a frame through the program that would be attached to the interface.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, XdpError> {
        run(&self.programs.entry().program, frame, repeat)
    }

    /// Replaces the keys of a rig that was loaded with keys.
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.programs.set_keys(keys)
    }

    pub fn registers(&self) -> &Registers {
        &self.programs.registers
    }

    /// Non-zero counters, by name.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        self.programs.counters()
    }

    /// Decided packets, as [`XdpHost::decided`](super::XdpHost::decided).
    pub fn decided(&self, deliver: impl FnMut(&[u8])) -> usize {
        let mut up = self
            .up
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        up.as_mut().map_or(0, |up| up.poll(deliver))
    }

    /// As [`XdpHost::decided_fd`](super::XdpHost::decided_fd); an error without the quorum role.
    pub fn decided_fd(&self) -> Result<OwnedFd, XdpError> {
        let up = self
            .up
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let up = up
            .as_ref()
            .ok_or_else(|| XdpError::Spec("there is no quorum counter".into()))?;
        up.fd()
            .try_clone_to_owned()
            .doing("duplicating a descriptor")
    }

    /// As [`XdpHost::set_polling`](super::XdpHost::set_polling).
    pub fn set_polling(&self, polling: bool) {
        if let Some(word) = &self.programs.polling {
            word.set(0, u64::from(polling));
        }
    }

    /// Loads a test's own program, which shares the maps that have the same names.
    pub fn beside(&self, object: &[u8]) -> Result<Beside, XdpError> {
        self.load_beside("beside", object).map(Beside)
    }

    pub(crate) fn load_beside(
        &self,
        name: &'static str,
        object: &[u8],
    ) -> Result<Loaded, XdpError> {
        let p = &self.programs;
        let roles = [&p.leader, &p.acceptor, &p.quorum].into_iter().flatten();
        let ours: Vec<&Loaded> = [&p.dispatch].into_iter().chain(roles).collect();
        load_object(name, object, Some(&self.settings), &[], &ours)
    }
}

impl Beside {
    /// Passes a frame through the program.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, XdpError> {
        run(&self.0.program, frame, repeat)
    }

    /// Sets an element of one of the program's arrays; the value must have exactly the element's size.
    pub fn set(&self, map: &str, index: u32, value: &[u8]) -> Result<(), XdpError> {
        self.0.set_bytes(map, index, value)
    }
}
