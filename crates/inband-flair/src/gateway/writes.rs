//! Writes in flight of all clients of the gateway, by key.

use std::collections::{BTreeMap, HashMap};

use crate::client::Ticket;
use crate::timing::{ClientTiming, Nanos};

#[derive(Debug)]
pub struct Writes {
    /// When each write was submitted.
    of_key: HashMap<Vec<u8>, BTreeMap<Ticket, Nanos>>,
    keys: HashMap<Ticket, Vec<u8>>,
    /// A write that has not ended after this time has been retransmitted.
    in_time_ns: Nanos,
}

impl Default for Writes {
    fn default() -> Writes {
        Writes {
            of_key: HashMap::new(),
            keys: HashMap::new(),
            in_time_ns: ClientTiming::default().retry_ns,
        }
    }
}

impl Writes {
    /// Notes that a write to this key was submitted.
    pub fn begun(&mut self, now: Nanos, ticket: Ticket, key: Vec<u8>) {
        let writes = self.of_key.entry(key.clone()).or_default();
        writes.insert(ticket, now);
        self.keys.insert(ticket, key);
    }

    /// Notes that an operation, read or write, has ended.
    pub fn ended(&mut self, ticket: Ticket) {
        let Some(key) = self.keys.remove(&ticket) else {
            return;
        };
        if let Some(writes) = self.of_key.get_mut(&key) {
            writes.remove(&ticket);
            if writes.is_empty() {
                self.of_key.remove(&key);
            }
        }
    }

    /// Returns whether further writes to this key must wait because an earlier one has been retransmitted.
    pub fn hold_back(&self, now: Nanos, key: &[u8]) -> bool {
        let oldest = self.of_key.get(key).and_then(BTreeMap::first_key_value);
        oldest.is_some_and(|(_, begun)| now >= begun + self.in_time_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_takes_long_holds_back_its_key_until_it_ends() {
        let mut writes = Writes::default();
        let ticket = |number| Ticket { set: 0, number };
        let late = writes.in_time_ns;
        writes.begun(0, ticket(1), b"a".into());
        assert!(!writes.hold_back(late - 1, b"a"), "it is in time");
        writes.begun(late - 1, ticket(2), b"a".into());
        assert!(writes.hold_back(late, b"a") && !writes.hold_back(late, b"b"));
        writes.ended(ticket(1));
        assert!(!writes.hold_back(late, b"a"), "the other one is in time");
        writes.ended(ticket(7));
        writes.ended(ticket(2));
        assert!(writes.keys.is_empty() && writes.of_key.is_empty());
    }
}
