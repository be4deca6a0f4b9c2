//! Checks that everything finishes once faults are over.

use super::invariant::Invariant;
use super::limits::{REQUESTS_AFTER, SETTLE_NS};
use super::World;

impl World {
    /// Call when faults have ended: every client must finish, every replica must be a voter, and all must be equal.
    pub fn must_settle(&mut self) {
        let until = self.now + SETTLE_NS;
        let before = self.answered();
        self.set_load(true);
        let is_done = |world: &World| {
            let after = world.answered();
            let mut both = before.iter().zip(&after);
            world.is_whole() && both.all(|(b, a)| *a >= b + REQUESTS_AFTER)
        };
        if !self.run_until(until, is_done) {
            let answered = self.answered();
            let replicas = (0..self.system.layout.replicas).filter_map(|r| self.replica(r));
            let replicas: Vec<_> = replicas.map(|r| (r.status(0), r.raft_ids())).collect();
            let active = self.active();
            return self.broken(
                Invariant::Liveness,
                format!(
                "no end: answered {before:?}, then {answered:?}; active {active:?}; {replicas:#?}"
            ),
            );
        }
        self.set_load(false);
        if !self.run_until(until, World::is_idle) {
            return self.broken(Invariant::Liveness, "a request never ends");
        }
        let replicas = 0..self.system.layout.replicas;
        let is_equal = |world: &World| {
            let first = world.replica(0).expect("it is whole");
            replicas
                .clone()
                .filter_map(|r| world.replica(r))
                .all(|r| r.applied() == first.applied())
        };
        if !self.run_until(until, is_equal) {
            return self.broken(
                Invariant::Liveness,
                "replicas do not come to the same entry",
            );
        }
        self.check_stores();
    }

    fn check_stores(&mut self) {
        let first = self.replica(0).expect("it is whole").store().clone();
        for number in 1..self.system.layout.replicas {
            let replica = self.replica(number).expect("it is whole");
            if replica.store() != &first {
                self.broken(
                    Invariant::SameState,
                    format!("replicas 0 and {number} differ"),
                );
                return;
            }
        }
        let (acknowledged, begun) = self.system.history.writes();
        let changes = first.changes();
        if !(acknowledged..=begun).contains(&changes) {
            self.broken(
                Invariant::ExactlyOnce,
                format!(
                    "{changes} changes of {acknowledged} acknowledged and {begun} begun writes"
                ),
            );
        }
    }
}
