//! A client: jobs in, outcomes out.
//!
//! A task is *waiting* for other jobs, *submitted*, *queued* (the scheduler has confirmed it and its position),
//! *started* by an executor, or done. Losses are detected by timeouts and retried, so a task runs at least once; its
//! outcome is reported once.

mod executors;
mod queues;
mod task_state;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddrV4;

use crate::limits::{CLIENT_TASKS_MAX, FAILED_JOBS_MAX, SUBMIT_TASKS_MAX};
use crate::message::{Outcome, Place, SubmitReply, ToExecutor};
use crate::packets::{HostMessage, Incoming, Peer};
use crate::task::{Attempt, Entry, Failure, JobId, SubmitError, TaskId, TaskSpec, Work};
use crate::timing::{ClientTiming, Nanos, MS};
use queues::Queues;
use task_state::{State, Task};

#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The user who owns the tasks.
    pub user: u32,
    /// Number of the first job. No two clients of a user may use the same job number.
    pub first_job: u32,
    /// Tasks per SUBMIT, 1 to [`SUBMIT_TASKS_MAX`]. With 1, waiting executors get their tasks immediately.
    pub tasks_per_submit: usize,
    /// How many executors may be lost with a task before it fails.
    pub losses_max: u32,
    pub timing: ClientTiming,
}

/// Minimum interval between retries of refused tasks, over all of them.
const REFUSED_PACE_NS: Nanos = MS / 5;
/// How many ended schedulers are remembered, to recognise their late replies.
const ENDED_KEPT: usize = 8;

