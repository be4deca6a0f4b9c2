//! A sequencer in the data plane: it gives out the numbers of a log, each once (`dataplane/sequencer/wire.h`). The smallest
//! system there is, and the example of how to add one.

// Calls into the native role.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

/// The C headers of `dataplane/sequencer`, as bindgen sees them, and of the ground.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all
)]
pub mod c {
    pub use inband_ground::c::*;
    include!(concat!(env!("OUT_DIR"), "/sequencer.rs"));
}

/// The programs of `dataplane/sequencer`, compiled.
pub mod objects {
    include!(concat!(env!("OUT_DIR"), "/sequencer_objects.rs"));
}

pub mod client;
pub mod wire;
pub mod xdp;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use inband_ground::registers::Shared;
use inband_ground::registers::{field, registers};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::Counters;

inband_ground::system!(
    /// Its partitions are logs.
    Sequencer,
    c::ib_sequencer_keys_check,
    c::ib_sequencer_reason_name
);

/// How many logs a sequencer may have.
pub const LOGS: RangeInclusive<usize> = 1..=c::IB_SEQUENCER_LOGS_MAX as usize;

registers!(
    /// The register of each log.
    Logs of c::ib_sequencer_log
);

impl Logs {
    /// Numbers given.
    pub fn given(&self, log: usize) -> u64 {
        field!(self, log, c::ib_sequencer_log, given).load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Set the register: for tests, of a log that gets no packets meanwhile.
    pub fn restore(&self, log: usize, given: u64) {
        field!(self, log, c::ib_sequencer_log, given)
            .store(given, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A sequencer in this process.
pub struct SoftSequencer {
    logs: Logs,
    counters: Counters,
    raw: c::ib_sequencer_switch,
}

// SAFETY: `raw` points into `logs` and `counters`, which live as long as it does and are shared memory by design:
// ib_sequencer_handle touches them by atomic steps only.
unsafe impl Send for SoftSequencer {}
// SAFETY: as above; `raw` itself is only read.
unsafe impl Sync for SoftSequencer {}

impl SoftSequencer {
    /// A sequencer that has given no number. `incarnation`: drawn at its start, which no other start has.
    ///
    /// # Panics
    /// If the logs are not [`LOGS`].
    pub fn new(node: u8, logs: usize, incarnation: u64) -> SoftSequencer {
        assert!(LOGS.contains(&logs), "{logs} logs are not {LOGS:?}");
        let shared: Logs = Shared::zeroed(logs).into();
        let counters = Counters::default();
        let raw = c::ib_sequencer_switch {
            node: u32::from(node),
            logs: logs as u32,
            incarnation,
            log: shared.as_ptr(),
            counters: counters.as_ptr(),
        };
        SoftSequencer {
            logs: shared,
            counters,
            raw,
        }
    }

    /// Handle the UDP payload `buffer[..len_bytes]`. True: it is now the answer, to whoever sent it.
    ///
    /// # Panics
    /// If it is longer than the buffer.
    pub fn handle(&self, buffer: &mut [u8; PACKET_LEN_MAX_BYTES], len_bytes: usize) -> (bool, u32) {
        assert!(len_bytes <= buffer.len(), "a packet fits the buffer");
        // SAFETY: the payload is within the buffer, and the registers that `raw` points to live as long as self.
        let result = unsafe {
            c::ib_sequencer_handle(&raw const self.raw, buffer.as_mut_ptr(), len_bytes as u32)
        };
        (result.verdict == c::IB_REPLY, result.reason)
    }

    /// The registers.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Counters by name, those that are not zero.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.counters.by_name::<Sequencer>()
    }
}
