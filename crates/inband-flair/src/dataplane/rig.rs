//! The FLAIR program without an interface: frames go through it by `BPF_PROG_TEST_RUN`. For tests and
//! measurements.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use super::c;
use super::objects;
use super::xdp::{FlairProgram, FlairXdpSpec};
use super::FlairRegisters;
use inband_ground::auth::Keys;
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::maps::update;
use inband_ground::xdp::programs::{load_object, Loaded};
use inband_ground::xdp::rig::{run, TestRun};
use inband_ground::xdp::{wire_address, wire_port};

/// The program of a switch that has no interface.
pub struct FlairRig {
    program: FlairProgram,
    spec: FlairXdpSpec,
}

/// A destination of a rig's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// Where it is.
    pub address: SocketAddrV4,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// The interface that packets leave by; test runs come from 1.
    pub ifindex: u32,
}

impl FlairRig {
    /// Load the program as it is deployed.
    pub fn load(spec: FlairXdpSpec) -> Result<FlairRig, XdpError> {
        FlairRig::load_object(objects::FLAIR, spec)
    }

    /// Load the build that is told the time and the random word of each packet.
    pub fn load_given(spec: FlairXdpSpec) -> Result<FlairRig, XdpError> {
        FlairRig::load_object(objects::FLAIR_GIVEN, spec)
    }

    /// Load another build.
    pub fn load_object(object: &[u8], spec: FlairXdpSpec) -> Result<FlairRig, XdpError> {
        let program = FlairProgram::load(object, &spec)?;
        Ok(FlairRig { program, spec })
    }

    /// What the next packets come with, if the build is told.
    pub fn set_given(&self, now_ns: u64, random: u32) -> Result<(), XdpError> {
        let given = c::ib_given {
            now_ns,
            random: u64::from(random),
        };
        let map = self.program.loaded.map("ib_given_map")?;
        update(&map, &0u32, &given).doing("setting what packets come with")
    }

    /// Where packets to a replica go; `None`: its hardware address is not known.
    pub fn set_replica(
        &self,
        set: usize,
        replica: usize,
        to: Option<Destination>,
    ) -> Result<(), XdpError> {
        let member = c::ib_member {
            known: u32::from(to.is_some()),
            ifindex: to.map_or(0, |to| to.ifindex),
            to_address: to.map_or(0, |to| wire_address(to.address)),
            from_address: wire_address(self.spec.address),
            to_port: to.map_or(0, |to| wire_port(to.address)),
            from_port: wire_port(self.spec.address),
            to_mac: to.map_or([0; 6], |to| to.mac),
            from_mac: [2, 0, 0, 0, 0, 2],
        };
        self.program.set_replica(set, replica, &member)
    }

    /// Put a frame through the program.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, XdpError> {
        run(&self.program.loaded.program, frame, repeat)
    }

    /// Other keys, of a rig that was loaded with some.
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.program.set_keys(keys)
    }

    /// The registers.
    pub fn registers(&self) -> &FlairRegisters {
        &self.program.registers
    }

    /// Counters by name, those that are not zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        self.program.counters()
    }

    /// For measurements.
    pub(crate) fn program(&self) -> &Loaded {
        &self.program.loaded
    }

    /// Load a program that shares the maps that it names like ours.
    pub(crate) fn load_beside(
        &self,
        name: &'static str,
        object: &[u8],
    ) -> Result<Loaded, XdpError> {
        let (settings, ours) = (self.spec.settings(), [&self.program.loaded]);
        load_object(name, object, Some(&settings), &[], &ours)
    }
}
