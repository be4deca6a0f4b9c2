//! Messages between clients and executors, and replies of the scheduler.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::task::Attempt;

/// Work or a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// The bytes themselves.
    Inline(Vec<u8>),
    /// To be fetched.
    At(Place),
}

/// Where something long can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// A TCP address.
    pub address: SocketAddr,
    /// Identifies it there.
    pub token: u64,
    pub len_bytes: u64,
    /// The digest of the bytes: with a cluster key nobody else can substitute other bytes.
    pub digest: u64,
}

/// Messages to a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// An executor has the task. If the client keeps the work, it is asked for it.
    Started(Attempt),
    /// An executor still runs it.
    Lease(Attempt),
    /// The task is done.
    Result(Attempt, Outcome),
    /// A reply relayed by this executor: the scheduler used the client's SUBMIT packet for the executor's TASK.
    Reply(SubmitReply),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Output(Payload),
    /// The task failed with this error.
    Error(Payload),
}

impl Outcome {
    /// Returns the output or the error.
    pub fn payload(&self) -> &Payload {
        match self {
            Outcome::Output(payload) | Outcome::Error(payload) => payload,
        }
    }

    /// Returns the same outcome with another payload.
    pub fn with(&self, payload: Payload) -> Outcome {
        match self {
            Outcome::Output(_) => Outcome::Output(payload),
            Outcome::Error(_) => Outcome::Error(payload),
        }
    }

    /// Returns whether the payload is here and need not be fetched.
    pub fn is_here(&self) -> bool {
        matches!(self.payload(), Payload::Inline(_))
    }
}

/// Messages from a client to an executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToExecutor {
    /// The work that the client kept.
    Go(Attempt, Payload),
    /// The task is no longer wanted.
    Revoked(Attempt),
    /// The client has the result.
    Acknowledged(Attempt),
    /// The client is alive but not ready: its work cannot be fetched yet, or it has not fetched the result yet.
    NotYet(Attempt),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitReply {
    /// The scheduler's incarnation.
    pub incarnation: u64,
    /// Which SUBMIT this answers.
    pub submit_seq: u64,
    /// Bitmap of its tasks that are now queued.
    pub taken: u64,
    pub queue: u8,
    /// The queue's end, after the last task taken.
    pub tail: u32,
    /// The queue's next task to be given out.
    pub head: u32,
    /// Executors wait although there are tasks, and can be woken.
    pub parked: bool,
}
