//! A minion's numbers, and the instances in which they are votes.

use std::sync::Arc;

use super::{Out, Record, Storage, GAPS_MAX, MASK_BITS};
use crate::control::{Control, To};
use crate::quorum::Vote;
use crate::request::{Identity, Request};

impl Storage {
    pub(super) fn enter(&mut self, incarnation: u64) -> bool {
        if incarnation <= self.incarnation {
            return false;
        }
        self.incarnation = incarnation;
        self.top = 0;
        self.numbers.clear();
        self.gaps.clear();
        self.by_request.clear();
        self.unsaid.clear();
        true
    }

    pub(super) fn store(&mut self, instance: u64, number: u64, request: Arc<Request>) {
        if number > 0 {
            self.numbers.insert(number, instance);
            self.by_request.insert(request.identity(), number);
        }
        self.slot(instance).vote = Vote::Fast(request);
    }

    /// Handles a request that the minion has numbered. It is a vote if its instance is open.
    pub fn on_numbered(&mut self, incarnation: u64, number: u64, request: Request, out: &mut Out) {
        if self.fencing.is_some() || number == 0 {
            return;
        }
        if incarnation < self.incarnation {
            self.counts.stale += 1;
            return;
        }
        if self.enter(incarnation) {
            let next = self.in_use.max(self.highest).max(self.floor) + 1;
            self.base = next.wrapping_sub(number);
            self.top = number - 1;
        }
        let Some(instance) = self.instance_of(number) else {
            return;
        };
        let request = Arc::new(request);
        out.records.push(Record::Fast {
            instance,
            incarnation,
            number,
            request: Arc::clone(&request),
        });
        self.counts.fast += 1;
        self.store(instance, number, request);
        self.unsaid.insert(number);
    }

    /// Reports newly stored numbers to the learners, 64 per packet.
    pub(super) fn say(&mut self, out: &mut Out) {
        while let Some(number) = self.unsaid.pop_last() {
            let Some(base) = self.base_of(number) else {
                continue;
            };
            self.say_stored(number, To::Learners, out);
            let first = number.saturating_sub(MASK_BITS - 1);
            let mut unsaid = std::mem::take(&mut self.unsaid);
            unsaid.retain(|other| *other < first || self.base_of(*other) != Some(base));
            self.unsaid = unsaid;
        }
    }

    /// Returns the offset from a stored number to its instance.
    fn base_of(&self, number: u64) -> Option<u64> {
        Some(self.numbers.get(&number)?.wrapping_sub(number))
    }

    /// Returns the instance in which a number that has just arrived is a vote, or `None` if it is not and never will
    /// be.
    fn instance_of(&mut self, number: u64) -> Option<u64> {
        if number <= self.top {
            let instance = self.gaps.remove(&number)?;
            if !self.is_open(instance) {
                self.counts.refused += 1;
                return None;
            }
            return Some(instance);
        }
        let mut instance = self.base.wrapping_add(number);
        if instance.wrapping_sub(self.voted) as i64 <= 0 {
            // Its numbers were ahead of the others', so they are skipped until the others catch up.
            self.top = number;
            self.counts.refused += 1;
            return None;
        }
        while !self.is_open(instance) {
            instance += 1;
        }
        if self.is_beyond(instance) {
            let next = self.in_use.max(self.voted).max(self.floor) + 1;
            // With this offset all later numbers would be beyond the window. All servers renumber, but only once
            // much of the window is free: while it stays full, each would start at a different number.
            let has_passed = number - self.top > self.config.window;
            let has_room = next <= self.floor + self.config.window / 2;
            if !has_passed || !has_room {
                self.counts.window_full += 1;
                return None;
            }
            instance = next;
            self.top = number - 1;
            self.counts.renumbered += 1;
        }
        for missing in (self.top + 1..number).rev().take(GAPS_MAX) {
            let at = instance - (number - missing).min(instance);
            self.gaps.insert(missing, at);
            self.counts.gaps += 1;
        }
        while self.gaps.len() > GAPS_MAX {
            self.gaps.pop_first();
        }
        self.base = instance.wrapping_sub(number);
        self.top = number;
        self.voted = instance;
        Some(instance)
    }

    /// Reports which numbers up to this one are stored, as far as they have the same offset to their instances.
    pub(super) fn say_stored(&self, number: u64, to: To, out: &mut Out) {
        let Some(base) = self.base_of(number) else {
            return;
        };
        let first = number.saturating_sub(MASK_BITS - 1).max(1);
        let mut mask = 0;
        for (stored, instance) in self.numbers.range(first..=number) {
            if instance.wrapping_sub(*stored) == base {
                mask |= 1 << (stored - first);
            }
        }
        self.send(
            to,
            &Control::Stored {
                incarnation: self.incarnation,
                base,
                first,
                mask,
                generations: self.generations,
            },
            out,
        );
    }

    pub(super) fn on_fetch(&mut self, from: u8, incarnation: u64, number: u64, out: &mut Out) {
        let instance = self.numbers.get(&number);
        if incarnation != self.incarnation {
            return;
        }
        let Some((instance, slot)) = instance.and_then(|i| Some((*i, self.slots.get(i)?))) else {
            return;
        };
        match &slot.vote {
            Vote::Fast(request) => {
                let request = Arc::clone(request);
                let number = Control::Number {
                    incarnation,
                    number,
                    request,
                };
                self.send(To::Node(from), &number, out);
            }
            Vote::Decided(value) => {
                let value = value.clone();
                self.send(To::Node(from), &Control::Decided { instance, value }, out);
            }
            Vote::None | Vote::Classic(..) => {}
        }
    }

    /// Handles the report that the others voted for this request elsewhere: from now on it votes with the offset that
    /// would have been right for this request. This is safe in any case, as it still votes only once per instance.
    pub(super) fn on_align(&mut self, instance: u64, request: Identity) {
        self.in_use = self.in_use.max(instance);
        let Some((number, voted)) = self
            .by_request
            .get(&request)
            .and_then(|number| Some((*number, *self.numbers.get(number)?)))
        else {
            return;
        };
        let base = instance.wrapping_sub(number);
        if voted.wrapping_sub(number) == self.base && base != self.base {
            self.base = base;
            self.counts.aligned += 1;
        }
    }
}
