//! Errors: a code for programs, and a message for people.

use std::cell::RefCell;
use std::ffi::{c_char, CString};
use std::fmt::Display;

use inband_paxos::config::ConfigError;
use inband_paxos::host::RecoverError;
use inband_paxos::library::{LibraryError, LibraryRecoverError, RestoreError};
use inband_paxos::log::SubmitError;
use inband_paxos::node::NodeError;

use crate::abi::Code;

/// Why a call failed.
#[derive(Debug)]
pub struct Error {
    pub code: Code,
    pub message: String,
}

impl Error {
    pub fn new(code: Code, message: impl Display) -> Error {
        Error {
            code,
            message: message.to_string(),
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::new(Code::Config, error)
    }
}

impl From<LibraryError> for Error {
    fn from(error: LibraryError) -> Error {
        let code = match &error {
            LibraryError::Node(
                NodeError::Durable(_) | NodeError::StateDir { .. } | NodeError::Journal(_),
            ) => Code::StateDir,
            LibraryError::Node(NodeError::Xdp(_) | NodeError::NoInterface(_)) => Code::Dataplane,
            LibraryError::Node(NodeError::Bind { .. }) => Code::Address,
            LibraryError::Restore(_) => Code::SavedDamaged,
            LibraryError::Partitions(_)
            | LibraryError::Node(NodeError::Positions { .. } | NodeError::Keys(_)) => Code::Config,
        };
        Error::new(code, error)
    }
}

impl From<RestoreError> for Error {
    fn from(error: RestoreError) -> Error {
        let code = match error {
            RestoreError::Damaged(_) | RestoreError::Malformed(_) => Code::SavedDamaged,
            RestoreError::TooOld { .. } => Code::SavedTooOld,
        };
        Error::new(code, error)
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Error {
        let code = match error {
            SubmitError::WindowFull(_) => Code::WindowFull,
            SubmitError::TooLong { .. } => Code::TooLong,
            SubmitError::Closed(_) => Code::NotReplica,
        };
        Error::new(code, error)
    }
}

impl From<LibraryRecoverError> for Error {
    fn from(error: LibraryRecoverError) -> Error {
        let code = match error {
            LibraryRecoverError::Host(RecoverError::NoLearner) => Code::NotReplica,
            LibraryRecoverError::Host(RecoverError::Trimmed { .. }) => Code::Trimmed,
            LibraryRecoverError::Host(RecoverError::TooFarAhead { .. }) => Code::TooFarAhead,
            LibraryRecoverError::TooLong { .. } => Code::TooLong,
            LibraryRecoverError::TooMany => Code::WindowFull,
        };
        Error::new(code, error)
    }
}

/// Converts a text for C. Zero bytes are replaced, because they would hide the rest.
pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Stores the message for `inband_last_error` on this thread.
pub fn remember(error: &Error) {
    remember_text(&error.message);
}

/// Stores another message.
pub fn remember_text(message: &str) {
    LAST.with(|last| *last.borrow_mut() = c_text(message));
}

/// The last stored message; valid until the next [`remember`] on this thread.
pub fn last() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
