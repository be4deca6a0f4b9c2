//! Raft on an existing library, for any replicated state: [`RaftNode`] is one node of a group.
//!
//! Sans-I/O except for its own journal: messages and time in, messages and what was applied out. The
//! log is in a journal on the node's disk, or in memory alone; then a restarted host comes back as a
//! stranger and is taken in anew, and the group survives the loss of any minority at a time.

mod log;
mod machine;
mod message;
mod node;
mod transfer;
mod tuning;

pub use machine::{Frozen, OnePart, StateMachine};
pub use message::{Proposed, RaftMessage};
pub use node::{node_of, raft_id, Applied, NodeId, Outcome, RaftError, RaftNode};
pub use tuning::Tuning;
