//! A worker: dispatches messages from its scheduler and its clients to its executors, and the executors' actions to the
//! driver.

mod membership;
mod silent;

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use self::membership::{Known, Membership};
use self::silent::Silent;
use crate::executor::{self, Executor};
use crate::limits::{INLINE_LEN_BYTES_MAX, WORK_LEN_BYTES_MAX};
use crate::message::{Outcome, Payload, Place, ToClient, ToExecutor};
use crate::packets::{Given, HostMessage, Incoming};
use crate::registry::{Refusal, Register, Registered};
use crate::results::Results;
use crate::task::Attempt;
use crate::timing::{ExecutorTiming, Nanos, MS};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Drawn at its start; unique.
    pub token: u64,
    /// A name for people.
    pub name: String,
    /// How many tasks it runs at a time.
    pub executors: u8,
    /// Bitmap of its resources.
    pub resources: u64,
    /// Maximum total length of results that clients fetch. Executors with results for which there is no room wait, and
    /// take no more tasks.
    pub results_len_bytes_max: usize,
    pub timing: ExecutorTiming,
}

/// An executor's request for a task. See [`crate::packets::Codec::pull`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pull {
    /// The scheduler's incarnation.
    pub scheduler: u64,
    /// The executor's number at the scheduler.
    pub executor: u32,
    pub worker_incarnation: u32,
    /// The number of the PULL.
    pub pull_seq: u64,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The task's client.
    pub client: SocketAddrV4,
    /// The executor that ran it, by its number here.
    pub executor: u32,
    pub attempt: Attempt,
    pub outcome: Outcome,
}

/// An action for the driver. Executors are numbered from 0, as their clients know them: the scheduler may give the
/// worker another number while a task runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this to the scheduler's process.
    Register(Register),
    /// Send this PULL to the scheduler.
    Pull(Pull),
    /// Send a message to a client.
    Tell {
        client: SocketAddrV4,
        /// The executor that sends it.
        executor: u32,
        message: ToClient,
    },
    /// Run this. Call [`Worker::finished`] once it has ended.
    Run {
        executor: usize,
        attempt: Attempt,
        /// The work, or where it can be fetched.
        work: Payload,
    },
    /// The run is no longer wanted: end it if possible, and call [`Worker::finished`].
    Stop { executor: usize, attempt: Attempt },
    /// This outcome is too long for a packet: store it where it can be fetched, and call [`Worker::stored`].
    Store(Ended),
    /// This is no longer needed.
    Forget(Place),
    /// The scheduler refuses the worker: stop it and report why.
    GiveUp(Refusal),
}

#[derive(Debug)]
pub struct Worker {
    config: Config,
    membership: Membership,
    executors: Vec<Executor<SocketAddrV4>>,
    /// By client, and executor that reports to it.
    results: Results<(SocketAddrV4, u32)>,
    silent: Silent,
    /// Executors that hold outcomes for which there was no room, the first one first.
    holding: VecDeque<usize>,
    /// Length of the outcomes that are about to be stored.
    storing_len_bytes: usize,
    actions: Vec<Action>,
}

impl Worker {
    /// A worker that is not yet registered.
    pub fn new(config: Config, now: Nanos) -> Worker {
        let executor = |_| Executor::new(config.timing, now);
        Worker {
            membership: Membership::new(now, config.executors),
            executors: (0..config.executors).map(executor).collect(),
            results: Results::new(config.timing, config.results_len_bytes_max),
            silent: Silent::new(config.timing),
            holding: VecDeque::new(),
            storing_len_bytes: 0,
            actions: Vec::new(),
            config,
        }
    }

    /// Takes the pending actions, in order. Call after every event.
    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub fn executors(&self) -> &[Executor<SocketAddrV4>] {
        &self.executors
    }

    /// Returns how many of its executors wait for tasks.
    pub fn idle(&self) -> usize {
        self.executors.iter().filter(|e| e.is_idle()).count()
    }

    /// Returns the number of tasks run.
    pub fn tasks_run(&self) -> u64 {
        self.executors.iter().map(|e| e.counters().tasks_run).sum()
    }

    /// Results that their clients have not yet acknowledged.
    pub fn results_kept(&self) -> usize {
        self.results.len()
    }

    /// See [`Results::thrown_away`].
    pub fn results_thrown_away(&self) -> u64 {
        self.results.thrown_away()
    }

    pub fn is_registered(&self) -> bool {
        self.membership.is_registered()
    }

    /// Returns the index of one of its executors, given its number at the scheduler.
    pub fn number_of(&self, executor: u32) -> Option<usize> {
        self.membership.number_of(executor)
    }

    /// Returns the message to the scheduler when this worker stops immediately.
    pub fn leaving(&self) -> Register {
        self.registering(true)
    }

    /// Leaves the scheduler and takes no more tasks; those that it has continue. See [`Worker::is_drained`].
    pub fn drain(&mut self, now: Nanos) {
        self.membership.drain(now);
    }

