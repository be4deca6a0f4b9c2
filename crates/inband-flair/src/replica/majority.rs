//! Plain Raft's reads: the leader answers once a majority has confirmed that it leads. Only one question is
//! outstanding. Its confirmation covers all reads that arrived before it was asked, and none that arrived later.

use super::answer::WaitingRead;
use super::{Out, Replica};
use crate::limits::WAITING_READS_MAX;
use crate::timing::Nanos;

/// Marks the numbers of these questions; lflair's do not have this bit.
const READS: u64 = 1 << 63;

#[derive(Debug, Default)]
pub(super) struct Majority {
    number: u64,
    asked_at: Nanos,
    asked: Vec<WaitingRead>,
    next: Vec<WaitingRead>,
}

impl Majority {
    fn forget(&mut self) {
        self.asked.clear();
        self.next.clear();
    }
}

impl Replica {
    /// Queues a read at the leader.
    pub(super) fn read_with_majority(&mut self, read: WaitingRead) {
        if self.majority.next.len() < WAITING_READS_MAX {
            self.majority.next.push(read);
        }
    }

    /// Asks for the queued reads, or repeats a question that has timed out.
    pub(super) fn ask_majority(&mut self, now: Nanos) {
        let majority = &mut self.majority;
        if self.lflair.term().is_none() {
            return majority.forget();
        }
        let is_lost = now >= majority.asked_at + self.config.timing.ask_again_ns;
        if majority.asked.is_empty() {
            std::mem::swap(&mut majority.asked, &mut majority.next);
        } else if !is_lost {
            return;
        }
        if !majority.asked.is_empty() {
            majority.number += 1;
            majority.asked_at = now;
            self.raft.confirm(READS | majority.number);
        }
    }

    /// A majority has confirmed question `number`. Returns whether it was one for reads.
    pub(super) fn majority_has_answered(&mut self, number: u64, out: &mut Out) -> bool {
        if number & READS == 0 {
            return false;
        }
        if number == READS | self.majority.number {
            // Everything acknowledged before these reads arrived is applied here; otherwise another replica would lead.
            for read in std::mem::take(&mut self.majority.asked) {
                self.answer_waiting(&read, out);
            }
        }
        true
    }
}
