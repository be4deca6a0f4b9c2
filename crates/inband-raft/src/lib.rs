//! Raft on an existing library, for any replicated state: [`RaftNode`] is one node of a group.
//!
//! Sans-I/O except for its own journal: messages and time in, messages and applied commands out. The log is in a
//! journal on the node's disk, or only in memory; in the latter case a restarted host comes back as a new peer and is
//! added again, and the group survives the loss of any minority at a time.
//!
//! After every event ([`RaftNode::tick`], [`RaftNode::on_message`], [`RaftNode::propose`]) the caller calls
//! [`RaftNode::advance`] and sends the messages that it returns. They may be lost, duplicated and reordered.
//!
//! ```
//! use inband_raft::{OnePart, RaftError, RaftNode, StateMachine, Tuning};
//!
//! /// How many commands were applied.
//! #[derive(Default)]
//! struct Count(u64);
//!
//! impl StateMachine for Count {
//!     type Command<'a> = &'a str;
//!     type Output = u64;
//!     type Frozen = OnePart;
//!
//!     fn apply(&mut self, _index: u64, _command: &[u8]) -> Option<u64> {
//!         self.0 += 1;
//!         Some(self.0)
//!     }
//!
//!     fn freeze(&self) -> OnePart {
//!         OnePart::new(self.0.to_le_bytes().to_vec())
//!     }
//!
//!     fn restore_part(&mut self, part: &[u8]) -> bool {
//!         let count = part.try_into().map(u64::from_le_bytes);
//!         count.map(|count| self.0 = count).is_ok()
//!     }
//! }
//!
//! # fn main() -> Result<(), RaftError> {
//! // A group of one, with its log in memory. `random` makes this start's id differ from those before.
//! let random = 0x1234_5678_9abc_de00;
//! let mut node = RaftNode::<Count>::in_memory(1, random, Tuning::default())?.found()?;
//! while !node.is_up_to_date() {
//!     node.tick();
//!     node.advance()?;
//! }
//! let ticket = 42;
//! assert!(node.propose(ticket, &"a command"));
//! let applied = node.advance()?.applied;
//! assert_eq!((applied[0].ticket, applied[0].output), (ticket, 1));
//! # Ok(())
//! # }
//! ```

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
