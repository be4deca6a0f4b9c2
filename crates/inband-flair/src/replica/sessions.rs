//! The last FLAIR session in a replica's log. Reads of earlier sessions are refused.
//!
//! A switch whose clock stopped (for example in a virtual machine that was suspended or migrated) may keep serving a
//! session that has ended. The switch cannot know, but a replica that has the entry of a later session does.

use crate::dataplane::wire::Header;
use inband_raft::Proposed;

use super::Replica;
use crate::entry::{Entry, Op};

/// The newest session in the log: highest term, then highest index.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct LastSession {
    term: u64,
    index: u64,
}

impl LastSession {
    /// Notes a command that is, or may get, into the log.
    pub fn note(&mut self, proposed: Proposed<'_>) {
        let entry = postcard::from_bytes::<Entry<'_>>(proposed.command);
        if matches!(entry.map(|entry| entry.op), Ok(Op::Session { .. })) {
            self.begun(proposed.index, proposed.term);
        }
    }

    /// Notes a session in the log.
    pub fn begun(&mut self, index: u64, term: u64) {
        if (term, index) > (self.term, self.index) {
            (self.term, self.index) = (term, index);
        }
    }
}

impl Replica {
    /// Returns whether this read's session is over according to this replica's log. The later session's entry need not
    /// be applied: before that session serves, its entry is in the logs of a majority.
    pub(super) fn is_session_over(&self, request: &Header) -> bool {
        let LastSession { term, index } = self.last_session;
        // A later leader may have replaced the entry.
        let is_in_log = self.raft.term_at(index) == Some(term);
        let in_log = if is_in_log { index } else { 0 };
        request.session < in_log.max(self.raft.state().session().id)
    }
}