/// An action for the driver. `A` is the address of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<A> {
    /// Send a SUBMIT to the scheduler. Without entries it asks for the position of `queue` and wakes an executor.
    Submit {
        /// Repeated in the reply.
        submit_seq: u64,
        /// The queue to ask for.
        queue: u8,
        /// The tasks, all of one job.
        entries: Vec<Entry>,
    },
    /// Send a message to an executor.
    Tell(A, ToExecutor),
    /// This executor wants work that is too long for a packet ([`Client::kept`]): store it where it can be fetched, and
    /// call [`Client::stored`].
    Store(A, Attempt),
    /// This is no longer needed.
    Forget(Place),
    /// Fetch a result that was too long for a packet, and call [`Client::fetched`].
    Fetch(A, Attempt, Outcome),
    /// An executor has begun the task.
    Started(TaskId),
    /// A task is done, with or without success. Reported once per task.
    Done(TaskId, Result<Outcome, Failure>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counters {
    pub submitted: u64,
    pub done: u64,
    /// SUBMITs resent after a timeout.
    pub repeated: u64,
    /// Refused by a full queue, and retried.
    pub refused: u64,
    /// Lost with an executor, and resubmitted.
    pub lost: u64,
    /// Changes of the scheduler.
    pub schedulers_lost: u64,
    /// Results of tasks that already had one.
    pub results_twice: u64,
}

#[derive(Debug)]
struct Job {
    /// Tasks that are not done.
    left: usize,
    /// Jobs that this one waits for.
    after: BTreeSet<u32>,
    /// Jobs that wait for this one.
    before: Vec<u32>,
    has_failed: bool,
}

/// The tasks of a SUBMIT in flight.
#[derive(Debug)]
struct Carried {
    /// The tasks in order, each with its attempt.
    tasks: Vec<((u32, u32), u8)>,
    /// How many of them still await the reply.
    open: usize,
}

#[derive(Debug)]
pub struct Client<A> {
    config: Config,
    /// The scheduler's incarnation; 0 if none is known. A new scheduler has lost the previous one's queues.
    incarnation: u64,
    /// Previous incarnations, the latest first.
    ended: VecDeque<u64>,
    /// The first SUBMIT sent after the current incarnation was first seen: only a live scheduler answers it.
    since_submit_seq: u64,
    next_job: u32,
    next_submit_seq: u64,
    jobs: BTreeMap<u32, Job>,
    /// The last [`FAILED_JOBS_MAX`] jobs that failed.
    failed: BTreeSet<u32>,
    tasks: BTreeMap<(u32, u32), Task<A>>,
    due: BTreeSet<(Nanos, (u32, u32))>,
    submits: HashMap<u64, Carried>,
    queues: Queues,
    /// Number of tasks that a full queue has refused.
    refused: u64,
    actions: Vec<Action<A>>,
    counters: Counters,
}

impl<A: Clone + PartialEq> Client<A> {
    /// Creates a client without jobs.
    ///
    /// # Panics
    ///
    /// If `tasks_per_submit` is not 1 to [`SUBMIT_TASKS_MAX`].
    pub fn new(config: Config) -> Client<A> {
        assert!((1..=SUBMIT_TASKS_MAX).contains(&config.tasks_per_submit));
        Client {
            config,
            incarnation: 0,
            ended: VecDeque::new(),
            since_submit_seq: 0,
            next_job: config.first_job,
            next_submit_seq: 1,
            jobs: BTreeMap::new(),
            failed: BTreeSet::new(),
            tasks: BTreeMap::new(),
            due: BTreeSet::new(),
            submits: HashMap::new(),
            queues: Queues::default(),
            refused: 0,
            actions: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Accepts a job. Its tasks are submitted when the jobs in `after` are done; if one of those fails, so does this
    /// job. All tasks must be done by `deadline`.
    pub fn submit(
        &mut self,
        now: Nanos,
        specs: Vec<TaskSpec>,
        after: &[JobId],
        deadline: Option<Nanos>,
    ) -> Result<JobId, SubmitError> {
        self.check(&specs, after)?;
        let job = self.next_job;
        self.next_job += 1;
        let open: BTreeSet<u32> = after.iter().map(|j| j.0).collect();
        let open = open.into_iter().filter(|j| self.jobs.contains_key(j));
        let open: BTreeSet<u32> = open.collect();
        for before in &open {
            let before = self.jobs.get_mut(before).expect("it is there");
            before.before.push(job);
        }
        let starts = open.is_empty();
        let left = specs.len();
        self.jobs.insert(
            job,
            Job {
                left,
                after: open,
                before: Vec::new(),
                has_failed: false,
            },
        );
        for (number, spec) in (0..).zip(specs) {
            let deadline = deadline.map(|at| (at, at.saturating_sub(now) / MS));
            let task = Task::new(spec, deadline);
            self.tasks.insert((job, number), task);
            self.plan((job, number), Nanos::MAX);
        }
        let failed = after.iter().find(|before| self.failed.contains(&before.0));
        if let Some(JobId(before)) = failed {
            self.fail_all(now, job, Failure::Before(*before));
        } else if starts {
            self.start(now, job);
        }
        Ok(JobId(job))
    }

    fn check(&self, specs: &[TaskSpec], after: &[JobId]) -> Result<(), SubmitError> {
        specs.iter().try_for_each(TaskSpec::check)?;
        let known = self.config.first_job..self.next_job;
        if let Some(unknown) = after.iter().find(|job| !known.contains(&job.0)) {
            return Err(SubmitError::NoSuchJob(unknown.0));
        }
        let tasks = self.tasks.len() + specs.len();
        match specs.len() {
            0 => Err(SubmitError::NoTasks),
            _ if tasks > CLIENT_TASKS_MAX => Err(SubmitError::TooMany(tasks)),
            _ => Ok(()),
        }
    }

    /// Cancels a task that no executor has begun. Returns false if one has, or if the task is done.
    pub fn cancel(&mut self, now: Nanos, id: TaskId) -> bool {
        let key = (id.job, id.task);
        match self.tasks.get(&key).map(|task| &task.state) {
            None | Some(State::Started { .. } | State::Fetching { .. }) => false,
            Some(_) => {
                self.fail(now, key, Failure::Cancelled);
                true
            }
        }
    }

    /// Cancels a task even if an executor has begun it, in which case the executor is told. Returns false if the task
    /// is done.
    pub fn kill(&mut self, now: Nanos, id: TaskId) -> bool {
        let key = (id.job, id.task);
        let known = self.tasks.contains_key(&key);
        if known {
            self.fail(now, key, Failure::Cancelled);
        }
        known
    }

    /// Whether an executor has begun the task; `None` if it is done or never existed.
    pub fn is_running(&self, id: TaskId) -> Option<bool> {
        let task = self.tasks.get(&(id.job, id.task))?;
        Some(matches!(
            task.state,
            State::Started { .. } | State::Fetching { .. }
        ))
    }

    /// Work that the client keeps until the task is done.
    pub fn kept(&self, id: TaskId) -> Option<&[u8]> {
        match &self.tasks.get(&(id.job, id.task))?.spec.work {
            Work::Kept(work) => Some(work),
            Work::Inline(_) => None,
        }
    }

    /// Returns the number of tasks that are not done.
    pub fn tasks_left(&self) -> usize {
        self.tasks.len()
    }

    /// Returns the number of SUBMITs with tasks of which nothing is known yet.
    pub fn submits_open(&self) -> usize {
        self.submits.len()
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes the pending actions, in order. Call after every event.
    pub fn actions(&mut self) -> Vec<Action<A>> {
        std::mem::take(&mut self.actions)
    }

    /// Returns when to call [`Client::tick`] next.
    pub fn due(&self) -> Nanos {
        let due = self.due.first().map_or(Nanos::MAX, |(at, _)| *at);
        due.min(self.queues.due())
    }

    /// Handles expired timers.
    pub fn tick(&mut self, now: Nanos) {
        let mut again = Vec::new();
        while let Some((at, key)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            self.on_due(now, key, &mut again);
        }
        for queue in self.queues.take_due(now, self.config.timing.ask_ns) {
            self.ask(queue);
        }
        self.send(now, again);
    }

    /// Handles a reply from the scheduler, or one relayed by an executor.
    pub fn on_reply(&mut self, now: Nanos, reply: SubmitReply) {
        if !self.is_of_scheduler(now, &reply) {
            return;
        }
        for key in self.queues.heard(reply.queue, reply.head) {
            self.on_left(now, key);
        }
        let Some(carried) = self.submits.remove(&reply.submit_seq) else {
            return;
        };
        for (i, (key, attempt)) in carried.tasks.into_iter().enumerate() {
            let taken = reply.taken >> i & 1 == 1;
            if taken && reply.parked {
                self.ask(reply.queue);
            }
            let Some(task) = self.tasks.get_mut(&key) else {
                continue;
            };
            if task.attempt != attempt || !task.state.is_in_submit(reply.submit_seq) {
                continue;
            }
            let timing = self.config.timing;
            if taken {
                let (queue, tail) = (reply.queue, reply.tail);
                let place = self.queues.wait(now, queue, tail, key, timing.ask_ns);
                task.state = State::Queued {
                    queue,
                    place,
                    left_at: None,
                };
                match place {
                    Some(_) => self.plan(key, Nanos::MAX),
                    None => self.on_left(now, key),
                }
            } else {
                self.counters.refused += 1;
                self.refused += 1;
                task.state = State::Refused;
                // However many tasks were refused, retry them at this pace overall: one of them will find any room that
                // there is.
                let wait_ns = task.backoff(&timing).max(self.refused * REFUSED_PACE_NS);
                self.plan(key, now + wait_ns);
            }
        }
    }

    /// A task has left its queue: expect to hear from an executor.
    fn on_left(&mut self, now: Nanos, key: (u32, u32)) {
        let lease_ns = self.config.timing.lease_ns;
        let state = self.tasks.get_mut(&key).map(|task| &mut task.state);
        if let Some(State::Queued { left_at, .. }) = state {
            *left_at = Some(now);
            self.plan(key, now + lease_ns);
        }
    }

    /// Returns whether a live scheduler sent the reply, be it the known one or a new one. False if it is a late reply
    /// from one that has ended.
    fn is_of_scheduler(&mut self, now: Nanos, reply: &SubmitReply) -> bool {
        let incarnation = reply.incarnation;
        if incarnation == self.incarnation {
            return true;
        }
        // A reply to a current SUBMIT from an ended incarnation shows that the later incarnation came from a damaged
        // packet and never existed.
        let is_late = !(self.since_submit_seq..self.next_submit_seq).contains(&reply.submit_seq);
        if is_late && self.ended.contains(&incarnation) {
            return false;
        }
        if self.incarnation != 0 {
            self.counters.schedulers_lost += 1;
            self.ended.retain(|ended| *ended != incarnation);
            self.ended.truncate(ENDED_KEPT - 1);
            self.ended.push_front(self.incarnation);
        }
        self.incarnation = incarnation;
        self.since_submit_seq = self.next_submit_seq;
        self.queues = Queues::default();
        // SUBMITs in flight may have reached the new scheduler; timeouts will tell.
        let mut lost = Vec::new();
        for (key, task) in &mut self.tasks {
            if matches!(task.state, State::Queued { .. }) {
                task.attempt = task.attempt.wrapping_add(1);
                lost.push(*key);
            }
        }
        self.send(now, lost);
        true
    }

    fn on_due(&mut self, now: Nanos, key: (u32, u32), again: &mut Vec<(u32, u32)>) {
        let timing = self.config.timing;
        let Some(task) = self.tasks.get_mut(&key) else {
            return;
        };
        if let Some((_, limit_ms)) = task.deadline.filter(|(at, _)| *at <= now) {
            return self.fail(now, key, Failure::Deadline(limit_ms));
        }
        match &mut task.state {
            State::Waiting | State::Fetching { .. } => self.plan(key, Nanos::MAX),
            State::Submitted { .. } => {
                self.counters.repeated += 1;
                again.push(key);
            }
            State::Refused => again.push(key),
            State::Queued { left_at, .. } => match *left_at {
                Some(at) if now >= at + timing.lease_ns => self.lose(now, key, again),
                Some(at) => self.plan(key, at + timing.lease_ns),
                None => self.plan(key, Nanos::MAX),
            },
            State::Started { heard_at, .. } if now >= *heard_at + timing.lease_ns => {
                self.lose(now, key, again);
            }
            State::Started { heard_at, .. } => {
                let at = *heard_at + timing.lease_ns;
                self.plan(key, at);
            }
        }
    }

    /// The task's executor counts as lost.
    fn lose(&mut self, now: Nanos, key: (u32, u32), again: &mut Vec<(u32, u32)>) {
        let task = self.tasks.get_mut(&key).expect("who is due is there");
        task.losses += 1;
        task.fetches_failed = 0;
        task.attempt = task.attempt.wrapping_add(1);
        let losses = task.losses;
        self.counters.lost += 1;
        if losses > self.config.losses_max {
            self.fail(now, key, Failure::ExecutorsLost(losses));
        } else {
            again.push(key);
        }
    }

    /// The job no longer waits for others: submits its tasks.
    fn start(&mut self, now: Nanos, job: u32) {
        let keys = self.tasks.range((job, 0)..=(job, u32::MAX));
        let keys = keys.map(|(key, _)| *key).collect();
        self.send(now, keys);
    }

    /// Submits these tasks, for the first time or again.
    fn send(&mut self, now: Nanos, keys: Vec<(u32, u32)>) {
        // A reply gives a position in one queue, so tasks in one SUBMIT must go to the same queue.
        let go_together = |a: &(u32, u32), b: &(u32, u32)| {
            let wishes = |key| self.tasks.get(key).map(|task| task.spec.wishes());
            a.0 == b.0 && wishes(a) == wishes(b)
        };
        let groups = keys.chunk_by(go_together).map(<[_]>::to_vec);
        let groups: Vec<Vec<(u32, u32)>> = groups.collect();
        for of_one_queue in groups {
            for together in of_one_queue.chunks(self.config.tasks_per_submit) {
                self.send_one(now, together);
            }
        }
    }

    fn send_one(&mut self, now: Nanos, keys: &[(u32, u32)]) {
        let submit_seq = self.submit_seq();
        let mut entries = Vec::with_capacity(keys.len());
        let mut tasks = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(task) = self.tasks.get_mut(key) else {
                continue;
            };
            self.counters.submitted += u64::from(matches!(task.state, State::Waiting));
            if !matches!(task.state, State::Submitted { .. } | State::Refused) {
                task.wait_ns = 0;
            }
            let before = std::mem::replace(&mut task.state, State::Submitted { submit_seq });
            let wait_ns = task.backoff(&self.config.timing);
            entries.push(task.entry(self.config.user, *key));
            tasks.push((*key, task.attempt));
            self.leave(*key, &before);
            self.plan(*key, now + wait_ns);
        }
        if entries.is_empty() {
            return;
        }
        let open = tasks.len();
        self.submits.insert(submit_seq, Carried { tasks, open });
        self.actions.push(Action::Submit {
            submit_seq,
            queue: 0,
            entries,
        });
    }

    /// Cleans up when a task leaves this state. The last task to leave a SUBMIT removes its entry.
    fn leave(&mut self, key: (u32, u32), before: &State<A>) {
        match before {
            State::Queued {
                queue,
                place: Some(place),
                ..
            } => self.queues.forget(*queue, *place, key),
            State::Refused => self.refused -= 1,
            _ => {}
        }
        let State::Submitted { submit_seq } = before else {
            return;
        };
        let Some(carried) = self.submits.get_mut(submit_seq) else {
            return;
        };
        carried.open -= 1;
        if carried.open == 0 {
            self.submits.remove(submit_seq);
        }
    }

    fn submit_seq(&mut self) -> u64 {
        self.next_submit_seq += 1;
        self.next_submit_seq - 1
    }

    /// Asks for the position of a queue, which also wakes an executor.
    fn ask(&mut self, queue: u8) {
        let submit_seq = self.submit_seq();
        self.actions.push(Action::Submit {
            submit_seq,
            queue,
            entries: Vec::new(),
        });
    }

    fn tell(&mut self, to: A, message: ToExecutor) {
        self.actions.push(Action::Tell(to, message));
    }

    /// Fails all tasks of a job that must not begin.
    fn fail_all(&mut self, now: Nanos, job: u32, failure: Failure) {
        let keys = self.tasks.range((job, 0)..=(job, u32::MAX));
        let keys: Vec<(u32, u32)> = keys.map(|(key, _)| *key).collect();
        for key in keys {
            self.fail(now, key, failure);
        }
    }

    /// Fails a task, and with it the jobs that wait for its job.
    fn fail(&mut self, now: Nanos, key: (u32, u32), failure: Failure) {
        self.end(now, key, Err(failure));
    }

    fn end(&mut self, now: Nanos, key: (u32, u32), outcome: Result<Outcome, Failure>) {
        let mut ended = vec![(key, outcome)];
        while let Some((key, outcome)) = ended.pop() {
            let has_failed = !matches!(outcome, Ok(Outcome::Output(_)));
            let Some(task) = self.tasks.remove(&key) else {
                continue;
            };
            self.due.remove(&(task.due, key));
            self.leave(key, &task.state);
            let (user, (job, number)) = (self.config.user, key);
            let id = TaskId {
                user,
                job,
                task: number,
            };
            if let (State::Started { by, attempt, .. }, Err(_)) = (task.state, &outcome) {
                self.tell(by, ToExecutor::Revoked(Attempt { id, attempt }));
            }
            self.counters.done += 1;
            self.actions.extend(task.place.map(Action::Forget));
            self.actions.push(Action::Done(id, outcome));
            for after in self.one_less(now, key.0, has_failed) {
                let waiting = self.tasks.range((after, 0)..=(after, u32::MAX));
                let before = Failure::Before(key.0);
                ended.extend(waiting.map(|(key, _)| (*key, Err(before))));
            }
        }
    }

    /// A task of this job is done. Returns the jobs that fail with it.
    fn one_less(&mut self, now: Nanos, number: u32, has_failed: bool) -> Vec<u32> {
        let job = self.jobs.get_mut(&number).expect("it has tasks");
        job.left -= 1;
        job.has_failed |= has_failed;
        if job.left > 0 {
            return Vec::new();
        }
        let job = self.jobs.remove(&number).expect("it was there");
        if job.has_failed {
            self.failed.insert(number);
            if self.failed.len() > FAILED_JOBS_MAX {
                self.failed.pop_first();
            }
            return job.before;
        }
        for after in job.before {
            let Some(next) = self.jobs.get_mut(&after) else {
                continue;
            };
            next.after.remove(&number);
            if next.after.is_empty() {
                self.start(now, after);
            }
        }
        Vec::new()
    }

    /// Sets the task's timer, or its deadline if that is earlier.
    fn plan(&mut self, key: (u32, u32), at: Nanos) {
        let Some(task) = self.tasks.get_mut(&key) else {
            return;
        };
        self.due.remove(&(task.due, key));
        task.due = task.deadline.map_or(at, |(deadline, _)| at.min(deadline));
        self.due.insert((task.due, key));
    }
}

impl Client<Peer> {
    /// Handles the content of a packet.
    pub fn on_incoming(&mut self, now: Nanos, from: SocketAddrV4, incoming: Incoming) {
        match incoming {
            Incoming::Reply(reply) => self.on_reply(now, reply),
            Incoming::Host(executor, HostMessage::ToClient(message)) => {
                let address = from;
                self.on_executor(now, Peer { address, executor }, message);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