    /// Whether, after [`Worker::drain`], nothing runs, nothing can be in flight, and every client has its results or is
    /// silent.
    pub fn is_drained(&self, now: Nanos) -> bool {
        self.membership.has_left(now)
            && self.idle() == self.executors.len()
            && !self.results.are_awaited(now)
    }

    /// Returns when to call [`Worker::tick`] next.
    pub fn due(&self) -> Nanos {
        let executors = self.executors.iter().map(Executor::due);
        let due = executors.min().unwrap_or(Nanos::MAX);
        let room = match self.holding.is_empty() {
            true => Nanos::MAX,
            false => self.results.silent_at(),
        };
        due.min(self.results.due())
            .min(room)
            .min(self.membership.due())
    }

    /// Handles expired timers.
    pub fn tick(&mut self, now: Nanos) {
        if self.membership.tick(now) {
            let register = self.registering(self.membership.drains());
            self.actions.push(Action::Register(register));
        }
        for number in 0..self.executors.len() {
            if now >= self.executors[number].due() {
                self.at(now, number, |executor| executor.tick(now));
            }
        }
        for ((client, executor), message) in self.results.tick(now) {
            self.tell(client, executor, message);
        }
        self.forget_gone();
        self.let_go(now);
    }

    /// Handles the content of a packet.
    pub fn on_incoming(&mut self, now: Nanos, from: SocketAddrV4, incoming: Incoming) {
        match incoming {
            Incoming::Given(given) => self.on_given(now, given),
            Incoming::Damaged {
                executor,
                pull_seq,
                is_repeated,
            } => self.at_named(now, executor, |executor| {
                executor.on_damaged(now, pull_seq, is_repeated);
            }),
            Incoming::NoTask { executor, pull_seq } => {
                self.at_named(now, executor, |executor| executor.on_no_task(now, pull_seq));
            }
            Incoming::NotRegistered {
                executor,
                worker_incarnation,
            } => self
                .membership
                .on_not_registered(now, executor, worker_incarnation),
            Incoming::Host(_, HostMessage::Registered(scheduler, answer)) => {
                self.on_registered(now, scheduler, answer);
            }
            Incoming::Host(executor, HostMessage::ToExecutor(message)) => {
                self.on_client(now, from, executor, message);
            }
            Incoming::Reply(_) | Incoming::Host(..) => {}
        }
    }

    /// An executor's run has ended.
    ///
    /// # Panics
    ///
    /// If it runs nothing.
    pub fn finished(&mut self, now: Nanos, executor: usize, outcome: Outcome) {
        // Executors that have held an outcome for longer go first.
        let has_room = self.holding.is_empty() && self.has_room(now, stored_len_bytes(&outcome));
        self.at(now, executor, |executor| {
            executor.finished(now, outcome, has_room);
        });
        if self.executors[executor].holds().is_some() {
            self.holding.push_back(executor);
        }
    }

    /// Returns whether there is room for this among the results.
    fn has_room(&mut self, now: Nanos, len_bytes: usize) -> bool {
        let has_room = self
            .results
            .make_room(now, self.storing_len_bytes + len_bytes);
        self.forget_gone();
        has_room
    }

    /// Takes outcomes from executors that hold them, as far as there is room by now, and skips those that are no longer
    /// wanted.
    fn let_go(&mut self, now: Nanos) {
        while let Some(number) = self.holding.front().copied() {
            let len_bytes = self.executors[number].holds().map(stored_len_bytes);
            if len_bytes.is_some_and(|len_bytes| !self.has_room(now, len_bytes)) {
                return;
            }
            self.holding.pop_front();
            self.at(now, number, |executor| executor.lets_go(now));
        }
    }

    /// A long outcome can be fetched at this place; or it could not be kept, for this reason.
    pub fn stored(&mut self, now: Nanos, ended: Ended, place: Result<Place, String>) {
        self.storing_len_bytes -= stored_len_bytes(&ended.outcome);
        let outcome = match place {
            Ok(place) => ended.outcome.with(Payload::At(place)),
            Err(said) => Outcome::Error(Payload::Inline(said.into_bytes())),
        };
        self.keep(now, Ended { outcome, ..ended });
    }

    fn registering(&self, leaves: bool) -> Register {
        Register {
            token: self.config.token,
            name: self.config.name.clone(),
            executors: self.config.executors,
            resources: self.config.resources,
            leaves,
        }
    }

    fn on_given(&mut self, now: Nanos, given: Given) {
        if let Some((client, reply)) = given.relay {
            // The client's SUBMIT has only just arrived.
            self.silent.heard(&client);
            self.tell(client, given.executor, ToClient::Reply(reply));
        }
        let attempt = given.entry.attempt;
        let client_timeout_ns = self.silent.client_timeout_ns(now, &given.client, attempt);
        self.at_named(now, given.executor, |executor| {
            executor.on_task(
                now,
                given.pull_seq,
                given.client,
                given.entry,
                client_timeout_ns,
            );
        });
    }

