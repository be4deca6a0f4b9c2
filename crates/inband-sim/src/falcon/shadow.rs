//! The expected state of a scheduler after each packet, computed independently with plain queues.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddrV4;

use inband_falcon::dataplane::registers::ExecutorState;
use inband_falcon::dataplane::wire::{self, flag, Header, Task, Type};
use inband_falcon::dataplane::{FalconConfig, FalconRegisters, Policy, Verdict, EXECUTORS};
use inband_falcon::timing::Nanos;
use inband_ground::auth::Digest;

use super::invariant::{Breach, Invariant};

/// A scheduler has only this set.
const SET: usize = 0;
/// Counters of tasks per user; a user's id is taken modulo this.
const USERS: u32 = 1024;
/// Places of [`Policy::Locality`], besides the queue of tasks that prefer none.
const PLACES: u16 = 63;
/// Policies that do not always serve queues in turn do so for one task in this many.
const TURN_EVERY: u64 = 16;

#[derive(Debug, Clone, Copy)]
struct Item {
    task: Task,
    came_ns: Nanos,
}

/// A packet that a scheduler has handled.
#[derive(Debug, Clone, Copy)]
pub struct Handled<'a> {
    /// Before it was handled.
    pub packet: &'a [u8],
    pub from: SocketAddrV4,
    /// By the scheduler's clock.
    pub now_ns: Nanos,
    pub verdict: Verdict,
    /// After it was handled, as it leaves.
    pub left: &'a [u8],
}

#[derive(Debug)]
pub struct Shadow {
    config: FalconConfig,
    queues: Vec<VecDeque<Item>>,
    users: BTreeMap<u32, u32>,
    /// Each executor's last task: the worker's incarnation, the PULL that it answered, and the task.
    given: BTreeMap<u32, (u32, u64, Task)>,
    /// By queue and worker: tasks of other queues that the worker was given since it was last given one of this queue.
    passed: BTreeMap<(usize, usize), u64>,
    /// Tasks accepted and tasks given.
    counts: (u64, u64),
}

impl Shadow {
    /// Returns the state of a scheduler that has just started.
    pub fn new(config: FalconConfig) -> Shadow {
        Shadow {
            config,
            queues: vec![VecDeque::new(); config.policy.queues()],
            users: BTreeMap::new(),
            given: BTreeMap::new(),
            passed: BTreeMap::new(),
            counts: (0, 0),
        }
    }

    /// Queued tasks. Damaged ones are left out: they may wait for a resource that no worker has.
    pub fn tasks(&self) -> usize {
        let all = self.queues.iter().flatten();
        all.filter(|item| item.task.is_whole(&Digest::PLAIN))
            .count()
    }

    /// Tasks accepted and tasks given so far.
    pub fn counts(&self) -> (u64, u64) {
        self.counts
    }

