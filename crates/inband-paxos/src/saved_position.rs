//! The format of [`Library::save`](crate::library::Library::save); an application stores it with its state.
//!
//! ```text
//! last instance applied | per session: id | length of record | record ... | xxh3 of all before
//! ```
//!
//! Numbers are 64 bits, big-endian.

use xxhash_rust::xxh3::xxh3_64;

use crate::config::bounds;
use crate::session::SessionTable;

/// Bytes of a number.
const WORD_BYTES: usize = 8;

/// Why a saved position cannot be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The bytes differ from those that were saved.
    #[error("the saved position is damaged or cut short: its {0} bytes do not match their checksum; restore it from another copy, with the state that was saved with it")]
    Damaged(usize),
    /// The checksum is right, but the contents are invalid.
    #[error("the saved position is invalid at byte {0}, although its checksum is correct: another version of Inband made it; take a peer's state and position")]
    Malformed(usize),
    /// It is older than what has been delivered already.
    #[error("the saved position ends at instance {saved}, but {delivered} was delivered already")]
    TooOld {
        /// Last instance of the saved position.
        saved: u64,
        /// Last instance delivered here.
        delivered: u64,
    },
}

/// Encodes position and sessions.
pub fn encode(applied: u64, sessions: &SessionTable) -> Vec<u8> {
    let mut out = applied.to_be_bytes().to_vec();
    for id in sessions.ids() {
        if let Some(record) = sessions.encode_session(id) {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&(record.len() as u64).to_be_bytes());
            out.extend_from_slice(&record);
        }
    }
    let checksum = xxh3_64(&out);
    out.extend_from_slice(&checksum.to_be_bytes());
    out
}

/// Decodes the result of [`encode`].
pub fn decode(saved: &[u8]) -> Result<(u64, SessionTable), RestoreError> {
    let damaged = RestoreError::Damaged(saved.len());
    let (body, checksum) = saved.split_last_chunk::<WORD_BYTES>().ok_or(damaged)?;
    if u64::from_be_bytes(*checksum) != xxh3_64(body) {
        return Err(damaged);
    }
    decode_body(body)
}

fn decode_body(body: &[u8]) -> Result<(u64, SessionTable), RestoreError> {
    let word = |at: usize| {
        let rest = body.get(at..).and_then(<[u8]>::first_chunk);
        let bytes = rest.ok_or(RestoreError::Malformed(at))?;
        Ok(u64::from_be_bytes(*bytes))
    };
    let applied = word(0)?;
    if applied > *bounds::FIRST_INSTANCE.end() {
        return Err(RestoreError::Malformed(0));
    }
    let mut sessions = SessionTable::new();
    let mut at = WORD_BYTES;
    while at < body.len() {
        let (id, len_bytes) = (word(at)?, word(at + WORD_BYTES)? as usize);
        let start = at + 2 * WORD_BYTES;
        let end = start.checked_add(len_bytes);
        let end = end.ok_or(RestoreError::Malformed(at))?;
        let record = body.get(start..end);
        let record = record.ok_or(RestoreError::Malformed(start))?;
        if !sessions.decode_session(id, record) {
            return Err(RestoreError::Malformed(start));
        }
        at = end;
    }
    Ok((applied, sessions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Origin, ValueKind};

    fn sealed(body: &[u8]) -> Vec<u8> {
        [body, &xxh3_64(body).to_be_bytes()].concat()
    }

    fn sessions() -> SessionTable {
        let mut sessions = SessionTable::new();
        for (instance, kind) in [(5, ValueKind::OpenSession), (6, ValueKind::Command)] {
            let origin = Origin {
                client_id: 5,
                client_seq: 3,
                client_low: 2,
                kind,
            };
            sessions.admit(instance, &origin);
        }
        sessions
    }

    #[test]
    fn what_was_saved_is_restored() {
        let saved = encode(7, &sessions());
        assert_eq!(decode(&saved), Ok((7, sessions())));
    }

    /// Also in `bindings/c/tests/api.c`: what is on disks must stay readable.
    #[test]
    fn a_position_without_sessions_is_sixteen_bytes() {
        let saved = encode(99, &SessionTable::new());
        let checksum = [36, 183, 113, 194, 131, 186, 119, 91];
        assert_eq!(saved[..8], [0, 0, 0, 0, 0, 0, 0, 99]);
        assert_eq!(saved[8..], checksum);
    }

    #[test]
    fn damage_anywhere_is_refused() {
        let saved = encode(7, &sessions());
        for at in 0..saved.len() {
            for bit in 0..8 {
                let mut damaged = saved.clone();
                damaged[at] ^= 1 << bit;
                assert_eq!(
                    decode(&damaged),
                    Err(RestoreError::Damaged(saved.len())),
                    "bit {bit} of byte {at}"
                );
            }
            assert_eq!(decode(&saved[..at]), Err(RestoreError::Damaged(at)));
        }
        let longer = [&saved[..], &[0]].concat();
        assert_eq!(decode(&longer), Err(RestoreError::Damaged(longer.len())));
    }

    #[test]
    fn what_nobody_saves_is_refused_and_named_by_its_place() {
        let malformed = |body: &[u8]| match decode(&sealed(body)) {
            Err(RestoreError::Malformed(at)) => at,
            other => panic!("{other:?}"),
        };
        assert_eq!(malformed(&[1, 2]), 0);
        assert_eq!(malformed(&[255; 8]), 0, "no instance has this number");
        let session = |len_bytes: u64, record: &[u8]| {
            let words = [7, 5, len_bytes].map(u64::to_be_bytes).concat();
            [&words, record].concat()
        };
        assert_eq!(malformed(&session(0, &[])[..17]), 16, "half a word");
        assert_eq!(malformed(&session(u64::MAX, &[])), 8, "a length that lies");
        assert_eq!(malformed(&session(17, &[0; 16])), 24, "cut short");
        assert_eq!(malformed(&session(9, &[0; 9])), 24, "no record");
    }
}
