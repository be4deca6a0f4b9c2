//! A client's view of a task.

use crate::message::Place;
use crate::task::{Attempt, Entry, TaskId, TaskSpec, Work};
use crate::timing::{ClientTiming, Nanos};

#[derive(Debug)]
pub enum State<A> {
    /// At the client, until other jobs are done.
    Waiting,
    /// In flight to the scheduler, as far as is known.
    Submitted { submit_seq: u64 },
    /// Back at the client: the queue was full.
    Refused,
    /// At the scheduler.
    Queued {
        queue: u8,
        /// `None`: it had already left when the reply arrived.
        place: Option<u64>,
        /// When it was noticed that it had left.
        left_at: Option<Nanos>,
    },
    /// At an executor.
    Started {
        by: A,
        /// The attempt that the executor has.
        attempt: u8,
        /// When the executor was last heard from.
        heard_at: Nanos,
    },
    /// Done; its long result is being fetched from the executor.
    Fetching { by: A },
}

impl<A> State<A> {
    pub fn is_in_submit(&self, of: u64) -> bool {
        matches!(self, State::Submitted { submit_seq } if *submit_seq == of)
    }
}

/// A task that is not done.
#[derive(Debug)]
pub struct Task<A> {
    pub spec: TaskSpec,
    /// The last attempt submitted.
    pub attempt: u8,
    /// Executors that were lost with it.
    pub losses: u32,
    /// Failed fetches of this attempt's result.
    pub fetches_failed: u32,
    pub state: State<A>,
    /// Where its work can be fetched, if it is too long for a packet and an executor has asked for it.
    pub place: Option<Place>,
    /// When its timer is due.
    pub due: Nanos,
    /// The delay before the next retransmission.
    pub wait_ns: Nanos,
    /// The deadline, and its distance from submission in ms.
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

    /// Returns how long to wait now; doubles each time.
    pub fn backoff(&mut self, timing: &ClientTiming) -> Nanos {
        self.wait_ns = match self.wait_ns {
            0 => timing.retry_ns,
            wait_ns => (2 * wait_ns).min(timing.retry_max_ns),
        };
        self.wait_ns
    }

    /// Returns the task as a queue entry.
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
