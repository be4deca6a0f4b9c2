//! Runs frames through the Falcon program without an interface, with `BPF_PROG_TEST_RUN`. For tests and measurements.

use std::ops::Deref;

use super::objects;
use super::xdp::{FalconProgram, FalconXdpSpec};
use inband_ground::xdp::error::XdpError;

pub struct FalconRig(FalconProgram);

impl FalconRig {
    /// Loads the program as it is deployed.
    pub fn load(spec: FalconXdpSpec) -> Result<FalconRig, XdpError> {
        spec.program(objects::FALCON).map(FalconRig)
    }

    /// Loads the build that takes the time of each packet as input.
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
