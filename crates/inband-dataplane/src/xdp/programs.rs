//! The XDP programs loaded and tied together, without an interface: what is attached to one
//! (`XdpHost`), measured (`bench`) and tested (`BPF_PROG_TEST_RUN`).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::{MapCore, ObjectBuilder};

use super::error::{Doing, XdpError};
use super::maps::{delete, map_array, page_bytes, sum_per_cpu, update, update_bytes, UpRing};
use super::refusal;
use super::rig::TestRun;
use crate::auth::Keys;
use crate::c;
use crate::registers::{Ring, Shared};
use crate::soft::{reason_name, Geometry, Registers, Roles};

/// Compiled programs, by the name of their source.
pub(crate) mod objects {
    include!(concat!(env!("OUT_DIR"), "/ground_objects.rs"));
    include!(concat!(env!("OUT_DIR"), "/paxos_objects.rs"));
    include!(concat!(env!("OUT_DIR"), "/flair_objects.rs"));
    include!(concat!(env!("OUT_DIR"), "/falcon_objects.rs"));
}

const SETTINGS_MAP: &str = ".rodata.settings";
const OWN_SETTINGS_MAP: &str = ".rodata.own";

/// The constants that a program is loaded with: those of every program, and its system's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub common: c::ib_settings,
    own: [u8; OWN_SETTINGS_MAX_BYTES],
    own_len_bytes: usize,
}

const OWN_SETTINGS_MAX_BYTES: usize = 64;

impl Settings {
    /// `own`: the struct of the system's `settings.h`.
    pub fn new<T: Copy>(common: c::ib_settings, own: &T) -> Settings {
        const { assert!(size_of::<T>() <= OWN_SETTINGS_MAX_BYTES) };
        let mut bytes = [0; OWN_SETTINGS_MAX_BYTES];
        bytes[..size_of::<T>()].copy_from_slice(bytes_of(own));
        Settings {
            common,
            own: bytes,
            own_len_bytes: size_of::<T>(),
        }
    }

    fn own(&self) -> &[u8] {
        &self.own[..self.own_len_bytes]
    }
}

/// A struct of settings as it lies in memory.
fn bytes_of<T: Copy>(settings: &T) -> &[u8] {
    // SAFETY: plain integers without padding (checked by bindgen's layout test and `tests/layout.rs`).
    unsafe { std::slice::from_raw_parts((&raw const *settings).cast::<u8>(), size_of::<T>()) }
}

/// The ring buffer of the quorum counter in bytes, at least: a full burst of large values.
pub(crate) const RING_BUFFER_MIN_BYTES: usize = 64 * 1024;

/// What the programs are built for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Build {
    pub roles: Roles,
    pub geometry: Geometry,
    pub settings: Settings,
    pub ring_buffer_bytes: usize,
}

/// A program that was loaded, and its maps by name.
pub(crate) struct Loaded {
    pub program: OwnedFd,
    maps: HashMap<String, OwnedFd>,
}

impl Loaded {
    pub(crate) fn map(&self, name: &str) -> Result<OwnedFd, XdpError> {
        let fd = self.maps.get(name).ok_or_else(|| {
            XdpError::Spec(format!(
                "the XDP programs have no map \"{name}\": rebuild inband"
            ))
        })?;
        fd.try_clone().doing("duplicating a descriptor")
    }

    /// The same program with one of its maps only, under another name: for a program that shares maps
    /// of several others that are called alike.
    pub(crate) fn renamed(&self, map: &str, name: &str) -> Result<Loaded, XdpError> {
        let program = self.program.try_clone().doing("duplicating a descriptor")?;
        Ok(Loaded {
            program,
            maps: HashMap::from([(name.to_owned(), self.map(map)?)]),
        })
    }

    /// Set an element of an array.
    pub fn set_bytes(&self, map: &str, index: u32, value: &[u8]) -> Result<(), XdpError> {
        update_bytes(&self.map(map)?, index, value).doing(format!("setting an element of {map}"))
    }
}

