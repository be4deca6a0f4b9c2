//! What must hold in every schedule. Violations, models and mutants refer to the rules by these names.

use crate::listed;
use crate::violation;

listed! {
    /// A rule that the simulator checks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Invariant, said by describe {
        Agreement = "one value is chosen for an instance: no later round carries another, no replica learns another",
        RoundsUnique = "one round carries one value for an instance, and rounds go up from epoch to epoch",
        PromiseKept = "no acceptor votes below a promise, and neither promises nor votes go back",
        RingKept = "no slot is used for another instance at or above the floor, and no vote lies outside the ring",
        TrimKept = "acceptors forget only what a majority of replicas holds durably",
        DiskKept = "an acceptor starts with all that was on its disk",
        AmnesiacMute = "an acceptor without its memory does not vote",
        EpochFenced = "nothing is chosen in an epoch once the next is open, and only its members vote in it",
        InOrder = "a replica is handed every instance once, in order",
        ExactlyOnce = "a command is applied at most once, and never after its client was told it would not be",
        ReplicasEqual = "replicas at equal positions have equal state",
        NothingLost = "what a client was told is done has been applied",
        CrossPartitionAtomic = "a command over several partitions takes effect in all of them, at one place in the order",
        ReadsLinearizable = "a read sees whatever any client knew of when it began",
        DeadlinesKept = "every call ends once, and by its deadline",
        Liveness = "once faults end, everything finishes and replicas are equal",
        NoPanic = "no host panics or sends what is no packet",
    }
}

impl Invariant {
    /// Returns a violation of this rule, with details.
    pub fn broken(self, what: impl Into<String>) -> Broken {
        Broken {
            invariant: self,
            what: what.into(),
        }
    }
}

/// A violated invariant, with details.
pub type Broken = violation::Broken<Invariant>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_rules_are_told_apart() {
        let mut names: Vec<String> = Invariant::ALL.iter().map(Invariant::to_string).collect();
        let mut rules: Vec<&str> = Invariant::ALL.iter().map(|i| i.describe()).collect();
        names.sort_unstable();
        names.dedup();
        rules.sort_unstable();
        rules.dedup();
        assert_eq!((names.len(), rules.len()), (17, 17));
    }
}
