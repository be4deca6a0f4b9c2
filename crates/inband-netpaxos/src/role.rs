//! Serializer and minion in this process.

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
    /// The register of a role.
    Registers of c::ib_netpaxos_switch
);

impl Registers {
    /// Requests that have passed; of a minion: the last number it has given.
    pub fn passed(&self) -> u64 {
        field!(self, 0, c::ib_netpaxos_switch, passed).load(Ordering::SeqCst)
    }

    /// Set the register: for tests, of a role that gets no packets meanwhile.
    pub fn restore(&self, passed: u64) {
        field!(self, 0, c::ib_netpaxos_switch, passed).store(passed, Ordering::SeqCst);
    }
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Copies requests to the minions.
    Serializer,
    /// Numbers requests.
    Minion {
        /// Higher than at every start of this minion before.
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

/// A role in this process that nothing has passed.
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

/// The incarnation of a minion that starts. `last`: the highest that is recorded durably of an earlier start, 0 if there is
/// none, as in a machine that takes the place of another; what is returned must be recorded before a packet is numbered.
/// `now_ms`: a wall clock, which only the second case needs.
pub fn next_incarnation(last: u64, now_ms: u64) -> u64 {
    now_ms.max(last + 1)
}
