//! What is replicated.

use serde::Serialize;

/// A replicated state. Pure: every node applies the same entries in the same order and comes to the
/// same state.
pub trait StateMachine: Default {
    /// What is proposed.
    type Command<'a>: Serialize;
    /// What comes of a command.
    type Output;
    /// See [`StateMachine::freeze`].
    type Frozen: Frozen;

    /// Apply the command at this place of the log, as its proposer wrote it with postcard; `None`: it is
    /// none that this version knows, and nothing happens.
    fn apply(&mut self, index: u64, command: &[u8]) -> Option<Self::Output>;

    /// The state as it is now, to be written part by part while further commands are applied. A node has one thread, and
    /// calls this while it serves: it must not take longer for a large state.
    fn freeze(&self) -> Self::Frozen;

    /// Add the next part of a frozen state; the first one is added to the default state. False: the part is damaged, or
    /// was written by another version.
    fn restore_part(&mut self, part: &[u8]) -> bool;
}

/// A state at one moment, which is being written.
pub trait Frozen {
    /// The next part, of about so many bytes: more only if a single record is longer. Releases what it returns. `None`:
    /// that was all.
    fn next_part(&mut self, len_bytes: usize) -> Option<Vec<u8>>;
}

/// A small state, written as one part.
#[derive(Debug)]
pub struct OnePart(Option<Vec<u8>>);

impl OnePart {
    /// The whole state.
    pub fn new(written: Vec<u8>) -> OnePart {
        OnePart(Some(written))
    }
}

impl Frozen for OnePart {
    fn next_part(&mut self, _len_bytes: usize) -> Option<Vec<u8>> {
        self.0.take()
    }
}
