//! The rules that every run is held to.

use std::fmt;

use inband_falcon::timing::Nanos;

/// A rule, by the name under which it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Rule {
    GivenOnce,
    NothingLost,
    InOrder,
    ToWhomItMay,
    TakenOrTold,
    UserBounded,
    NobodyStarves,
    NobodySleeps,
    TakenOnce,
    RightResult,
    AfterOthers,
    FailsForAReason,
    RevokedNotRun,
    Prompt,
    Liveness,
    NoPanic,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 16] = [
        Rule::GivenOnce,
        Rule::NothingLost,
        Rule::InOrder,
        Rule::ToWhomItMay,
        Rule::TakenOrTold,
        Rule::UserBounded,
        Rule::NobodyStarves,
        Rule::NobodySleeps,
        Rule::TakenOnce,
        Rule::RightResult,
        Rule::AfterOthers,
        Rule::FailsForAReason,
        Rule::RevokedNotRun,
        Rule::Prompt,
        Rule::Liveness,
        Rule::NoPanic,
    ];

    /// In a sentence.
    pub fn describe(self) -> &'static str {
        match self {
            Rule::GivenOnce => "a scheduler gives a task that it took once, to one PULL, and to the same PULL again",
            Rule::NothingLost => "a task that a scheduler took is in a queue until it is given",
            Rule::InOrder => "a queue gives its tasks in the order in which it took them",
            Rule::ToWhomItMay => "a task goes to a registered executor that may have it",
            Rule::TakenOrTold => "an answer says which tasks were taken, and why the others were not",
            Rule::UserBounded => "no user has more tasks in the queues than is allowed",
            Rule::NobodyStarves => "so many others at most are given before the first task of a queue",
            Rule::NobodySleeps => "nobody is left waiting beside a task that it may have, unless the answer says so",
            Rule::TakenOnce => "a client hears once how a task ended",
            Rule::RightResult => "a result is that of the task's own work",
            Rule::AfterOthers => "a job's tasks run, and end, after those of the jobs that it waits for",
            Rule::FailsForAReason => "a task fails only for a reason that there was",
            Rule::RevokedNotRun => "what an executor was told to leave it does not begin, and its result is not kept",
            Rule::Prompt => "when all is well an executor that waits has the next task at once, and nobody is given up",
            Rule::Liveness => "once faults end, every task of a living client ends, and queues and executors empty",
            Rule::NoPanic => "nothing panics",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How a rule was broken.
pub(super) type Breach = (Rule, String);

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
