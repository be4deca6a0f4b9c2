//! A gate between a keyed and a keyless segment (`dataplane/ground/gate.h`): a program on each of its two interfaces.

use std::collections::BTreeMap;

use super::attach::{find_link, Attachment};
use super::error::{Doing, XdpError};
use super::netlink::Netlink;
use super::probe::check_kernel;
use super::programs::{counters_of, load_object, Loaded, Settings};
use super::rig::{run, TestRun};
use super::XdpMode;
use crate::auth::{raw, Keys};
use crate::{c, objects, System};

/// Which segment an interface leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Packets that enter here have a tag of a key, which is checked and replaced by a checksum.
    Keyed,
    /// Packets that enter here have a checksum as tag, which is checked and replaced by a tag of the active key.
    Keyless,
}

/// What a gate counts: the ground's reasons.
#[derive(Debug, Clone, Copy)]
pub enum Gate {}

impl System for Gate {
    fn check(keys: Option<&Keys>, packet: &[u8], partitions: usize) -> u32 {
        let len_bytes = packet.len() as u32;
        // SAFETY: the function reads at most the packet's bytes, and the keys if there are any.
        unsafe { c::ib_gate_keys_check(raw(keys), packet.as_ptr(), len_bytes, partitions as u32) }
    }

    fn own_reason_name(_reason: u32) -> Option<&'static str> {
        None
    }
}

/// Passes a packet (UDP payload) that enters on this side, as the program does. Returns the number of the reason that
/// is counted; the packet is changed if that is `IB_R_tag_removed` or `IB_R_tag_made`.
pub fn pass(side: Side, keys: &Keys, packet: &mut [u8]) -> u32 {
    let is_keyed_side = u32::from(side == Side::Keyed);
    let len_bytes = packet.len() as u32;
    // SAFETY: the function reads and writes at most the packet's bytes, and reads the keys.
    unsafe {
        c::ib_gate_pass(
            raw(Some(keys)),
            is_keyed_side,
            packet.as_mut_ptr(),
            len_bytes,
        )
    }
}

/// The loaded program of one side.
pub struct Program {
    loaded: Loaded,
    settings: Settings,
}

impl Program {
    pub fn load(side: Side, keys: &Keys) -> Result<Program, XdpError> {
        let settings = c::ib_settings {
            node: 0,
            partitions: c::IB_PARTITIONS_MAX,
            address: 0,
            loop_ifindex: 0,
            generic: 0,
            port: 0,
            authenticated: u16::from(side == Side::Keyed),
        };
        let settings = Settings::new(settings, &());
        let loaded = load_object("gate", objects::GATE, Some(&settings), &[], &[])?;
        loaded.set_keys(keys)?;
        Ok(Program { loaded, settings })
    }

    /// Runs the program on a frame, without an interface.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, XdpError> {
        run(&self.loaded.program, frame, repeat)
    }

    /// Counters by name, summed over the CPUs, without those that are zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        counters_of::<Gate>(&self.loaded.map("ib_counters_map")?)
    }

    /// Replaces the keys.
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.loaded.set_keys(keys)
    }

    /// Returns the program and its maps.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Loads another program with the same settings, which shares this program's maps of the same names.
    pub fn load_beside(&self, name: &'static str, object: &[u8]) -> Result<Loaded, XdpError> {
        load_object(name, object, Some(&self.settings), &[], &[&self.loaded])
    }

    /// Attaches the program to an interface, which needs no address. It is detached when the result is dropped.
    pub fn attach(self, interface: &str, mode: XdpMode) -> Result<Attached, XdpError> {
        check_kernel(mode)?;
        let netlink = Netlink::open().doing("opening a netlink socket")?;
        let link = find_link(&netlink, interface)?;
        let attachment = Attachment::xdp(&self.loaded.program, link.index, interface, mode)?;
        Ok(Attached {
            _attachment: attachment,
            program: self,
        })
    }
}

/// A program on its interface.
pub struct Attached {
    // Dropped before the program's maps.
    _attachment: Attachment,
    program: Program,
}

impl Attached {
    pub fn program(&self) -> &Program {
        &self.program
    }
}
