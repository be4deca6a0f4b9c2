//! What is known of local reads: they may be stale, but each is of the state after some prefix of the log, and one
//! connection never sees an older state than before. cas uniques count the writes in the log's order.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{ensure, Result};

/// All values that clients have read, and the local reads of each connection.
#[derive(Debug, Default)]
pub struct LocalReads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Values of each key, by cas unique.
    values: BTreeMap<String, BTreeMap<u64, String>>,
    /// Keys and cas uniques in the order in which each connection has read them.
    connections: Vec<Vec<(String, u64)>>,
    /// Two reads of one write that saw different values.
    differ: Option<String>,
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

    /// Records what a read of any kind saw; `connection`: a local one.
    pub fn saw(&self, connection: Option<usize>, key: &str, (value, unique): &(String, u64)) {
        let mut state = self.lock();
        let of_key = state.values.entry(key.to_owned()).or_default();
        let known = of_key.entry(*unique).or_insert_with(|| value.clone());
        if known != value {
            let differ = format!("{key} with cas unique {unique} is {known:?} and {value:?}");
            state.differ.get_or_insert(differ);
        }
        if let Some(connection) = connection {
            state.connections[connection].push((key.to_owned(), *unique));
        }
    }

    /// Returns how many local reads found a value.
    ///
    /// # Errors
    /// If a connection saw an older state than before, or two reads of one write saw different values.
    pub fn check(&self) -> Result<usize> {
        let state = self.lock();
        ensure!(state.differ.is_none(), "{}", state.differ.as_ref().unwrap());
        for reads in &state.connections {
            let mut newest = 0;
            for (key, unique) in reads {
                if newest > *unique {
                    let missed = (Excluded(unique), Included(&newest));
                    let missed = state.values[key].range(missed).next();
                    ensure!(
                        missed.is_none(),
                        "a local read of {key} saw cas unique {unique} and not {}, on a connection that had seen {newest}",
                        missed.map_or(0, |(unique, _)| *unique)
                    );
                }
                newest = newest.max(*unique);
            }
        }
        Ok(state.connections.iter().map(Vec::len).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str, unique: u64) -> (String, u64) {
        (value.to_owned(), unique)
    }

    #[test]
    fn a_connection_never_sees_an_older_state_than_before() {
        let reads = LocalReads::default();
        let (one, other) = (reads.connection(), reads.connection());
        reads.saw(Some(one), "a", &of("1", 1));
        reads.saw(Some(one), "b", &of("2", 2));
        // `a` has not been written since.
        reads.saw(Some(one), "a", &of("1", 1));
        reads.saw(None, "a", &of("3", 3));
        // Another connection may still be behind.
        reads.saw(Some(other), "a", &of("1", 1));
        assert_eq!(reads.check().unwrap(), 4);
        reads.saw(Some(other), "b", &of("4", 4));
        assert_eq!(reads.check().unwrap(), 5);
        reads.saw(Some(other), "a", &of("1", 1));
        let error = reads.check().unwrap_err().to_string();
        assert!(error.contains("cas unique 1 and not 3"), "{error}");
    }

    #[test]
    fn a_write_has_one_value() {
        let reads = LocalReads::default();
        reads.saw(None, "a", &of("1", 1));
        assert!(reads.check().is_ok());
        let connection = reads.connection();
        reads.saw(Some(connection), "a", &of("2", 1));
        assert!(reads.check().is_err());
    }
}
