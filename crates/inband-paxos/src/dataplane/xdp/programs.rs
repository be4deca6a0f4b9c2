//! The XDP programs, loaded and linked, without an interface: used for attaching (`XdpHost`), measuring (`bench`) and
//! testing (`BPF_PROG_TEST_RUN`).

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use inband_ground::auth::Keys;
use inband_ground::objects::GENERIC;
use inband_ground::registers::Shared;
use inband_ground::xdp::error::{Doing, XdpError};
use inband_ground::xdp::maps::{page_bytes, update, UpRing};
use inband_ground::xdp::multicast::GroupMaps;
use inband_ground::xdp::programs::{counters_of, load_object, Loaded, Settings};

use crate::dataplane::registers::Ring;
use crate::dataplane::soft::{Geometry, Registers, Roles};
use crate::dataplane::{c, objects, Paxos};

/// Minimum size of the quorum counter's ring buffer in bytes: a full burst of large values.
pub const RING_BUFFER_MIN_BYTES: usize = 64 * 1024;

/// What the programs are built for.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    pub roles: Roles,
    pub geometry: Geometry,
    pub settings: Settings,
    pub ring_buffer_bytes: usize,
}

/// The linked programs of a host.
pub struct Programs {
    pub dispatch: Loaded,
    /// The only role of the host, in one program that includes dispatch.
    alone: Option<Loaded>,
    pub leader: Option<Loaded>,
    pub acceptor: Option<Loaded>,
    pub quorum: Option<Loaded>,
    pub copies: Loaded,
    pub generic: Option<Loaded>,
    pub registers: Arc<Registers>,
    pub up: Option<UpRing>,
    /// Non-zero: the quorum counter need not wake this process.
    pub polling: Option<Shared<u64>>,
    counters: OwnedFd,
    memory_bytes: usize,
}

/// Returns the program of a role that is alone on its host: it includes dispatch, which makes an instance some 4%
/// cheaper.
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
    /// Loads the programs of `build.roles`. `variant`: another build of the only role's program.
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

        // Roles that do not run have their own registers, which nothing uses.
        let mut registers = Registers::new(geometry, Roles::default());
        let (mut up, mut polling) = (None, None);
        if let Some(leader) = &leader {
            registers.leader = leader.registers("ib_leader_map")?;
        }
        if let Some(acceptor) = &acceptor {
            registers.acceptor = acceptor.registers("ib_acceptor_map")?;
            registers.ring = Ring::new(
                acceptor.registers("ib_ring_map")?,
                acceptor.registers("ib_tails_map")?,
            );
        }
        if let Some(quorum) = &quorum {
            registers.quorum = quorum.registers("ib_config_map")?;
            registers.counts = quorum.registers("ib_counts_map")?;
            polling = Some(quorum.registers("ib_polling_map")?);
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

    /// Returns the program to attach to the host's interface.
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

    /// Maps with the destinations of the leader's and the acceptor's packets.
    pub fn group_maps(&self) -> Result<GroupMaps, XdpError> {
        let acceptors = (
            c::IB_PAXOS_ACCEPTORS_GROUP,
            &self.leader,
            "ib_acceptors_map",
        );
        let learners = (
            c::IB_PAXOS_LEARNERS_GROUP,
            &self.acceptor,
            "ib_learners_map",
        );
        let senders: Vec<_> = [acceptors, learners]
            .into_iter()
            .filter_map(|(which, program, map)| Some((which, program.as_ref()?, map)))
            .collect();
        GroupMaps::new(&self.copies, &senders)
    }

    /// Sets the keys with which packets are checked and signed, in programs built for that.
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.dispatch.set_keys(keys)
    }

    /// Non-zero counters, by name.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        counters_of::<Paxos>(&self.counters)
    }

    /// Memory of registers, ring buffer and counters in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}
