//! What must hold in every schedule.

use crate::listed;

listed! {
    /// An invariant, named as in reports.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        OneSwitchServes = "at no time do two switches serve a replica set",
        Linearizable = "of each key there is an order of all requests that explains what clients saw",
        ExactlyOnce = "as many changes are applied as writes were acknowledged, and no more than were begun",
        SameState = "replicas that have applied everything hold the same",
        Liveness = "once faults end, every replica votes, every client is served, and every request ends",
        WellFormed = "hosts send only packets that can be read",
        NoPanic = "nothing panics",
    }
}