    /// Checks what a scheduler did with a packet, and its registers afterwards.
    pub fn on_packet(
        &mut self,
        is: &Handled<'_>,
        registers: &FalconRegisters,
    ) -> Result<(), Breach> {
        let Ok((header, tasks)) = wire::parse(is.packet) else {
            return Ok(());
        };
        let left = match is.verdict {
            Verdict::Reply | Verdict::ToExecutor(_) => wire::parse(is.left).ok(),
            Verdict::Drop | Verdict::Pass => None,
        };
        let mut parked_is_told = false;
        if let Some((answer, _)) = left.filter(|_| header.kind == Type::Submit) {
            let tasks: Vec<Task> = tasks.iter().collect();
            self.take(is, &header, &tasks, &answer, registers)?;
            parked_is_told = answer.has(flag::PARKED);
        }
        if let Some((answer, given)) = left {
            if answer.kind == Type::Task {
                let task = given.first().ok_or_else(|| {
                    Invariant::NothingLost.broken("a TASK without a task".to_owned())
                })?;
                self.give(is, &answer, task, registers)?;
            }
        }
        self.must_equal(registers)?;
        match header.kind {
            Type::Submit if left.is_some() && !parked_is_told => {
                self.nobody_sleeps(is, registers, None)
            }
            // A PULL that was overtaken or refused says nothing about the tasks there are now.
            Type::Pull
                if left.is_none_or(|(answer, _)| answer.kind != Type::Nack)
                    && is_current(&header, registers) =>
            {
                self.nobody_sleeps(is, registers, Some(header.executor))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the scheduler accepted exactly the tasks that it had to.
    fn take(
        &mut self,
        is: &Handled<'_>,
        header: &Header,
        tasks: &[Task],
        answer: &Header,
        registers: &FalconRegisters,
    ) -> Result<(), Breach> {
        let (mut taken, mut flags, mut refused) = (0, 0, 0u64);
        for (n, task) in tasks.iter().enumerate() {
            let queue = queue_of(self.config.policy, header.user, task);
            if refused >> queue & 1 == 1 {
                continue;
            }
            let user = self.users.entry(header.user % USERS).or_default();
            if *user >= self.config.user_tasks_max {
                flags |= flag::USER_FULL;
                refused = u64::MAX;
            } else if self.queues[queue].len() >= self.config.queue_slots() {
                flags |= flag::FULL;
                refused |= 1 << queue;
            } else {
                *user += 1;
                taken |= 1 << n;
                let task = Task {
                    user: header.user,
                    job: header.job,
                    client: is.from,
                    ..*task
                };
                self.counts.0 += 1;
                self.queues[queue].push_back(Item {
                    task,
                    came_ns: is.now_ns,
                });
            }
        }
        let full = flag::FULL | flag::USER_FULL;
        if answer.taken != taken || answer.flags & full != flags {
            let what = format!("{answer:?} instead of taken {taken:b}, flags {flags:x}");
            return Err(Invariant::TakenOrTold.broken(what));
        }
        let view = registers.queue(SET, usize::from(answer.queue));
        if taken != 0 && answer.tail != view.add || answer.head != view.retrieve {
            return Err(Invariant::TakenOrTold.broken(format!("{answer:?} of {view:?}")));
        }
        Ok(())
    }

    fn give(
        &mut self,
        is: &Handled<'_>,
        answer: &Header,
        task: Task,
        registers: &FalconRegisters,
    ) -> Result<(), Breach> {
        let Header {
            executor,
            worker_incarnation,
            pull_seq,
            ..
        } = *answer;
        let name = format!(
            "{}/{}/{}#{} to PULL {pull_seq} of executor {executor} of {worker_incarnation}",
            task.user, task.job, task.task, task.attempt
        );
        let to = (worker_incarnation, pull_seq);
        let before = self.given.get(&executor).copied();
        let before = before.filter(|(worker, seq, _)| (*worker, *seq) == to);
        if answer.has(flag::REPEATED) {
            let is_same = before.is_some_and(|(.., before)| before == task);
            return match is_same {
                true => Ok(()),
                false => {
                    Err(Invariant::GivenOnce.broken(format!("repeats {name}, after {before:?}")))
                }
            };
        }
        if before.is_some() {
            return Err(Invariant::GivenOnce.broken(format!("{name}, after {before:?}")));
        }
        self.given.insert(executor, (to.0, to.1, task));
        let worker = executor as usize / EXECUTORS;
        let view = registers.worker(SET, worker);
        if view.incarnation == 0 || view.incarnation != worker_incarnation {
            return Err(Invariant::ToWhomItMay.broken(format!("{name}, which is not registered")));
        }
        let queue = queue_of(self.config.policy, task.user, &task);
        let candidates = self.candidates(worker, is.now_ns, registers);
        if candidates >> queue & 1 == 0 {
            return Err(Invariant::ToWhomItMay.broken(format!("{name}, which may not have it")));
        }
        match self.queues[queue].front() {
            Some(first) if first.task == task => {}
            _ if self.queues[queue].iter().any(|item| item.task == task) => {
                return Err(Invariant::InOrder.broken(name));
            }
            _ => return Err(Invariant::GivenOnce.broken(name)),
        }
        self.queues[queue].pop_front();
        self.counts.1 += 1;
        if let Some(user) = self.users.get_mut(&(task.user % USERS)) {
            *user -= 1;
        }
        self.nobody_starves(queue, worker, candidates)
    }

    /// Returns the non-empty queues from which a worker may be given a task.
    fn candidates(&self, worker: usize, now_ns: Nanos, registers: &FalconRegisters) -> u64 {
        let mut not_empty = 0;
        let mut waited = 0;
        for (queue, items) in self.queues.iter().enumerate() {
            let Some(first) = items.front() else {
                continue;
            };
            not_empty |= 1 << queue;
            let has_waited = now_ns.saturating_sub(first.came_ns) >= self.config.locality_wait_ns;
            waited |= u64::from(has_waited) << queue;
        }
        match self.config.policy {
            Policy::Fifo | Policy::Priority | Policy::Fair => not_empty,
            Policy::Resources => not_empty & (registers.worker(SET, worker).resources | 1),
            Policy::Locality => not_empty & (waited | 1 | 1 << place_of(worker as u16)),
        }
    }

    fn nobody_starves(
        &mut self,
        given: usize,
        worker: usize,
        candidates: u64,
    ) -> Result<(), Breach> {
        self.passed.retain(|(queue, _), _| *queue != given);
        let queues = self.queues.len() as u64;
        let bound = match self.config.policy {
            Policy::Fifo => 0,
            Policy::Priority | Policy::Locality => TURN_EVERY * queues,
            Policy::Resources | Policy::Fair => queues,
        };
        for queue in (0..self.queues.len()).filter(|q| *q != given && candidates >> q & 1 == 1) {
            let passed = self.passed.entry((queue, worker)).or_default();
            *passed += 1;
            if *passed > bound {
                let what =
                    format!("worker {worker} was given {passed} others, and none of {queue}");
                return Err(Invariant::NobodyStarves.broken(what));
            }
        }
        Ok(())
    }

    fn must_equal(&self, registers: &FalconRegisters) -> Result<(), Breach> {
        for (queue, items) in self.queues.iter().enumerate() {
            let view = registers.queue(SET, queue);
            if view.tasks() as usize != items.len() {
                let what = format!("queue {queue} is {view:?}, and must hold {}", items.len());
                return Err(Invariant::NothingLost.broken(what));
            }
        }
        for (user, tasks) in &self.users {
            let counted = registers.user_tasks(SET, *user);
            if counted != u64::from(*tasks) || *tasks > self.config.user_tasks_max {
                let what =
                    format!("user {user} has {tasks} tasks there, and {counted} are counted");
                return Err(Invariant::UserBounded.broken(what));
            }
        }
        Ok(())
    }

    /// Checks one executor, or all of them.
    fn nobody_sleeps(
        &self,
        is: &Handled<'_>,
        registers: &FalconRegisters,
        executor: Option<u32>,
    ) -> Result<(), Breach> {
        let workers = 0..self.config.workers;
        for worker in workers.filter(|w| executor.is_none_or(|e| e as usize / EXECUTORS == *w)) {
            let view = registers.worker(SET, worker);
            if view.parked == 0 || view.incarnation == 0 {
                continue;
            }
            if self.candidates(worker, is.now_ns, registers) == 0 {
                continue;
            }
            for at in (0..EXECUTORS).filter(|at| view.parked >> at & 1 == 1) {
                let number = worker * EXECUTORS + at;
                if executor.is_some_and(|e| e as usize != number) {
                    continue;
                }
                let record = registers.executor(SET, number);
                let waits = record.state == ExecutorState::Waits;
                if waits && record.worker_incarnation == view.incarnation {
                    let what = format!("executor {number} waits beside a task that it may have");
                    return Err(Invariant::NobodySleeps.broken(what));
                }
            }
        }
        Ok(())
    }
}

/// Returns whether this is its executor's latest PULL.
fn is_current(header: &Header, registers: &FalconRegisters) -> bool {
    let executors = registers.config().workers * EXECUTORS;
    if header.executor as usize >= executors {
        return false;
    }
    let record = registers.executor(SET, header.executor as usize);
    let of = (record.worker_incarnation, record.pull_seq);
    of == (header.worker_incarnation, header.pull_seq)
}

fn place_of(worker: u16) -> usize {
    usize::from(worker % PLACES) + 1
}

fn queue_of(policy: Policy, user: u32, task: &Task) -> usize {
    match policy {
        Policy::Fifo => 0,
        Policy::Priority => usize::from(task.priority),
        Policy::Resources => usize::from(task.resource),
        Policy::Fair => user as usize % 64,
        Policy::Locality => task.worker.map_or(0, place_of),
    }
}
