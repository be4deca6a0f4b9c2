//! The FLAIR program without an interface: frames go through it by `BPF_PROG_TEST_RUN`. For tests and
//! measurements.

use std::net::SocketAddrV4;
use std::ops::Deref;

use super::c;
use super::objects;
use super::xdp::{set_replica, FlairProgram, FlairXdpSpec};
use inband_ground::xdp::error::XdpError;
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
        let program = spec.program(object)?;
        Ok(FlairRig { program, spec })
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
        set_replica(&self.program, set, replica, &member)
    }
}

impl Deref for FlairRig {
    type Target = FlairProgram;

    fn deref(&self) -> &FlairProgram {
        &self.program
    }
}