/// Load one object with a single program. Maps that `shared` has by name are shared.
pub(crate) fn load_object(
    name: &'static str,
    bytes: &[u8],
    settings: Option<&Settings>,
    sizes: &[(&str, usize)],
    shared: &[&Loaded],
) -> Result<Loaded, XdpError> {
    let listening = refusal::listen();
    let failed = |error: libbpf_rs::Error| listening.error(name, &error);
    let mut object = ObjectBuilder::default()
        .open_memory(bytes)
        .map_err(failed)?;
    for mut map in object.maps_mut() {
        let map_name = map.name().to_string_lossy().into_owned();
        if map_name == SETTINGS_MAP || map_name == OWN_SETTINGS_MAP {
            if let Some(settings) = settings {
                let common = map_name == SETTINGS_MAP;
                let bytes = if common {
                    bytes_of(&settings.common)
                } else {
                    settings.own()
                };
                map.set_initial_value(bytes).map_err(failed)?;
            }
        } else if let Some(fd) = shared.iter().find_map(|loaded| loaded.maps.get(&map_name)) {
            map.reuse_fd(fd.as_fd()).map_err(failed)?;
        } else if let Some((_, entries)) = sizes.iter().find(|(name, _)| *name == map_name) {
            map.set_max_entries(*entries as u32).map_err(failed)?;
        }
    }
    let object = object.load().map_err(failed)?;
    let clone = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().doing("duplicating a descriptor");
    let mut maps = HashMap::new();
    for map in object.maps() {
        maps.insert(
            map.name().to_string_lossy().into_owned(),
            clone(map.as_fd())?,
        );
    }
    let program = object.progs().next().ok_or_else(|| {
        XdpError::Spec(format!(
            "the object {name} holds no program: rebuild inband"
        ))
    })?;
    Ok(Loaded {
        program: clone(program.as_fd())?,
        maps,
    })
}

/// Room for a frame after a test run.
const TEST_FRAME_LEN_MAX_BYTES: usize = 2048;

/// Run a program on a frame `repeat` times (BPF_PROG_TEST_RUN). Each run sees what the one before
/// left of the frame.
pub(crate) fn test_run(program: &OwnedFd, frame: &[u8], repeat: u32) -> io::Result<TestRun> {
    let mut out = vec![0u8; TEST_FRAME_LEN_MAX_BYTES];
    // SAFETY: all zero is a valid value of this plain C struct; it is filled in below.
    let mut options: libbpf_sys::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as u64;
    options.data_in = frame.as_ptr().cast();
    options.data_size_in = frame.len() as u32;
    options.data_out = out.as_mut_ptr().cast();
    options.data_size_out = out.len() as u32;
    options.repeat = repeat as i32;
    // SAFETY: both buffers are valid for the sizes given.
    let result =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    out.truncate(options.data_size_out as usize);
    Ok(TestRun {
        action: options.retval,
        frame: out,
        time: Duration::from_nanos(u64::from(options.duration)),
    })
}

/// The counters of a program by name, those that are not zero.
pub(crate) fn counters_of(map: &OwnedFd) -> Result<BTreeMap<&'static str, u64>, XdpError> {
    let mut counters = BTreeMap::new();
    for reason in 0..c::IB_REASONS_MAX {
        let Some(name) = reason_name(reason) else {
            continue;
        };
        let count = sum_per_cpu(map, reason).doing("reading a counter")?;
        if count != 0 {
            counters.insert(name, count);
        }
    }
    Ok(counters)
}

/// The programs of a host, tied together.
pub(crate) struct Programs {
    pub dispatch: Loaded,
    /// The only role of the host, in one program with what dispatch does.
    alone: Option<Loaded>,
    pub leader: Option<Loaded>,
    pub acceptor: Option<Loaded>,
    pub quorum: Option<Loaded>,
    pub copies: Loaded,
    pub generic: Option<Loaded>,
    pub registers: Arc<Registers>,
    pub up: Option<UpRing>,
    /// Not 0: the quorum counter need not wake us.
    pub polling: Option<Shared<u64>>,
    counters: OwnedFd,
    memory_bytes: usize,
}

/// The program of a role that is alone on its host: it does what dispatch does itself, which makes an
/// instance some 4% cheaper.
fn alone_object(roles: Roles) -> Option<(&'static str, &'static [u8])> {
    match (roles.leader, roles.acceptor, roles.quorum) {
        (true, false, false) => Some(("leader_alone", objects::LEADER_ALONE)),
        (false, true, false) => Some(("acceptor_alone", objects::ACCEPTOR_ALONE)),
        (false, false, true) => Some(("quorum_alone", objects::QUORUM_ALONE)),
        _ => None,
    }
}

