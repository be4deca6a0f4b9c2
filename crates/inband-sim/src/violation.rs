//! An invariant that was broken.

use std::fmt;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken<I> {
    /// Which invariant.
    pub invariant: I,
    /// What is wrong.
    pub what: String,
}

impl<I: fmt::Display> fmt::Display for Broken<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// What a check found, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation<I> {
    /// Which invariant.
    pub invariant: I,
    /// Simulated time, in microseconds.
    pub at_us: u64,
    /// What is wrong.
    pub what: String,
}

impl<I: fmt::Display> fmt::Display for Violation<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation {
            invariant,
            at_us,
            what,
        } = self;
        write!(f, "VIOLATION of {invariant} at {at_us} us: {what}")
    }
}
