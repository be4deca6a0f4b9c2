//! Clients that wait in blocking pops: their attempts, and how their waits end.

use inband_resp::reply::Reply;

use super::Replica;
use crate::limit_hits::LimitHit;
use crate::waiting_clients::Pop;

impl Replica {
    /// A client sent a blocking pop.
    pub(super) fn start_pop(&mut self, slot: usize, pop: Pop) {
        let limit = self.config.waiting_clients_max;
        if self.waiting.len() >= limit {
            self.control.limit_hits.count(LimitHit::Waiting);
            let reply = Reply::error(format!(
                "ERR {limit} clients of this replica wait, which is the limit"
            ));
            return self.answer_alone(slot, reply);
        }
        let number = self.waiting.enter(slot, pop);
        if let Some(connection) = self.front.connections.get_mut(slot) {
            connection.waits_as(number);
        }
        self.submit_attempts();
    }

    /// Queues the attempts that are due.
    pub(super) fn submit_attempts(&mut self) {
        while let Some(attempt) = self.waiting.next_attempt() {
            let Some(connection) = self.front.connections.get_mut(attempt.slot) else {
                continue;
            };
            connection.push_attempt(attempt.log, attempt.command, self.now);
            self.lanes[attempt.log]
                .packer
                .push_ready(attempt.slot, connection);
            self.waiting_commands += 1;
            // It may come after everything of this turn was packed.
            self.has_more = true;
        }
    }

    /// Processes the reply to an attempt of a pop. Returns whether there was one.
    pub(super) fn finish_attempt(&mut self, slot: usize) -> bool {
        let connection = self.front.connections.get_mut(slot);
        let Some((number, reply)) = connection.and_then(|c| c.take_attempt()) else {
            return false;
        };
        if matches!(reply, Reply::Nil | Reply::NilArray) {
            if !self.waiting.found_nothing(number, self.now) {
                self.end_wait(slot, number, Reply::NilArray);
            }
        } else {
            let popped = match &reply {
                Reply::Array(items) => match items.first() {
                    Some(Reply::Bulk(key)) => Some(&key[..]),
                    _ => None,
                },
                _ => None,
            };
            self.waiting.leave(number, popped);
            self.answer_alone(slot, reply);
        }
        self.submit_attempts();
        true
    }

    fn end_wait(&mut self, slot: usize, number: u64, reply: Reply) {
        let reply = match self.waiting.is_refused(number) {
            true => Reply::error("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            false => reply,
        };
        self.waiting.leave(number, None);
        self.answer_alone(slot, reply);
    }

    /// `CLIENT UNBLOCK`: ends the wait of another client of this replica.
    pub(super) fn unblock(&mut self, id: u64, with_error: bool) -> Reply {
        let mut all = self.front.connections.iter();
        let waiting = all.find(|client| client.id == id);
        let number = waiting.and_then(|client| client.waiting_number());
        let now = self.now;
        let is_waiting = number.is_some_and(|number| self.waiting.unblock(number, now, with_error));
        Reply::Integer(i64::from(is_waiting))
    }

    /// Looks for elements that have been put where clients wait.
    pub(super) fn look_for_elements(&mut self) {
        if !self.waiting.is_empty() {
            self.waiting.take_news();
        }
    }

    /// Ends waits: of all clients if the replica drains, else of those whose time is over.
    pub(super) fn end_waits(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let (ended, reply) = match self.farewell() {
            Some(farewell) => (self.waiting.all_waiting(), Reply::error(farewell)),
            None => (self.waiting.take_overdue(self.now), Reply::NilArray),
        };
        for (number, slot) in ended {
            self.end_wait(slot, number, reply.clone());
            self.serve(slot);
        }
        self.submit_attempts();
    }

    /// Closes the connection of a waiting client that has closed its side.
    pub(super) fn close_if_gone(&mut self, slot: usize) {
        let Some(connection) = self.front.connections.get(slot) else {
            return;
        };
        let number = connection
            .waiting_number()
            .filter(|_| connection.is_client_gone());
        if number.is_some_and(|number| self.waiting.is_waiting(number)) {
            self.close(slot);
        }
    }

    /// A connection is closed.
    pub(super) fn forget_waiting(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.waiting.leave(number, None);
            self.submit_attempts();
        }
    }
}