/// Message types that go to the leader's program with any flags.
const LEADER_TYPES: [c::ib_paxos_type; 2] = [c::IB_PAXOS_REQUEST, c::IB_PAXOS_NACK];
/// ... and to the acceptor's.
const ACCEPTOR_TYPES: [c::ib_paxos_type; 3] =
    [c::IB_PAXOS_PHASE1A, c::IB_PAXOS_PHASE2A, c::IB_PAXOS_LEARN];
/// ... and to the quorum counter's.
const QUORUM_TYPES: [c::ib_paxos_type; 1] = [c::IB_PAXOS_PHASE2B];
/// To the leader's with IB_PAXOS_F_LEADER, else to the acceptor's.
const SHARED_TYPES: [c::ib_paxos_type; 2] = [c::IB_PAXOS_TRIM, c::IB_PAXOS_POSITION];

impl Programs {
    /// Load the programs of `build.roles`. `variant`: another build of the only role's program.
    pub fn load(build: &Build, variant: Option<&[u8]>) -> Result<Programs, XdpError> {
        let Build {
            roles,
            geometry,
            settings,
            ..
        } = *build;
        let slots = geometry.partitions * geometry.ring_slots;
        let sizes = [
            ("ib_leader_map", geometry.partitions),
            ("ib_acceptor_map", geometry.partitions),
            ("ib_ring_map", slots),
            ("ib_tails_map", slots),
            ("ib_counts_map", slots),
            ("ib_ringbuf_map", build.ring_buffer_bytes),
        ];
        let load = |name, bytes: &[u8], shared: &[&Loaded]| {
            load_object(name, bytes, Some(&settings), &sizes, shared)
        };
        let dispatch = load("dispatch", objects::DISPATCH, &[])?;
        let copies = load("copies", objects::COPIES, &[&dispatch])?;
        let role = |on: bool, name, bytes: &[u8]| {
            on.then(|| load(name, bytes, &[&dispatch, &copies]))
                .transpose()
        };
        let leader = variant.filter(|_| roles.leader).unwrap_or(objects::LEADER);
        let leader = role(roles.leader, "leader", leader)?;
        let alone = match (variant, alone_object(roles)) {
            (None, Some(object)) => Some(object),
            _ => None,
        };
        let acceptor = variant.filter(|_| roles.acceptor);
        let acceptor = acceptor.unwrap_or(objects::ACCEPTOR);
        let acceptor = role(roles.acceptor, "acceptor", acceptor)?;
        let quorum = role(roles.quorum, "quorum", objects::QUORUM)?;
        let alone = alone
            .map(|(name, object)| {
                let roles = [&leader, &acceptor, &quorum].into_iter().flatten();
                let shared: Vec<&Loaded> = [&dispatch, &copies].into_iter().chain(roles).collect();
                load(name, object, &shared)
            })
            .transpose()?;
        let generic = (settings.common.generic != 0)
            .then(|| load("generic", objects::GENERIC, &[&dispatch, &copies]))
            .transpose()?;

        // Roles that do not run have registers of their own, which nothing uses.
        let mut registers = Registers::new(geometry, Roles::default());
        let (mut up, mut polling) = (None, None);
        if let Some(leader) = &leader {
            registers.leader =
                map_array(leader.map("ib_leader_map")?.as_fd(), geometry.partitions)?;
        }
        if let Some(acceptor) = &acceptor {
            registers.acceptor = map_array(
                acceptor.map("ib_acceptor_map")?.as_fd(),
                geometry.partitions,
            )?;
            registers.ring = Ring::new(
                map_array(acceptor.map("ib_ring_map")?.as_fd(), slots)?,
                map_array(acceptor.map("ib_tails_map")?.as_fd(), slots)?,
            );
        }
        if let Some(quorum) = &quorum {
            registers.quorum = map_array(quorum.map("ib_config_map")?.as_fd(), 1)?;
            registers.counts = map_array(quorum.map("ib_counts_map")?.as_fd(), slots)?;
            polling = Some(map_array(quorum.map("ib_polling_map")?.as_fd(), 1)?);
            up = Some(UpRing::new(
                quorum.map("ib_ringbuf_map")?,
                build.ring_buffer_bytes,
            )?);
        }
        let counters = dispatch.map("ib_counters_map")?;
        let memory_bytes =
            registers.memory_bytes() + up.as_ref().map_or(0, UpRing::memory_bytes) + page_bytes();
        let programs = Programs {
            dispatch,
            alone,
            leader,
            acceptor,
            quorum,
            copies,
            generic,
            registers: Arc::new(registers),
            up,
            polling,
            counters,
            memory_bytes,
        };
        programs.fill_dispatch_table()?;
        Ok(programs)
    }

