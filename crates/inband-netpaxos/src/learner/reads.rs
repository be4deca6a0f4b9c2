//! Linearizable reads. Every decision has the votes of 2f + 1 storage servers, so of any 2f + 1 that are asked for
//! their position, f + 1 know of it: a read that waits for the highest instance they report sees everything that was
//! decided before it began. One question serves all reads that began before it was sent.

use std::collections::BTreeSet;

use super::{Learner, Out};
use crate::control::{Control, Question, To};

/// First retransmission interval, in nanoseconds, doubled at each retransmission: storage that is slow must not be made
/// slower.
const REPEAT_NS: u64 = 4_000_000;
const REPEAT_DOUBLINGS_MAX: u32 = 6;

#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Reads that began after the last question was sent.
    waiting: Vec<u64>,
    asked: Option<Asked>,
    /// The instance that must be delivered first, and the read.
    known: Vec<(u64, u64)>,
    /// Number of the last question.
    number: u64,
}

#[derive(Debug)]
struct Asked {
    reads: Vec<u64>,
    /// Minions of the storage servers that have answered.
    answered: BTreeSet<u8>,
    highest: u64,
    again_at: u64,
    repeats: u32,
}

impl Reads {
    pub fn len(&self) -> usize {
        let asked = self.asked.as_ref().map_or(0, |asked| asked.reads.len());
        self.waiting.len() + asked + self.known.len()
    }
}

impl Learner {
    /// Begins a read, identified by the caller's `id`. It appears in [`Out::confirmed`] once everything that was
    /// decided before this call is delivered.
    pub fn read(&mut self, id: u64) {
        self.reads.waiting.push(id);
    }

    /// Cancels a read.
    pub fn forget_read(&mut self, id: u64) {
        self.reads.waiting.retain(|read| *read != id);
        self.reads.known.retain(|(_, read)| *read != id);
        if let Some(asked) = &mut self.reads.asked {
            asked.reads.retain(|read| *read != id);
        }
    }

    pub(super) fn reads_due(&self) -> u64 {
        match &self.reads.asked {
            Some(asked) => asked.again_at,
            None if self.reads.waiting.is_empty() => u64::MAX,
            None => 0,
        }
    }

    fn question(&self, incarnation: u32) -> Question {
        Question {
            learner: self.config.number,
            incarnation,
            number: self.reads.number,
        }
    }

    pub(super) fn tick_reads(&mut self, now: u64, incarnation: u32, out: &mut Out) {
        if self.reads.asked.is_none() && !self.reads.waiting.is_empty() {
            self.reads.number += 1;
            self.reads.asked = Some(Asked {
                reads: std::mem::take(&mut self.reads.waiting),
                answered: BTreeSet::new(),
                highest: 0,
                again_at: 0,
                repeats: 0,
            });
        }
        let question = self.question(incarnation);
        if let Some(asked) = &mut self.reads.asked {
            if now >= asked.again_at {
                asked.again_at = now + (REPEAT_NS << asked.repeats);
                asked.repeats = (asked.repeats + 1).min(REPEAT_DOUBLINGS_MAX);
                self.counts.asked += 1;
                let ask = Control::Ask {
                    question: Some(question),
                };
                self.send(To::Storages, &ask, out);
            }
        }
        let position = self.position();
        self.reads.known.retain(|(index, read)| {
            if *index <= position {
                out.confirmed.push((*read, *index));
            }
            *index > position
        });
    }

    /// Handles a storage server's answer: it knows of nothing above `highest`.
    pub(super) fn on_read_position(&mut self, minion: u8, question: Question, highest: u64) {
        let own = self.incarnation().map(|own| self.question(own));
        if own != Some(question) {
            return;
        }
        let quorum = self.config.sizes.quorum();
        let Some(asked) = &mut self.reads.asked else {
            return;
        };
        asked.highest = asked.highest.max(highest);
        asked.answered.insert(minion);
        if asked.answered.len() < quorum {
            return;
        }
        let index = asked.highest;
        let reads = std::mem::take(&mut asked.reads);
        self.reads.asked = None;
        let known = reads.into_iter().map(|read| (index, read));
        self.reads.known.extend(known);
    }
}
