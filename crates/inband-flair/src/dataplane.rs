//! FLAIR (docs/flair.md): the switch that routes reads to consistent replicas, in this process or in the kernel.

// Calls into the native role, registers shared with the packet program, BPF maps.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

inband_ground::bindings!("flair");

inband_ground::system!(
    /// Its partitions are the replica sets.
    Flair,
    c::ib_flair_keys_check,
    c::ib_flair_reason_name
);

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Deref;

use inband_ground::soft::{Arrival, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;

pub mod bench;
pub mod registers;
pub mod rig;
pub mod wire;
pub mod xdp;

pub use registers::FlairRegisters;

/// Maximum replicas per set.
pub const REPLICAS_MAX: usize = c::IB_FLAIR_REPLICAS_MAX as usize;
/// Default number of key groups per set.
pub const GROUPS_DEFAULT: usize = c::IB_FLAIR_GROUPS as usize;
/// Maximum time that a session stays active without a heartbeat, in nanoseconds.
pub const STEP_DOWN_MAX_NS: u64 = c::IB_FLAIR_STEP_DOWN_MAX_NS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlairGeometry {
    /// Replica sets, 1..=64.
    pub sets: usize,
    /// Key groups per set, 1..=65536.
    pub groups: usize,
}

impl FlairGeometry {
    /// Checks that the sizes are within the limits. The error names the one that is not.
    pub fn validate(self) -> Result<(), String> {
        let limits = [
            ("replica sets", self.sets, c::IB_FLAIR_SETS_MAX as usize),
            ("key groups", self.groups, c::IB_FLAIR_GROUPS_MAX as usize),
        ];
        for (name, count, max) in limits {
            if !(1..=max).contains(&count) {
                return Err(format!("{count} {name} are not 1 to {max}"));
            }
        }
        Ok(())
    }

    /// Returns the group of the key with this hash.
    pub fn group_of(self, key_hash: u64) -> usize {
        wire::group_of(key_hash, self.groups)
    }
}

/// What to do with a packet after the role has handled it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Drop,
    /// Pass it unchanged to the host's process. (The role itself never returns this.)
    Pass,
    /// Rewritten: send it back to the sender.
    Reply,
    /// Rewritten: send it to a replica.
    ToReplica {
        /// The replica set.
        set: usize,
        /// The replica's number in the set.
        replica: usize,
    },
    /// Rewritten: send it to the client.
    ToClient(SocketAddrV4),
}

impl Verdict {
    /// Converts the role's verdict; `packet` is the packet as rewritten by the role.
    pub(crate) fn of(verdict: u32, packet: &[u8]) -> Verdict {
        let header = || wire::parse(packet).ok().map(|(header, ..)| header);
        match verdict {
            v if v == c::IB_PASS => Verdict::Pass,
            v if v == c::IB_REPLY => Verdict::Reply,
            v if v == c::IB_TO_REPLICA => header().map_or(Verdict::Drop, |h| Verdict::ToReplica {
                set: h.set.into(),
                replica: h.replica.into(),
            }),
            v if v == c::IB_TO_CLIENT => {
                header().map_or(Verdict::Drop, |h| Verdict::ToClient(h.client))
            }
            _ => Verdict::Drop,
        }
    }
}

inband_ground::native!(
    Flair,
    c::ib_flair_switch,
    FlairRegisters,
    c::ib_arrival,
    c::ib_result,
    c::ib_flair_switch_handle
);

/// A FLAIR switch in this process: the role with its registers and counters.
pub struct FlairSwitch(Soft<Flair>);

impl FlairSwitch {
    /// Creates a switch without any session. `incarnation` is a random number that must differ at every start.
    pub fn new(node: u8, geometry: FlairGeometry, incarnation: u64) -> FlairSwitch {
        geometry.validate().expect("sizes are within the limits");
        let switch = |registers: &FlairRegisters, counters| c::ib_flair_switch {
            node: u32::from(node),
            sets: geometry.sets as u32,
            groups: geometry.groups as u32,
            reserved: 0,
            incarnation,
            sessions: registers.sessions.as_ptr(),
            table: registers.groups.as_ptr(),
            counters,
        };
        // SAFETY: the registers have the sizes of the geometry.
        FlairSwitch(unsafe { Soft::new(FlairRegisters::zeroed(geometry), switch) })
    }

    /// Handles the UDP payload `buffer[..len_bytes]` received from `from`. `now_ns` must be read after the packet was
    /// received, from a clock that keeps running during suspend (CLOCK_BOOTTIME). The lower 32 bits of `random` choose
    /// among replicas. Returns the verdict, the number of the reason, and the length of the packet now in the buffer.
    pub fn handle(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        from: SocketAddrV4,
        now_ns: u64,
        random: u64,
    ) -> (Verdict, u32, usize) {
        let arrival = Arrival {
            from,
            now_ns,
            random: random as u32,
        };
        let (result, len_bytes) = self.0.handle(buffer, len_bytes, arrival);
        let verdict = Verdict::of(result.verdict, &buffer[..len_bytes]);
        (verdict, result.reason, len_bytes)
    }

    /// Returns a random number, chosen at start.
    pub fn incarnation(&self) -> u64 {
        self.0.switch().incarnation
    }
}

impl Deref for FlairSwitch {
    type Target = Soft<Flair>;

    fn deref(&self) -> &Soft<Flair> {
        &self.0
    }
}

/// The client address of packets into which the switch has not written one.
pub const NO_CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
