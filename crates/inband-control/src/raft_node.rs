//! The controllers' Raft group: the configuration state over a log on each controller's disk.

use inband_raft::{OnePart, StateMachine, Tuning};
use inband_storage::Storage;

use crate::configuration::NodeId;
use crate::state::{Command, Refusal, State};

pub use inband_raft::{node_of, RaftError, RaftMessage};

/// A controller's Raft node.
pub type RaftNode = inband_raft::RaftNode<State>;
/// The result of handling an event.
pub type Outcome = inband_raft::Outcome<Done>;

/// A command that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    pub command: Command,
    pub result: Result<(), Refusal>,
}

/// Opens the log in `storage`, which must be used for nothing else, or creates one; a new log gets its id from
/// `random`.
pub fn open(storage: Box<dyn Storage>, node: NodeId, random: u64) -> Result<RaftNode, RaftError> {
    RaftNode::open(storage, node, random, Tuning::default())
}

impl StateMachine for State {
    type Command<'a> = Command;
    type Output = Done;
    type Frozen = OnePart;

    fn apply(&mut self, _index: u64, command: &[u8]) -> Option<Done> {
        let command: Command = postcard::from_bytes(command).ok()?;
        let result = State::apply(self, &command);
        Some(Done { command, result })
    }

    fn freeze(&self) -> OnePart {
        OnePart::new(postcard::to_stdvec(self).expect("a state can always be written"))
    }

    fn restore_part(&mut self, part: &[u8]) -> bool {
        let state = postcard::from_bytes(part).ok();
        state.map(|state| *self = state).is_some()
    }
}
