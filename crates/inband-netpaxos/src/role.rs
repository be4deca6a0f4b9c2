//! Serializer and minion, run in this process.

use std::sync::atomic::Ordering;

use inband_ground::registers::{field, registers, Shared};
use inband_ground::soft::Soft;

use crate::{c, NetPaxos};

inband_ground::native!(
    NetPaxos,
    c::ib_netpaxos_soft,
    Registers,
    c::ib_arrival,
    c::ib_result,
    c::ib_netpaxos_handle
);

registers!(
    /// A role's only register.
    Registers of c::ib_netpaxos_switch
);

impl Registers {
    /// Returns how many requests have passed, or the last number that a minion has assigned.
    pub fn passed(&self) -> u64 {
        field!(self, 0, c::ib_netpaxos_switch, passed).load(Ordering::SeqCst)
    }

    /// Sets the register. For tests; the role must not get packets meanwhile.
    pub fn restore(&self, passed: u64) {
        field!(self, 0, c::ib_netpaxos_switch, passed).store(passed, Ordering::SeqCst);
    }
}

/// The kind of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Copies requests to the minions.
    Serializer,
    /// Numbers requests.
    Minion {
        /// Higher than at any earlier start of this minion.
        incarnation: u64,
    },
}

impl Kind {
    pub(crate) fn incarnation(self) -> u64 {
        match self {
            Kind::Serializer => 0,
            Kind::Minion { incarnation } => incarnation,
        }
    }
}

/// Creates a role in this process that no packet has passed yet.
pub fn soft(node: u8, kind: Kind) -> Soft<NetPaxos> {
    let switch = |registers: &Registers, counters| c::ib_netpaxos_soft {
        node: u32::from(node),
        serializes: u32::from(kind == Kind::Serializer),
        incarnation: kind.incarnation(),
        registers: registers.as_ptr(),
        counters,
    };
    // SAFETY: there is one register.
    unsafe { Soft::new(Shared::zeroed(1).into(), switch) }
}

/// Returns the incarnation of a minion that starts. `last`: the highest durably recorded incarnation of an earlier
/// start; 0 if there is none, as on a machine that replaces another. The result must be recorded before a packet is
/// numbered. `now_ms`: wall-clock time, which is needed only in the second case.
pub fn next_incarnation(last: u64, now_ms: u64) -> u64 {
    now_ms.max(last + 1)
}
