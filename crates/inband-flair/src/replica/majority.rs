//! Plain Raft's reads: the leader answers once a majority has confirmed that it leads. One question at a time; it
//! serves all reads that came before it was asked, never one that came later.

use super::answer::WaitingRead;
use super::{Out, Replica};
use crate::limits::WAITING_READS_MAX;
use crate::timing::Nanos;

/// Of the numbers of questions: lflair's are without it.
const READS: u64 = 1 << 63;

/// See the module.
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
    /// A read has come to the leader.
    pub(super) fn read_with_majority(&mut self, read: WaitingRead) {
        if self.majority.next.len() < WAITING_READS_MAX {
            self.majority.next.push(read);
        }
    }

    /// Ask for those that wait, or once more if nobody has answered for too long.
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

    /// A majority has answered. True if it was about reads.
    pub(super) fn majority_has_answered(&mut self, number: u64, out: &mut Out) -> bool {
        if number & READS == 0 {
            return false;
        }
        if number == READS | self.majority.number {
            // Whatever was acknowledged before these reads came is applied here, or another one leads.
            for read in std::mem::take(&mut self.majority.asked) {
                self.answer_waiting(&read, out);
            }
        }
        true
    }
}
