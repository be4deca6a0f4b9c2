//! A snapshot of a store, written in parts.

use std::collections::VecDeque;

use inband_raft::Frozen;
use serde::{Deserialize, Serialize};

use super::keys::Drain;
use super::{Session, Store};

/// Approximate overhead of a client's record.
const RECORD_EXTRA_BYTES: usize = 16;
/// Memory reserved for the pairs of a part.
const PAIRS_RESERVED_BYTES: usize = 2 << 20;

/// A part of a snapshot.
#[derive(Serialize, Deserialize)]
pub(super) enum Part<'a> {
    Head {
        session: Session,
        changes: u64,
        missing: Vec<(u64, Vec<u64>)>,
    },
    Clients(#[serde(borrow)] Vec<(u64, Bytes<'a>)>),
    /// Key and data pairs, concatenated.
    Keys(#[serde(borrow)] Bytes<'a>),
}

type Pair<'a> = (Bytes<'a>, Bytes<'a>);

/// Serialized in one piece: serde writes a slice element by element.
#[derive(Deserialize)]
pub(super) struct Bytes<'a>(#[serde(borrow)] pub &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

#[derive(Debug)]
pub struct FrozenStore {
    head: Option<Vec<u8>>,
    clients: VecDeque<(u64, Vec<u8>)>,
    keys: Drain,
}

fn encode(part: &Part<'_>) -> Vec<u8> {
    postcard::to_stdvec(part).expect("a state can always be written")
}

impl FrozenStore {
    /// Copies the sessions: there are few, and they are small.
    pub(super) fn of(store: &Store) -> FrozenStore {
        let missing = store.missing.iter();
        let head = Part::Head {
            session: store.session,
            changes: store.changes,
            missing: missing
                .map(|(client, seqs)| (*client, seqs.iter().copied().collect()))
                .collect(),
        };
        let clients = &store.clients;
        FrozenStore {
            head: Some(encode(&head)),
            clients: clients
                .ids()
                .filter_map(|id| Some((id, clients.encode_session(id)?)))
                .collect(),
            keys: Drain::new(store.keys.clone()),
        }
    }

    fn clients(&mut self, len_bytes: usize) -> Vec<u8> {
        let mut bytes = 0;
        let is_enough = |(_, record): &&(u64, Vec<u8>)| {
            let is_enough = bytes >= len_bytes;
            bytes += RECORD_EXTRA_BYTES + record.len();
            !is_enough
        };
        let count = self.clients.iter().take_while(is_enough).count();
        let records: Vec<_> = self.clients.drain(..count).collect();
        let records = records.iter().map(|(id, record)| (*id, Bytes(record)));
        encode(&Part::Clients(records.collect()))
    }

    fn keys(&mut self, len_bytes: usize) -> Option<Vec<u8>> {
        let mut pairs = Vec::with_capacity(len_bytes.min(PAIRS_RESERVED_BYTES));
        self.keys.take(|key, data| {
            let buffer = std::mem::take(&mut pairs);
            let pair: Pair<'_> = (Bytes(key), Bytes(data));
            pairs = postcard::to_extend(&pair, buffer).expect("a pair can always be written");
            pairs.len() < len_bytes
        });
        (!pairs.is_empty()).then(|| encode(&Part::Keys(Bytes(&pairs))))
    }
}

impl Store {
    /// Adds a part. Returns false if the part is damaged.
    pub(super) fn add(&mut self, part: Part<'_>) -> bool {
        match part {
            Part::Head {
                session,
                changes,
                missing,
            } => {
                (self.session, self.changes) = (session, changes);
                let missing = missing.into_iter();
                let missing = missing.map(|(client, seqs)| (client, seqs.into_iter().collect()));
                self.missing = missing.collect();
                true
            }
            Part::Clients(records) => records
                .iter()
                .all(|(id, record)| self.clients.decode_session(*id, record.0)),
            Part::Keys(Bytes(mut pairs)) => {
                while !pairs.is_empty() {
                    let Ok(((key, data), rest)) = postcard::take_from_bytes::<Pair<'_>>(pairs)
                    else {
                        return false;
                    };
                    self.keys.insert(key.0, data.0);
                    pairs = rest;
                }
                true
            }
        }
    }
}

impl Frozen for FrozenStore {
    fn next_part(&mut self, len_bytes: usize) -> Option<Vec<u8>> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        if !self.clients.is_empty() {
            return Some(self.clients(len_bytes));
        }
        self.keys(len_bytes)
    }
}
