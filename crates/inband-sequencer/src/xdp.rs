//! The sequencer as an XDP program.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::os::fd::AsFd;

use inband_ground::auth::Keys;
use inband_ground::xdp::attach::{check_address, find_link, Alone};
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::maps::{map_array, update};
use inband_ground::xdp::netlink::Netlink;
use inband_ground::xdp::probe::check_kernel;
use inband_ground::xdp::programs::{counters_of, load_object, Loaded, Settings};
use inband_ground::xdp::rig::{run, TestRun};
use inband_ground::xdp::{wire_address, wire_port, XdpMode};

use crate::{c, objects, Logs, Sequencer, LOGS};

/// What to load.
#[derive(Debug, Clone)]
pub struct Spec {
    /// This host's node id, 1..=254.
    pub node: u8,
    /// How many logs.
    pub logs: usize,
    /// A number drawn at this start.
    pub incarnation: u64,
    /// This host's address as clients know it.
    pub address: SocketAddrV4,
    /// Native or generic.
    pub mode: XdpMode,
    /// With keys, packets without a right tag are dropped, and those that leave carry one.
    pub keys: Option<Keys>,
}

/// The program, loaded.
pub struct Program {
    loaded: Loaded,
    logs: Logs,
    settings: Settings,
    spec: Spec,
}

impl Program {
    /// Load it.
    pub fn load(spec: Spec) -> Result<Program, XdpError> {
        if !LOGS.contains(&spec.logs) {
            return Err(XdpError::Spec(format!(
                "{} logs are not {LOGS:?}",
                spec.logs
            )));
        }
        let common = c::ib_settings {
            node: u32::from(spec.node),
            partitions: spec.logs as u32,
            address: wire_address(spec.address),
            loop_ifindex: 0,
            generic: u32::from(spec.mode == XdpMode::Generic),
            port: wire_port(spec.address),
            authenticated: u16::from(spec.keys.is_some()),
        };
        let own = c::ib_sequencer_settings {
            incarnation: spec.incarnation,
        };
        let settings = Settings::new(common, &own);
        let sizes = [("ib_logs_map", spec.logs)];
        let loaded = load_object(
            "sequencer",
            objects::SEQUENCER,
            Some(&settings),
            &sizes,
            &[],
        )?;
        if let Some(keys) = &spec.keys {
            update(&loaded.map("ib_keys_map")?, &0u32, keys.raw()).doing("setting the keys")?;
        }
        let logs = map_array(loaded.map("ib_logs_map")?.as_fd(), spec.logs)?.into();
        Ok(Program {
            loaded,
            logs,
            settings,
            spec,
        })
    }

    /// Attach it to the interface that has its address. It is detached when what this returns is dropped.
    pub fn attach(&self, interface: &str) -> Result<Alone, XdpError> {
        let mode = self.spec.mode;
        check_kernel(mode)?;
        let netlink = Netlink::open().doing("opening a netlink socket")?;
        let link = find_link(&netlink, interface)?;
        check_address(interface, *self.spec.address.ip())?;
        Alone::attach(&self.loaded, &self.settings, &link, interface, mode)
    }

    /// Put a frame through it, without an interface.
    pub fn run(&self, frame: &[u8]) -> Result<TestRun, XdpError> {
        run(&self.loaded.program, frame, 1)
    }

    /// The registers, shared with the program.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Counters by name, those that are not zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        counters_of::<Sequencer>(&self.loaded.map("ib_counters_map")?)
    }
}
