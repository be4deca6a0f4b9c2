//! Counts frames that the kernel or the driver dropped after a program wanted to send them, at the kernel's tracepoints
//! (`dataplane/ground/xdp/lost.bpf.c`).
//!
//! The kernel calls every program at a tracepoint for all frames of the machine. So hosts of one kernel share one
//! instance, as in a cluster of `inband up`: the first host attaches the programs, and all of them hold references, which
//! keep the programs attached until the last host ends. Hosts that start at the same time attach one each, then all use
//! the oldest, as far as they see it. Once its map is full, hosts share another one.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, ObjectBuilder};

use super::error::{Doing, XdpError};
use super::refusal;
use crate::c;
use crate::objects;

/// Give it another name if the programs change: hosts of different versions would share them otherwise.
const COUNTERS_MAP: &str = "ib_lost_map";
/// Where the programs are attached. If one of these links is missing, the instance is being detached.
const TRACEPOINTS: usize = 4;
const COUNTS_LEN_BYTES: usize = size_of::<c::ib_lost_counts>();
/// The counters' names, in order of `enum ib_lost_counter`.
const NAMES: [(c::ib_lost_counter, &str); c::IB_LOST_COUNTERS as usize] = [
    (c::IB_LOST_TRANSMITS, "xdp_transmits_lost"),
    (c::IB_LOST_COPIES, "xdp_copies_lost"),
];
/// The network namespace of the calling thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

type Counts = [u64; c::IB_LOST_COUNTERS as usize];

/// Programs that are attached.
struct Instance {
    counters: MapHandle,
    /// References that keep them attached.
    _links: Vec<OwnedFd>,
}

/// Counts until it is dropped.
pub struct Lost {
    instance: Instance,
    /// Keys in the map, with their counts before: an earlier host may have used the same interface.
    interfaces: Vec<(Vec<u8>, Counts)>,
}

impl Instance {
    /// Returns those of all hosts, the oldest first. Finding them needs CAP_SYS_ADMIN.
    fn attached() -> impl Iterator<Item = Instance> {
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let maps_of: HashMap<u32, Vec<u32>> = ProgInfoIter::with_query_opts(options)
            .map(|program| (program.id, program.map_ids))
            .collect();
        let mut links_of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let tracepoints = LinkInfoIter::default()
            .filter(|link| matches!(link.info, LinkTypeInfo::RawTracepoint(_)));
        for link in tracepoints {
            for map in maps_of.get(&link.prog_id).into_iter().flatten() {
                links_of.entry(*map).or_default().push(link.id);
            }
        }
        links_of.into_iter().filter_map(|(map, links)| {
            let counters = MapHandle::from_map_id(map).ok()?;
            let is_ours = counters.name() == OsStr::new(COUNTERS_MAP)
                && counters.map_type() == MapType::PercpuHash
                && counters.key_size() as usize == size_of::<c::ib_lost_interface>()
                && counters.value_size() as usize == COUNTS_LEN_BYTES;
            let links: Vec<OwnedFd> =
                is_ours.then(|| links.into_iter().filter_map(link_by_id).collect())?;
            (links.len() == TRACEPOINTS).then_some(Instance {
                counters,
                _links: links,
            })
        })
    }

    fn attach() -> Result<Instance, XdpError> {
        let listening = refusal::listen();
        let failed = |error: libbpf_rs::Error| listening.error("lost", &error);
        let object = ObjectBuilder::default()
            .open_memory(objects::LOST)
            .and_then(|object| object.load())
            .map_err(failed)?;
        let links: Result<Vec<OwnedFd>, XdpError> = object
            .progs_mut()
            .map(|program| {
                let link = program.attach().map_err(failed)?;
                let reference = link.as_fd().try_clone_to_owned();
                reference.doing("duplicating a descriptor")
            })
            .collect();
        let links = links?;
        assert_eq!(links.len(), TRACEPOINTS);
        let map = object.maps().find(|map| map.name() == COUNTERS_MAP);
        let map =
            map.ok_or_else(|| XdpError::Spec("no map of lost frames: rebuild inband".into()))?;
        Ok(Instance {
            counters: MapHandle::try_from(&map).map_err(failed)?,
            _links: links,
        })
    }

    /// Begins to count for an interface. Returns the counts so far.
    fn begin(&self, interface: &[u8]) -> libbpf_rs::Result<Counts> {
        let zeros = vec![vec![0; COUNTS_LEN_BYTES]; libbpf_rs::num_possible_cpus()?];
        let begun = self
            .counters
            .update_percpu(interface, &zeros, MapFlags::NO_EXIST);
        match begun {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::AlreadyExists => Err(error),
            _ => self.counts(interface),
        }
    }

