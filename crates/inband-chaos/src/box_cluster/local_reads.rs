//! What is known of local reads: they may be stale, but each is of the state after some prefix of the log, and one
//! connection never sees an older state than before. cas uniques count the writes in the log's order.
//!
//! Deletes have no cas unique. Where they are in the order is concluded from when they were called and had returned.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{ensure, Result};

use super::connection::Found;

/// When an operation was called and had returned.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub call_ns: u64,
    pub return_ns: u64,
}

/// All values that clients have read, what they have written and deleted, and the local reads of each connection.
#[derive(Debug, Default)]
pub struct LocalReads(Mutex<State>);

/// A write that some read saw.
#[derive(Debug)]
struct Write {
    key: String,
    value: String,
    /// When a linearizable read was called that saw it, the last time; 0: never.
    asked_ns: u64,
    /// When a read of any kind that saw it had returned, the first time.
    seen_ns: u64,
}

#[derive(Debug)]
struct LocalRead {
    key: String,
    unique: Option<u64>,
    return_ns: u64,
}

#[derive(Debug, Default)]
struct State {
    /// By cas unique.
    writes: BTreeMap<u64, Write>,
    /// cas uniques of each key.
    uniques: BTreeMap<String, BTreeSet<u64>>,
    /// When each value, which is stored or appended only once, was sent.
    called_ns: BTreeMap<String, u64>,
    /// Deletes of each key that had an effect, or may have one.
    deletes: BTreeMap<String, Vec<Times>>,
    /// Local reads of each connection, in its order.
    connections: Vec<Vec<LocalRead>>,
    /// Two reads of one write that saw different things.
    differ: Option<String>,
}

/// What a check has found in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub reads: usize,
    /// Those of keys that had no value.
    pub missed: usize,
}

impl LocalReads {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a new connection to a port of local reads.
    pub fn connection(&self) -> usize {
        let mut state = self.lock();
        state.connections.push(Vec::new());
        state.connections.len() - 1
    }

    /// Records what a linearizable read found.
    pub fn read(&self, key: &str, found: &Found, times: Times) {
        self.lock().saw(key, found, times, times.call_ns);
    }

    /// Records what a local read found.
    pub fn read_local(&self, connection: usize, key: &str, found: &Found, times: Times) {
        let mut state = self.lock();
        state.saw(key, found, times, 0);
        state.connections[connection].push(LocalRead {
            key: key.to_owned(),
            unique: found.as_ref().map(|(_, unique)| *unique),
            return_ns: times.return_ns,
        });
    }

    /// Records when a value was sent to be stored or appended, whether that succeeded or not.
    pub fn called(&self, value: &str, call_ns: u64) {
        self.lock().called_ns.insert(value.to_owned(), call_ns);
    }

    /// Records a delete that had an effect, or may have one at any time (`return_ns` is then the greatest number).
    pub fn deleted(&self, key: &str, times: Times) {
        let mut state = self.lock();
        state.deletes.entry(key.to_owned()).or_default().push(times);
    }

    /// Returns how many local reads fit a prefix of the log.
    ///
    /// # Errors
    /// If a connection saw an older state than before, if it missed a value that nothing can have deleted, or if two reads
    /// of one write saw different things.
    pub fn check(&self) -> Result<Checked> {
        let state = self.lock();
        ensure!(state.differ.is_none(), "{}", state.differ.as_ref().unwrap());
        let latest_calls = state.latest_calls();
        let mut checked = Checked::default();
        for reads in &state.connections {
            state.check_connection(reads, &latest_calls)?;
            checked.reads += reads.len();
            checked.missed += reads.iter().filter(|read| read.unique.is_none()).count();
        }
        Ok(checked)
    }
}

impl State {
    fn saw(&mut self, key: &str, found: &Found, times: Times, asked_ns: u64) {
        let Some((value, unique)) = found else { return };
        let write = self.writes.entry(*unique).or_insert_with(|| Write {
            key: key.to_owned(),
            value: value.clone(),
            asked_ns,
            seen_ns: times.return_ns,
        });
        if (&write.key[..], &write.value) != (key, value) {
            let differ = format!(
                "cas unique {unique} is of {} {:?} and of {key} {value:?}",
                write.key, write.value
            );
            self.differ.get_or_insert(differ);
            return;
        }
        write.asked_ns = write.asked_ns.max(asked_ns);
        write.seen_ns = write.seen_ns.min(times.return_ns);
        let uniques = self.uniques.entry(key.to_owned()).or_default();
        uniques.insert(*unique);
    }

