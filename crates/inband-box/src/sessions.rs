//! Which submitted records have been executed: each once, and those of each gateway in order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The current session of each node, and its last executed record. It is part of the replicated state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Sessions {
    by_origin: BTreeMap<u8, (u64, u64)>,
}

/// Length of an entry of [`Sessions::encode`].
const ENTRY_LEN_BYTES: usize = 17;

impl Sessions {
    /// Returns whether a record that is applied now must be executed. If not, it was executed before, or a record
    /// before it is missing.
    pub fn admit(&mut self, origin: u8, session: u64, seq: u64) -> bool {
        let (present, last) = self.by_origin.get(&origin).copied().unwrap_or((0, 0));
        // A node's sessions increase: a late packet of an old one must not reopen it.
        let is_next = match session == present {
            true => seq == last + 1,
            false => session > present && seq == 1,
        };
        if is_next {
            self.by_origin.insert(origin, (session, seq));
        }
        is_next
    }

    /// Returns the current session of a node and its last executed record.
    pub fn of(&self, origin: u8) -> Option<(u64, u64)> {
        self.by_origin.get(&origin).copied()
    }

    /// Encodes the sessions for a snapshot.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.by_origin.len() * ENTRY_LEN_BYTES);
        for (origin, (session, last)) in &self.by_origin {
            bytes.extend_from_slice(&[*origin]);
            bytes.extend_from_slice(&session.to_be_bytes());
            bytes.extend_from_slice(&last.to_be_bytes());
        }
        bytes
    }

    /// Decodes the sessions of a snapshot. Returns `None` if they are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Sessions> {
        let mut by_origin = BTreeMap::new();
        let entries = bytes.chunks_exact(ENTRY_LEN_BYTES);
        if !entries.remainder().is_empty() {
            return None;
        }
        for entry in entries {
            let origin = entry[0];
            let session = u64::from_be_bytes(entry[1..9].try_into().ok()?);
            let last = u64::from_be_bytes(entry[9..].try_into().ok()?);
            by_origin.insert(origin, (session, last));
        }
        Some(Sessions { by_origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_is_executed_once_and_in_order() {
        let mut sessions = Sessions::default();
        let admitted = [
            (1, 7, 2, false),
            (1, 7, 1, true),
            (1, 7, 1, false),
            (1, 7, 3, false),
            (1, 7, 2, true),
            (2, 7, 1, true),
            (1, 8, 1, true),
            // Late, from the previous session.
            (1, 7, 3, false),
            (1, 7, 1, false),
            (1, 8, 2, true),
        ];
        for (origin, session, seq, is_admitted) in admitted {
            let what = format!("{seq} of session {session} of {origin}");
            assert_eq!(sessions.admit(origin, session, seq), is_admitted, "{what}");
        }
        assert_eq!(sessions.of(1), Some((8, 2)));
        assert_eq!(Sessions::decode(&sessions.encode()), Some(sessions));
        assert_eq!(Sessions::decode(&[1]), None);
    }
}
