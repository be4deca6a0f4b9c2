//! A sequencer in the data plane: it gives out the numbers of a log, each once (`dataplane/sequencer/wire.h`). The smallest
//! system there is, and the example of how to add one.

// The registers of the native role.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

inband_ground::bindings!("sequencer");

pub mod client;
pub mod wire;

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use inband_ground::registers::{field, registers, Shared};
use inband_ground::soft::Soft;
use inband_ground::xdp::alone::{self, HostSpec};
use inband_ground::xdp::XdpError;

inband_ground::system!(
    /// Its partitions are logs.
    Sequencer,
    c::ib_sequencer_keys_check,
    c::ib_sequencer_reason_name
);

inband_ground::native!(
    Sequencer,
    c::ib_sequencer_switch,
    Logs,
    c::ib_arrival,
    c::ib_result,
    c::ib_sequencer_handle
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
        field!(self, log, c::ib_sequencer_log, given).load(Ordering::SeqCst)
    }

    /// Set the register: for tests, of a log that gets no packets meanwhile.
    pub fn restore(&self, log: usize, given: u64) {
        field!(self, log, c::ib_sequencer_log, given).store(given, Ordering::SeqCst);
    }
}

/// A sequencer in this process that has given no number. `incarnation`: drawn at its start, which no other start has.
///
/// # Panics
/// If the logs are not [`LOGS`].
pub fn soft(node: u8, logs: usize, incarnation: u64) -> Soft<Sequencer> {
    assert!(LOGS.contains(&logs), "{logs} logs are not {LOGS:?}");
    let switch = |registers: &Logs, counters| c::ib_sequencer_switch {
        node: u32::from(node),
        logs: logs as u32,
        incarnation,
        log: registers.as_ptr(),
        counters,
    };
    // SAFETY: there is a register for each log.
    unsafe { Soft::new(Shared::zeroed(logs).into(), switch) }
}

/// A sequencer as an XDP program.
pub type Program = alone::Program<Sequencer, Logs>;

/// Load the program.
pub fn program(host: &HostSpec, logs: usize, incarnation: u64) -> Result<Program, XdpError> {
    if !LOGS.contains(&logs) {
        return Err(XdpError::Spec(format!("{logs} logs are not {LOGS:?}")));
    }
    let settings = host.settings(logs, &c::ib_sequencer_settings { incarnation })?;
    let sizes = [("ib_logs_map", logs)];
    let (name, object) = ("sequencer", objects::SEQUENCER);
    Program::load(name, object, host, settings, &sizes, |loaded| {
        loaded.registers("ib_logs_map")
    })
}