    /// When the value of a write was sent; 0: unknown, as for the sums of `incr`.
    fn call_of(&self, write: &Write) -> u64 {
        let last = write.value.rsplit(',').next().unwrap_or_default();
        self.called_ns.get(last).copied().unwrap_or_default()
    }

    /// For each cas unique, when the last one of the writes up to it was called.
    fn latest_calls(&self) -> BTreeMap<u64, u64> {
        let mut latest = 0;
        let calls = self.writes.iter().map(|(unique, write)| {
            latest = latest.max(self.call_of(write));
            (*unique, latest)
        });
        calls.collect()
    }

    fn deletes_of(&self, key: &str) -> impl Iterator<Item = &Times> {
        self.deletes.get(key).into_iter().flatten()
    }

    fn check_connection(
        &self,
        reads: &[LocalRead],
        latest_calls: &BTreeMap<u64, u64>,
    ) -> Result<()> {
        // Every write up to this one is part of the state.
        let mut newest = 0;
        // What `newest` was when a key was missed last.
        let mut missed = BTreeMap::new();
        for read in reads {
            let key = &read.key;
            let Some(unique) = read.unique else {
                self.check_miss(read, newest)?;
                missed.insert(key, newest);
                continue;
            };
            let gone_at = missed.get(key).copied().unwrap_or_default();
            ensure!(
                unique > gone_at,
                "a local read of {key} saw cas unique {unique}, on a connection that had seen {gone_at} and then no value of it"
            );
            if newest > unique {
                let passed_over = (Excluded(unique), Included(newest));
                let passed_over = self.uniques[key].range(passed_over).next();
                ensure!(
                    passed_over.is_none(),
                    "a local read of {key} saw cas unique {unique} and not {}, on a connection that had seen {newest}",
                    passed_over.unwrap_or(&0)
                );
                let write = &self.writes[&unique];
                let called_ns = latest_calls[&newest];
                let is_between = |delete: &&Times| {
                    delete.call_ns > write.seen_ns && delete.return_ns < called_ns
                };
                let delete = self.deletes_of(key).find(is_between);
                ensure!(
                    delete.is_none(),
                    "a local read of {key} saw cas unique {unique}, which had been deleted by {delete:?}, on a connection that had seen {newest}, which was written after that"
                );
            }
            newest = newest.max(unique);
        }
        Ok(())
    }

