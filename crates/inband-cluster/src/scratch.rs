//! Directories and processes for benchmarks, which are removed with their owner.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

const READY_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A directory that is removed with its content when dropped.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Creates a directory in `parent`. It is empty: what a killed process with the same id has left is not used.
    pub fn create(parent: &Path, what: &str) -> Result<ScratchDir> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!(
                "inband-bench-{}-{number}-{what}",
                std::process::id()
            ));
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("creating {}", path.display()))
                }
                Ok(()) => return Ok(ScratchDir(path)),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // It is a temporary directory, so a failure may leave something behind.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed when dropped.
pub struct Server {
    child: Child,
    name: String,
}

impl Server {
    /// Takes ownership of a started process.
    pub fn new(name: impl Into<String>, child: Child) -> Server {
        Server {
            child,
            name: name.into(),
        }
    }

    pub fn named_pid(&self) -> (String, u32) {
        (self.name.clone(), self.child.id())
    }

    /// Returns an error if the process has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended: {status}", self.name),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Retries until `attempt` succeeds; after `limit` returns its last error.
pub fn retry<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= deadline => {
                return Err(error.context(format!("not within {limit:?}")));
            }
            Err(_) => std::thread::sleep(READY_POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_is_not_used() {
        let parent = tempfile::tempdir().expect("a directory");
        for number in 0..100 {
            let left = format!("inband-bench-{}-{number}-store", std::process::id());
            let left = parent.path().join(left);
            fs::create_dir(&left).expect("created");
            fs::write(left.join("data"), "former").expect("written");
        }
        let dir = ScratchDir::create(parent.path(), "store").expect("created");
        let mut content = fs::read_dir(dir.path()).expect("there");
        assert!(content.next().is_none());
    }
}
