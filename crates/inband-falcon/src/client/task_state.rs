//! What a client knows of a task.

use crate::message::Place;
use crate::task::{Attempt, Entry, TaskId, TaskSpec, Work};
use crate::timing::{ClientTiming, Nanos};

/// Where it is.
#[derive(Debug)]
pub enum State<A> {
    /// With the client, until other jobs are done.
    Waiting,
    /// On its way to the scheduler, as far as is known.
    Submitted {
        /// In this SUBMIT.
        submit_seq: u64,
    },
    /// With the client again: the queue was full.
    Refused,
    /// With the scheduler.
    Queued {
        /// In this queue,
        queue: u8,
        /// at this place; `None`: it had left already when that was told.
        place: Option<u64>,
        /// When it was seen that it had left.
        left_at: Option<Nanos>,
    },
    /// With an executor.
    Started {
        /// This one,
        by: A,
        /// which has this try,
        attempt: u8,
        /// and was heard of then.
        heard_at: Nanos,
    },
    /// Done by an executor, from which its long result is being fetched.
    Fetching {
        /// This one.
        by: A,
    },
}

impl<A> State<A> {
    /// Is it in this SUBMIT?
    pub fn is_in_submit(&self, of: u64) -> bool {
        matches!(self, State::Submitted { submit_seq } if *submit_seq == of)
    }
}

/// A task that is not done.
#[derive(Debug)]
pub struct Task<A> {
    pub spec: TaskSpec,
    /// Which try was submitted last.
    pub attempt: u8,
    /// Executors that were given up with it.
    pub losses: u32,
    /// Results of this try that could not be fetched.
    pub fetches_failed: u32,
    pub state: State<A>,
    /// Where its work can be fetched, once an executor wanted it and it was too long for a packet.
    pub place: Option<Place>,
    /// When it is looked at.
    pub due: Nanos,
    /// How long the next repetition waits.
    pub wait_ns: Nanos,
    /// When it has failed, and how many ms that was from the beginning.
    pub deadline: Option<(Nanos, u64)>,
}

impl<A> Task<A> {
    pub fn new(spec: TaskSpec, deadline: Option<(Nanos, u64)>) -> Task<A> {
        Task {
            spec,
            attempt: 1,
            losses: 0,
            fetches_failed: 0,
            state: State::Waiting,
            place: None,
            due: Nanos::MAX,
            wait_ns: 0,
            deadline,
        }
    }

    /// How long to wait now; longer each time.
    pub fn backoff(&mut self, timing: &ClientTiming) -> Nanos {
        self.wait_ns = match self.wait_ns {
            0 => timing.retry_ns,
            wait_ns => (2 * wait_ns).min(timing.retry_max_ns),
        };
        self.wait_ns
    }

    /// As the scheduler keeps it.
    pub fn entry(&self, user: u32, (job, task): (u32, u32)) -> Entry {
        let id = TaskId { user, job, task };
        let attempt = self.attempt;
        Entry {
            attempt: Attempt { id, attempt },
            priority: self.spec.priority,
            resource: self.spec.resource,
            worker: self.spec.worker,
            desc: match &self.spec.work {
                Work::Inline(desc) => desc.clone(),
                Work::Kept(_) => Vec::new(),
            },
        }
    }
}
