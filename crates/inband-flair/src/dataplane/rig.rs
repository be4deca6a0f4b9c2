//! Runs the FLAIR program on frames without an interface, with `BPF_PROG_TEST_RUN`. For tests and measurements.

use std::net::SocketAddrV4;
use std::ops::Deref;

use super::c;
use super::objects;
use super::xdp::{set_replica, FlairProgram, FlairXdpSpec};
use inband_ground::xdp::error::XdpError;
use inband_ground::xdp::{wire_address, wire_port};

/// A switch program without an interface.
pub struct FlairRig {
    program: FlairProgram,
    spec: FlairXdpSpec,
}

/// A destination of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    pub address: SocketAddrV4,
    pub mac: [u8; 6],
    /// The interface that packets leave by; that of test runs is 1.
    pub ifindex: u32,
}

impl FlairRig {
    /// Loads the program as it is deployed.
    pub fn load(spec: FlairXdpSpec) -> Result<FlairRig, XdpError> {
        FlairRig::load_object(objects::FLAIR, spec)
    }

    /// Loads the build that takes the time and the random word of each packet as input.
    pub fn load_given(spec: FlairXdpSpec) -> Result<FlairRig, XdpError> {
        FlairRig::load_object(objects::FLAIR_GIVEN, spec)
    }

    /// Loads another build.
    pub fn load_object(object: &[u8], spec: FlairXdpSpec) -> Result<FlairRig, XdpError> {
        let program = spec.program(object)?;
        Ok(FlairRig { program, spec })
    }

    /// Sets the destination of packets to a replica; `None` if its hardware address is unknown.
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
