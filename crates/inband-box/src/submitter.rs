//! A gateway's records on their way into the log: in order, and retransmitted until they are applied here.

use std::collections::VecDeque;

use crate::promise::Nanos;

/// Maximum number of records in flight.
const WINDOW: usize = 64;

struct Batch {
    seq: u64,
    value: Vec<u8>,
}

/// The records that a node's gateway has submitted, and that have not been applied here yet.
pub struct Submitter {
    session: u64,
    next_seq: u64,
    waiting: VecDeque<Batch>,
    /// This many of `waiting` have been sent to the current leader.
    sent: usize,
    /// When they are retransmitted.
    again_at: Nanos,
    /// Until when the leader has no room.
    busy_until: Nanos,
    /// The leader they were sent to, and its epoch.
    sent_to: (u8, u64),
}

impl Submitter {
    /// Creates the submitter of a session in which no record was submitted before.
    pub fn new(session: u64) -> Submitter {
        Submitter {
            session,
            next_seq: 1,
            waiting: VecDeque::new(),
            sent: 0,
            again_at: Nanos::MAX,
            busy_until: 0,
            sent_to: (0, 0),
        }
    }

    pub fn session(&self) -> u64 {
        self.session
    }

    /// Submits a record and returns its number in the session.
    pub fn submit(&mut self, value: Vec<u8>) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.waiting.push_back(Batch { seq, value });
        seq
    }

    /// Returns the number of records that have not been applied here yet.
    pub fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    /// Records that a record of this session was applied here, and whether it was executed.
    pub fn on_applied(&mut self, seq: u64, is_executed: bool, now: Nanos) {
        if is_executed {
            // All records before it were executed before it.
            while self.waiting.front().is_some_and(|batch| batch.seq <= seq) {
                self.waiting.pop_front();
                self.sent = self.sent.saturating_sub(1);
            }
        } else if self.waiting.front().is_some_and(|batch| batch.seq < seq) {
            // A record before it was lost or overtaken.
            self.again_at = self.again_at.min(now);
        }
    }

    /// Records that the leader has no room until this time.
    pub fn on_busy(&mut self, until: Nanos) {
        (self.busy_until, self.again_at) = (until, self.again_at.min(until));
    }

    /// Records that the node that was asked does not lead.
    pub fn on_refused(&mut self, again_at: Nanos) {
        self.again_at = self.again_at.min(again_at);
    }

    /// Passes `send` the records that must be sent now to the leader of this epoch. `send` returns whether the record
    /// is on its way.
    pub fn poll(
        &mut self,
        now: Nanos,
        leader: u8,
        epoch: u64,
        again_after: Nanos,
        mut send: impl FnMut(u64, &[u8]) -> bool,
    ) {
        if self.sent_to != (leader, epoch) {
            (self.sent_to, self.sent, self.busy_until) = ((leader, epoch), 0, 0);
        }
        if self.waiting.is_empty() || now < self.busy_until {
            return;
        }
        if now >= self.again_at {
            self.sent = 0;
        }
        let is_first = self.sent == 0;
        let until = self.waiting.len().min(WINDOW);
        let mut any = false;
        while self.sent < until {
            let batch = &self.waiting[self.sent];
            if !send(batch.seq, &batch.value) {
                break;
            }
            any = true;
            self.sent += 1;
        }
        if any && is_first || self.again_at == Nanos::MAX || now >= self.again_at {
            self.again_at = now + again_after;
        }
    }

    /// Returns when [`Submitter::poll`] is due.
    pub fn due(&self) -> Nanos {
        match self.waiting.is_empty() {
            true => Nanos::MAX,
            false => self.again_at.max(self.busy_until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(submitter: &mut Submitter, now: Nanos, leader: u8) -> Vec<u64> {
        let mut sent = Vec::new();
        submitter.poll(now, leader, 33, 100, |seq, _| {
            sent.push(seq);
            true
        });
        sent
    }

    #[test]
    fn records_are_sent_again_in_order_until_they_are_executed() {
        let mut submitter = Submitter::new(4);
        assert_eq!(
            (1..=3)
                .map(|n| submitter.submit(vec![n]))
                .collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(polled(&mut submitter, 0, 1), [1, 2, 3]);
        assert!(
            polled(&mut submitter, 99, 1).is_empty(),
            "they are under way"
        );
        assert_eq!(polled(&mut submitter, 100, 1), [1, 2, 3]);
        submitter.on_applied(1, true, 120);
        assert!(polled(&mut submitter, 130, 1).is_empty());
        submitter.submit(vec![4]);
        assert_eq!(polled(&mut submitter, 140, 1), [4], "only what is new");
        assert_eq!(polled(&mut submitter, 150, 2), [2, 3, 4], "another leader");
        submitter.on_applied(3, false, 160);
        assert_eq!(polled(&mut submitter, 160, 2), [2, 3, 4], "2 is missing");
        submitter.on_busy(400);
        assert!(polled(&mut submitter, 399, 2).is_empty());
        assert_eq!(polled(&mut submitter, 400, 2), [2, 3, 4]);
        submitter.on_applied(4, true, 410);
        assert_eq!((submitter.outstanding(), submitter.due()), (0, Nanos::MAX));
    }
}
