//! The rules that every run is held to.

use std::fmt;

use crate::listed::listed;
use crate::violation;

listed! {
    /// A rule, by the name under which it is reported.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Rule, said by describe {
        OneSwitchServes = "at no time do two switches serve a replica set",
        Linearizable = "of each key there is an order of all requests that explains what clients saw",
        ExactlyOnce = "as many changes are applied as writes were acknowledged, and no more than were begun",
        SameState = "replicas that have applied everything hold the same",
        Liveness = "once faults end, every replica votes, every client is served, and every request ends",
        WellFormed = "hosts send only packets that can be read",
        NoPanic = "nothing panics",
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A rule that was broken.
pub type Violation = violation::Violation<Rule>;
