//! The rules that every run is held to.

use std::fmt;

use inband_flair::timing::Nanos;

/// A rule, by the name under which it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// See [`Rule::describe`], as for all.
    OneSwitchServes,
    /// What clients saw.
    Linearizable,
    /// How often writes were applied.
    ExactlyOnce,
    /// What replicas hold.
    SameState,
    /// What ends.
    Liveness,
    /// What hosts send.
    WellFormed,
    /// What must not happen in any case.
    NoPanic,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 7] = [
        Rule::OneSwitchServes,
        Rule::Linearizable,
        Rule::ExactlyOnce,
        Rule::SameState,
        Rule::Liveness,
        Rule::WellFormed,
        Rule::NoPanic,
    ];

    /// In a sentence.
    pub fn describe(self) -> &'static str {
        match self {
            Rule::OneSwitchServes => "at no time do two switches serve a replica set",
            Rule::Linearizable => {
                "of each key there is an order of all requests that explains what clients saw"
            }
            Rule::ExactlyOnce => {
                "as many changes are applied as writes were acknowledged, and no more than were begun"
            }
            Rule::SameState => "replicas that have applied everything hold the same",
            Rule::Liveness => {
                "once faults end, every replica votes, every client is served, and every request ends"
            }
            Rule::WellFormed => "hosts send only packets that can be read",
            Rule::NoPanic => "nothing panics",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// True time.
    pub at_ns: Nanos,
    /// How.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_us = self.at_ns / 1000;
        write!(f, "VIOLATION of {} at {at_us} us: {}", self.rule, self.what)
    }
}
