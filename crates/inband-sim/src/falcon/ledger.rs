//! Every submitted job, how each of its tasks ended, and whether that outcome is allowed.

use std::collections::BTreeMap;

use inband_falcon::message::Outcome;
use inband_falcon::task::{Failure, TaskId};
use inband_falcon::timing::Nanos;

use super::invariant::{Breach, Invariant};
use super::work::{outcome_of, Ends, Plan};
use crate::stats::Counts;

/// A task as submitted by its client.
#[derive(Debug)]
struct Task {
    work: Vec<u8>,
    /// Its client cancelled it.
    is_given_up: bool,
    /// How it ended; [`DONE`]: with its result.
    ended: Option<&'static str>,
}

/// The name of a successful end.
const DONE: &str = "done";

#[derive(Debug)]
struct Job {
    /// Jobs of the same user that must succeed first.
    after: Vec<u32>,
    /// By the client's clock.
    deadline: Option<Nanos>,
    tasks: Vec<Task>,
}

impl Job {
    fn has_succeeded(&self) -> bool {
        self.tasks.iter().all(|task| task.ended == Some(DONE))
    }

    fn has_failed(&self) -> bool {
        self.tasks
            .iter()
            .any(|task| task.ended.is_some_and(|how| how != DONE))
    }
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// By user and job.
    jobs: BTreeMap<(u32, u32), Job>,
    /// How often tasks ended in each way.
    pub ends: Counts,
    /// No faults, so no task may be lost.
    is_calm: bool,
}

impl Ledger {
    /// `is_calm`: without faults, so no task may be lost.
    pub fn new(is_calm: bool) -> Ledger {
        Ledger {
            is_calm,
            ..Ledger::default()
        }
    }

    /// A client submitted a job.
    pub fn begins(
        &mut self,
        (user, job): (u32, u32),
        works: Vec<Vec<u8>>,
        after: Vec<u32>,
        deadline: Option<Nanos>,
    ) {
        let task = |work| Task {
            work,
            is_given_up: false,
            ended: None,
        };
        let tasks = works.into_iter().map(task).collect();
        let job_of = Job {
            after,
            deadline,
            tasks,
        };
        self.jobs.insert((user, job), job_of);
    }

    fn task(&mut self, id: TaskId) -> Option<&mut Task> {
        let job = self.jobs.get_mut(&(id.user, id.job))?;
        job.tasks.get_mut(id.task as usize)
    }

    /// The client is about to cancel the task; or, with `is_given_up` false, was told that it cannot be cancelled.
    pub fn gives_up(&mut self, id: TaskId, is_given_up: bool) {
        if let Some(task) = self.task(id) {
            task.is_given_up = is_given_up;
        }
    }

    /// Returns how the task ended, as its client was told.
    pub fn ended(&self, id: TaskId) -> Option<&'static str> {
        let job = self.jobs.get(&(id.user, id.job))?;
        job.tasks.get(id.task as usize)?.ended
    }

    /// Returns whether all jobs that this one waits for have succeeded.
    fn is_its_time(&self, user: u32, job: &Job) -> bool {
        let before = job.after.iter().filter_map(|j| self.jobs.get(&(user, *j)));
        before.into_iter().all(Job::has_succeeded)
    }

    /// An executor begins the task with this work.
    pub fn runs(&self, id: TaskId, work: &[u8]) -> Result<(), Breach> {
        let Some(job) = self.jobs.get(&(id.user, id.job)) else {
            return Err(Invariant::RightResult.broken(format!("{id:?} was never submitted")));
        };
        if job.tasks[id.task as usize].work != work {
            return Err(Invariant::RightResult.broken(format!("{id:?} is run with other work")));
        }
        match self.is_its_time(id.user, job) {
            true => Ok(()),
            false => Err(Invariant::AfterOthers.broken(format!("{id:?} runs before its time"))),
        }
    }

    /// A client is told how a task ended. `now` is by its clock.
    pub fn ends(
        &mut self,
        now: Nanos,
        id: TaskId,
        outcome: Result<Outcome, Failure>,
    ) -> Result<(), Breach> {
        let name = format!("{id:?} ended with {outcome:?}");
        let Some(job) = self.jobs.get(&(id.user, id.job)) else {
            return Err(Invariant::TakenOnce.broken(format!("{name}, and was never submitted")));
        };
        let task = &job.tasks[id.task as usize];
        if task.ended.is_some() {
            return Err(Invariant::TakenOnce.broken(format!("{name}, once more")));
        }
        let plan = Plan::of(&task.work).expect("it was made of one");
        let how = match &outcome {
            Ok(outcome) if *outcome != outcome_of(&task.work) => {
                return Err(Invariant::RightResult.broken(name));
            }
            Ok(_) if !self.is_its_time(id.user, job) => {
                return Err(Invariant::AfterOthers.broken(name))
            }
            Ok(Outcome::Output(_)) => DONE,
            Ok(Outcome::Error(_)) => "failed by itself",
            Err(failure) => {
                let is_so = match *failure {
                    Failure::Cancelled => task.is_given_up,
                    Failure::Deadline(_) => job.deadline.is_some_and(|at| at <= now),
                    Failure::Before(before) => {
                        let before = self.jobs.get(&(id.user, before));
                        before.is_some_and(|b| b.has_failed())
                    }
                    Failure::ExecutorsLost(_) => plan.ends == Ends::Kills || !self.is_calm,
                };
                if !is_so {
                    return Err(Invariant::FailsForAReason.broken(name));
                }
                named(failure)
            }
        };
        self.ends.add(how, 1);
        if let Some(task) = self.task(id) {
            task.ended = Some(how);
        }
        Ok(())
    }

    /// Jobs that a new job of this user may wait for: the latest ones of this client.
    pub fn last_jobs(&self, user: u32, from: u32, count: usize) -> Vec<u32> {
        let jobs = self.jobs.range((user, from)..=(user, u32::MAX));
        jobs.rev().take(count).map(|((_, job), _)| *job).collect()
    }

    /// Returns a task of this client that has not ended, counted back from the newest.
    pub fn open_task(&self, user: u32, from: u32, skip: usize) -> Option<TaskId> {
        let jobs = self.jobs.range((user, from)..=(user, u32::MAX)).rev();
        let mut open = jobs.flat_map(|((user, job), of)| {
            let tasks = (0..).zip(&of.tasks).filter(|(_, t)| t.ended.is_none());
            let (user, job) = (*user, *job);
            tasks.map(move |(task, _)| TaskId { user, job, task })
        });
        open.nth(skip)
    }
}

fn named(failure: &Failure) -> &'static str {
    match failure {
        Failure::ExecutorsLost(_) => "executors lost",
        Failure::Deadline(_) => "too late",
        Failure::Cancelled => "cancelled",
        Failure::Before(_) => "one before failed",
    }
}
