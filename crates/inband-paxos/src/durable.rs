//! The state that a host must not lose: its incarnation, the epoch that its acceptor has entered, and which digest key its
//! votes on disk were made with.
//!
//! Files in the host's `state_dir` that contain one number each, and are replaced by rename after a sync.

use std::path::{Path, PathBuf};

use crate::dataplane::round::INCARNATION_MAX;
use inband_ground::auth::Digest;
use inband_host::state_dir::{self, StateError};

const INCARNATION_FILE: &str = "incarnation";
const ACCEPTOR_EPOCH_FILE: &str = "acceptor-epoch";
const DIGEST_FILE: &str = "digest-key";
/// Its digest says which key made it, and nothing about the key.
const DIGEST_OF: &[u8] = b"the digest key of an acceptor's votes";

/// Why a host's durable state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// The directory cannot be used.
    #[error("{}{}", .0, remedy(.0))]
    State(#[from] StateError),
    /// Every incarnation has been used.
    #[error("state file {path}: incarnation {value} is over the limit of {INCARNATION_MAX}; start this node under a new id")]
    IncarnationsUsedUp {
        path: PathBuf,
        /// The next incarnation.
        value: u64,
    },
    /// Nobody could read the votes, and new values would be voted for that nobody can read later.
    #[error("state directory {dir}: its votes were made with another digest key than the key file has now. Put the former key file \
         back; if it is lost, export the data (`inband export`) and import them into a new cluster")]
    OtherDigestKey { dir: PathBuf },
}

/// What to do about a state file that cannot be read: the end of the message.
fn remedy(error: &StateError) -> &'static str {
    match error {
        StateError::Damaged { .. } => {
            "; start this node under a new id with an empty state directory"
        }
        StateError::Io { .. } | StateError::InUse { .. } => "",
    }
}

impl DurableError {
    /// Returns whether the error will recur until the host or its configuration is changed.
    pub fn is_lasting(&self) -> bool {
        match self {
            DurableError::State(error) => error.is_lasting(),
            DurableError::IncarnationsUsedUp { .. } | DurableError::OtherDigestKey { .. } => true,
        }
    }
}

/// Returns a new incarnation: durable before it is returned, and never reused.
pub fn next_incarnation(state_dir: &Path) -> Result<u64, DurableError> {
    state_dir::create(state_dir)?;
    let path = state_dir.join(INCARNATION_FILE);
    let value = state_dir::read_number(&path)? + 1;
    if value > INCARNATION_MAX {
        return Err(DurableError::IncarnationsUsedUp { path, value });
    }
    state_dir::write_number(state_dir, INCARNATION_FILE, value)?;
    Ok(value)
}

/// Checks that votes on disk were made with this digest key, or records that they will be.
pub fn check_digest(state_dir: &Path, digest: &Digest) -> Result<(), DurableError> {
    // Never 0, which `read_number` returns if there is no file.
    let own = digest.of(DIGEST_OF) | 1;
    match state_dir::read_number(&state_dir.join(DIGEST_FILE))? {
        0 => Ok(state_dir::write_number(state_dir, DIGEST_FILE, own)?),
        recorded if recorded == own => Ok(()),
        _ => Err(DurableError::OtherDigestKey {
            dir: state_dir.to_owned(),
        }),
    }
}

/// Returns the latest epoch that the acceptor has entered without a control plane; 0: none.
pub fn entered_epoch(state_dir: &Path) -> Result<u32, DurableError> {
    let entered = state_dir::read_number(&state_dir.join(ACCEPTOR_EPOCH_FILE))?;
    Ok(u32::try_from(entered).unwrap_or(u32::MAX))
}

/// Whether the acceptor has entered this epoch or a later one before.
pub fn has_entered(state_dir: &Path, epoch: u32) -> Result<bool, DurableError> {
    let entered = state_dir::read_number(&state_dir.join(ACCEPTOR_EPOCH_FILE))?;
    Ok(entered >= u64::from(epoch))
}

/// Enters an epoch as an acceptor with empty memory. `false`: it entered this epoch or a later one before and may have
/// lost votes, so it must not vote (protocol.md, 5).
pub fn enter_epoch(state_dir: &Path, epoch: u32) -> Result<bool, DurableError> {
    state_dir::create(state_dir)?;
    if has_entered(state_dir, epoch)? {
        return Ok(false);
    }
    state_dir::write_number(state_dir, ACCEPTOR_EPOCH_FILE, u64::from(epoch))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("inband-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn an_incarnation_is_used_once() {
        let dir = dir("incarnation");
        assert_eq!(next_incarnation(&dir).unwrap(), 1);
        assert_eq!(next_incarnation(&dir).unwrap(), 2);
        fs::write(dir.join(INCARNATION_FILE), "x").unwrap();
        let damaged = next_incarnation(&dir).unwrap_err();
        assert!(matches!(
            damaged,
            DurableError::State(StateError::Damaged { .. })
        ));
        assert!(damaged.to_string().contains("under a new id"), "{damaged}");
        fs::write(dir.join(INCARNATION_FILE), INCARNATION_MAX.to_string()).unwrap();
        assert!(matches!(
            next_incarnation(&dir),
            Err(DurableError::IncarnationsUsedUp { .. })
        ));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_restarted_acceptor_does_not_vote_in_its_epoch() {
        let dir = dir("epoch");
        assert!(enter_epoch(&dir, 1).unwrap());
        assert!(!enter_epoch(&dir, 1).unwrap());
        assert!(enter_epoch(&dir, 2).unwrap());
        assert!(!enter_epoch(&dir, 1).unwrap());
        fs::remove_dir_all(dir).unwrap();
    }
}
