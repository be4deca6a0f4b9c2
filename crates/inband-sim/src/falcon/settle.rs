//! Checks that everything finishes once faults are over.

use inband_falcon::task::{TaskSpec, Work};
use inband_falcon::timing::MS;

use super::invariant::Invariant;
use super::limits::{EVENTS_MAX, PROMPT_NS, SETTLE_NS};
use super::work::{Ends, Plan};
use super::World;

impl World {
    /// Returns whether no task is queued or running, and every worker is registered.
    fn is_at_rest(&self) -> bool {
        self.tasks_left() == 0 && self.queued() == 0 && self.busy() == 0 && self.all_registered()
    }

    /// Returns whether every executor waits at its scheduler.
    fn is_all_parked(&self) -> bool {
        let executors =
            u32::from(self.system.layout.workers) * u32::from(self.system.layout.executors);
        self.is_at_rest() && self.parked() >= executors
    }

    /// Call when faults have ended: every task of a living client must end, and every executor must be ready for
    /// another.
    pub fn must_settle(&mut self) {
        self.set_load(false);
        let until = self.now + SETTLE_NS;
        let enough = |world: &World| world.is_all_parked() || world.stats.events > EVENTS_MAX;
        if !self.run_until(until, enough) || !self.is_all_parked() {
            let what = format!(
                "{} tasks left, {} queued, {} executors busy, {} wait; all registered: {}; {} events",
                self.tasks_left(),
                self.queued(),
                self.busy(),
                self.parked(),
                self.all_registered(),
                self.stats.events
            );
            return self.broken(Invariant::Liveness, what);
        }
        if self.system.layout.is_calm {
            self.nobody_was_given_up();
        }
        // Schedulers clear the bits of lost executors only gradually, and until then each bit costs an answer.
        self.run_for(4 * self.system.layout.worker_lease_ns);
        for client in 0..self.system.layout.clients {
            self.must_be_prompt(client);
        }
    }

    fn nobody_was_given_up(&mut self) {
        for number in 0..self.system.layout.clients {
            let lost = self
                .client_counters(number)
                .map_or(0, |counters| counters.lost);
            if lost > 0 {
                let what = format!("client {number} gave up {lost} executors that were well");
                self.broken(Invariant::Prompt, what);
            }
        }
    }

    /// All executors are idle, so a job must start at once.
    fn must_be_prompt(&mut self, client: u8) {
        let takes_ns = MS;
        let task = |number| {
            let ends = Ends::Output(8);
            let plan = Plan {
                number,
                takes_ns,
                ends,
            };
            TaskSpec::new(Work::Inline(plan.work(0)))
        };
        let tasks = (0..self.system.layout.tasks_at_once()).map(task).collect();
        self.submit(client, tasks, &[], None);
        let until = self.now + takes_ns + PROMPT_NS;
        if !self.run_until(until, |world| world.tasks_left() == 0) {
            let what = format!("client {client} waits for tasks that nobody begins");
            self.broken(Invariant::Prompt, what);
        }
    }
}
