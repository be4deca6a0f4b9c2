//! Chunked commands and the clients that wait for them.

use std::time::Duration;

use inband_resp::reply::Reply;

use super::Replica;
use crate::chunks::{Ended, Ending};
use crate::control::add;
use crate::store::Outcome;

impl Replica {
    /// A value of this replica was decided; `false` if it is not a chunk.
    pub(super) fn finish_chunk(&mut self, outcome: Outcome, replies: &mut [Reply]) -> bool {
        let (ticket, log) = (outcome.ticket, outcome.ticket.partition());
        let Some(decision) = self.lanes[log].packer.chunks.decided(&outcome) else {
            return false;
        };
        if decision.session_refused {
            self.log.session_refused(ticket);
        }
        if decision.answered {
            self.log.answered(ticket);
        }
        let Some(ended) = decision.ended else {
            return true;
        };
        match (&ended.ending, outcome.first_entry) {
            (Ending::Applied, Some(entry)) => {
                self.orphans.extend(ended.tickets);
                self.expect_entries(log, vec![ended.part], entry);
            }
            (Ending::Applied, None) => {
                self.orphans.extend(ended.tickets);
                let replies = &mut replies[outcome.first_reply..][..outcome.reply_count];
                self.reply_each(log, vec![ended.part], replies);
            }
            _ => self.end_large(log, ended),
        }
        true
    }

    /// Tells the waiting client that a command was not applied, or that its outcome is unknown.
    pub(super) fn end_large(&mut self, log: usize, ended: Ended) {
        self.orphans.extend(ended.tickets);
        let reply = match ended.ending {
            Ending::Applied => return,
            Ending::NotApplied(why) => Reply::error(format!("TRYAGAIN not applied: {why}")),
            Ending::Unknown(why) => {
                add(&self.control.counters.outcomes_unknown_total, 1);
                Reply::error(format!("UNKNOWN outcome unknown: {why}"))
            }
        };
        self.reply_all(log, vec![ended.part], &reply);
    }

    /// Ends chunked commands that have been in progress for longer than `age`.
    pub(super) fn give_up_large(&mut self, age: Duration, why: &str) {
        for log in 0..self.lanes.len() {
            let chunks = &mut self.lanes[log].packer.chunks;
            for ended in chunks.end_overdue(self.now, age, why) {
                self.end_large(log, ended);
            }
        }
    }

    /// Ends all chunked commands.
    pub(super) fn orphan_large(&mut self, log: usize, why: &str) {
        let (ended, rest) = self.lanes[log].packer.chunks.end_all(why);
        self.orphans.extend(rest);
        for ended in ended {
            self.end_large(log, ended);
        }
    }
}