    /// The state, which has every write up to `newest`, had no value of the key.
    fn check_miss(&self, read: &LocalRead, newest: u64) -> Result<()> {
        let uniques = self.uniques.get(&read.key);
        let Some(unique) = uniques.and_then(|all| all.range(..=newest).next_back()) else {
            return Ok(());
        };
        let write = &self.writes[unique];
        let known_ns = write.asked_ns.max(self.call_of(write));
        let may_have_deleted =
            |delete: &Times| delete.return_ns >= known_ns && delete.call_ns < read.return_ns;
        ensure!(
            self.deletes_of(&read.key).any(may_have_deleted),
            "a local read of {} saw no value, on a connection that had seen {newest}: it had one with cas unique {unique}, and nothing can have deleted that",
            read.key
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str, unique: u64) -> Found {
        Some((value.to_owned(), unique))
    }

    /// An operation that begins at this time and takes one unit.
    fn at(call_ns: u64) -> Times {
        Times {
            call_ns,
            return_ns: call_ns + 1,
        }
    }

    fn error_of(reads: &LocalReads) -> String {
        reads.check().unwrap_err().to_string()
    }

    #[test]
    fn a_connection_never_sees_an_older_state_than_before() {
        let reads = LocalReads::default();
        let (one, other) = (reads.connection(), reads.connection());
        reads.read_local(one, "a", &of("1", 1), at(0));
        reads.read_local(one, "b", &of("2", 2), at(0));
        // `a` has not been written since.
        reads.read_local(one, "a", &of("1", 1), at(0));
        reads.read("a", &of("3", 3), at(0));
        // Another connection may still be behind.
        reads.read_local(other, "a", &of("1", 1), at(0));
        assert_eq!(reads.check().unwrap().reads, 4);
        reads.read_local(other, "b", &of("4", 4), at(0));
        assert_eq!(reads.check().unwrap().reads, 5);
        reads.read_local(other, "a", &of("1", 1), at(0));
        let error = error_of(&reads);
        assert!(error.contains("cas unique 1 and not 3"), "{error}");
    }

    #[test]
    fn a_write_has_one_key_and_one_value() {
        for (key, value) in [("a", "2"), ("b", "1")] {
            let reads = LocalReads::default();
            reads.read("a", &of("1", 1), at(0));
            assert!(reads.check().is_ok());
            let connection = reads.connection();
            reads.read_local(connection, key, &of(value, 1), at(0));
            assert!(error_of(&reads).contains("cas unique 1 is of a"));
        }
    }

    /// A connection that has seen the second write misses the first one, at time 50. `delete`: of its key.
    fn missed(delete: Option<Times>, prepare: impl Fn(&LocalReads)) -> LocalReads {
        let reads = LocalReads::default();
        let connection = reads.connection();
        prepare(&reads);
        if let Some(times) = delete {
            reads.deleted("a", times);
        }
        reads.read_local(connection, "a", &None, at(5));
        reads.read_local(connection, "b", &of("2", 2), at(40));
        reads.read_local(connection, "a", &None, at(50));
        reads
    }

    #[test]
    fn a_value_is_missed_only_if_it_may_have_been_deleted() {
        let seen_at = |call_ns| move |reads: &LocalReads| reads.read("a", &of("1", 1), at(call_ns));
        let checked = missed(Some(at(20)), seen_at(10)).check().unwrap();
        assert_eq!((checked.reads, checked.missed), (3, 2));
        let unknown = Times {
            call_ns: 1,
            return_ns: u64::MAX,
        };
        assert!(missed(Some(unknown), seen_at(30)).check().is_ok());
        // The order of two operations at the same time is not known.
        assert!(missed(Some(at(10)), seen_at(10)).check().is_ok());
        for (delete, seen_ns) in [(None, 10), (Some(at(20)), 30), (Some(at(60)), 10)] {
            let error = error_of(&missed(delete, seen_at(seen_ns)));
            assert!(error.contains("nothing can have deleted"), "{error}");
        }
        // Local reads that saw it do not tell that it was there when they were called, but its write does.
        let stale = |reads: &LocalReads| {
            let other = reads.connection();
            reads.read_local(other, "a", &of("0,1", 1), at(30));
        };
        assert!(missed(Some(at(20)), stale).check().is_ok());
        let written = |reads: &LocalReads| {
            stale(reads);
            reads.called("1", 25);
        };
        assert!(missed(Some(at(20)), written).check().is_err());
    }

    #[test]
    fn a_value_may_be_missed_by_a_connection_that_is_behind() {
        let reads = LocalReads::default();
        let connection = reads.connection();
        reads.read("a", &of("2", 2), at(0));
        reads.read_local(connection, "b", &of("1", 1), at(10));
        reads.read_local(connection, "a", &None, at(20));
        reads.read_local(connection, "a", &of("2", 2), at(30));
        assert!(reads.check().is_ok());
    }

    #[test]
    fn a_deleted_value_does_not_come_back() {
        // b is written at time 30; the delete of a ends before that, or does not.
        for (delete, is_certain) in [(at(20), true), (at(30), false), (at(1), false)] {
            let reads = LocalReads::default();
            let connection = reads.connection();
            reads.read_local(connection, "a", &of("1", 1), at(10));
            reads.deleted("a", delete);
            reads.called("2", 30);
            reads.read("b", &of("2", 2), at(35));
            reads.read_local(connection, "c", &of("3", 3), at(40));
            reads.read_local(connection, "a", &of("1", 1), at(50));
            assert_eq!(reads.check().is_err(), is_certain, "{delete:?}");
        }
    }

    #[test]
    fn a_value_that_was_missed_does_not_come_back() {
        let reads = LocalReads::default();
        let connection = reads.connection();
        reads.read("a", &of("1", 1), at(0));
        reads.deleted("a", at(10));
        reads.read_local(connection, "b", &of("2", 2), at(20));
        reads.read_local(connection, "a", &None, at(30));
        assert!(reads.check().is_ok());
        reads.read_local(connection, "a", &of("1", 1), at(40));
        let error = error_of(&reads);
        assert!(error.contains("then no value"), "{error}");
    }
}
