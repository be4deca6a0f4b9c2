//! Ownership of a lab. A lock on a file shows whether the owner is alive; the file lists what it created, so that the
//! next lab can remove it if the owner was killed.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::netns;

/// One lock file per lab.
const LABS_DIR: &str = "/run/inband/labs";

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
    namespaces: Vec<String>,
}

/// The lock. On drop it is released and the file removed.
#[derive(Debug)]
pub(crate) struct Owner {
    path: PathBuf,
    lock: Flock<File>,
    namespaces: Vec<String>,
}

impl Owner {
    /// Claim the lab with this name, or report its owner. Records the namespaces before they are created.
    pub(crate) fn claim(name: &str, namespaces: &[String]) -> Result<Self, LabError> {
        let dir = Path::new(LABS_DIR);
        fs::create_dir_all(dir).map_err(|source| match source.kind() {
            std::io::ErrorKind::PermissionDenied => LabError::NotPrivileged {
                what: format!("create {LABS_DIR}"),
            },
            _ => LabError::File {
                what: "create",
                path: dir.into(),
                source,
            },
        })?;
        sweep();
        let path = dir.join(format!("{name}.lock"));
        let mut lock = loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(LabError::file("open", &path))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                // The previous owner may have removed the file between our open and our lock.
                Ok(lock) if is_at(&lock, &path) => break lock,
                Ok(_) => continue,
                Err((mut file, _)) => {
                    let owner = read_record(&mut file);
                    let owner = owner.map_or("unknown".to_owned(), |r| r.pid.to_string());
                    return Err(LabError::InUse {
                        name: name.to_owned(),
                        owner,
                    });
                }
            }
        };
        if let Some(left) = read_record(&mut lock) {
            left.namespaces
                .iter()
                .for_each(|n| netns::remove_leftover(n));
        }
        let mut owner = Self {
            path,
            lock,
            namespaces: namespaces.to_vec(),
        };
        owner.write()?;
        Ok(owner)
    }

    /// Records another namespace, before it is created.
    pub(crate) fn add(&mut self, namespace: &str) -> Result<(), LabError> {
        self.namespaces.push(namespace.to_owned());
        self.write()
    }

    /// Removes the record of a namespace that has been removed.
    pub(crate) fn forget(&mut self, namespace: &str) -> Result<(), LabError> {
        self.namespaces.retain(|n| n != namespace);
        self.write()
    }

    fn write(&mut self) -> Result<(), LabError> {
        let record = Record {
            pid: std::process::id(),
            namespaces: self.namespaces.clone(),
        };
        let text = serde_json::to_vec(&record).expect("a record is representable in JSON");
        // Written before it is truncated: if the owner dies half-way, the next sweep reads a list that is too long
        // rather than none.
        self.lock
            .rewind()
            .and_then(|()| self.lock.write_all(&text))
            .and_then(|()| self.lock.set_len(text.len() as u64))
            .map_err(LabError::file("write", &self.path))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes what killed owners left behind. Labs of running owners are locked and stay.
pub(crate) fn sweep() {
    let Ok(files) = fs::read_dir(LABS_DIR) else {
        return;
    };
    for path in files.flatten().map(|f| f.path()) {
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else {
            continue;
        };
        let Ok(mut lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            continue;
        };
        if !is_at(&lock, &path) {
            continue;
        }
        if let Some(record) = read_record(&mut lock) {
            tracing::info!(lab = %path.display(), pid = record.pid, "removing a crashed lab");
            record
                .namespaces
                .iter()
                .for_each(|n| netns::remove_leftover(n));
        }
        let _ = fs::remove_file(&path);
    }
}

fn is_at(lock: &File, path: &Path) -> bool {
    match (lock.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()),
        _ => false,
    }
}

fn read_record(file: &mut File) -> Option<Record> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
