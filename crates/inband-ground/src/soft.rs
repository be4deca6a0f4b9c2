//! A role in this process: its native build on registers in plain memory.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::Arc;

use crate::auth::Gate;
use crate::wire::PACKET_LEN_MAX_BYTES;
use crate::{c, Counters, System};

/// The input of a role besides the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub from: SocketAddrV4,
    /// The role's clock, read after the packet was received.
    pub now_ns: u64,
    pub random: u32,
}

impl From<Arrival> for c::ib_arrival {
    fn from(arrival: Arrival) -> c::ib_arrival {
        c::ib_arrival {
            now_ns: arrival.now_ns,
            random: arrival.random,
            from_address: u32::from(*arrival.from.ip()),
            from_port: arrival.from.port(),
        }
    }
}

/// The function of a native build that handles the packet of `*len_bytes` at `buffer`.
pub type Handle<Switch, Arrival, Answer> = unsafe extern "C" fn(
    sw: *const Switch,
    buffer: *mut u8,
    len_bytes: *mut u32,
    arrival: *const Arrival,
) -> Answer;

/// What [`Soft`] requires of a system.
///
/// # Safety
/// With a switch whose pointers are valid, several threads may call `HANDLE` concurrently. It accesses only the
/// [`PACKET_LEN_MAX_BYTES`] of the buffer, and sets a length within them.
pub unsafe trait Native: System {
    /// The struct of `native.h`: sizes, and pointers to registers and counters.
    type Switch;
    type Registers: Send + Sync;
    type Arrival: From<Arrival>;
    /// Verdict and reason.
    type Answer;
    const HANDLE: Handle<Self::Switch, Self::Arrival, Self::Answer>;
}

/// A role in this process, with its registers and counters.
pub struct Soft<N: Native> {
    registers: Arc<N::Registers>,
    counters: Counters,
    switch: N::Switch,
}

// SAFETY: the pointers of `switch` are to registers and counters that live as long as it does (the contract of `new`), and
// that several threads may use at once (the contract of `Native`).
unsafe impl<N: Native> Send for Soft<N> {}
// SAFETY: as above; `switch` itself is only read.
unsafe impl<N: Native> Sync for Soft<N> {}

impl<N: Native> Soft<N> {
    /// `switch` builds the struct of `native.h` from the registers and the counters.
    ///
    /// # Safety
    /// Every pointer that it puts into the struct must point to the registers or counters given to it, with as many
    /// elements as the struct says.
    pub unsafe fn new(
        registers: N::Registers,
        switch: impl FnOnce(&N::Registers, *mut u64) -> N::Switch,
    ) -> Soft<N> {
        let counters = Counters::default();
        let switch = switch(&registers, counters.as_ptr());
        Soft {
            registers: Arc::new(registers),
            counters,
            switch,
        }
    }

    /// Handles the UDP payload `buffer[..len_bytes]`. Returns the answer, and the length of the packet now in the
    /// buffer.
    ///
    /// # Panics
    /// If the packet is longer than the buffer.
    pub fn handle(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (N::Answer, usize) {
        // SAFETY: the system's own build.
        unsafe { self.handle_by(N::HANDLE, buffer, len_bytes, arrival) }
    }

    /// The same with another build: for tests that must detect faulty ones.
    ///
    /// # Safety
    /// `build` is another build of the system's [`Native::HANDLE`].
    pub unsafe fn handle_by(
        &self,
        build: Handle<N::Switch, N::Arrival, N::Answer>,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (N::Answer, usize) {
        assert!(len_bytes <= buffer.len(), "a packet fits the buffer");
        let arrival = N::Arrival::from(arrival);
        let mut len = len_bytes as u32;
        // SAFETY: the buffer has the full size and the packet is within it; the switch's pointers are valid for as long as
        // self (the contract of `new`).
        let answer = unsafe {
            build(
                &raw const self.switch,
                buffer.as_mut_ptr(),
                &raw mut len,
                &raw const arrival,
            )
        };
        (answer, len as usize)
    }

    /// Returns the struct of `native.h`.
    pub fn switch(&self) -> &N::Switch {
        &self.switch
    }

    /// Returns the registers, which may outlive the role.
    pub fn registers(&self) -> &Arc<N::Registers> {
        &self.registers
    }

    /// Counters by name, without those that are zero.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.counters.by_name::<N>()
    }
}

/// For roles that only answer requests.
impl<N: Native<Answer = c::ib_result>> Soft<N> {
    /// Handles a packet that has been checked. Returns the length of the answer in the buffer, if there is one.
    ///
    /// # Panics
    /// If the packet is longer than the buffer.
    pub fn reply(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> Option<usize> {
        let (result, len_bytes) = self.handle(buffer, len_bytes, arrival);
        (result.verdict == c::IB_REPLY).then_some(len_bytes)
    }

    /// Checks and handles a packet, and returns the signed answer, if there is one.
    pub fn answer(&self, gate: &mut Gate, packet: &[u8], arrival: Arrival) -> Option<Vec<u8>> {
        if !gate.admits(packet) {
            return None;
        }
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let len_bytes = self.reply(&mut buffer, packet.len(), arrival)?;
        let mut answer = buffer[..len_bytes].to_vec();
        gate.sign(&mut answer);
        Some(answer)
    }
}

/// `native!(Name, SWITCH, Registers, ARRIVAL, ANSWER, HANDLE)` implements [`Native`] for the system, with what its
/// `native.h` declares.
#[macro_export]
macro_rules! native {
    ($name:ty, $switch:ty, $registers:ty, $arrival:ty, $answer:ty, $handle:path) => {
        // SAFETY: `native.h` promises it: thread-safe, by atomic steps on registers and counters only, and no more of the
        // buffer than a packet may have.
        unsafe impl $crate::soft::Native for $name {
            type Switch = $switch;
            type Registers = $registers;
            type Arrival = $arrival;
            type Answer = $answer;
            const HANDLE: $crate::soft::Handle<$switch, $arrival, $answer> = $handle;
        }
    };
}
