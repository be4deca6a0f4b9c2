//! The queue of one minion: the requests it has numbered, and the numbers its storage has confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::request::Request;

/// How far below the highest number entries are kept.
const KEPT: u64 = 1 << 14;

/// A storage's report of stored numbers ([`crate::control::Control::Stored`]).
#[derive(Debug, Clone, Copy)]
pub(super) struct Said {
    pub base: u64,
    pub generation: u16,
    pub first: u64,
    pub mask: u64,
}

/// The instance of a confirmed number, and the generation of the storage that confirmed it.
type Confirmed = (u64, u16);

#[derive(Debug, Default)]
pub(super) struct Queue {
    incarnation: u64,
    numbered: BTreeMap<u64, Arc<Request>>,
    /// Confirmed numbers whose request has not arrived.
    confirmed: BTreeMap<u64, Confirmed>,
    /// Numbers that are confirmed and counted, or of no use.
    done: BTreeMap<u64, u64>,
    /// The last report handled. Storages repeat what they have reported.
    said: Option<Said>,
}

impl Said {
    /// Returns its mask relative to the first number of a later report; 0 if the two cannot be compared.
    fn seen_from(&self, later: &Said) -> u64 {
        let shift = later.first.checked_sub(self.first);
        let is_alike = (self.base, self.generation) == (later.base, later.generation);
        let shift = shift.filter(|_| is_alike);
        shift.map_or(0, |shift| {
            u32::try_from(shift).map_or(0, |shift| self.mask.checked_shr(shift).unwrap_or(0))
        })
    }
}

impl Queue {
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Switches to a newer incarnation, whose numbers start over. Returns false for an older one, whose numbers mean
    /// nothing any more.
    pub fn enter(&mut self, incarnation: u64) -> bool {
        if incarnation > self.incarnation {
            *self = Queue {
                incarnation,
                ..Queue::default()
            };
        }
        incarnation == self.incarnation
    }

    /// Returns the bits of the mask that the last report did not have.
    pub fn fresh(&self, said: Said) -> u64 {
        let old = self.said.map_or(0, |last| last.seen_from(&said));
        said.mask & !old
    }

    /// Records that the whole report has been handled.
    pub fn handled(&mut self, mut said: Said) {
        if let Some(last) = self.said {
            if said.first < last.first {
                return;
            }
            said.mask |= last.seen_from(&said);
        }
        self.said = Some(said);
    }

    /// Stores the request that the minion gave this number. If the storage has confirmed the number already, returns
    /// the vote.
    pub fn put(&mut self, number: u64, request: Arc<Request>) -> Option<Confirmed> {
        if let Some(confirmed) = self.confirmed.remove(&number) {
            self.done.insert(number, confirmed.0);
            return Some(confirmed);
        }
        if !self.done.contains_key(&number) {
            self.numbered.entry(number).or_insert(request);
            self.trim();
        }
        None
    }

    /// Records that the storage has stored this number. If the request has arrived, returns it: the number is a vote
    /// for it.
    pub fn confirm(&mut self, number: u64, confirmed: Confirmed) -> Option<Arc<Request>> {
        if self.done.contains_key(&number) {
            return None;
        }
        let Some(request) = self.numbered.remove(&number) else {
            self.confirmed.insert(number, confirmed);
            self.trim();
            return None;
        };
        self.done.insert(number, confirmed.0);
        self.trim();
        Some(request)
    }

    /// Returns the number that is confirmed for this instance, but whose request has not arrived.
    pub fn unknown_of(&self, instance: u64) -> Option<u64> {
        let mut found = self.confirmed.iter();
        found
            .find(|(_, (at, _))| *at == instance)
            .map(|(number, _)| *number)
    }

    /// Returns how many requests are not confirmed, and how many confirmed numbers have no request.
    pub fn lengths(&self) -> (usize, usize) {
        (self.numbered.len(), self.confirmed.len())
    }

    fn trim(&mut self) {
        let last = |number: Option<(&u64, _)>| number.map_or(0, |(number, _)| *number);
        let top = last(self.numbered.last_key_value().map(|(n, _)| (n, ())))
            .max(last(self.confirmed.last_key_value().map(|(n, _)| (n, ()))))
            .max(last(self.done.last_key_value().map(|(n, _)| (n, ()))));
        let keep = top.saturating_sub(KEPT);
        while self
            .numbered
            .first_key_value()
            .is_some_and(|(n, _)| *n < keep)
        {
            self.numbered.pop_first();
        }
        while self
            .confirmed
            .first_key_value()
            .is_some_and(|(n, _)| *n < keep)
        {
            self.confirmed.pop_first();
        }
        while self.done.first_key_value().is_some_and(|(n, _)| *n < keep) {
            self.done.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_handled_is_not_fresh() {
        let said = |base, first, mask| Said {
            base,
            generation: 0,
            first,
            mask,
        };
        let mut queue = Queue::default();
        assert_eq!(queue.fresh(said(5, 1, 0b111)), 0b111);
        queue.handled(said(5, 1, 0b111));
        assert_eq!(queue.fresh(said(5, 1, 0b1111)), 0b1000);
        assert_eq!(queue.fresh(said(5, 3, 0b11)), 0b10);
        // Other instances, or too far away to compare.
        assert_eq!(queue.fresh(said(6, 3, 0b11)), 0b11);
        assert_eq!(queue.fresh(said(5, 70, 0b11)), 0b11);
        // A report that was overtaken says nothing about the numbers above it.
        queue.handled(said(5, 3, 0b11));
        queue.handled(said(5, 1, 0b1));
        assert_eq!(queue.fresh(said(5, 3, 0b111)), 0b100);
        // A new incarnation starts over.
        queue.enter(1);
        assert_eq!(queue.fresh(said(5, 3, 0b11)), 0b11);
    }
}
