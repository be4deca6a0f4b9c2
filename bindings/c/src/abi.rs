//! The declarations of `inband.h` in Rust: structures, callbacks and codes. A test compares the numbers with the
//! header.

use std::ffi::{c_char, c_int, c_void};

use crate::context::Context;

/// `enum inband_error`, without `INBAND_OK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Argument = -1,
    Config = -2,
    Address = -3,
    StateDir = -4,
    Dataplane = -5,
    TooLong = -6,
    WindowFull = -7,
    NotReplica = -8,
    Trimmed = -9,
    TooFarAhead = -10,
    SavedDamaged = -11,
    SavedTooOld = -12,
    Busy = -13,
    Stopped = -14,
    StateNeeded = -15,
    Internal = -99,
}

/// `enum inband_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    New = 0,
    Replay = 1,
    Noop = 2,
}

/// `enum inband_outcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Outcome {
    NotApplied = 0,
    Unknown = 1,
    InRestoredState = 2,
}

/// `struct inband_delivery`.
#[repr(C)]
pub struct Delivery {
    pub instance: u64,
    pub ticket: u64,
    pub value: *const c_char,
    pub value_len_bytes: usize,
    pub kind: c_int,
}

/// `struct inband_failure`.
#[repr(C)]
pub struct Failure {
    pub ticket: u64,
    pub instance: u64,
    pub outcome: c_int,
    pub message: *const c_char,
}

/// `inband_deliver_fn`.
pub type DeliverFn = unsafe extern "C" fn(*mut Context, *const Delivery, *mut c_void);
/// `inband_failed_fn`.
pub type FailedFn = unsafe extern "C" fn(*mut Context, *const Failure, *mut c_void);
/// `inband_state_needed_fn`.
pub type StateNeededFn = unsafe extern "C" fn(*mut Context, *mut c_void);

/// A callback of the application and its argument.
#[derive(Clone, Copy)]
pub struct Callback<F: Copy> {
    pub function: F,
    pub user: *mut c_void,
}

/// The callbacks of a context.
#[derive(Clone, Copy, Default)]
pub struct Callbacks {
    pub deliver: Option<Callback<DeliverFn>>,
    pub failed: Option<Callback<FailedFn>>,
    pub state_needed: Option<Callback<StateNeededFn>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../inband.h");

    /// The value of a name in the header, from a `#define` or an enumeration.
    fn in_header(name: &str) -> i64 {
        let after = |line: &'static str| {
            let line = line.trim().trim_start_matches("#define ");
            let rest = line.strip_prefix(name)?.trim_start_matches([' ', '=']);
            rest.trim_end_matches(',').parse().ok()
        };
        HEADER
            .lines()
            .find_map(after)
            .unwrap_or_else(|| panic!("inband.h has no number {name}"))
    }

    #[test]
    fn the_header_has_the_same_numbers() {
        let limit = inband_paxos::dataplane::wire::VALUE_LEN_MAX_BYTES as i64;
        assert_eq!(in_header("INBAND_VALUE_LEN_MAX_BYTES"), limit);
        let window = inband_paxos::timing::PROPOSER_WINDOW as i64;
        assert_eq!(in_header("INBAND_WINDOW_VALUES"), window);
        let recoveries = inband_paxos::library::RECOVERIES_OPEN_MAX as i64;
        assert_eq!(in_header("INBAND_RECOVERIES_OPEN_MAX"), recoveries);
        let version = concat!("#define INBAND_VERSION \"", env!("CARGO_PKG_VERSION"), "\"");
        assert!(HEADER.contains(version), "inband.h has another version");

        let errors = [
            ("ARGUMENT", Code::Argument),
            ("CONFIG", Code::Config),
            ("ADDRESS", Code::Address),
            ("STATE_DIR", Code::StateDir),
            ("DATAPLANE", Code::Dataplane),
            ("TOO_LONG", Code::TooLong),
            ("WINDOW_FULL", Code::WindowFull),
            ("NOT_REPLICA", Code::NotReplica),
            ("TRIMMED", Code::Trimmed),
            ("TOO_FAR_AHEAD", Code::TooFarAhead),
            ("SAVED_DAMAGED", Code::SavedDamaged),
            ("SAVED_TOO_OLD", Code::SavedTooOld),
            ("BUSY", Code::Busy),
            ("STOPPED", Code::Stopped),
            ("STATE_NEEDED", Code::StateNeeded),
            ("INTERNAL", Code::Internal),
        ];
        for (name, code) in errors {
            assert_eq!(
                in_header(&format!("INBAND_ERR_{name}")),
                code as i64,
                "{name}"
            );
        }
        let with_number = |l: &&str| l.trim().starts_with("INBAND_ERR_") && l.contains(" = ");
        assert_eq!(HEADER.lines().filter(with_number).count(), errors.len());

        assert_eq!(in_header("INBAND_NEW"), Kind::New as i64);
        assert_eq!(in_header("INBAND_REPLAY"), Kind::Replay as i64);
        assert_eq!(in_header("INBAND_NOOP"), Kind::Noop as i64);
        assert_eq!(in_header("INBAND_NOT_APPLIED"), Outcome::NotApplied as i64);
        assert_eq!(in_header("INBAND_OUTCOME_UNKNOWN"), Outcome::Unknown as i64);
        assert_eq!(
            in_header("INBAND_IN_RESTORED_STATE"),
            Outcome::InRestoredState as i64
        );
    }
}
