//! Messages from executors: an attempt begins, continues, or has a result.

use super::task_state::{State, Task};
use super::{Action, Client};
use crate::limits::{FETCH_TRIES, INLINE_LEN_BYTES_MAX};
use crate::message::{Outcome, Payload, Place, ToClient, ToExecutor};
use crate::task::{Attempt, Work};
use crate::timing::Nanos;

impl<A: Clone + PartialEq> Client<A> {
    /// Handles a message from an executor.
    pub fn on_executor(&mut self, now: Nanos, from: A, message: ToClient) {
        match message {
            ToClient::Started(attempt) => self.on_started(now, from, attempt),
            ToClient::Lease(attempt) => self.on_lease(now, from, attempt),
            ToClient::Result(attempt, outcome) => self.on_result(now, from, attempt, outcome),
            ToClient::Reply(reply) => self.on_reply(now, reply),
        }
    }

    fn on_started(&mut self, now: Nanos, from: A, attempt: Attempt) {
        let lease_ns = self.config.timing.lease_ns;
        let Some((key, task)) = self.task_of(attempt) else {
            return self.tell(from, ToExecutor::Revoked(attempt));
        };
        let is_other = match &task.state {
            State::Waiting | State::Fetching { .. } => true,
            // Only one executor at a time.
            State::Started {
                by, attempt: of, ..
            } => (by, *of) != (&from, attempt.attempt),
            State::Submitted { .. } | State::Refused | State::Queued { .. } => false,
        };
        if is_other {
            return self.tell(from, ToExecutor::Revoked(attempt));
        }
        let started = State::Started {
            by: from.clone(),
            attempt: attempt.attempt,
            heard_at: now,
        };
        let before = std::mem::replace(&mut task.state, started);
        if !matches!(before, State::Started { .. }) {
            self.actions.push(Action::Started(attempt.id));
        }
        self.leave(key, &before);
        self.plan(key, now + lease_ns);
        self.go(from, attempt);
    }

    /// Sends this executor the work, if the client keeps it.
    fn go(&mut self, to: A, attempt: Attempt) {
        let Some((_, task)) = self.task_of(attempt) else {
            return;
        };
        let Work::Kept(work) = &task.spec.work else {
            return;
        };
        let payload = match task.place {
            // The executor may already be fetching it after an earlier answer.
            Some(place) => Payload::At(place),
            None if work.len() <= INLINE_LEN_BYTES_MAX => Payload::Inline(work.clone()),
            None => return self.actions.push(Action::Store(to, attempt)),
        };
        self.tell(to, ToExecutor::Go(attempt, payload));
    }

    /// The work that this executor wants can be fetched at `place`. `None`: there is no room now, and the executor will
    /// ask again.
    pub fn stored(&mut self, to: A, attempt: Attempt, place: Option<Place>) {
        let Some(place) = place else {
            return self.tell(to, ToExecutor::NotYet(attempt));
        };
        match self.task_of(attempt) {
            Some((_, task)) if task.place.is_none() => task.place = Some(place),
            _ => self.actions.push(Action::Forget(place)),
        }
        self.go(to, attempt);
    }

    fn on_lease(&mut self, now: Nanos, from: A, attempt: Attempt) {
        let lease_ns = self.config.timing.lease_ns;
        let Some((key, task)) = self.task_of(attempt) else {
            return self.tell(from, ToExecutor::Revoked(attempt));
        };
        match &mut task.state {
            State::Started {
                by,
                attempt: of,
                heard_at,
            } if (&*by, *of) == (&from, attempt.attempt) => {
                *heard_at = now;
                self.plan(key, now + lease_ns);
            }
            // It was given up as lost, but no other executor has begun: its progress need not be repeated.
            State::Submitted { .. } | State::Refused | State::Queued { .. } => {
                self.on_started(now, from, attempt);
            }
            State::Waiting | State::Fetching { .. } | State::Started { .. } => {
                self.tell(from, ToExecutor::Revoked(attempt));
            }
        }
    }

    fn on_result(&mut self, now: Nanos, from: A, attempt: Attempt, outcome: Outcome) {
        let Some((key, task)) = self.task_of(attempt) else {
            self.counters.results_twice += 1;
            return self.tell(from, ToExecutor::Acknowledged(attempt));
        };
        match (&task.state, outcome.is_here()) {
            // Acknowledged only once it has been fetched.
            (State::Fetching { .. }, _) => self.tell(from, ToExecutor::NotYet(attempt)),
            (_, false) => {
                let by = from.clone();
                let before = std::mem::replace(&mut task.state, State::Fetching { by });
                self.leave(key, &before);
                self.plan(key, Nanos::MAX);
                self.actions.push(Action::Fetch(from, attempt, outcome));
            }
            (_, true) => {
                self.tell(from, ToExecutor::Acknowledged(attempt));
                self.end(now, key, Ok(outcome));
            }
        }
    }

    /// A long result was fetched; `None` if that failed.
    pub fn fetched(&mut self, now: Nanos, from: A, attempt: Attempt, outcome: Option<Outcome>) {
        let Some((key, task)) = self.task_of(attempt) else {
            return;
        };
        if !matches!(&task.state, State::Fetching { by } if *by == from) {
            return;
        }
        match outcome {
            Some(outcome) => {
                self.tell(from, ToExecutor::Acknowledged(attempt));
                self.end(now, key, Ok(outcome));
            }
            None => {
                task.fetches_failed += 1;
                if task.fetches_failed < FETCH_TRIES {
                    // The executor will repeat its result, unless it is lost.
                    task.state = State::Started {
                        by: from,
                        attempt: attempt.attempt,
                        heard_at: now,
                    };
                    let lease_ns = self.config.timing.lease_ns;
                    return self.plan(key, now + lease_ns);
                }
                let mut again = Vec::new();
                self.lose(now, key, &mut again);
                self.send(now, again);
            }
        }
    }

    fn task_of(&mut self, attempt: Attempt) -> Option<((u32, u32), &mut Task<A>)> {
        let id = attempt.id;
        let key = (id.job, id.task);
        let task = self.tasks.get_mut(&key)?;
        (id.user == self.config.user).then_some((key, task))
    }
}
