//! A rule that was broken, in the worlds of FLAIR and Falcon.

use std::fmt;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation<R> {
    /// Which.
    pub rule: R,
    /// True time.
    pub at_ns: u64,
    /// How.
    pub what: String,
}

impl<R: fmt::Display> fmt::Display for Violation<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_us = self.at_ns / 1000;
        write!(f, "VIOLATION of {} at {at_us} us: {}", self.rule, self.what)
    }
}
