//! The XDP switch: loads the program, attaches it to the ports, and writes its tables.
//!
//! Byte layouts here are those of `bpf/switch.bpf.c`; their sizes are checked at load time.

use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, Xdp, XdpFlags};

use crate::error::LabError;
use crate::faults::{LinkCounters, LinkFaults};
use crate::pass::Aligned;

/// Most hosts per lab: each port has a bit in a 64-bit mask.
pub const PORTS_MAX: usize = 64;
/// Interface index of port 0 in the switch's namespace.
pub(crate) const IFINDEX_BASE: usize = 1000;
/// Most drop rules that can be active at once.
pub const DROP_RULES_MAX: u32 = 16;

const LINK_CUT_FROM_HOST: u32 = 1;
const LINK_CUT_TO_HOST: u32 = 2;
const LINK_BYTES: usize = 24;
const RULE_BYTES: usize = 24;
const STATE_BYTES: usize = 16;
const COUNTERS: usize = 8;

static PROGRAM: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/switch.bpf.o")));

/// MAC address of the host at a port; the switch reads the port from its last byte.
pub(crate) fn mac_of(port: usize) -> [u8; 6] {
    [0x02, 0x49, 0x42, 0, 0, port as u8]
}

/// A link's entry in the switch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinkEntry {
    /// Ports to which frames from this port are cut, as a mask.
    pub(crate) cut_to_ports: u64,
    pub(crate) faults: LinkFaults,
}

impl LinkEntry {
    fn is_faulty(&self) -> bool {
        *self.to_bytes().as_slice() != [0; LINK_BYTES]
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut flags = 0;
        if self.faults.cut_from_host {
            flags |= LINK_CUT_FROM_HOST;
        }
        if self.faults.cut_to_host {
            flags |= LINK_CUT_TO_HOST;
        }
        let mut bytes = self.cut_to_ports.to_ne_bytes().to_vec();
        for word in [
            self.faults.loss_from_host_ppm,
            self.faults.loss_to_host_ppm,
            flags,
            0,
        ] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes
    }
}

/// A drop rule with hosts resolved to ports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleEntry {
    pub(crate) from_ports: u64,
    pub(crate) to_ports: u64,
    pub(crate) udp_port: u16,
    pub(crate) message_type: u8,
}

impl RuleEntry {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.from_ports.to_ne_bytes().to_vec();
        bytes.extend(self.to_ports.to_ne_bytes());
        bytes.extend(self.udp_port.to_ne_bytes());
        bytes.extend([self.message_type, 1, 0, 0, 0, 0]);
        bytes
    }
}

/// The tables that control forwarding in the kernel.
#[derive(Debug)]
pub(crate) struct SwitchTables {
    links: MapHandle,
    rules: MapHandle,
    state: MapHandle,
    counters: MapHandle,
    /// Ports with a host, as a mask.
    present: u64,
    entries: Vec<LinkEntry>,
    active_rules: Vec<Option<RuleEntry>>,
}

/// The queueing thread's part of the program.
#[derive(Debug)]
pub(crate) struct QueueTables {
    /// Ring buffer of frames for user space.
    pub(crate) to_user: MapHandle,
    queueing: MapHandle,
}

impl QueueTables {
    /// From now on send the frames of exactly these ports (a mask) to user space.
    pub(crate) fn set_queueing(&self, ports: u64) -> Result<(), LabError> {
        put(
            &self.queueing,
            0,
            &ports.to_ne_bytes(),
            "choose the queueing ports",
        )
    }
}

/// The ports of the switch.
#[derive(Debug)]
pub(crate) struct Ports {
    devmap: MapHandle,
    program: OwnedFd,
}

impl Ports {
    /// Opens a port in both directions. Call in the switch's namespace.
    pub(crate) fn open(&self, port: usize) -> Result<(), LabError> {
        let ifindex = (IFINDEX_BASE + port) as u32;
        put(
            &self.devmap,
            port as u32,
            &ifindex.to_ne_bytes(),
            "fill its port table",
        )?;
        // Native mode or an error: generic mode would be slow without anyone noticing. The attachment belongs to the
        // interface and is removed with it.
        Xdp::new(self.program.as_fd())
            .attach(ifindex as i32, XdpFlags::DRV_MODE)
            .map_err(LabError::bpf("attach it in native mode to a veth"))
    }

    /// Stops sending frames out of a port.
    pub(crate) fn close(&self, port: usize) -> Result<(), LabError> {
        self.devmap
            .delete(&(port as u32).to_ne_bytes())
            .map_err(LabError::bpf("empty its port table"))
    }
}

