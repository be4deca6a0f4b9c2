//! From what became of a value to the replies of those who wait for it.

use inband_paxos::log::{SubmitFailure, Ticket};
use inband_paxos::session::Verdict;

use super::Replica;
use crate::control::add;
use crate::packer::Part;
use crate::reply::Reply;
use crate::store::Outcome;

impl Replica {
    /// Answer those who wait for a decided value.
    pub(super) fn finish(&mut self, outcome: Outcome, replies: &[Reply]) {
        let Outcome {
            ticket,
            session_id,
            verdict,
            ..
        } = outcome;
        match verdict {
            Verdict::Nothing => return,
            // The log submits it again under the same ticket, in a new session.
            Verdict::Refused if self.packer.note_refused(ticket, session_id) => {
                return self.log.session_refused(ticket);
            }
            _ => {}
        }
        if self.orphans.remove(&ticket) {
            return self.log.answered(ticket);
        }
        match verdict {
            Verdict::Apply => {
                self.log.answered(ticket);
                self.forget_tick(ticket);
                let Some(parts) = self.packer.take_parts(ticket) else {
                    return;
                };
                let replies = &replies[outcome.first_reply..][..outcome.reply_count];
                self.reply_each(parts, replies);
            }
            // Its first occurrence was delivered before; if somebody waits still, it was not here.
            Verdict::Duplicate => {
                if let Some(parts) = self.packer.take_parts(ticket) {
                    self.log.answered(ticket);
                    self.forget_tick(ticket);
                    self.reply_unknown(parts, "the command was applied, its reply is lost");
                }
            }
            Verdict::Refused | Verdict::Nothing => {}
        }
    }

    /// Undecided values may have been decided in what a checkpoint covers: nobody can tell. They
    /// must not be submitted in another session either, which could apply them twice.
    pub(super) fn orphan_values(&mut self) {
        for (ticket, parts) in self.packer.take_all() {
            self.orphans.insert(ticket);
            self.forget_tick(ticket);
            self.reply_unknown(
                parts,
                "this replica loaded a checkpoint; the command may or may not take effect",
            );
        }
    }

    fn reply_unknown(&mut self, parts: Vec<Part>, why: &str) {
        self.count_unknown(&parts);
        self.reply_all(parts, &Reply::error(format!("ERR outcome unknown: {why}")));
    }

    pub(super) fn fail(&mut self, ticket: Ticket, failure: SubmitFailure) {
        self.forget_tick(ticket);
        self.orphans.remove(&ticket);
        let Some(parts) = self.packer.take_parts(ticket) else {
            return;
        };
        let reply = match failure {
            SubmitFailure::OutcomeUnknown(_) => {
                self.count_unknown(&parts);
                Reply::error(format!("ERR {failure}"))
            }
            SubmitFailure::NotApplied(_) => Reply::error(format!("TRYAGAIN {failure}")),
        };
        self.reply_all(parts, &reply);
    }

    fn count_unknown(&self, parts: &[Part]) {
        let count: usize = parts.iter().map(|part| part.count).sum();
        add(&self.control.counters.outcomes_unknown_total, count as u64);
    }

    fn forget_tick(&mut self, ticket: Ticket) {
        if self.tick == Some(ticket) {
            self.tick = None;
        }
    }

    /// Give each command of a value its reply.
    fn reply_each(&mut self, parts: Vec<Part>, replies: &[Reply]) {
        let mut replies = replies.iter();
        for part in &parts {
            let own = replies.by_ref().take(part.count);
            match part.connection(&mut self.front.connections) {
                Some(connection) => own.for_each(|reply| connection.reply(reply)),
                None => own.for_each(drop),
            }
        }
        self.value_done(parts);
    }

    /// Give all commands of a value the same reply.
    pub(super) fn reply_all(&mut self, parts: Vec<Part>, reply: &Reply) {
        for part in &parts {
            if let Some(connection) = part.connection(&mut self.front.connections) {
                (0..part.count).for_each(|_| connection.reply(reply));
            }
        }
        self.value_done(parts);
    }

    /// The connections of a value may go on.
    fn value_done(&mut self, parts: Vec<Part>) {
        for part in &parts {
            self.waiting_commands -= part.count;
            let round_trip = self.now.saturating_duration_since(part.received);
            self.control
                .counters
                .add_latency(round_trip, part.count as u64);
            if let Some(connection) = part.connection(&mut self.front.connections) {
                connection.has_value_in_flight = false;
                self.serve(part.slot);
            }
        }
        self.packer.recycle(parts);
    }
}
