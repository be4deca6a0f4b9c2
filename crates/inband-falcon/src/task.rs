//! What a task is, for clients, executors and the scheduler.

use serde::{Deserialize, Serialize};

use crate::limits::{
    CLIENT_TASKS_MAX, DESC_LEN_BYTES_MAX, PRIORITY_MAX, RESOURCE_MAX, WORK_LEN_BYTES_MAX,
};

/// Names a task forever: of a user, in a job of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// Whose.
    pub user: u32,
    /// In which job of theirs.
    pub job: u32,
    /// Which of the job, from 0.
    pub task: u32,
}

/// A try to have a task done. Numbers may come again after 256 tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// Of which task.
    pub id: TaskId,
    /// Which try, from 1.
    pub attempt: u8,
}

/// A job of a client, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u32);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Travels with the task: an executor begins at once. 1 to [`DESC_LEN_BYTES_MAX`] bytes.
    Inline(Vec<u8>),
    /// Stays with the client: an executor asks for it, and may be told that it is not wanted any more.
    Kept(Vec<u8>),
}

/// A task as its client wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// What is to be done.
    pub work: Work,
    /// 0 (first) to 7; for schedulers with priorities.
    pub priority: u8,
    /// 1 to 63, of a worker that has it; 0: none needed. For schedulers with resources.
    pub resource: u8,
    /// The worker that should do it; for schedulers with locality.
    pub worker: Option<u16>,
}

impl TaskSpec {
    /// A task without wishes.
    pub fn new(work: Work) -> TaskSpec {
        TaskSpec {
            work,
            priority: 0,
            resource: 0,
            worker: None,
        }
    }

    /// What decides on the queue: equal wishes, equal queue.
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

/// A task as it lies in the scheduler's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which try of which task.
    pub attempt: Attempt,
    /// See [`TaskSpec`].
    pub priority: u8,
    /// See [`TaskSpec`].
    pub resource: u8,
    /// See [`TaskSpec`].
    pub worker: Option<u16>,
    /// The work, if it travels with the task; else empty.
    pub desc: Vec<u8>,
}

/// Why a job was not taken; nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Its length.
    #[error("a description of {0} bytes cannot travel with its task, which holds 1 to {DESC_LEN_BYTES_MAX}; let the client keep it (Work::Kept)")]
    Desc(usize),
    /// Its length.
    #[error("work of {0} bytes is over the limit of {WORK_LEN_BYTES_MAX}; put it into a file or store that both ends reach, and send its name")]
    TooLong(usize),
    /// Not one.
    #[error("priority {0} is not one of 0 (first) to {PRIORITY_MAX} (last)")]
    Priority(u8),
    /// Not one.
    #[error("resource {0} is not one of 1 to {RESOURCE_MAX}, or 0 for none")]
    Resource(u8),
    /// A job.
    #[error("a job without tasks; give it at least one")]
    NoTasks,
    /// To wait for.
    #[error("there has been no job {0} to wait for")]
    NoSuchJob(u32),
    /// Under way.
    #[error("{0} tasks would be under way, more than {CLIENT_TASKS_MAX}; wait for some to end")]
    TooMany(usize),
}

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Tries.
    #[error("{0} executors were lost with it; does the task kill them?")]
    ExecutorsLost(u32),
    /// Milliseconds.
    #[error("it was not done within {0} ms")]
    Deadline(u64),
    /// By the client.
    #[error("it was cancelled")]
    Cancelled,
    /// Job.
    #[error("job {0}, which it waited for, failed")]
    Before(u32),
}
