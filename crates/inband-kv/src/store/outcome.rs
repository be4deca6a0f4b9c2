//! Which log a store belongs to, how far it is, and what became of the values that this process has submitted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use inband_host::log::{Decided, Ticket};
use inband_host::session::Verdict;
use inband_resp::reply::Reply;

use super::ChunkFate;
use crate::limits::READ_REPLIES_BYTES_MAX;

/// The log that a store belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRole {
    pub log: usize,
    pub partitions: usize,
}

impl LogRole {
    /// The only log of a single partition.
    pub const ONLY: LogRole = LogRole {
        log: 0,
        partitions: 1,
    };

    /// Returns whether it is the log of cross-partition commands.
    pub fn is_queue(&self) -> bool {
        self.log == self.partitions
    }
}

/// The progress of a store. Later in the same log compares as greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Last instance applied; 0: none.
    pub applied: u64,
    /// Last cross-partition command executed here: several may be executed at one marker.
    pub entry: u64,
}

/// The outcome of a value submitted by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub ticket: Ticket,
    /// The proposer's session under which it was decided.
    pub session_id: u64,
    /// The verdict of the session table.
    pub verdict: Verdict,
    /// Index of its first reply in [`Outcomes::replies`].
    pub first_reply: usize,
    /// Number of replies: one per command if the verdict was [`Verdict::Apply`], else none.
    pub reply_count: usize,
    /// The entry number of its first command, if it went to the log of cross-partition commands; the other commands
    /// follow.
    pub first_entry: Option<u64>,
    /// The result, if it was a chunk and was applied.
    pub chunk: Option<ChunkFate>,
}

impl Outcome {
    /// A value covered by an installed checkpoint: it went through its log, but its replies are lost. Without this
    /// outcome its proposer would wait forever.
    pub(super) fn skipped(ticket: Ticket, decided: &Decided<'_>) -> Outcome {
        Outcome {
            ticket,
            session_id: decided.origin.client_id,
            verdict: Verdict::Duplicate,
            first_reply: 0,
            reply_count: 0,
            first_entry: None,
            chunk: None,
        }
    }
}

/// The outcomes of this process's values in a burst. Reused between bursts.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// The process's own values in the order in which they were decided, log by log.
    pub values: Vec<Outcome>,
    pub replies: Vec<Reply>,
    /// Approximate length of the replies.
    pub(super) reply_bytes: usize,
    /// The same of all that share the room for replies, if others do.
    shared_bytes: Option<Arc<AtomicUsize>>,
    /// Executed entries that this process submitted, with their replies.
    pub entries: Vec<(u64, Reply)>,
    /// Number of commands applied, submitted by any process.
    pub commands: u64,
}

impl Outcomes {
    /// Clears everything, but keeps the memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.replies.clear();
        self.reply_bytes = 0;
        self.shared_bytes = None;
        self.entries.clear();
        self.commands = 0;
    }

    /// Lets these, which must be clear, share what room for replies to reads is left here.
    pub(crate) fn share_room(&self, parts: &mut [Outcomes]) {
        let used_bytes = Arc::new(AtomicUsize::new(self.reply_bytes));
        for part in parts {
            part.shared_bytes = Some(used_bytes.clone());
        }
    }

    /// Appends everything in `other`, leaving it clear.
    pub(crate) fn append(&mut self, other: &mut Outcomes) {
        let first_reply = self.replies.len();
        self.values
            .extend(other.values.drain(..).map(|value| Outcome {
                first_reply: first_reply + value.first_reply,
                ..value
            }));
        self.replies.append(&mut other.replies);
        self.reply_bytes += other.reply_bytes;
        self.entries.append(&mut other.entries);
        self.commands += other.commands;
        other.clear();
    }

    /// Returns whether there is room for replies to reads.
    pub(super) fn has_room(&self) -> bool {
        let shared_bytes = self.shared_bytes.as_ref();
        let used_bytes = shared_bytes.map_or(self.reply_bytes, |used| used.load(Ordering::Relaxed));
        used_bytes < READ_REPLIES_BYTES_MAX
    }

    /// Takes room for a reply to a read.
    pub(super) fn take_room(&mut self, len_bytes: usize) {
        self.reply_bytes += len_bytes;
        if let Some(used_bytes) = &self.shared_bytes {
            used_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_may_use_all_of_the_room_and_then_none_has_any() {
        let mut all = Outcomes::default();
        let mut parts = [Outcomes::default(), Outcomes::default()];
        all.take_room(1);
        all.share_room(&mut parts);
        parts[0].take_room(READ_REPLIES_BYTES_MAX - 2);
        assert!(parts.iter().all(Outcomes::has_room));
        parts[0].take_room(1);
        assert!(!parts.iter().any(Outcomes::has_room));
        for part in &mut parts {
            all.append(part);
        }
        assert!(!all.has_room() && parts.iter().all(Outcomes::has_room));
    }
}