    /// The program to attach to the host's interface.
    pub fn entry(&self) -> &Loaded {
        self.alone.as_ref().unwrap_or(&self.dispatch)
    }

    fn fill_dispatch_table(&self) -> Result<(), XdpError> {
        let table = self.dispatch.map("ib_roles_map")?;
        let set = |kind: c::ib_paxos_type, with_leader_flag: bool, program: &Option<Loaded>| {
            let flag = if with_leader_flag {
                c::IB_PAXOS_DISPATCH_LEADER
            } else {
                0
            };
            let key = kind | flag;
            match program {
                Some(program) => update(&table, &key, &program.program.as_raw_fd())
                    .doing("filling the dispatch table"),
                None => Ok(()),
            }
        };
        for flag in [false, true] {
            LEADER_TYPES
                .into_iter()
                .try_for_each(|kind| set(kind, flag, &self.leader))?;
            ACCEPTOR_TYPES
                .into_iter()
                .try_for_each(|kind| set(kind, flag, &self.acceptor))?;
            QUORUM_TYPES
                .into_iter()
                .try_for_each(|kind| set(kind, flag, &self.quorum))?;
        }
        for kind in SHARED_TYPES {
            set(kind, true, &self.leader)?;
            set(kind, false, &self.acceptor)?;
        }
        Ok(())
    }

    /// Set a multicast group's addresses.
    pub fn set_group(&self, which: c::ib_xdp_group, group: &c::ib_group) -> Result<(), XdpError> {
        update(&self.copies.map("ib_groups_map")?, &which, group).doing("setting a multicast group")
    }

    /// Set a multicast group: its addresses, and in native mode the interfaces, one a copy, that its
    /// packets leave by. A program that sends to a group of one addresses the packet itself; so
    /// whatever it sees in between, no packet leaves unaddressed.
    pub fn set_members(
        &self,
        which: c::ib_xdp_group,
        group: &c::ib_group,
        ifindexes: &[u32],
    ) -> Result<(), XdpError> {
        if let [_] = ifindexes {
            self.set_group(which, group)?;
            self.set_devices(which, ifindexes)
        } else {
            self.set_devices(which, ifindexes)?;
            self.set_group(which, group)
        }
    }

    fn set_devices(&self, which: c::ib_xdp_group, ifindexes: &[u32]) -> Result<(), XdpError> {
        let (loaded, map) = if which == c::IB_PAXOS_ACCEPTORS_GROUP {
            (&self.leader, "ib_acceptors_map")
        } else {
            (&self.acceptor, "ib_learners_map")
        };
        let Some(loaded) = loaded else { return Ok(()) };
        let map = loaded.map(map)?;
        for (i, ifindex) in ifindexes.iter().enumerate() {
            // struct bpf_devmap_val: interface, egress program (0: none).
            let copies = self.copies.program.as_raw_fd() as u32;
            let value = [*ifindex, if ifindexes.len() > 1 { copies } else { 0 }];
            update(&map, &(i as u32), &value).doing("filling a multicast map")?;
        }
        for i in ifindexes.len() as u32..c::IB_XDP_GROUP_ENTRIES {
            delete(&map, &i).doing("emptying a multicast map")?;
        }
        Ok(())
    }

    /// Set the keys that packets are checked and signed with, of programs that were built for that.
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        update(&self.dispatch.map("ib_keys_map")?, &0u32, keys.raw()).doing("setting the keys")
    }

    /// Counters by name, those that are not zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        counters_of(&self.counters)
    }

    /// Bytes of registers, ring buffer and counters.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}