    fn on_registered(&mut self, now: Nanos, scheduler: u64, answer: Registered) {
        if self.membership.drains() {
            return;
        }
        let (worker, incarnation, lease_ms, pull_ms) = match answer {
            Registered::Refused(refusal) => return self.actions.push(Action::GiveUp(refusal)),
            Registered::As {
                worker,
                worker_incarnation,
                lease_ms,
                pull_ms,
            } => (worker, worker_incarnation, lease_ms, pull_ms),
        };
        let known = Known {
            scheduler,
            worker,
            incarnation,
        };
        let lease_ns = Nanos::from(lease_ms) * MS;
        if self.membership.on_registered(now, known, lease_ns) {
            let pull_ns = Nanos::from(pull_ms) * MS;
            for number in 0..self.executors.len() {
                self.at(now, number, |executor| executor.on_registered(now, pull_ns));
            }
        }
    }

    fn on_client(&mut self, now: Nanos, from: SocketAddrV4, executor: u32, message: ToExecutor) {
        self.silent.heard(&from);
        if let ToExecutor::Acknowledged(attempt) = message {
            let outcome = self.results.on_acknowledged(&(from, executor), attempt);
            outcome.iter().for_each(|outcome| self.forget(outcome));
            return self.let_go(now);
        }
        if let ToExecutor::NotYet(attempt) = message {
            self.results.on_not_yet(now, &(from, executor), attempt);
        }
        let number = executor as usize;
        if number < self.executors.len() {
            self.at(now, number, |executor| {
                executor.on_client(now, &from, message)
            });
            // The executor may have held an outcome that is no longer wanted.
            self.let_go(now);
        }
    }

    /// Handles an event at the executor with this number at the scheduler, if there is one.
    fn at_named(
        &mut self,
        now: Nanos,
        executor: u32,
        event: impl FnOnce(&mut Executor<SocketAddrV4>),
    ) {
        if let Some(number) = self.number_of(executor) {
            self.at(now, number, event);
        }
    }

    /// Handles an event at an executor and passes on its actions.
    fn at(&mut self, now: Nanos, number: usize, event: impl FnOnce(&mut Executor<SocketAddrV4>)) {
        let executor = &mut self.executors[number];
        event(executor);
        for action in executor.actions() {
            match action {
                executor::Action::Pull { pull_seq } => {
                    let pull = self.membership.pull(number, pull_seq);
                    self.actions.extend(pull.map(Action::Pull));
                }
                executor::Action::Tell(client, message) => {
                    self.tell(client, number as u32, message);
                }
                executor::Action::Silent(client) => self.silent.found(now, client),
                executor::Action::Run(attempt, work) => self.actions.push(Action::Run {
                    executor: number,
                    attempt,
                    work,
                }),
                executor::Action::Stop(attempt) => self.actions.push(Action::Stop {
                    executor: number,
                    attempt,
                }),
                executor::Action::Keep(client, attempt, outcome) => {
                    let ended = Ended {
                        client,
                        executor: number as u32,
                        attempt,
                        outcome,
                    };
                    self.on_ended(now, ended);
                }
            }
        }
    }

    fn on_ended(&mut self, now: Nanos, ended: Ended) {
        match ended.outcome.payload() {
            Payload::Inline(bytes) if bytes.len() > INLINE_LEN_BYTES_MAX => {
                self.storing_len_bytes += stored_len_bytes(&ended.outcome);
                self.actions.push(Action::Store(ended));
            }
            _ => self.keep(now, ended),
        }
    }

    fn keep(&mut self, now: Nanos, ended: Ended) {
        let (client, executor) = (ended.client, ended.executor);
        let message = self
            .results
            .keep(now, (client, executor), ended.attempt, ended.outcome);
        self.tell(client, executor, message);
        self.forget_gone();
    }

    fn forget_gone(&mut self) {
        for outcome in self.results.take_gone() {
            self.forget(&outcome);
        }
    }

    fn forget(&mut self, outcome: &Outcome) {
        if let Payload::At(place) = outcome.payload() {
            self.actions.push(Action::Forget(*place));
        }
    }

    fn tell(&mut self, client: SocketAddrV4, executor: u32, message: ToClient) {
        self.actions.push(Action::Tell {
            client,
            executor,
            message,
        });
    }
}

/// Returns the space that it takes when stored; 0 if it is too long to be stored.
fn stored_len_bytes(outcome: &Outcome) -> usize {
    match outcome.payload() {
        Payload::Inline(bytes)
            if (INLINE_LEN_BYTES_MAX + 1..=WORK_LEN_BYTES_MAX).contains(&bytes.len()) =>
        {
            bytes.len()
        }
        Payload::Inline(_) | Payload::At(_) => 0,
    }
}

#[cfg(test)]
mod tests;
