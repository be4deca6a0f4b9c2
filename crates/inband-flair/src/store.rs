//! The replicated state machine: keys, client sessions, and the last FLAIR session. It is in memory and deterministic:
//! replicas that apply the same entries have the same state.

mod frozen;
mod keys;

use std::collections::{BTreeMap, BTreeSet};

use inband_host::session::{Origin, ValueKind};
use inband_host::session::{SessionTable, Verdict};
use inband_raft::StateMachine;
use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Op};
use frozen::{FrozenStore, Part};
use keys::Keys;

/// The result of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// A FLAIR session has begun.
    Session,
    /// A client session was opened.
    Opened,
    /// The write was applied, now or before.
    Written,
    /// A delete was applied, now or before; the key did not exist.
    Missing,
    /// The client session is unknown: the write had no effect and never will.
    Refused,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Store {
    keys: Keys,
    clients: SessionTable,
    /// For each client, its deletes that found no key, so that a retransmission gets the same answer.
    missing: BTreeMap<u64, BTreeSet<u64>>,
    session: Session,
    changes: u64,
}

/// The last FLAIR session.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its id; 0 if there has been none.
    pub id: u64,
    /// The switch that it is bound to.
    pub switch: u8,
    /// The longest time that any session so far can stay active without a heartbeat.
    pub step_down_max_ns: u64,
}

impl Store {
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.keys.get(key)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.len() == 0
    }

    /// Returns the last FLAIR session.
    pub fn session(&self) -> Session {
        self.session
    }

    /// Puts and deletes applied, not counting duplicates.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn change(&mut self, index: u64, entry: &Entry<'_>) -> Done {
        let origin = |kind| Origin {
            client_id: entry.client_id,
            client_seq: entry.client_seq,
            client_low: entry.client_low,
            kind,
        };
        if entry.op == Op::Open {
            self.clients.admit(index, &origin(ValueKind::OpenSession));
            let clients = &self.clients;
            self.missing.retain(|client, _| clients.is_open(*client));
            return Done::Opened;
        }
        match self.clients.admit(index, &origin(ValueKind::Command)) {
            Verdict::Apply => {}
            Verdict::Duplicate | Verdict::Nothing => return self.done_before(entry),
            Verdict::Refused => return Done::Refused,
        }
        self.changes += 1;
        self.forget_answered(entry);
        match entry.op {
            Op::Put { key, data } => self.keys.insert(key, data),
            Op::Delete { key } if !self.keys.remove(key) => {
                let missing = self.missing.entry(entry.client_id).or_default();
                missing.insert(entry.client_seq);
                return Done::Missing;
            }
            Op::Delete { .. } | Op::Open | Op::Session { .. } => {}
        }
        Done::Written
    }

    /// Returns the result of a write that was applied before.
    fn done_before(&self, entry: &Entry<'_>) -> Done {
        let missing = self.missing.get(&entry.client_id);
        match missing.is_some_and(|missing| missing.contains(&entry.client_seq)) {
            true => Done::Missing,
            false => Done::Written,
        }
    }

    /// Forgets results that the client has received: it will not ask for them again.
    fn forget_answered(&mut self, entry: &Entry<'_>) {
        if let Some(missing) = self.missing.get_mut(&entry.client_id) {
            *missing = missing.split_off(&entry.client_low);
            if missing.is_empty() {
                self.missing.remove(&entry.client_id);
            }
        }
    }
}

impl StateMachine for Store {
    type Command<'a> = Entry<'a>;
    type Output = Done;
    type Frozen = FrozenStore;

    fn apply(&mut self, index: u64, command: &[u8]) -> Option<Done> {
        let entry: Entry<'_> = postcard::from_bytes(command).ok()?;
        if let Op::Session {
            switch,
            step_down_ns,
        } = entry.op
        {
            self.session = Session {
                id: index,
                switch,
                step_down_max_ns: self.session.step_down_max_ns.max(step_down_ns),
            };
            return Some(Done::Session);
        }
        Some(self.change(index, &entry))
    }

    fn freeze(&self) -> FrozenStore {
        FrozenStore::of(self)
    }

