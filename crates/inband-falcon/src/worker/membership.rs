//! A worker's registration with its scheduler. The worker repeats it periodically, because either side may restart.

use crate::dataplane::wire::EXECUTORS;

use super::Pull;
use crate::timing::{Nanos, DRAIN_MIN_NS, REGISTER_NS};

/// The current registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// The scheduler's incarnation.
    pub scheduler: u64,
    /// The worker's number.
    pub worker: u16,
    /// Distinguishes successive registrations of this number.
    pub incarnation: u32,
}

#[derive(Debug)]
pub(super) struct Membership {
    executors: u8,
    known: Option<Known>,
    lease_ns: Nanos,
    /// The scheduler no longer knows this registration.
    is_forgotten: bool,
    register_at: Nanos,
    drains_since: Option<Nanos>,
}

impl Membership {
    /// A worker that is not yet registered.
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

    /// Returns whether it takes no more tasks.
    pub fn drains(&self) -> bool {
        self.drains_since.is_some()
    }

    /// Returns when to call [`Membership::tick`] next.
    pub fn due(&self) -> Nanos {
        self.register_at
    }

    /// Handles the timer. Returns true if a registration is to be sent.
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

    /// Several registrations may be lost before the lease ends.
    fn again_ns(&self) -> Nanos {
        self.lease_ns / 5
    }

    /// The scheduler has registered the worker. Returns true if the registration has changed.
    pub fn on_registered(&mut self, now: Nanos, known: Known, lease_ns: Nanos) -> bool {
        self.lease_ns = lease_ns;
        self.is_forgotten = false;
        // The lease may end before the next registration would have been sent.
        self.register_at = self.register_at.min(now + self.again_ns());
        self.known.replace(known) != Some(known)
    }

    /// The scheduler does not know this executor with this incarnation.
    pub fn on_not_registered(&mut self, now: Nanos, executor: u32, incarnation: u32) {
        let is_known_so = self.known.is_some_and(|k| k.incarnation == incarnation);
        let is_late = !is_known_so || self.number_of(executor).is_none();
        // The scheduler reports it once for each executor.
        if !is_late && !self.drains() && !self.is_forgotten {
            self.is_forgotten = true;
            self.register_at = now;
        }
    }

    /// Leaves the scheduler.
    pub fn drain(&mut self, now: Nanos) {
        self.drains_since.get_or_insert(now);
        self.register_at = now;
    }

    /// Returns whether the scheduler has been told for long enough, with time for tasks that it had given before to
    /// arrive.
    pub fn has_left(&self, now: Nanos) -> bool {
        self.drains_since
            .is_some_and(|since| now >= since + DRAIN_MIN_NS)
    }

    /// Returns the index of one of the worker's executors, given its number at the scheduler.
    pub fn number_of(&self, executor: u32) -> Option<usize> {
        let known = self.known?;
        let number = executor.checked_sub(u32::from(known.worker) * EXECUTORS)?;
        (number < u32::from(self.executors)).then_some(number as usize)
    }

    /// Returns the PULL of an executor that wants a task; `None` if it may not have one.
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
