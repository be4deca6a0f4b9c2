//! The soft switch: the native build of the roles, in memory of this process.
//!
//! It is the default backend, and is also used by the simulator and the test vectors. Handling a packet is thread-safe,
//! does not allocate and never blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use inband_ground::registers::Shared;
use inband_ground::xdp::programs::Settings;
use inband_ground::Counters;

use super::registers::{AcceptorRegisters, CountRegisters, LeaderRegisters, QuorumRegisters, Ring};
use super::wire::PACKET_LEN_MAX_BYTES;
use super::{c, Paxos};

/// Size of a slot of an acceptor's ring.
pub const ACCEPTOR_SLOT_LEN_BYTES: usize = size_of::<c::ib_slot>() + size_of::<c::ib_tail>();
/// Size of a slot of a quorum counter's ring.
pub const COUNT_SLOT_LEN_BYTES: usize = size_of::<c::ib_count_slot>();

/// The roles that a host runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// Stamps requests.
    pub leader: bool,
    /// Promises and votes.
    pub acceptor: bool,
    /// Counts votes for the host's learner.
    pub quorum: bool,
}

impl Roles {
    fn bits(self) -> u32 {
        let bit = |on, bit: c::ib_paxos_roles| if on { bit } else { 0 };
        bit(self.leader, c::IB_ROLE_LEADER)
            | bit(self.acceptor, c::IB_ROLE_ACCEPTOR)
            | bit(self.quorum, c::IB_ROLE_QUORUM)
    }
}

/// Dimensions of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of partitions, 1..=1024.
    pub partitions: usize,
    /// Slots of each partition's ring, a power of two, 64..=65536.
    pub ring_slots: usize,
}

impl Geometry {
    /// Returns the settings with which a program of this geometry is loaded.
    pub(crate) fn settings(self, common: c::ib_settings) -> Settings {
        let own = c::ib_paxos_settings {
            ring_slots: self.ring_slots as u32,
            reserved: 0,
        };
        Settings::new(common, &own)
    }

    /// Checks that the sizes are within the limits; the error says which one is not.
    pub fn validate(self) -> Result<(), String> {
        let partitions = 1..=c::IB_PARTITIONS_MAX as usize;
        if !partitions.contains(&self.partitions) {
            return Err(format!(
                "{} partitions are not {partitions:?}",
                self.partitions
            ));
        }
        let slots = c::IB_RING_SLOTS_MIN as usize..=c::IB_RING_SLOTS_MAX as usize;
        if !self.ring_slots.is_power_of_two() || !slots.contains(&self.ring_slots) {
            return Err(format!(
                "{} ring slots are not a power of two in {slots:?}",
                self.ring_slots
            ));
        }
        Ok(())
    }
}

/// What to do with a packet that was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Drop,
    /// For the host's own state machines, unchanged.
    Pass,
    /// Rewritten: send it back to the sender.
    Reply,
    /// Rewritten: send a copy to every acceptor.
    ToAcceptors,
    /// Rewritten: send a copy to every learner.
    ToLearners,
    /// A majority is reached: pass the value to the host's learner.
    Deliver,
}

/// All registers of a host: a soft switch's own memory, or a view of an XDP program's maps.
pub struct Registers {
    /// Leader registers, one per partition.
    pub leader: LeaderRegisters,
    /// Acceptor registers, one per partition.
    pub acceptor: AcceptorRegisters,
    /// The acceptors' rings: partition * ring_slots + (instance % ring_slots).
    pub ring: Ring,
    /// Members of the epoch.
    pub quorum: QuorumRegisters,
    /// The quorum counters' rings, indexed like `ring`.
    pub counts: CountRegisters,
}

impl Registers {
    /// Zeroed registers in memory of this process; roles that do not run get only one slot.
    pub fn new(geometry: Geometry, roles: Roles) -> Registers {
        geometry.validate().expect("sizes are within the limits");
        let slots = geometry.partitions * geometry.ring_slots;
        Registers {
            leader: Shared::zeroed(geometry.partitions).into(),
            acceptor: Shared::zeroed(geometry.partitions).into(),
            ring: Ring::zeroed(if roles.acceptor { slots } else { 1 }),
            quorum: Shared::zeroed(1).into(),
            counts: Shared::zeroed(if roles.quorum { slots } else { 1 }).into(),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.leader.memory_bytes()
            + self.acceptor.memory_bytes()
            + self.ring.memory_bytes()
            + self.quorum.memory_bytes()
            + self.counts.memory_bytes()
    }
}

/// A soft switch: roles, their registers and counters.
pub struct SoftSwitch {
    registers: Arc<Registers>,
    counters: Counters,
    raw: c::ib_paxos_switch,
}

// SAFETY: `raw` points into `registers` and `counters`, which live as long as it does and are shared
// memory by design: ib_paxos_switch_handle touches them by the atomic steps of shell.h only.
unsafe impl Send for SoftSwitch {}
// SAFETY: as above; `raw` itself is only read.
unsafe impl Sync for SoftSwitch {}

impl SoftSwitch {
    /// Creates a switch with zeroed registers: inactive leader, recovering acceptor.
    pub fn new(node: u8, roles: Roles, geometry: Geometry) -> SoftSwitch {
        let registers = Arc::new(Registers::new(geometry, roles));
        let counters = Counters::default();
        let raw = c::ib_paxos_switch {
            roles: roles.bits(),
            node: u32::from(node),
            partitions: geometry.partitions as u32,
            ring_slots: geometry.ring_slots as u32,
            hand_off_fails: 0,
            reserved: 0,
            leader: registers.leader.as_ptr(),
            acceptor: registers.acceptor.as_ptr(),
            ring: registers.ring.slots().as_ptr(),
            tails: registers.ring.tails().as_ptr(),
            quorum: registers.quorum.as_ptr(),
            counts: registers.counts.as_ptr(),
            counters: counters.as_ptr(),
        };
        SoftSwitch {
            registers,
            counters,
            raw,
        }
    }

    /// Handles the UDP payload `buffer[..len_bytes]`. Returns the verdict, the reason's number and the length of the
    /// packet now in the buffer.
    pub fn handle(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
    ) -> (Verdict, u32, usize) {
        assert!(len_bytes <= buffer.len());
        let mut raw = self.raw;
        let mut len = len_bytes as u32;
        // SAFETY: buffer has the full size the function asks for, len is within it, and the
        // registers that `raw` points to live as long as self.
        let result = unsafe { c::ib_paxos_switch_handle(&mut raw, buffer.as_mut_ptr(), &mut len) };
        let verdict = match result.verdict {
            v if v == c::IB_PASS => Verdict::Pass,
            v if v == c::IB_REPLY => Verdict::Reply,
            v if v == c::IB_TO_ACCEPTORS => Verdict::ToAcceptors,
            v if v == c::IB_TO_LEARNERS => Verdict::ToLearners,
            v if v == c::IB_DELIVER => Verdict::Deliver,
            _ => Verdict::Drop,
        };
        (verdict, result.reason, len as usize)
    }

    /// Returns the registers, which may outlive the switch.
    pub fn registers(&self) -> &Arc<Registers> {
        &self.registers
    }

    /// Makes every hand-over of a decided value fail, as a full ring buffer does (tests, simulator).
    pub fn set_hand_off_fails(&mut self, fails: bool) {
        self.raw.hand_off_fails = u32::from(fails);
    }

    /// Non-zero counters, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.counters.by_name::<Paxos>()
    }
}
