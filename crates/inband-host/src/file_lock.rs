//! A file locked by one process, containing its process id.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// A killed process keeps its lock until the kernel has freed its memory, and a restart may be faster than that.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(1);
const IN_USE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Why a file could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("in use by process {owner}")]
    InUse {
        /// The process id, as recorded by that process.
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
            .open(path)?;
        let deadline = Instant::now() + IN_USE_TIMEOUT;
        let mut lock = loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => break lock,
                Err((held, Errno::EWOULDBLOCK)) if Instant::now() < deadline => {
                    file = held;
                    std::thread::sleep(IN_USE_POLL_INTERVAL);
                }
                Err((mut held, Errno::EWOULDBLOCK)) => {
                    let mut owner = String::new();
                    let _ = held.read_to_string(&mut owner);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_ending_is_waited_for() {
        let path = std::env::temp_dir().join(format!("inband-ending-{}", std::process::id()));
        let lock = FileLock::take(&path).unwrap();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(IN_USE_TIMEOUT / 5);
            drop(lock);
        });
        FileLock::take(&path).unwrap();
        ending.join().unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
