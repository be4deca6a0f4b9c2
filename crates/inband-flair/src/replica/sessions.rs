//! Which session of FLAIR is the last one in a replica's log: reads of earlier ones are refused.
//!
//! A switch whose clock stood still (a virtual machine that was suspended, or moved) goes on with a session that is over.
//! It cannot know; whoever has the entry of a later session does.

use crate::dataplane::wire::Header;
use inband_raft::Proposed;

use super::Replica;
use crate::entry::{Entry, Op};

/// Of the sessions that came into the log: the one of the highest term, and of these the highest index.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct LastSession {
    term: u64,
    index: u64,
}

impl LastSession {
    /// A command is, or may come to be, in the log.
    pub fn note(&mut self, proposed: Proposed<'_>) {
        let entry = postcard::from_bytes::<Entry<'_>>(proposed.command);
        if matches!(entry.map(|entry| entry.op), Ok(Op::Session { .. })) {
            self.begun(proposed.index, proposed.term);
        }
    }

    /// A session stands in the log.
    pub fn begun(&mut self, index: u64, term: u64) {
        if (term, index) > (self.term, self.index) {
            (self.term, self.index) = (term, index);
        }
    }
}

impl Replica {
    /// Is the session of this read over, as far as this replica's log says? It need not be applied for that: before the
    /// next session serves, it is in the logs of a majority.
    pub(super) fn is_session_over(&self, request: &Header) -> bool {
        let LastSession { term, index } = self.last_session;
        // It may have been replaced by an entry of a later leader.
        let is_in_log = self.raft.term_at(index) == Some(term);
        let in_log = if is_in_log { index } else { 0 };
        request.session < in_log.max(self.raft.state().session().id)
    }
}
