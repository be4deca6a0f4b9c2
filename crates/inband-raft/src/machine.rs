//! What is replicated.

use serde::Serialize;

/// A replicated state. Pure: every node applies the same entries in the same order and comes to the
/// same state.
pub trait StateMachine: Default {
    /// What is proposed.
    type Command<'a>: Serialize;
    /// What comes of a command.
    type Output;

    /// Apply the command at this place of the log, as its proposer wrote it with postcard; `None`: it is
    /// none that this version knows, and nothing happens.
    fn apply(&mut self, index: u64, command: &[u8]) -> Option<Self::Output>;

    /// The whole state, for a peer or a journal. Slow, and called only when one needs it.
    fn snapshot(&self) -> Vec<u8>;

    /// The state that was written so; `None`: it is damaged, or of another version. Nothing at all is
    /// the default state.
    fn restore(written: &[u8]) -> Option<Self>;
}