/// Loads the program; all ports are still closed. Call in the switch's namespace.
pub(crate) fn load() -> Result<(SwitchTables, QueueTables, Ports), LabError> {
    let mut builder = ObjectBuilder::default();
    let object = builder
        .open_memory(&PROGRAM.0)
        .and_then(libbpf_rs::OpenObject::load)
        .map_err(LabError::bpf("load it"))?;
    let mut tables = SwitchTables {
        links: map(&object, "links", LINK_BYTES)?,
        rules: map(&object, "drop_rules", RULE_BYTES)?,
        state: map(&object, "state", STATE_BYTES)?,
        counters: map(&object, "counters", COUNTERS * 8)?,
        present: 0,
        entries: vec![LinkEntry::default(); PORTS_MAX],
        active_rules: vec![None; DROP_RULES_MAX as usize],
    };
    tables.put_state()?;
    let queue = QueueTables {
        to_user: map(&object, "to_user", 0)?,
        queueing: map(&object, "queueing", 8)?,
    };
    let program = object
        .progs()
        .find(|p| p.name() == "lab_switch")
        .expect("the embedded object contains lab_switch");
    let ports = Ports {
        devmap: map(&object, "ports", 4)?,
        program: program
            .as_fd()
            .try_clone_to_owned()
            .map_err(LabError::system("keep the switch's program"))?,
    };
    Ok((tables, queue, ports))
}

fn map(object: &Object, name: &str, value_bytes: usize) -> Result<MapHandle, LabError> {
    let map = object
        .maps()
        .find(|m| m.name() == name)
        .unwrap_or_else(|| panic!("the embedded object contains the map {name}"));
    assert_eq!(
        map.value_size() as usize,
        value_bytes,
        "layout of map {name}"
    );
    MapHandle::try_from(&map).map_err(LabError::bpf(format!("open its map {name}")))
}

fn put(map: &MapHandle, key: u32, value: &[u8], what: &str) -> Result<(), LabError> {
    map.update(&key.to_ne_bytes(), value, MapFlags::ANY)
        .map_err(LabError::bpf(what))
}

impl SwitchTables {
    /// Sets whether there is a host at this port. Its link becomes perfect.
    pub(crate) fn set_present(&mut self, port: usize, present: bool) -> Result<(), LabError> {
        if present {
            self.present |= 1 << port;
        } else {
            self.present &= !(1 << port);
        }
        self.set_link(port, LinkEntry::default())
    }

    pub(crate) fn link(&self, port: usize) -> LinkEntry {
        self.entries[port]
    }

    pub(crate) fn set_link(&mut self, port: usize, entry: LinkEntry) -> Result<(), LabError> {
        put(
            &self.links,
            port as u32,
            &entry.to_bytes(),
            "set a link's faults",
        )?;
        self.entries[port] = entry;
        self.put_state()
    }

    /// `None` if all rules are in use.
    pub(crate) fn add_rule(&mut self, rule: RuleEntry) -> Result<Option<u32>, LabError> {
        let Some(free) = self.active_rules.iter().position(Option::is_none) else {
            return Ok(None);
        };
        put(
            &self.rules,
            free as u32,
            &rule.to_bytes(),
            "set a drop rule",
        )?;
        self.active_rules[free] = Some(rule);
        self.put_state()?;
        Ok(Some(free as u32))
    }

    pub(crate) fn remove_rule(&mut self, index: u32) -> Result<(), LabError> {
        put(&self.rules, index, &[0; RULE_BYTES], "remove a drop rule")?;
        self.active_rules[index as usize] = None;
        self.put_state()
    }

    pub(crate) fn remove_all_rules(&mut self) -> Result<(), LabError> {
        for index in 0..DROP_RULES_MAX {
            if self.active_rules[index as usize].is_some() {
                self.remove_rule(index)?;
            }
        }
        Ok(())
    }

    /// Sums over all CPUs; `released` and `overflowed` are the queueing thread's.
    pub(crate) fn counters(&self, port: usize) -> Result<LinkCounters, LabError> {
        let cpus = self
            .counters
            .lookup_percpu(&(port as u32).to_ne_bytes(), MapFlags::ANY)
            .map_err(LabError::bpf("read its counters"))?
            .unwrap_or_default();
        let mut sums = [0u64; COUNTERS];
        for cpu in &cpus {
            for (sum, word) in sums.iter_mut().zip(cpu.chunks_exact(8)) {
                *sum += u64::from_ne_bytes(word.try_into().expect("chunks of eight bytes"));
            }
        }
        let [from_host, to_host, lost, cut, ruled_out, queued, queue_full, unknown_destination] =
            sums;
        Ok(LinkCounters {
            from_host,
            to_host,
            lost,
            cut,
            ruled_out,
            queued,
            queue_full,
            unknown_destination,
            ..LinkCounters::default()
        })
    }

    fn put_state(&mut self) -> Result<(), LabError> {
        let faulty = self.entries.iter().any(LinkEntry::is_faulty);
        let rules = self.active_rules.iter().flatten().count() as u32;
        let mut bytes = self.present.to_ne_bytes().to_vec();
        bytes.extend(u32::from(faulty).to_ne_bytes());
        bytes.extend(rules.to_ne_bytes());
        put(&self.state, 0, &bytes, "set its state")
    }
}
