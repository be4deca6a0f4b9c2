//! Exactly-once: which values of which session have been applied (protocol.md, 8).
//!
//! Pure, and part of the replicated state: every replica feeds it the same values in the same order and reaches the
//! same verdicts. A session is opened through the log and identified by the instance in which it was opened, so an
//! expired id can never be reused.

use std::collections::{BTreeMap, BTreeSet};

/// Most sessions kept; opening one more expires the longest-idle one.
pub const SESSIONS_MAX: usize = 4096;

/// Most applied sequences of a session above its low-water mark.
pub const SEQUENCES_ABOVE_LOW_MAX: usize = 4096;

/// The kind of a decided value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A command of the application.
    Command,
    /// Chosen to fill a hole; there is nothing to apply.
    Noop,
    /// Opens a session whose id is the instance in which this was decided.
    OpenSession,
}

/// The submitter of a value: the triple that makes delivery exactly-once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The session, or the opener's nonce if `kind` is [`ValueKind::OpenSession`].
    pub client_id: u64,
    /// Sequence number of the value in its session, from 1.
    pub client_seq: u64,
    /// All sequences below this have been answered and may be forgotten.
    pub client_low: u64,
    pub kind: ValueKind,
}

/// What to do with a decided value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// First occurrence: apply it.
    Apply,
    /// Applied before: do nothing.
    Duplicate,
    /// Session unknown or expired: never apply it.
    Refused,
    /// A session was opened under this id, or a hole was filled: nothing to apply.
    Nothing,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Session {
    /// All sequences below this have been answered.
    low: u64,
    /// Applied sequences at or above `low`.
    applied: BTreeSet<u64>,
    /// Instance of the last value seen; orders sessions for expiry.
    last_instance: u64,
}

/// The sessions of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionTable {
    sessions: BTreeMap<u64, Session>,
}

impl SessionTable {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the verdict on the value decided in `instance`; records it if it is to be applied.
    pub fn admit(&mut self, instance: u64, origin: &Origin) -> Verdict {
        match origin.kind {
            ValueKind::Noop => return Verdict::Nothing,
            ValueKind::OpenSession => {
                self.open(instance);
                return Verdict::Nothing;
            }
            ValueKind::Command => {}
        }
        let Some(session) = self.sessions.get_mut(&origin.client_id) else {
            return Verdict::Refused;
        };
        session.last_instance = instance;
        if origin.client_low > session.low {
            session.low = origin.client_low;
            session.applied = session.applied.split_off(&origin.client_low);
        }
        if origin.client_seq < session.low || session.applied.contains(&origin.client_seq) {
            return Verdict::Duplicate;
        }
        if session.applied.len() >= SEQUENCES_ABOVE_LOW_MAX {
            // The proposer's window is far smaller than this, so the client is faulty.
            return Verdict::Refused;
        }
        session.applied.insert(origin.client_seq);
        Verdict::Apply
    }

    fn open(&mut self, instance: u64) {
        if self.sessions.len() >= SESSIONS_MAX {
            let idle = self
                .sessions
                .iter()
                .min_by_key(|(_, s)| s.last_instance)
                .map(|(id, _)| *id);
            if let Some(idle) = idle {
                self.sessions.remove(&idle);
            }
        }
        let session = Session {
            low: 1,
            applied: BTreeSet::new(),
            last_instance: instance,
        };
        self.sessions.insert(instance, session);
    }

    /// Returns whether this session is open.
    pub fn is_open(&self, client_id: u64) -> bool {
        self.sessions.contains_key(&client_id)
    }

    /// Returns the number of open sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Returns the record of one session, to be stored by the application; `None` if it is not open.
    pub fn encode_session(&self, client_id: u64) -> Option<Vec<u8>> {
        let s = self.sessions.get(&client_id)?;
        let mut out = Vec::with_capacity(16 + 8 * s.applied.len());
        out.extend_from_slice(&s.low.to_be_bytes());
        out.extend_from_slice(&s.last_instance.to_be_bytes());
        for seq in &s.applied {
            out.extend_from_slice(&seq.to_be_bytes());
        }
        Some(out)
    }

    /// Load one session's record; `false` if the record is malformed.
    pub fn decode_session(&mut self, client_id: u64, record: &[u8]) -> bool {
        if record.len() < 16 || record.len() % 8 != 0 {
            return false;
        }
        let mut words = record.chunks_exact(8).map(|c| {
            let mut word = [0u8; 8];
            word.copy_from_slice(c);
            u64::from_be_bytes(word)
        });
        let (Some(low), Some(last_instance)) = (words.next(), words.next()) else {
            return false;
        };
        let session = Session {
            low,
            last_instance,
            applied: words.collect(),
        };
        self.sessions.insert(client_id, session);
        true
    }

    /// Returns the ids of all open sessions, ascending.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.sessions.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(client_id: u64, client_seq: u64, client_low: u64) -> Origin {
        Origin {
            client_id,
            client_seq,
            client_low,
            kind: ValueKind::Command,
        }
    }

    fn opened() -> SessionTable {
        let mut table = SessionTable::new();
        let open = Origin {
            client_id: 99,
            client_seq: 0,
            client_low: 0,
            kind: ValueKind::OpenSession,
        };
        assert_eq!(table.admit(7, &open), Verdict::Nothing);
        table
    }

    #[test]
    fn sequence_4_after_5_is_applied() {
        let mut table = opened();
        assert_eq!(table.admit(8, &command(7, 5, 1)), Verdict::Apply);
        assert_eq!(table.admit(9, &command(7, 4, 1)), Verdict::Apply);
        assert_eq!(table.admit(10, &command(7, 5, 1)), Verdict::Duplicate);
        assert_eq!(table.admit(11, &command(7, 6, 6)), Verdict::Apply);
        assert_eq!(table.admit(12, &command(7, 4, 1)), Verdict::Duplicate);
    }

    #[test]
    fn unknown_session_is_refused() {
        let mut table = opened();
        assert_eq!(table.admit(8, &command(99, 1, 1)), Verdict::Refused);
    }

    #[test]
    fn expired_session_never_applies_again() {
        let mut table = opened();
        assert_eq!(table.admit(8, &command(7, 1, 1)), Verdict::Apply);
        for i in 0..SESSIONS_MAX as u64 {
            table.admit(
                100 + i,
                &Origin {
                    client_id: 99,
                    client_seq: 0,
                    client_low: 0,
                    kind: ValueKind::OpenSession,
                },
            );
        }
        assert_eq!(table.admit(9000, &command(7, 1, 1)), Verdict::Refused);
    }

    #[test]
    fn record_round_trip() {
        let mut table = opened();
        table.admit(8, &command(7, 5, 2));
        let record = table.encode_session(7).unwrap();
        let mut copy = SessionTable::new();
        assert!(copy.decode_session(7, &record));
        assert_eq!(copy, table);
        assert!(!copy.decode_session(7, &record[..9]));
    }
}
