//! A start's incarnation, which is part of its rounds and reports. Storage servers grant each one to a single start, and
//! only above those that they have granted before: two quorums have a server in common, so no two starts have the same
//! one, and a later start has a higher one, whatever became of the learner's directory or clock.

use std::collections::BTreeMap;

use super::{Learner, Out};
use crate::control::{Control, To};
use crate::quorum::Generations;

/// Retransmission interval, in nanoseconds.
const REPEAT_NS: u64 = 10_000_000;

#[derive(Debug)]
pub(super) struct Enrolment {
    /// Identifies this start.
    nonce: u64,
    /// The incarnation that it asks for.
    wanted: u32,
    /// Generations of the storage servers that have granted it, by minion.
    granted: BTreeMap<u8, u16>,
    is_done: bool,
    again_at: u64,
}

impl Enrolment {
    pub fn new(nonce: u64, wanted: u32) -> Enrolment {
        Enrolment {
            nonce,
            wanted,
            granted: BTreeMap::new(),
            is_done: false,
            again_at: 0,
        }
    }

    /// Returns the incarnation, once it is granted.
    pub fn incarnation(&self) -> Option<u32> {
        self.is_done.then_some(self.wanted)
    }

    pub fn due(&self) -> u64 {
        match self.is_done {
            true => u64::MAX,
            false => self.again_at,
        }
    }

    /// Discards what storage servers granted before they lost their memory.
    pub fn retain(&mut self, known: &Generations) {
        self.granted
            .retain(|minion, generation| *generation == known.of(*minion));
    }
}

impl Learner {
    /// Returns the incarnation of this start, once storage servers have granted it. Until then it recovers, reads and
    /// reports nothing.
    pub fn incarnation(&self) -> Option<u32> {
        self.enrolment.incarnation()
    }

    pub(super) fn enrol(&mut self, now: u64, out: &mut Out) {
        if now < self.enrolment.due() {
            return;
        }
        self.enrolment.again_at = now + REPEAT_NS;
        let enrol = Control::Enrol {
            incarnation: self.enrolment.wanted,
            nonce: self.enrolment.nonce,
        };
        self.send(To::Storages, &enrol, out);
    }

    /// Handles a storage server's answer: the highest incarnation that it has granted, and to which start.
    pub(super) fn on_enrolled(
        &mut self,
        now: u64,
        minion: u8,
        generation: u16,
        (incarnation, nonce): (u32, u64),
        out: &mut Out,
    ) {
        if generation != self.known.of(minion) {
            return;
        }
        let enrolment = &mut self.enrolment;
        if (incarnation, nonce) == (enrolment.wanted, enrolment.nonce) {
            enrolment.granted.insert(minion, generation);
            enrolment.is_done |= enrolment.granted.len() >= self.config.sizes.quorum();
        } else if incarnation > enrolment.wanted
            || incarnation == enrolment.wanted && !enrolment.is_done
        {
            // If it is done: what an earlier start had asked for came late, and reports of this one are ignored there.
            enrolment.is_done = false;
            enrolment.wanted = incarnation.saturating_add(1);
            enrolment.granted.clear();
            enrolment.again_at = now;
            self.enrol(now, out);
        }
    }
}
