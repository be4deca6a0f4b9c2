//! What clients and executors say to each other, and what they hear from the scheduler.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::task::Attempt;

/// Work or a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Here it is.
    Inline(Vec<u8>),
    /// To be fetched.
    At(Place),
}

/// Where something long can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// By TCP.
    pub address: SocketAddr,
    /// What to ask for there.
    pub token: u64,
    /// How long it is.
    pub len_bytes: u64,
    /// What it is digested to: with a cluster key nobody else can put other bytes in its place.
    pub digest: u64,
}

/// What a client answers to, by who told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// An executor has the task. If the client keeps the work, it is asked for it.
    Started(Attempt),
    /// An executor still runs it.
    Lease(Attempt),
    /// It is done.
    Result(Attempt, Outcome),
    /// The scheduler spent the client's SUBMIT on a TASK for this executor.
    Reply(SubmitReply),
}

/// How running a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// What it gave.
    Output(Payload),
    /// It failed by itself: what it said.
    Error(Payload),
}

impl Outcome {
    /// What it gave, or failed with.
    pub fn payload(&self) -> &Payload {
        match self {
            Outcome::Output(payload) | Outcome::Error(payload) => payload,
        }
    }

    /// The same outcome with its bytes elsewhere.
    pub fn with(&self, payload: Payload) -> Outcome {
        match self {
            Outcome::Output(_) => Outcome::Output(payload),
            Outcome::Error(_) => Outcome::Error(payload),
        }
    }

    /// Need it not be fetched?
    pub fn is_here(&self) -> bool {
        matches!(self.payload(), Payload::Inline(_))
    }
}

/// What an executor is told by a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToExecutor {
    /// The work that the client kept.
    Go(Attempt, Payload),
    /// Nobody wants it any more.
    Revoked(Attempt),
    /// The client has the result.
    Acknowledged(Attempt),
    /// The client is there, and has to be waited for: its work cannot be fetched yet, or it has not fetched the result yet.
    NotYet(Attempt),
}

/// What became of a SUBMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitReply {
    /// Of the scheduler.
    pub incarnation: u64,
    /// Which SUBMIT.
    pub submit_seq: u64,
    /// Bitmap of its tasks that are in the queue.
    pub taken: u64,
    /// Which queue.
    pub queue: u8,
    /// Its end, after the last task taken.
    pub tail: u32,
    /// Its next task to be given away.
    pub head: u32,
    /// Executors wait, and so do tasks: they can be woken.
    pub parked: bool,
}
