//! A sequencer in the data plane: it hands out consecutive numbers for each log, each number once
//! (`dataplane/sequencer/wire.h`). It is the smallest system, and the example for adding one.

// For the calls into the native role, in macros of inband-ground.
#![allow(unsafe_code)]

inband_ground::bindings!("sequencer");

use std::sync::atomic::AtomicU64;

/// A sequencer. Its logs correspond to the partitions of other systems.
#[derive(Debug, Clone, Copy)]
pub struct Sequencer {
    /// 1 to 1024.
    pub logs: usize,
    /// A random number, different at every start.
    pub incarnation: u64,
}

inband_ground::answering!(
    Sequencer,
    "sequencer",
    objects::SEQUENCER,
    "ib_logs_map",
    Logs of c::ib_sequencer_log,
    c::ib_sequencer_settings,
    c::ib_sequencer_keys_check,
    c::ib_sequencer_reason_name,
    c::ib_sequencer_handle,
);

inband_ground::asked!(Sequencer, Header, Type::Number, request);

inband_ground::message_types!(Type {
    Next = c::IB_SEQUENCER_NEXT,
    Number = c::IB_SEQUENCER_NUMBER,
});

inband_ground::header!(Header of c::ib_sequencer_header, Type, log {
    incarnation: u64,
    number: u64,
    count: u64,
    request: u64,
});

impl Header {
    /// Asks for the next `count` numbers of a log.
    pub fn next(log: u16, count: u64) -> Header {
        Header {
            log,
            count,
            ..Header::of(Type::Next)
        }
    }
}

impl Logs {
    /// Returns how many numbers of the log have been handed out.
    pub fn given(&self, log: usize) -> &AtomicU64 {
        inband_ground::field!(self, log, c::ib_sequencer_log, given)
    }
}

impl inband_ground::answering::Role for Sequencer {
    fn partitions(&self) -> usize {
        self.logs
    }

    fn settings(&self) -> c::ib_sequencer_settings {
        let incarnation = self.incarnation;
        c::ib_sequencer_settings { incarnation }
    }
}
