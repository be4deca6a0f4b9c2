//! The few things a host must not forget: its incarnation and the epoch its acceptor has entered.
//!
//! Files of one number each, replaced by rename after a sync, in the host's `state_dir`.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use inband_dataplane::round::INCARNATION_MAX;
use nix::fcntl::{Flock, FlockArg};

const INCARNATION_FILE: &str = "incarnation";
const ACCEPTOR_EPOCH_FILE: &str = "acceptor-epoch";
const LOCK_FILE: &str = "lock";
/// No secret: what the umask leaves of it.
const FILE_MODE: u32 = 0o666;

/// Why a host's durable state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// Reading or writing failed.
    #[error(
        "state directory: {path}: {source}; check host.state_dir, its permissions and free space"
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file does not hold a number.
    #[error("state file {path} holds {found:?}, not a number; it is damaged: start this node under a new id with an empty state directory")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Its content.
        found: String,
    },
    /// Another process has it.
    #[error("state directory {dir} is in use by process {owner}; stop that host, or give this one a host.state_dir of its own")]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The process, as it wrote its id.
        owner: String,
    },
    /// Every incarnation has been used.
    #[error("state file {path}: incarnation {value} is over the limit of {INCARNATION_MAX}; start this node under a new id")]
    IncarnationsUsedUp {
        /// The file.
        path: PathBuf,
        /// The next one.
        value: u64,
    },
}

impl DurableError {
    /// Will it be the same the next time, unless somebody changes this host or its configuration?
    pub fn is_lasting(&self) -> bool {
        match self {
            DurableError::Io { .. } | DurableError::InUse { .. } => false,
            DurableError::Damaged { .. } | DurableError::IncarnationsUsedUp { .. } => true,
        }
    }
}

fn read_number(path: &Path) -> Result<u64, DurableError> {
    match fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map_err(|_| DurableError::Damaged {
            path: path.to_owned(),
            found: text.trim().chars().take(40).collect(),
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(DurableError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

fn write_number(dir: &Path, name: &str, value: u64) -> Result<(), DurableError> {
    let path = dir.join(name);
    inband_storage::replace(&path, format!("{value}\n").as_bytes(), FILE_MODE)
        .map_err(|source| DurableError::Io { path, source })
}

fn make_dir(dir: &Path) -> Result<(), DurableError> {
    let make = || -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(dir)?;
        // A directory survives a power cut when the one that it is in is synced.
        for parent in dir.canonicalize()?.ancestors().skip(1) {
            File::open(parent)?.sync_all()?;
        }
        Ok(())
    };
    make().map_err(|source| DurableError::Io {
        path: dir.to_owned(),
        source,
    })
}

/// A state directory that no other process uses as long as this lives, however the process ends.
#[derive(Debug)]
pub struct StateLock {
    _lock: Flock<File>,
}

impl StateLock {
    /// Take it, or say who has it. To be taken before anything in the directory is read.
    pub fn take(state_dir: &Path) -> Result<StateLock, DurableError> {
        make_dir(state_dir)?;
        let path = state_dir.join(LOCK_FILE);
        let at_path = |source| DurableError::Io {
            path: path.clone(),
            source,
        };
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(at_path)?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut owner = String::new();
                let _ = file.read_to_string(&mut owner);
                let dir = state_dir.to_owned();
                return Err(DurableError::InUse { dir, owner });
            }
            Err((_, errno)) => return Err(at_path(errno.into())),
        };
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| write!(&mut *lock, "{}", std::process::id()))
            .map_err(at_path)?;
        Ok(StateLock { _lock: lock })
    }
}

/// A new incarnation: durable before it is returned, never returned again.
pub fn next_incarnation(state_dir: &Path) -> Result<u64, DurableError> {
    make_dir(state_dir)?;
    let path = state_dir.join(INCARNATION_FILE);
    let value = read_number(&path)? + 1;
    if value > INCARNATION_MAX {
        return Err(DurableError::IncarnationsUsedUp { path, value });
    }
    write_number(state_dir, INCARNATION_FILE, value)?;
    Ok(value)
}

/// The latest epoch that the acceptor has entered without a control plane; 0: none.
pub fn entered_epoch(state_dir: &Path) -> Result<u32, DurableError> {
    let entered = read_number(&state_dir.join(ACCEPTOR_EPOCH_FILE))?;
    Ok(u32::try_from(entered).unwrap_or(u32::MAX))
}

/// Has the acceptor entered this epoch, or a later one, before?
pub fn has_entered(state_dir: &Path, epoch: u32) -> Result<bool, DurableError> {
    let entered = read_number(&state_dir.join(ACCEPTOR_EPOCH_FILE))?;
    Ok(entered >= u64::from(epoch))
}

/// Enter an epoch as an acceptor with empty memory. `false`: it entered this epoch, or a later one,
/// before, may have voted and has forgotten: it must not vote (protocol.md, 5).
pub fn enter_epoch(state_dir: &Path, epoch: u32) -> Result<bool, DurableError> {
    make_dir(state_dir)?;
    if has_entered(state_dir, epoch)? {
        return Ok(false);
    }
    write_number(state_dir, ACCEPTOR_EPOCH_FILE, u64::from(epoch))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("inband-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn a_state_directory_has_one_process() {
        let dir = dir("lock");
        let lock = StateLock::take(&dir).unwrap();
        let refused = StateLock::take(&dir).unwrap_err().to_string();
        let own = format!("in use by process {};", std::process::id());
        assert!(refused.contains(&own), "{refused}");
        drop(lock);
        StateLock::take(&dir).unwrap();
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_incarnation_is_used_once() {
        let dir = dir("incarnation");
        assert_eq!(next_incarnation(&dir).unwrap(), 1);
        assert_eq!(next_incarnation(&dir).unwrap(), 2);
        fs::write(dir.join(INCARNATION_FILE), "x").unwrap();
        assert!(matches!(
            next_incarnation(&dir),
            Err(DurableError::Damaged { .. })
        ));
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
