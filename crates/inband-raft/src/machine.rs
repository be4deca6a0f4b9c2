//! The replicated state machine.

use serde::Serialize;

/// A replicated state. Pure: every node applies the same entries in the same order and reaches the same state.
pub trait StateMachine: Default {
    /// The commands that are proposed.
    type Command<'a>: Serialize;
    /// The result of a command.
    type Output;
    /// See [`StateMachine::freeze`].
    type Frozen: Frozen;

    /// Applies the command at this index of the log, in the postcard form written by its proposer; `None` if this
    /// version does not know the command, which then has no effect.
    fn apply(&mut self, index: u64, command: &[u8]) -> Option<Self::Output>;

    /// Returns a snapshot of the current state, to be written in parts while further commands are applied. A node has
    /// one thread and calls this while it serves, so its duration must not depend on the size of the state.
    fn freeze(&self) -> Self::Frozen;

    /// Adds the next part of a frozen state; the first one is added to the default state. Returns false if the part is
    /// damaged, or was written by another version.
    fn restore_part(&mut self, part: &[u8]) -> bool;
}

/// A state at one point in time that is being written.
pub trait Frozen {
    /// Returns the next part, of approximately `len_bytes`: more only if a single record is longer. Releases what it
    /// returns. `None`: there are no more parts.
    fn next_part(&mut self, len_bytes: usize) -> Option<Vec<u8>>;
}

/// A small state, written as one part.
#[derive(Debug)]
pub struct OnePart(Option<Vec<u8>>);

impl OnePart {
    pub fn new(written: Vec<u8>) -> OnePart {
        OnePart(Some(written))
    }
}

impl Frozen for OnePart {
    fn next_part(&mut self, _len_bytes: usize) -> Option<Vec<u8>> {
        self.0.take()
    }
}
