//! The XDP programs loaded and tied together, without an interface: what is attached to one
//! (`XdpHost`), measured (`bench`) and tested (`BPF_PROG_TEST_RUN`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use inband_ground::auth::Keys;
use inband_ground::objects::GENERIC;
use inband_ground::registers::Shared;
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::maps::{delete, map_array, page_bytes, update, UpRing};
use inband_ground::xdp::programs::{counters_of, load_object, Loaded, Settings};

use crate::dataplane::registers::Ring;
use crate::dataplane::soft::{Geometry, Registers, Roles};
use crate::dataplane::{c, objects, Paxos};

/// The ring buffer of the quorum counter in bytes, at least: a full burst of large values.
pub const RING_BUFFER_MIN_BYTES: usize = 64 * 1024;

/// What the programs are built for.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    pub roles: Roles,
    pub geometry: Geometry,
    pub settings: Settings,
    pub ring_buffer_bytes: usize,
}

/// The programs of a host, tied together.
pub struct Programs {
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
            .then(|| load("generic", GENERIC, &[&dispatch, &copies]))
            .transpose()?;

        // Roles that do not run have registers of their own, which nothing uses.
        let mut registers = Registers::new(geometry, Roles::default());
        let (mut up, mut polling) = (None, None);
        if let Some(leader) = &leader {
            registers.leader =
                map_array(leader.map("ib_leader_map")?.as_fd(), geometry.partitions)?.into();
        }
        if let Some(acceptor) = &acceptor {
            registers.acceptor = map_array(
                acceptor.map("ib_acceptor_map")?.as_fd(),
                geometry.partitions,
            )?
            .into();
            registers.ring = Ring::new(
                map_array(acceptor.map("ib_ring_map")?.as_fd(), slots)?,
                map_array(acceptor.map("ib_tails_map")?.as_fd(), slots)?,
            );
        }
        if let Some(quorum) = &quorum {
            registers.quorum = map_array(quorum.map("ib_config_map")?.as_fd(), 1)?.into();
            registers.counts = map_array(quorum.map("ib_counts_map")?.as_fd(), slots)?.into();
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
        counters_of::<Paxos>(&self.counters)
    }

    /// Bytes of registers, ring buffer and counters.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}
