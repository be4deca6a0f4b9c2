//! How a worker is known to its scheduler. It says again and again what it is, since either may be forgotten.

use crate::dataplane::wire::EXECUTORS;

use super::Pull;
use crate::timing::{Nanos, DRAIN_MIN_NS, REGISTER_NS};

/// As the scheduler knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// The scheduler's incarnation.
    pub scheduler: u64,
    /// The worker's number,
    pub worker: u16,
    /// and the number's turn.
    pub incarnation: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Membership {
    executors: u8,
    known: Option<Known>,
    lease_ns: Nanos,
    /// The scheduler does not know it so any more.
    is_forgotten: bool,
    register_at: Nanos,
    drains_since: Option<Nanos>,
}

impl Membership {
    /// Of a worker with so many executors that is not known yet.
    pub fn new(now: Nanos, executors: u8) -> Membership {
        Membership {
            executors,
            known: None,
            lease_ns: 0,
            is_forgotten: false,
            register_at: now,
            drains_since: None,
        }
    }

    pub fn is_registered(&self) -> bool {
        self.known.is_some() && !self.is_forgotten
    }

    /// It takes no more tasks.
    pub fn drains(&self) -> bool {
        self.drains_since.is_some()
    }

    /// When [`Membership::tick`] has something to do.
    pub fn due(&self) -> Nanos {
        self.register_at
    }

    /// Time has passed. True: the scheduler is to be told.
    pub fn tick(&mut self, now: Nanos) -> bool {
        if now < self.register_at {
            return false;
        }
        let again_ns = match self.is_registered() && !self.drains() {
            true => self.again_ns(),
            false => REGISTER_NS,
        };
        self.register_at = now + again_ns;
        true
    }

    /// Several of them may be lost before the lease ends.
    fn again_ns(&self) -> Nanos {
        self.lease_ns / 5
    }

    /// The scheduler knows it. True: in another way than before.
    pub fn on_registered(&mut self, now: Nanos, known: Known, lease_ns: Nanos) -> bool {
        self.lease_ns = lease_ns;
        self.is_forgotten = false;
        // The lease may end before it would have asked once more.
        self.register_at = self.register_at.min(now + self.again_ns());
        self.known.replace(known) != Some(known)
    }

    /// The scheduler says that it does not know this executor of this turn.
    pub fn on_not_registered(&mut self, now: Nanos, executor: u32, incarnation: u32) {
        let is_known_so = self.known.is_some_and(|k| k.incarnation == incarnation);
        let is_late = !is_known_so || self.number_of(executor).is_none();
        // It says so once for each executor.
        if !is_late && !self.drains() && !self.is_forgotten {
            self.is_forgotten = true;
            self.register_at = now;
        }
    }

    /// Leave the scheduler.
    pub fn drain(&mut self, now: Nanos) {
        self.drains_since.get_or_insert(now);
        self.register_at = now;
    }

    /// Has the scheduler been told for long enough, and was there time for what it had given before?
    pub fn has_left(&self, now: Nanos) -> bool {
        self.drains_since
            .is_some_and(|since| now >= since + DRAIN_MIN_NS)
    }

    /// Which of the worker's executors this is.
    pub fn number_of(&self, executor: u32) -> Option<usize> {
        let known = self.known?;
        let number = executor.checked_sub(u32::from(known.worker) * EXECUTORS)?;
        (number < u32::from(self.executors)).then_some(number as usize)
    }

    /// What an executor says that wants a task; `None`: it may not have one.
    pub fn pull(&self, number: usize, pull_seq: u64) -> Option<Pull> {
        let known = self.known.filter(|_| !self.drains())?;
        Some(Pull {
            scheduler: known.scheduler,
            executor: u32::from(known.worker) * EXECUTORS + number as u32,
            worker_incarnation: known.incarnation,
            pull_seq,
        })
    }
}