    fn restore_part(&mut self, part: &[u8]) -> bool {
        let part = postcard::from_bytes(part).ok();
        part.is_some_and(|part: Part<'_>| self.add(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inband_raft::Frozen;

    fn written(store: &Store, len_bytes: usize) -> Vec<Vec<u8>> {
        let mut frozen = store.freeze();
        std::iter::from_fn(|| frozen.next_part(len_bytes)).collect()
    }

    fn restored(parts: &[Vec<u8>]) -> Option<Store> {
        let mut store = Store::default();
        let is_whole = parts.iter().all(|part| store.restore_part(part));
        is_whole.then_some(store)
    }

    fn apply(store: &mut Store, index: u64, client: (u64, u64, u64), op: Op<'_>) -> Done {
        let (client_id, client_seq, client_low) = client;
        let entry = Entry {
            client_id,
            client_seq,
            client_low,
            op,
        };
        let written = postcard::to_stdvec(&entry).expect("it is written");
        store.apply(index, &written).expect("it is an entry")
    }

    #[test]
    fn a_write_is_applied_once_and_only_for_an_open_session() {
        let mut store = Store::default();
        let put = |data| Op::Put { key: b"k", data };
        assert_eq!(apply(&mut store, 5, (0, 7, 0), Op::Open), Done::Opened);
        assert_eq!(apply(&mut store, 6, (5, 1, 1), put(b"a")), Done::Written);
        assert_eq!(apply(&mut store, 7, (5, 2, 1), put(b"b")), Done::Written);
        assert_eq!(apply(&mut store, 8, (5, 1, 1), put(b"a")), Done::Written);
        assert_eq!(store.get(b"k"), Some(&b"b"[..]), "not applied again");
        assert_eq!(apply(&mut store, 9, (4, 1, 1), put(b"c")), Done::Refused);
        assert_eq!(store.changes(), 2);
        let delete = Op::Delete { key: b"k" };
        assert_eq!(apply(&mut store, 10, (5, 3, 3), delete), Done::Written);
        assert_eq!((store.get(b"k"), store.len()), (None, 0));
    }

    #[test]
    fn a_delete_that_is_asked_for_again_is_answered_the_same() {
        let mut store = Store::default();
        let delete = Op::Delete { key: b"k" };
        let put = Op::Put {
            key: b"k",
            data: b"a",
        };
        apply(&mut store, 5, (0, 7, 0), Op::Open);
        assert_eq!(apply(&mut store, 6, (5, 1, 1), delete), Done::Missing);
        assert_eq!(apply(&mut store, 7, (5, 2, 1), put), Done::Written);
        assert_eq!(apply(&mut store, 8, (5, 3, 1), delete), Done::Written);
        let mut store = restored(&written(&store, 1)).expect("it was written");
        assert_eq!(apply(&mut store, 9, (5, 1, 1), delete), Done::Missing);
        assert_eq!(apply(&mut store, 10, (5, 3, 1), delete), Done::Written);
        // Results that were received are dropped, and so are those of unknown clients.
        assert_eq!(store.missing[&5].len(), 1);
        apply(&mut store, 11, (5, 4, 4), put);
        assert!(store.missing.is_empty());
        apply(&mut store, 12, (5, 5, 4), Op::Delete { key: b"l" });
        for client in 0..inband_host::session::SESSIONS_MAX as u64 {
            apply(&mut store, 13 + client, (0, client, 0), Op::Open);
        }
        assert!(!store.clients.is_open(5) && store.missing.is_empty());
    }

    #[test]
    fn a_snapshot_is_the_whole_state() {
        let mut store = Store::default();
        let op = Op::Session {
            switch: 1,
            step_down_ns: 40,
        };
        apply(&mut store, 2, (0, 0, 0), op);
        apply(&mut store, 3, (0, 7, 0), Op::Open);
        for seq in 1..50u64 {
            let (key, data) = (seq.to_le_bytes(), vec![seq as u8; 900]);
            let op = Op::Put {
                key: &key,
                data: &data,
            };
            apply(&mut store, 3 + seq, (3, seq, 1), op);
        }
        assert_eq!(store.session().id, 2);
        for len_bytes in [1, 5_000, 1 << 20] {
            let mut parts = written(&store, len_bytes);
            assert_eq!(restored(&parts), Some(store.clone()));
            let longest = parts.iter().map(Vec::len).max();
            assert!(
                longest < Some(len_bytes + 1_000),
                "{longest:?} of {len_bytes}"
            );
            parts.last_mut().expect("there is one").pop();
            assert_eq!(restored(&parts), None);
        }
        assert!(store.apply(99, b"\xff\xff").is_none(), "no entry");
    }
}
