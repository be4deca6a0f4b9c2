//! Counts frames that the kernel or the driver dropped after a program wanted to send them, at the kernel's tracepoints
//! (`dataplane/ground/xdp/lost.bpf.c`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use libbpf_rs::{Link, MapCore, ObjectBuilder};

use super::error::{Doing, XdpError};
use super::maps::sums_per_cpu;
use super::refusal;
use crate::c;
use crate::objects;

const SETTINGS_MAP: &str = ".rodata.lost";
const COUNTERS_MAP: &str = "ib_lost_map";
/// The counters' names, in order of `enum ib_lost_counter`.
const NAMES: [(c::ib_lost_counter, &str); c::IB_LOST_COUNTERS as usize] = [
    (c::IB_LOST_TRANSMITS, "xdp_transmits_lost"),
    (c::IB_LOST_COPIES, "xdp_copies_lost"),
];
/// The network namespace of the calling thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Counts until it is dropped.
pub struct Lost {
    counters: OwnedFd,
    _links: Vec<Link>,
}

impl Lost {
    /// Starts counting for these interfaces of the calling thread's network namespace.
    pub fn count(interfaces: &[u32]) -> Result<Lost, XdpError> {
        let namespace =
            std::fs::metadata(OWN_NAMESPACE).doing("looking up the network namespace")?;
        let mut settings = c::ib_lost_settings {
            namespace_inode: namespace.ino() as u32,
            interfaces: [0; c::IB_LOST_INTERFACES as usize],
        };
        for (to, from) in settings.interfaces.iter_mut().zip(interfaces) {
            *to = *from;
        }
        let listening = refusal::listen();
        let failed = |error: libbpf_rs::Error| listening.error("lost", &error);
        let mut object = ObjectBuilder::default()
            .open_memory(objects::LOST)
            .map_err(failed)?;
        for mut map in object.maps_mut() {
            if map.name() == SETTINGS_MAP {
                // SAFETY: plain integers without padding (checked by bindgen's layout test).
                let bytes = unsafe {
                    std::slice::from_raw_parts(
                        (&raw const settings).cast::<u8>(),
                        size_of::<c::ib_lost_settings>(),
                    )
                };
                map.set_initial_value(bytes).map_err(failed)?;
            }
        }
        let object = object.load().map_err(failed)?;
        let links: Result<Vec<Link>, _> = object.progs_mut().map(|p| p.attach()).collect();
        let links = links.map_err(failed)?;
        let map = object.maps().find(|map| map.name() == COUNTERS_MAP);
        let map =
            map.ok_or_else(|| XdpError::Spec("no map of lost frames: rebuild inband".into()))?;
        let counters = map.as_fd().try_clone_to_owned();
        Ok(Lost {
            counters: counters.doing("duplicating a descriptor")?,
            _links: links,
        })
    }

    /// Returns the same, but if the kernel lacks support, logs a warning and counts nothing.
    pub fn count_or_warn(interfaces: &[u32]) -> Option<Lost> {
        Lost::count(interfaces)
            .inspect_err(|error| {
                let why = error.in_short();
                tracing::warn!("frames that are lost on their way out are not counted: {why}");
            })
            .ok()
    }

    /// Counters by name, without those that are zero.
    fn counters(&self) -> Result<impl Iterator<Item = (&'static str, u64)>, XdpError> {
        let counts = sums_per_cpu(&self.counters, 0..c::IB_LOST_COUNTERS);
        let counts = counts.doing("reading counters")?;
        let all = NAMES.map(|(counter, name)| (name, counts[counter as usize]));
        Ok(all.into_iter().filter(|(_, count)| *count != 0))
    }
}

/// Adds these counters, if there are any, to other counters.
pub fn add(
    lost: &Option<Lost>,
    counters: &mut BTreeMap<&'static str, u64>,
) -> Result<(), XdpError> {
    if let Some(lost) = lost {
        counters.extend(lost.counters()?);
    }
    Ok(())
}
