//! Where a replica's stores are, and how they are all replaced in one step.
//!
//! ```text
//! DIR0/ACTIVE       names of the active databases, one line per log, replaced atomically
//! <home>/db-<n>/    a RocksDB database
//! <home>/incoming/  a checkpoint being received; not part of the store until ACTIVE names it
//! <home>/outgoing/  checkpoints being sent
//! ```
//!
//! With one partition, its home is `DIR0` itself. With several partitions over `n` directories, the home of partition
//! `k` is `DIR<k mod n>/p<k>`, and that of the log of cross-partition commands is `DIR0/m`.
//!
//! Installing a checkpoint renames each `incoming` to the next `db-<n>` and then replaces `ACTIVE`, so after a crash at
//! any point the replica can be opened, with either the old databases or the new ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::partition::{logs_of, partitions_of_logs, PARTITIONS_MAX};
use crate::store::StoreError;

const ACTIVE_FILE: &str = "ACTIVE";
const DATABASE_PREFIX: &str = "db-";
const INCOMING_DIR: &str = "incoming";
const OUTGOING_DIR: &str = "outgoing";

/// The directories of a replica.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
    /// The first is the root.
    dirs: Vec<PathBuf>,
    /// One per log.
    homes: Vec<PathBuf>,
}

impl Layout {
    /// Returns the layout of `partitions` over `dirs`, which are created if they do not exist.
    pub fn new(dirs: &[PathBuf], partitions: usize) -> Result<Self, StoreError> {
        let root = dirs.first().ok_or(StoreError::NoDirectory)?.clone();
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(StoreError::PartitionCount(partitions));
        }
        let homes = if partitions == 1 {
            vec![root.clone()]
        } else {
            let home = |k: usize| dirs[k % dirs.len()].join(format!("p{k}"));
            (0..partitions)
                .map(home)
                .chain([root.join("m")])
                .collect::<Vec<_>>()
        };
        let dirs = dirs.to_vec();
        let layout = Self { root, dirs, homes };
        layout.check_partitions(partitions)?;
        for home in layout.dirs.iter().chain(&layout.homes) {
            fs::create_dir_all(home).map_err(|source| io_error(home, source))?;
        }
        Ok(layout)
    }

    /// Returns the number of partitions of the data in `dir`; `None` if there is no data.
    pub fn partitions_in(dir: &Path) -> Result<Option<usize>, StoreError> {
        let active = read_active(&dir.join(ACTIVE_FILE))?;
        Ok(active.map(|numbers| partitions_of_logs(numbers.len())))
    }

    fn check_partitions(&self, asked: usize) -> Result<(), StoreError> {
        match Self::partitions_in(&self.root)? {
            Some(found) if found != asked => Err(StoreError::Partitions {
                path: self.root.clone(),
                found,
                asked,
            }),
            _ => Ok(()),
        }
    }

    pub fn logs(&self) -> usize {
        self.homes.len()
    }

    /// Numbers of the active databases, one per log; `None` at the first start.
    pub fn active(&self) -> Result<Option<Vec<u64>>, StoreError> {
        read_active(&self.root.join(ACTIVE_FILE))
    }

    /// At the first start, refuse directories that were used in a different order.
    pub fn refuse_others(&self) -> Result<(), StoreError> {
        for dir in &self.dirs {
            let entries = fs::read_dir(dir).map_err(|source| io_error(dir, source))?;
            for entry in entries.flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                let name = name.to_string_lossy();
                let is_home = name == "m" || name.strip_prefix('p').is_some_and(is_number);
                if name == ACTIVE_FILE || (is_home && !self.homes.contains(&path)) {
                    return Err(StoreError::NotActive { path });
                }
            }
        }
        Ok(())
    }

    pub fn database(&self, log: usize, number: u64) -> PathBuf {
        self.homes[log].join(format!("{DATABASE_PREFIX}{number}"))
    }

    /// Returns where a checkpoint of a log is received: an empty directory that is not part of the store.
    pub fn incoming(&self, log: usize) -> PathBuf {
        self.homes[log].join(INCOMING_DIR)
    }

    /// Returns where checkpoints of a log are made for peers.
    pub fn outgoing(&self, log: usize) -> PathBuf {
        self.homes[log].join(OUTGOING_DIR)
    }

    /// Removes leftovers of an interrupted installation or transfer.
    pub fn clean(&self, active: &[u64]) -> Result<(), StoreError> {
        for (home, number) in self.homes.iter().zip(active) {
            let entries = fs::read_dir(home).map_err(|source| io_error(home, source))?;
            for entry in entries.flatten() {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let is_temporary = name == INCOMING_DIR || name == OUTGOING_DIR;
                if is_temporary || database_number(&name).is_some_and(|n| n != *number) {
                    remove_dir(&entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// Activates the complete, closed databases in `incoming` of some logs, all at once. Returns the numbers of the
    /// databases that are then active.
    pub fn install(&self, logs: &[usize], active: &[u64]) -> Result<Vec<u64>, StoreError> {
        let mut next = active.to_vec();
        for log in logs {
            next[*log] += 1;
            let (incoming, place) = (self.incoming(*log), self.database(*log, next[*log]));
            sync_directory(&incoming)?;
            remove_dir(&place)?;
            fs::rename(&incoming, &place).map_err(|source| io_error(&incoming, source))?;
            sync_directory(&self.homes[*log])?;
        }
        self.set_active(&next)?;
        Ok(next)
    }

    /// Sets the active databases.
    pub fn set_active(&self, numbers: &[u64]) -> Result<(), StoreError> {
        let file = self.root.join(ACTIVE_FILE);
        let lines: Vec<_> = numbers
            .iter()
            .map(|number| format!("{DATABASE_PREFIX}{number}"))
            .collect();
        inband_storage::replace(
            &file,
            lines.join("\n").as_bytes(),
            inband_storage::FILE_MODE,
        )
        .map_err(|source| io_error(&file, source))
    }
}

fn read_active(file: &Path) -> Result<Option<Vec<u64>>, StoreError> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(file, source)),
    };
    let numbers: Option<Vec<u64>> = text.trim().lines().map(database_number).collect();
    let is_possible = |n: &Vec<u64>| logs_of(partitions_of_logs(n.len())) == n.len();
    match numbers.filter(is_possible) {
        Some(numbers) => Ok(Some(numbers)),
        None => Err(StoreError::ActiveFile {
            path: file.to_path_buf(),
            text,
        }),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn database_number(name: &str) -> Option<u64> {
    name.strip_prefix(DATABASE_PREFIX)?.parse().ok()
}

pub fn remove_dir(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(path, source)),
        _ => Ok(()),
    }
}

/// Syncs all files of `directory`, and the directory itself.
fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    let sync = || -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::File::open(entry.path())?.sync_all()?;
            }
        }
        inband_storage::sync_dir(directory)
    };
    sync().map_err(|source| io_error(directory, source))
}

/// Returns an I/O error with its path.
pub fn io_error(path: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        path: path.to_path_buf(),
        source,
    }
}
