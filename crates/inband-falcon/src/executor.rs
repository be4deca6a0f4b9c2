//! An executor: tasks in, runs out. Results are the worker's ([`crate::results`]).

use crate::message::{Outcome, Payload, ToClient, ToExecutor};
use crate::task::{Attempt, Entry};
use crate::timing::{ExecutorTiming, Nanos};

/// An action for the worker. `A` is the address of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<A> {
    /// Send a PULL to the scheduler, which parks it if there is no task.
    Pull { pull_seq: u64 },
    /// Send a message to a client.
    Tell(A, ToClient),
    /// This client did not answer.
    Silent(A),
    /// Run this. Call [`Executor::finished`] once it has ended.
    Run(Attempt, Payload),
    /// The run is no longer wanted: end it if possible, and call [`Executor::finished`].
    Stop(Attempt),
    /// Keep this for the client until it has acknowledged it.
    Keep(A, Attempt, Outcome),
}

/// A client that asks to wait longer gets at most this many times the timeout of a silent one.
const CLIENT_TIMEOUTS_MAX: u64 = 10;

#[derive(Debug)]
enum State<A> {
    /// Waits for a task.
    Idle { wait_ns: Nanos },
    /// Has a task, and has asked its client for the work.
    Asking {
        client: A,
        attempt: Attempt,
        since: Nanos,
        client_timeout_ns: Nanos,
        /// The client has answered that it is not ready yet.
        is_heard: bool,
    },
    Running {
        client: A,
        attempt: Attempt,
        is_wanted: bool,
    },
    /// Has run a task, and takes no other one until there is room for the outcome.
    Holding {
        client: A,
        attempt: Attempt,
        outcome: Outcome,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counters {
    pub tasks_run: u64,
    /// Not begun, or stopped, because the client no longer wanted it.
    pub revoked: u64,
    /// Not begun because the client did not answer.
    pub clients_silent: u64,
    /// Not begun because the client had just failed to answer about another task.
    pub clients_skipped: u64,
    /// Not begun because the client had no room for the work for too long.
    pub clients_busy: u64,
    pub pulls_repeated: u64,
    /// Received with a wrong digest.
    pub damaged: u64,
}

#[derive(Debug)]
pub struct Executor<A> {
    timing: ExecutorTiming,
    pull_seq: u64,
    state: State<A>,
    due: Nanos,
    actions: Vec<Action<A>>,
    counters: Counters,
}

impl<A: Clone + PartialEq> Executor<A> {
    /// Creates a new executor, which pulls a task.
    pub fn new(timing: ExecutorTiming, now: Nanos) -> Executor<A> {
        let mut executor = Executor {
            timing,
            pull_seq: 0,
            state: State::Idle { wait_ns: 0 },
            due: now,
            actions: Vec::new(),
            counters: Counters::default(),
        };
        executor.pull_next(now);
        executor
    }

    /// Returns when to call [`Executor::tick`] next.
    pub fn due(&self) -> Nanos {
        self.due
    }

    /// Takes the pending actions, in order. Call after every event.
    pub fn actions(&mut self) -> Vec<Action<A>> {
        std::mem::take(&mut self.actions)
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns whether it waits for a task.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle { .. })
    }

    /// Returns the client that it has asked for work, and since when.
    pub fn asks(&self) -> Option<(&A, Attempt, Nanos)> {
        match &self.state {
            State::Asking {
                client,
                attempt,
                since,
                ..
            } => Some((client, *attempt, *since)),
            State::Idle { .. } | State::Running { .. } | State::Holding { .. } => None,
        }
    }

    /// Returns the outcome that it holds because there was no room for it.
    pub fn holds(&self) -> Option<&Outcome> {
        match &self.state {
            State::Holding { outcome, .. } => Some(outcome),
            State::Idle { .. } | State::Running { .. } | State::Asking { .. } => None,
        }
    }

    /// The scheduler gives a task, in answer to the PULL of this number. If the client has to be asked for the work, it
    /// has `client_timeout_ns` to answer; with 0, it is not asked and the task is dropped.
    pub fn on_task(
        &mut self,
        now: Nanos,
        pull_seq: u64,
        client: A,
        entry: Entry,
        client_timeout_ns: Nanos,
    ) {
        // Given twice, because the PULL was sent twice.
        if pull_seq != self.pull_seq || !self.is_idle() {
            return;
        }
        if entry.desc.is_empty() && client_timeout_ns == 0 {
            self.counters.clients_skipped += 1;
            return self.pull_next(now);
        }
        let attempt = entry.attempt;
        let started = Action::Tell(client.clone(), ToClient::Started(attempt));
        if entry.desc.is_empty() {
            self.state = State::Asking {
                client,
                attempt,
                since: now,
                client_timeout_ns,
                is_heard: false,
            };
            self.due = now + self.timing.ask_ns.min(client_timeout_ns);
        } else {
            // Run before telling the client, which is not waiting for the message.
            self.run(now, client, attempt, Payload::Inline(entry.desc));
        }
        self.actions.push(started);
    }

    /// The task in answer to the PULL of this number has a wrong digest. If it was damaged on the way here, a
    /// repetition of the PULL brings it again. If it is repeated and still damaged, so is the scheduler's copy, and
    /// repeating the PULL would never bring another one: pull the next task; the client will notice the loss.
    pub fn on_damaged(&mut self, now: Nanos, pull_seq: u64, is_repeated: bool) {
        if pull_seq != self.pull_seq || !self.is_idle() {
            return;
        }
        self.counters.damaged += 1;
        if is_repeated {
            self.pull_next(now);
        } else {
            self.actions.push(Action::Pull { pull_seq });
        }
    }

    /// The scheduler has no task for the PULL of this number, and does not park it.
    pub fn on_no_task(&mut self, now: Nanos, pull_seq: u64) {
        if pull_seq == self.pull_seq && self.is_idle() {
            self.due = now + self.timing.pull_ns;
        }
    }

    /// The worker is registered. Idle executors pull again after at most `pull_max_ns`, if that is not 0.
    pub fn on_registered(&mut self, now: Nanos, pull_max_ns: Nanos) {
        if pull_max_ns > 0 {
            self.timing.pull_max_ns = pull_max_ns;
            self.timing.pull_ns = self.timing.pull_ns.min(pull_max_ns);
        }
        if self.is_idle() {
            // A PULL that was not yet sent would be answered too, and its task would be lost.
            self.actions
                .retain(|action| !matches!(action, Action::Pull { .. }));
            self.pull_next(now);
        }
    }

    /// Handles a message from a client.
    pub fn on_client(&mut self, now: Nanos, from: &A, message: ToExecutor) {
        match message {
            ToExecutor::Go(attempt, payload) => self.on_go(now, from, attempt, payload),
            ToExecutor::Revoked(attempt) => self.on_revoked(now, from, attempt),
            ToExecutor::NotYet(attempt) => self.on_not_yet(now, from, attempt),
            ToExecutor::Acknowledged(_) => {}
        }
    }

    fn on_not_yet(&mut self, now: Nanos, from: &A, of: Attempt) {
        match &mut self.state {
            State::Asking {
                client,
                attempt,
                since,
                client_timeout_ns,
                is_heard,
            } if (&*client, *attempt) == (from, of) => {
                let silent_ns = self.timing.client_silent_ns;
                // What takes up the client's room may be this task itself, queued a second time.
                *client_timeout_ns =
                    (now - *since + silent_ns).min(CLIENT_TIMEOUTS_MAX * silent_ns);
                *is_heard = true;
            }
            _ => {}
        }
    }

    fn on_go(&mut self, now: Nanos, from: &A, of: Attempt, payload: Payload) {
        match &self.state {
            State::Asking {
                client, attempt, ..
            } if (client, *attempt) == (from, of) => {
                self.run(now, from.clone(), of, payload);
            }
            _ => {}
        }
    }

    fn on_revoked(&mut self, now: Nanos, from: &A, of: Attempt) {
        match &mut self.state {
            State::Asking {
                client, attempt, ..
            } if (&*client, *attempt) == (from, of) => {
                self.counters.revoked += 1;
                self.pull_next(now);
            }
            State::Running {
                client,
                attempt,
                is_wanted,
            } if (&*client, *attempt) == (from, of) && *is_wanted => {
                *is_wanted = false;
                self.counters.revoked += 1;
                self.due = Nanos::MAX;
                self.actions.push(Action::Stop(of));
            }
            State::Holding {
                client, attempt, ..
            } if (&*client, *attempt) == (from, of) => {
                self.counters.revoked += 1;
                self.pull_next(now);
            }
            _ => {}
        }
    }

    /// The run has ended. Without room for the outcome the executor holds it: see [`Executor::lets_go`].
    ///
    /// # Panics
    ///
    /// If nothing runs.
    pub fn finished(&mut self, now: Nanos, outcome: Outcome, has_room: bool) {
        let State::Running {
            client,
            attempt,
            is_wanted,
        } = &self.state
        else {
            panic!("nothing runs");
        };
        let (client, attempt, is_wanted) = (client.clone(), *attempt, *is_wanted);
        self.counters.tasks_run += 1;
        if !is_wanted {
            return self.pull_next(now);
        }
        self.state = State::Holding {
            client,
            attempt,
            outcome,
        };
        // The client must still get leases.
        self.due = now + self.timing.lease_ns;
        if has_room {
            self.lets_go(now);
        }
    }

    /// There is room for the outcome that it holds.
    pub fn lets_go(&mut self, now: Nanos) {
        let idle = State::Idle { wait_ns: 0 };
        match std::mem::replace(&mut self.state, idle) {
            State::Holding {
                client,
                attempt,
                outcome,
            } => {
                // Pull first, because this executor is now idle.
                self.pull_next(now);
                self.actions.push(Action::Keep(client, attempt, outcome));
            }
            other => self.state = other,
        }
    }

    /// Handles expired timers.
    pub fn tick(&mut self, now: Nanos) {
        if now < self.due {
            return;
        }
        match &mut self.state {
            State::Idle { wait_ns } => {
                *wait_ns = (2 * *wait_ns).clamp(self.timing.pull_ns, self.timing.pull_max_ns);
                self.due = now + *wait_ns;
                self.counters.pulls_repeated += 1;
                let pull_seq = self.pull_seq;
                self.actions.push(Action::Pull { pull_seq });
            }
            State::Asking {
                client,
                since,
                client_timeout_ns,
                is_heard,
                ..
            } if now >= *since + *client_timeout_ns => {
                let silent = (!*is_heard).then(|| Action::Silent(client.clone()));
                match silent {
                    Some(_) => self.counters.clients_silent += 1,
                    None => self.counters.clients_busy += 1,
                }
                self.pull_next(now);
                self.actions.extend(silent);
            }
            State::Asking {
                client,
                attempt,
                since,
                client_timeout_ns,
                ..
            } => {
                let started = ToClient::Started(*attempt);
                let give_up_at = *since + *client_timeout_ns;
                self.actions.push(Action::Tell(client.clone(), started));
                self.due = give_up_at.min(now + self.timing.ask_ns);
            }
            State::Running {
                client, attempt, ..
            }
            | State::Holding {
                client, attempt, ..
            } => {
                let lease = ToClient::Lease(*attempt);
                self.actions.push(Action::Tell(client.clone(), lease));
                self.due = now + self.timing.lease_ns;
            }
        }
    }

    fn run(&mut self, now: Nanos, client: A, attempt: Attempt, payload: Payload) {
        self.state = State::Running {
            client,
            attempt,
            is_wanted: true,
        };
        self.due = now + self.timing.lease_ns;
        self.actions.push(Action::Run(attempt, payload));
    }

    fn pull_next(&mut self, now: Nanos) {
        self.pull_seq += 1;
        let wait_ns = self.timing.pull_ns;
        self.state = State::Idle { wait_ns };
        self.due = now + wait_ns;
        let pull_seq = self.pull_seq;
        self.actions.push(Action::Pull { pull_seq });
    }
}

#[cfg(test)]
mod tests;
