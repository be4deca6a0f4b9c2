//! Reads that do not go through the log: answered from this replica's copy once it has applied everything that was
//! decided before they arrived.

use std::time::Duration;

use inband_host::log::{ReadTicket, SubmitFailure};
use inband_resp::reply::Reply;

use super::{Replica, ReplicaError};
use crate::connection::OwnedArgs;
use crate::control::add;
use crate::limit_hits::LimitHit;
use crate::limits::{READ_REPLIES_BYTES_MAX, READ_STEPS_PER_TURN_MAX};
use crate::local;
use crate::packer::{Part, Reads};

/// The total of all reads in one turn is bounded.
fn is_turn_over(reply_bytes: usize, steps: u64) -> bool {
    reply_bytes > READ_REPLIES_BYTES_MAX || steps > READ_STEPS_PER_TURN_MAX
}

impl Replica {
    /// Queues a connection for a page of `SCAN`.
    pub(super) fn start_scan(&mut self, slot: usize, args: OwnedArgs) {
        let Some(connection) = self.front.connections.get_mut(slot) else {
            return;
        };
        let part = Part::of(slot, connection, 1, self.now);
        self.waiting_commands += 1;
        let cursor = local::scan_cursor(args.args()).unwrap_or(0);
        let partition = self.machine.cursor_partition(cursor);
        let last = self.machine.partitions() - 1;
        self.lanes[partition.min(last)].packer.push_scan(part, args);
    }

    /// Takes the results of read queries out of the bursts.
    pub(super) fn take_read_reports(&mut self) {
        let mut failed = Vec::new();
        for (log, burst) in self.machine.bursts().iter_mut().enumerate() {
            for (ticket, instance) in burst.confirmed.drain(..) {
                if !self.catch_up.confirm(ticket, instance) {
                    self.lanes[log].packer.confirm_reads(ticket, instance);
                }
            }
            failed.append(&mut burst.reads_failed);
        }
        for (ticket, failure) in failed {
            if !self.catch_up.fail(ticket, failure, self.now) {
                self.fail_reads(ticket, failure);
            }
        }
    }

    /// Answers all reads that are ready. Returns whether there were any.
    pub(super) fn answer_reads(&mut self) -> Result<bool, ReplicaError> {
        let mut has_any = false;
        (self.read_reply_bytes, self.read_steps) = (0, 0);
        for log in 0..self.machine.partitions() {
            let applied = self.machine.store(log).applied();
            while let Some(mut reads) = self.lanes[log].packer.take_confirmed(applied) {
                self.read_clock();
                let first_not_begun = self.read(log, &reads)?;
                reads.parts.rotate_left(first_not_begun);
                self.reads_done(log, reads);
                has_any = true;
            }
        }
        Ok(has_any)
    }

    /// Returns the place of the first part for which this turn had no room, which is the first one in the next turn: a
    /// client that asks for too much does not keep the others waiting. 0 if there was room for all.
    fn read(&mut self, log: usize, reads: &Reads) -> Result<usize, ReplicaError> {
        let mut reader = self.machine.reader(log, self.clock_ms)?;
        let (mut first, mut answered) = (0, reads.scans.len());
        let mut first_not_begun = None;
        let steps_before = self.read_steps;
        for (place, part) in reads.parts.iter().enumerate() {
            let (begin, count) = (first, part.count);
            first += count;
            let Some(connection) = part.connection(&mut self.front.connections) else {
                continue;
            };
            let (mut done, mut by_log) = (0, false);
            for command in reads.commands(begin, count) {
                let is_over = is_turn_over(self.read_reply_bytes, self.read_steps);
                if is_over {
                    self.control.limit_hits.count(LimitHit::TurnReplies);
                }
                if is_over || (done > 0 && !connection.has_reply_room()) {
                    break;
                }
                let Some(reply) = reader.read(command)? else {
                    // The log advances replicated time. The remaining reads go through it as well, or they would see an
                    // older state than this one.
                    by_log = true;
                    break;
                };
                self.read_reply_bytes += reply.len_bytes();
                self.read_steps = steps_before + reader.steps();
                connection.answer_next(log, reply);
                done += 1;
            }
            answered += done;
            if done == 0 && !by_log {
                first_not_begun.get_or_insert(place);
            }
            if done < count {
                let rest = reads.commands(begin + done, count - done);
                connection.put_back(log, rest, part.received, !by_log);
                self.waiting_commands += count - done;
            }
        }
        drop(reader);
        // The fewer keys are unwritten, the less a page costs.
        if !reads.scans.is_empty() && self.may_write() {
            self.machine.flush()?;
        }
        for (part, args) in &reads.scans {
            let reply = local::scan(args.args(), &self.machine).unwrap_or_else(|reply| reply);
            if let Some(connection) = part.connection(&mut self.front.connections) {
                connection.answer_alone(reply);
            }
        }
        add(&self.control.counters.reads_total, answered as u64);
        Ok(first_not_begun.unwrap_or(0))
    }

    fn fail_reads(&mut self, ticket: ReadTicket, failure: SubmitFailure) {
        let log = ticket.partition();
        if let Some(reads) = self.lanes[log].packer.take_reads_of(ticket) {
            let why = match failure {
                SubmitFailure::NotApplied(why) => why.to_owned(),
                SubmitFailure::OutcomeUnknown(ms) => format!("no answer within {ms} ms"),
            };
            self.refuse_reads(log, reads, &why);
        }
    }

    /// Ends reads that are overdue.
    pub(super) fn give_up_reads(&mut self, age: Duration, why: &str) {
        for log in 0..self.machine.partitions() {
            while let Some(reads) = self.lanes[log].packer.take_overdue_reads(self.now, age) {
                self.refuse_reads(log, reads, why);
            }
        }
    }

    fn refuse_reads(&mut self, log: usize, reads: Reads, why: &str) {
        let reply = Reply::error(format!("TRYAGAIN not read: {why}"));
        for part in &reads.parts {
            if let Some(connection) = part.connection(&mut self.front.connections) {
                (0..part.count).for_each(|_| connection.answer_next(log, reply.clone()));
            }
        }
        for (part, _) in &reads.scans {
            if let Some(connection) = part.connection(&mut self.front.connections) {
                connection.answer_alone(reply.clone());
            }
        }
        self.reads_done(log, reads);
    }

    fn reads_done(&mut self, log: usize, mut reads: Reads) {
        let mut parts = std::mem::take(&mut reads.parts);
        parts.extend(reads.scans.drain(..).map(|(part, _)| part));
        self.lanes[log].packer.recycle_reads(reads);
        self.value_done(log, parts);
    }
}