    /// Returns the sums over all CPUs.
    fn counts(&self, interface: &[u8]) -> libbpf_rs::Result<Counts> {
        let mut sums = Counts::default();
        let per_cpu = self.counters.lookup_percpu(interface, MapFlags::ANY)?;
        for counts in per_cpu.iter().flatten() {
            for (sum, count) in sums.iter_mut().zip(counts.chunks_exact(size_of::<u64>())) {
                *sum += u64::from_ne_bytes(count.try_into().expect("eight bytes"));
            }
        }
        Ok(sums)
    }
}

/// Returns a reference to a link, unless it is gone.
fn link_by_id(id: u32) -> Option<OwnedFd> {
    // SAFETY: a system call on a number; the kernel checks it.
    let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) };
    // SAFETY: a new descriptor that nothing else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Lost {
    /// Starts counting for these interfaces of the calling thread's network namespace.
    pub fn count(interfaces: &[u32]) -> Result<Lost, XdpError> {
        let namespace =
            std::fs::metadata(OWN_NAMESPACE).doing("looking up the network namespace")?;
        let namespace = namespace.ino() as u32;
        let keys = interfaces
            .iter()
            .map(|ifindex| [namespace.to_ne_bytes(), ifindex.to_ne_bytes()].concat());
        let keys: Vec<Vec<u8>> = keys.collect();
        if let Some(lost) = Lost::begin_in_first(Instance::attached(), &keys) {
            return Ok(lost);
        }
        let own = Lost::begin(Instance::attach()?, &keys).map_err(|error| {
            let listening = refusal::listen();
            listening.error("lost", &error)
        })?;
        // Another host may have attached one meanwhile.
        Ok(Lost::begin_in_first(Instance::attached(), &keys).unwrap_or(own))
    }

    /// Begins in the first of these instances whose map has room.
    fn begin_in_first(
        mut instances: impl Iterator<Item = Instance>,
        keys: &[Vec<u8>],
    ) -> Option<Lost> {
        instances.find_map(|instance| Lost::begin(instance, keys).ok())
    }

    fn begin(instance: Instance, keys: &[Vec<u8>]) -> libbpf_rs::Result<Lost> {
        let interfaces: libbpf_rs::Result<Vec<_>> = keys
            .iter()
            .map(|key| Ok((key.clone(), instance.begin(key)?)))
            .collect();
        Ok(Lost {
            interfaces: interfaces?,
            instance,
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
        let mut sums = Counts::default();
        for (interface, before) in &self.interfaces {
            let counts = self.instance.counts(interface);
            let counts = counts
                .map_err(std::io::Error::other)
                .doing("reading counters")?;
            for ((sum, count), before) in sums.iter_mut().zip(counts).zip(before) {
                *sum += count - before;
            }
        }
        let all = NAMES.map(|(counter, name)| (name, sums[counter as usize]));
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: u32 = 1;

    fn id_of(instance: &Instance) -> u32 {
        let info = libbpf_rs::MapInfo::new(instance.counters.as_fd());
        info.expect("its description").info.id
    }

    /// A number of no interface.
    const NONE: u32 = 0x7fff_0000;

    #[test]
    fn hosts_of_one_kernel_share_the_programs() {
        if !nix::unistd::geteuid().is_root() {
            return inband_testing::not_run("loading programs needs root");
        }
        // Other tests may attach and detach an instance at the same time.
        let shares = || {
            let one = Lost::count(&[LOOPBACK, NONE]).expect("loaded");
            let two = Lost::count(&[LOOPBACK, NONE]).expect("loaded");
            let id = id_of(&one.instance);
            drop(one);
            // It stays attached for the other one.
            let three = Lost::count(&[NONE]).expect("loaded");
            id == id_of(&two.instance) && id == id_of(&three.instance)
        };
        assert!((0..20).any(|_| shares()));
    }

    #[test]
    fn the_next_instance_is_shared_once_a_map_is_full() {
        if !nix::unistd::geteuid().is_root() {
            return inband_testing::not_run("loading programs needs root");
        }
        let key = |ifindex: u32| [NONE.to_ne_bytes(), ifindex.to_ne_bytes()].concat();
        let attach = || Instance::attach().expect("loaded");
        let (full, next) = (attach(), attach());
        // Hosts that other tests start may share it.
        let room = (0..c::IB_LOST_INTERFACES_MAX).take_while(|at| full.begin(&key(*at)).is_ok());
        assert!(room.count() > 0, "there was no room at all");
        let id = id_of(&next);
        let one_more = key(c::IB_LOST_INTERFACES_MAX);
        let lost = Lost::begin_in_first([full, next].into_iter(), &[one_more]);
        assert_eq!(id_of(&lost.expect("the other has room").instance), id);
    }
}
