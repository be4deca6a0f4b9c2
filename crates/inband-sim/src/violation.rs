//! Violations of invariants.

use std::fmt;

/// A violation, as a check returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken<I> {
    pub invariant: I,
    pub what: String,
}

impl<I: fmt::Display> fmt::Display for Broken<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// A violation, with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation<I> {
    pub invariant: I,
    /// Simulated time, in microseconds.
    pub at_us: u64,
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
