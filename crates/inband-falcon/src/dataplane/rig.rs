//! The Falcon program without an interface: frames go through it by `BPF_PROG_TEST_RUN`. For tests and
//! measurements.

use std::ops::Deref;

use super::objects;
use super::xdp::{FalconProgram, FalconXdpSpec};
use inband_ground::xdp::error::XdpError;

/// The program of a scheduler that has no interface.
pub struct FalconRig(FalconProgram);

impl FalconRig {
    /// Load the program as it is deployed.
    pub fn load(spec: FalconXdpSpec) -> Result<FalconRig, XdpError> {
        spec.program(objects::FALCON).map(FalconRig)
    }

    /// Load the build that is told the time of each packet.
    pub fn load_given(spec: FalconXdpSpec) -> Result<FalconRig, XdpError> {
        spec.program(objects::FALCON_GIVEN).map(FalconRig)
    }
}

impl Deref for FalconRig {
    type Target = FalconProgram;

    fn deref(&self) -> &FalconProgram {
        &self.0
    }
}
