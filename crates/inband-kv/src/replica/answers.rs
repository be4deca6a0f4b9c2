//! Turns the outcome of a value into replies to the clients that wait for it.

use std::time::Duration;

use inband_host::log::{SubmitFailure, Ticket};
use inband_host::session::Verdict;
use inband_resp::reply::Reply;

use super::{Replica, OVERDUE_PERIOD};
use crate::control::add;
use crate::packer::Part;
use crate::store::Outcome;

impl Replica {
    /// Answers the clients that wait for a decided value.
    pub(super) fn finish(&mut self, outcome: Outcome, replies: &mut [Reply]) {
        let Outcome {
            ticket,
            session_id,
            verdict,
            ..
        } = outcome;
        let log = ticket.partition();
        if self.finish_chunk(outcome, replies) {
            return;
        }
        match verdict {
            Verdict::Nothing => return,
            // The log submits it again with the same ticket, in a new session.
            Verdict::Refused if self.lanes[log].packer.note_refused(ticket, session_id) => {
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
                self.forget_own(ticket);
                let Some(parts) = self.lanes[log].packer.take_parts(ticket) else {
                    return;
                };
                if let Some(first) = outcome.first_entry {
                    return self.expect_entries(log, parts, first);
                }
                let replies = &mut replies[outcome.first_reply..][..outcome.reply_count];
                self.reply_each(log, parts, replies);
            }
            // Its first occurrence was delivered earlier; if a client still waits, this replica did not see it.
            Verdict::Duplicate => {
                if let Some(parts) = self.lanes[log].packer.take_parts(ticket) {
                    self.log.answered(ticket);
                    self.forget_own(ticket);
                    self.reply_unknown(log, parts, "the command was applied, its reply is lost");
                }
            }
            Verdict::Refused | Verdict::Nothing => {}
        }
    }

    /// Undecided values may have been decided in an instance that a checkpoint covers, so their outcome is unknown.
    /// They must not be submitted in another session either, which could apply them twice.
    pub(super) fn orphan_values(&mut self) {
        let why = "this replica loaded a checkpoint; the command may or may not take effect";
        for log in 0..self.lanes.len() {
            for (ticket, parts) in self.lanes[log].packer.take_all() {
                self.orphan(ticket, parts, why);
            }
            self.orphan_large(log, why);
        }
        self.give_up_entries(Duration::ZERO, why);
    }

    fn orphan(&mut self, ticket: Ticket, parts: Vec<Part>, why: &str) {
        self.orphans.insert(ticket);
        self.forget_own(ticket);
        self.reply_unknown(ticket.partition(), parts, why);
    }

    /// Ends overdue commands: their partition waits for another one that does not make progress.
    pub(super) fn give_up_overdue(&mut self) {
        if self.now.saturating_duration_since(self.overdue_looked_at) < OVERDUE_PERIOD {
            return;
        }
        self.overdue_looked_at = self.now;
        let peers = self.log.checkpoint_peers();
        self.peers.set(peers.clone(), self.condition());
        self.clock.set_peers(peers);
        let age = Duration::from_millis(self.config.deadline_ms);
        let why = format!(
            "not applied here within {} ms; the command may or may not take effect",
            self.config.deadline_ms
        );
        for log in 0..self.lanes.len() {
            for (ticket, parts) in self.lanes[log].packer.take_overdue(self.now, age) {
                self.orphan(ticket, parts, &why);
            }
        }
        self.give_up_entries(age, &why);
        self.give_up_large(age, &why);
        let mut why = format!("this replica is behind for {} ms", self.config.deadline_ms);
        if let Some(short) = self.space.why().filter(|_| self.is_disk_full()) {
            why += &format!(", as it applies nothing: {short}. Make room, or use another replica");
        }
        self.give_up_reads(age, &why);
    }

    fn reply_unknown(&mut self, log: usize, parts: Vec<Part>, why: &str) {
        self.count_unknown(&parts);
        let reply = Reply::error(format!("UNKNOWN outcome unknown: {why}"));
        self.reply_all(log, parts, &reply);
    }

    pub(super) fn fail(&mut self, ticket: Ticket, failure: SubmitFailure) {
        self.forget_own(ticket);
        self.machine.forget_cut(ticket);
        self.orphans.remove(&ticket);
        let log = ticket.partition();
        if let Some(ended) = self.lanes[log].packer.chunks.failed(ticket, failure) {
            if let Some(ended) = ended {
                self.end_large(log, ended);
            }
            return;
        }
        let Some(parts) = self.lanes[log].packer.take_parts(ticket) else {
            return;
        };
        let reply = match failure {
            SubmitFailure::OutcomeUnknown(_) => {
                self.count_unknown(&parts);
                Reply::error(format!("UNKNOWN {failure}"))
            }
            SubmitFailure::NotApplied(_) => Reply::error(format!("TRYAGAIN {failure}")),
        };
        self.reply_all(log, parts, &reply);
    }

    fn count_unknown(&self, parts: &[Part]) {
        let count: usize = parts.iter().map(|part| part.count).sum();
        add(&self.control.counters.outcomes_unknown_total, count as u64);
    }

    /// A tick or a marker of this replica has ended.
    fn forget_own(&mut self, ticket: Ticket) {
        let lane = &mut self.lanes[ticket.partition()];
        if lane.tick == Some(ticket) {
            lane.tick = None;
        }
        lane.marker.forget(ticket);
    }

    /// Gives each command of a value its reply.
    pub(super) fn reply_each(&mut self, log: usize, parts: Vec<Part>, replies: &mut [Reply]) {
        let mut replies = replies.iter_mut();
        for part in &parts {
            let own = replies.by_ref().take(part.count);
            match part.connection(&mut self.front.connections) {
                Some(connection) => own.for_each(|reply| {
                    connection.answer_next(log, std::mem::replace(reply, Reply::Nil));
                }),
                None => own.for_each(drop),
            }
        }
        self.value_done(log, parts);
    }

    /// Gives all commands of a value the same reply.
    pub(super) fn reply_all(&mut self, log: usize, parts: Vec<Part>, reply: &Reply) {
        for part in &parts {
            if let Some(connection) = part.connection(&mut self.front.connections) {
                (0..part.count).for_each(|_| connection.answer_next(log, reply.clone()));
            }
        }
        self.value_done(log, parts);
    }

    /// The connections of a value may continue.
    pub(super) fn value_done(&mut self, log: usize, parts: Vec<Part>) {
        for part in &parts {
            self.waiting_commands -= part.count;
            let round_trip = self.now.saturating_duration_since(part.received);
            self.control
                .counters
                .add_latency(round_trip, part.count as u64);
            if let Some(connection) = part.connection(&mut self.front.connections) {
                self.lanes[log].packer.push_ready(part.slot, connection);
                self.serve(part.slot);
            }
        }
        self.lanes[log].packer.recycle(parts);
    }
}
