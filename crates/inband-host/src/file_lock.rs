//! A file locked by one process, containing its process id.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Any process that can open the file can lock it.
const MODE: u32 = 0o600;
/// A killed process keeps its lock until the kernel has freed its memory, and a restart may be faster than that.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(1);
const IN_USE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Why a file could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("in use by process {owner}")]
    InUse {
        /// Its process id.
        owner: String,
    },
    /// Opening, locking or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The lock: held while this exists, and released however the process ends.
#[derive(Debug)]
pub struct FileLock {
    _lock: Flock<File>,
}

impl FileLock {
    /// Takes the lock, waiting up to 1 s for another process to exit. The file is created if necessary.
    pub fn take(path: &Path) -> Result<FileLock, LockError> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .open(path)?;
        // Earlier versions let others open it. It fails for another owner's file, which then is theirs to protect.
        let _ = file.set_permissions(Permissions::from_mode(MODE));
        let deadline = Instant::now() + IN_USE_TIMEOUT;
        let mut lock = loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => break lock,
                Err((held, Errno::EWOULDBLOCK)) if Instant::now() < deadline => {
                    file = held;
                    std::thread::sleep(IN_USE_POLL_INTERVAL);
                }
                Err((held, Errno::EWOULDBLOCK)) => {
                    let owner = owner_of(held);
                    return Err(LockError::InUse { owner });
                }
                Err((_, errno)) => return Err(LockError::Io(errno.into())),
            }
        };
        lock.set_len(0)?;
        lock.rewind()?;
        write!(&mut *lock, "{}", std::process::id())?;
        Ok(FileLock { _lock: lock })
    }
}

/// Returns the id of the process that holds the lock of a file; `None` if there is none, or no such file.
pub fn holder(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((held, Errno::EWOULDBLOCK)) => Some(owner_of(held)),
        _ => None,
    }
}

/// Returns the id of the process that holds a file's lock. The file itself may name one that has ended, if its holder is
/// no process of ours.
fn owner_of(mut file: File) -> String {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    if let Some(pid) = file.metadata().ok().and_then(|of| holder_in(&locks, &of)) {
        return pid.to_owned();
    }
    // Without /proc/locks, or for a process in another pid namespace.
    let mut owner = String::new();
    let _ = file.read_to_string(&mut owner);
    owner
}

/// Finds the holder in `/proc/locks`: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`. The device is left out: some
/// file systems have another one there.
fn holder_in<'a>(locks: &'a str, file: &fs::Metadata) -> Option<&'a str> {
    let inode = format!(":{}", file.ino());
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, of, ..] = fields[..] else {
            return None;
        };
        (of.ends_with(&inode) && pid != "0").then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_ending_is_waited_for() {
        let path = std::env::temp_dir().join(format!("inband-ending-{}", std::process::id()));
        let is_waited_for = |_| {
            let lock = FileLock::take(&path).unwrap();
            let ending = std::thread::spawn(move || {
                std::thread::sleep(IN_USE_TIMEOUT / 5);
                drop(lock);
            });
            let taken = FileLock::take(&path);
            ending.join().unwrap();
            taken.is_ok()
        };
        // A stall of the machine spoils a trial, but not each of them.
        assert!((0..8).any(is_waited_for));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn nobody_else_can_lock_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        // As earlier versions made it.
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        drop(FileLock::take(&path).unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    }

    #[test]
    fn the_process_that_holds_it_is_named_and_none_that_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, "999999999").unwrap();
        let stranger = File::open(&path).unwrap();
        let lock = Flock::lock(stranger, FlockArg::LockExclusiveNonblock).unwrap();
        let error = FileLock::take(&path).unwrap_err().to_string();
        let own = format!("in use by process {}", std::process::id());
        assert!(error.contains(&own), "{error}");
        assert_eq!(holder(&path), Some(std::process::id().to_string()));
        drop(lock);
        assert_eq!(holder(&path), None);
        assert_eq!(holder(&dir.path().join("none")), None);
    }
}
