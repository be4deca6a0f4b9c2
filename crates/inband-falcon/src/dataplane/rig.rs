//! The Falcon program without an interface: frames go through it by `BPF_PROG_TEST_RUN`. For tests and
//! measurements.

use std::collections::BTreeMap;

use super::c;
use super::objects;
use super::xdp::{FalconProgram, FalconXdpSpec};
use super::FalconRegisters;
use inband_ground::auth::Keys;
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::maps::update;
use inband_ground::xdp::programs::{load_object, Loaded};
use inband_ground::xdp::rig::{run, TestRun};

/// The program of a scheduler that has no interface.
pub struct FalconRig {
    program: FalconProgram,
    spec: FalconXdpSpec,
}

impl FalconRig {
    /// Load the program as it is deployed.
    pub fn load(spec: FalconXdpSpec) -> Result<FalconRig, XdpError> {
        FalconRig::load_object(objects::FALCON, spec)
    }

    /// Load the build that is told the time of each packet.
    pub fn load_given(spec: FalconXdpSpec) -> Result<FalconRig, XdpError> {
        FalconRig::load_object(objects::FALCON_GIVEN, spec)
    }

    /// Load another build.
    pub fn load_object(object: &[u8], spec: FalconXdpSpec) -> Result<FalconRig, XdpError> {
        let program = FalconProgram::load(object, &spec)?;
        Ok(FalconRig { program, spec })
    }

    /// When the next packets come, if the build is told.
    pub fn set_given(&self, now_ns: u64) -> Result<(), XdpError> {
        let given = c::ib_given { now_ns, random: 0 };
        let map = self.program.loaded.map("ib_given_map")?;
        update(&map, &0u32, &given).doing("setting what packets come with")
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
    pub fn registers(&self) -> &FalconRegisters {
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
