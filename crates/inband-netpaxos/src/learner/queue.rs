//! The queue of one minion: what it has numbered, and what its storage has confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::request::Request;

/// Numbers below the highest that are kept.
const KEPT: u64 = 1 << 14;

/// The instance of a confirmed number, and the generation of the storage that confirmed it.
type Confirmed = (u64, u16);

#[derive(Debug, Default)]
pub(super) struct Queue {
    incarnation: u64,
    numbered: BTreeMap<u64, Arc<Request>>,
    /// Confirmed, but the request has not come.
    confirmed: BTreeMap<u64, Confirmed>,
    /// Confirmed and counted, or of no use.
    done: BTreeMap<u64, u64>,
}

impl Queue {
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Something of this incarnation has come. False: it is an old one's, whose numbers mean nothing any more.
    pub fn enter(&mut self, incarnation: u64) -> bool {
        if incarnation > self.incarnation {
            *self = Queue {
                incarnation,
                ..Queue::default()
            };
        }
        incarnation == self.incarnation
    }

    /// The minion gave the request this number. If the storage has confirmed that already, it is a vote.
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

    /// The storage has stored this number. If the request has come, it is a vote for it.
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

    /// The number that is confirmed for this instance, and whose request has not come.
    pub fn unknown_of(&self, instance: u64) -> Option<u64> {
        let mut found = self.confirmed.iter();
        found
            .find(|(_, (at, _))| *at == instance)
            .map(|(number, _)| *number)
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
