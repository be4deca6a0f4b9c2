//! Tasks, as clients, executors and the scheduler see them.

use serde::{Deserialize, Serialize};

use crate::limits::{
    CLIENT_TASKS_MAX, DESC_LEN_BYTES_MAX, PRIORITY_MAX, RESOURCE_MAX, WORK_LEN_BYTES_MAX,
};

/// Identifies a task permanently: a user, a job of that user, and a task of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    pub user: u32,
    pub job: u32,
    /// The task's index in the job, from 0.
    pub task: u32,
}

/// An attempt to run a task. Numbers wrap after 256 attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    pub id: TaskId,
    /// The attempt's number, from 1.
    pub attempt: u8,
}

/// A client's job, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u32);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Travels with the task, so an executor begins at once. 1 to [`DESC_LEN_BYTES_MAX`] bytes.
    Inline(Vec<u8>),
    /// Stays with the client: an executor asks for it, and may be told that it is no longer wanted.
    Kept(Vec<u8>),
}

/// A task as its client specifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    pub work: Work,
    /// 0 (first) to 7; for schedulers with priorities.
    pub priority: u8,
    /// 1 to 63, the resource that the worker must have; 0: none. For schedulers with resources.
    pub resource: u8,
    /// The preferred worker; for schedulers with locality.
    pub worker: Option<u16>,
}

impl TaskSpec {
    /// Creates a task without preferences.
    pub fn new(work: Work) -> TaskSpec {
        TaskSpec {
            work,
            priority: 0,
            resource: 0,
            worker: None,
        }
    }

    /// Returns what selects the queue: tasks with equal values go to the same one.
    pub(crate) fn wishes(&self) -> (u8, u8, Option<u16>) {
        (self.priority, self.resource, self.worker)
    }

    pub(crate) fn check(&self) -> Result<(), SubmitError> {
        match &self.work {
            Work::Inline(desc) if desc.is_empty() || desc.len() > DESC_LEN_BYTES_MAX => {
                Err(SubmitError::Desc(desc.len()))
            }
            Work::Kept(work) if work.len() > WORK_LEN_BYTES_MAX => {
                Err(SubmitError::TooLong(work.len()))
            }
            _ if self.priority > PRIORITY_MAX => Err(SubmitError::Priority(self.priority)),
            _ if self.resource > RESOURCE_MAX => Err(SubmitError::Resource(self.resource)),
            _ => Ok(()),
        }
    }
}

/// A task as it is stored in the scheduler's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub attempt: Attempt,
    /// See [`TaskSpec`].
    pub priority: u8,
    /// See [`TaskSpec`].
    pub resource: u8,
    /// See [`TaskSpec`].
    pub worker: Option<u16>,
    /// The work, if it travels with the task; otherwise empty.
    pub desc: Vec<u8>,
}

/// Why a job was not accepted; nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Invalid length of a description.
    #[error("a description of {0} bytes cannot travel with its task, which holds 1 to {DESC_LEN_BYTES_MAX}; let the client keep it (Work::Kept)")]
    Desc(usize),
    /// The work is too long.
    #[error("work of {0} bytes is over the limit of {WORK_LEN_BYTES_MAX}; put it into a file or store that both ends reach, and send its name")]
    TooLong(usize),
    #[error("priority {0} is not one of 0 (first) to {PRIORITY_MAX} (last)")]
    Priority(u8),
    #[error("resource {0} is not one of 1 to {RESOURCE_MAX}, or 0 for none")]
    Resource(u8),
    /// The job is empty.
    #[error("a job without tasks; give it at least one")]
    NoTasks,
    /// The job to wait for does not exist.
    #[error("there has been no job {0} to wait for")]
    NoSuchJob(u32),
    /// Too many tasks in flight.
    #[error("{0} tasks would be under way, more than {CLIENT_TASKS_MAX}; wait for some to end")]
    TooMany(usize),
}

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Number of executors lost.
    #[error("{0} executors were lost with it; does the task kill them?")]
    ExecutorsLost(u32),
    /// The deadline, in milliseconds.
    #[error("it was not done within {0} ms")]
    Deadline(u64),
    /// Cancelled by the client.
    #[error("it was cancelled")]
    Cancelled,
    /// The job that failed.
    #[error("job {0}, which it waited for, failed")]
    Before(u32),
}
