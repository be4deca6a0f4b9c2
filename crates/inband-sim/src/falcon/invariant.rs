//! What must hold in every schedule.

use crate::listed;
use crate::violation;

listed! {
    /// An invariant, named as in reports.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        GivenOnce = "a scheduler gives a task that it took once, to one PULL, and to the same PULL again",
        NothingLost = "a task that a scheduler took is in a queue until it is given",
        InOrder = "a queue gives its tasks in the order in which it took them",
        ToWhomItMay = "a task goes to a registered executor that may have it",
        TakenOrTold = "an answer says which tasks were taken, and why the others were not",
        UserBounded = "no user has more tasks in the queues than is allowed",
        NobodyStarves = "so many others at most are given before the first task of a queue",
        NobodySleeps = "nobody is left waiting beside a task that it may have, unless the answer says so",
        TakenOnce = "a client hears once how a task ended",
        RightResult = "a result is that of the task's own work",
        AfterOthers = "a job's tasks run, and end, after those of the jobs that it waits for",
        FailsForAReason = "a task fails only for a reason that there was",
        RevokedNotRun = "what an executor was told to leave it does not begin, and its result is not kept",
        NothingLeftBehind = "long work is kept for who fetches it until its task is done, a long result as long as it is repeated",
        SilenceIsCheap = "a client that was found silent takes up a quarter of an executor's time at most, until it is heard of or submits again",
        Prompt = "when all is well an executor that waits has the next task at once, and nobody is given up",
        Liveness = "once faults end, every task of a living client ends, and queues and executors empty",
        NoPanic = "nothing panics",
    }
}

/// A broken invariant, with details.
pub(super) type Breach = violation::Broken<Invariant>;

impl Invariant {
    pub(super) fn broken(self, what: impl Into<String>) -> Breach {
        Breach {
            invariant: self,
            what: what.into(),
        }
    }
}
