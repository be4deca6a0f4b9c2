//! The directory of a cluster: what survives `down`, and the rule by which `up` continues.
//!
//! Acceptors keep their votes in memory. So after a stop, only the replicas' data is left, and it is complete only if
//! the stop was clean: everything decided was applied at every live replica, and the record says so. A new start is a
//! new epoch (protocol.md, 5 and 6). Only in `sync` mode an unclean stop leaves the votes in the acceptors' journals;
//! the next start then continues in the same epoch.

mod record;
mod start_plan;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use inband_host::file_lock::{FileLock, LockError};

use crate::paxos::supervisor::SupervisorError;
use crate::remains::Remains;
use inband_host::system_file;
use record::FORMER_LEADER;
pub use record::{ClusterRecord, HostRecord};
pub use start_plan::{AppliedAt, PlannedHost, StartPlan};

/// A cluster's name is a prefix of the directory's name, a dash, and digits of a hash of its path.
const NAME_STEM_MAX_BYTES: usize = 20;

/// The file that is locked in each directory.
const LOCK: &str = "supervisor.lock";

/// A cluster's directories, locked for the lifetime of this value.
#[derive(Debug)]
pub struct ClusterDir {
    path: PathBuf,
    more_data: Vec<PathBuf>,
    _locks: Vec<FileLock>,
}

impl ClusterDir {
    /// Creates and locks the directory of a cluster, and the additional ones for its data.
    pub fn open(path: &Path, more_data: &[PathBuf]) -> Result<Self, SupervisorError> {
        check_distinct(path, more_data)?;
        fs::create_dir_all(path.join("hosts")).map_err(SupervisorError::file("create", path))?;
        let path = absolute(path)?;
        let mut locks = vec![lock(&path)?];
        system_file::claim(&path, super::COMMAND)?;
        let mut more = Vec::with_capacity(more_data.len());
        for data in more_data {
            fs::create_dir_all(data).map_err(SupervisorError::file("create", data))?;
            let data = absolute(data)?;
            if data == path || more.contains(&data) {
                return Err(named_twice(&data));
            }
            locks.push(lock(&data)?);
            more.push(data);
        }
        Ok(Self {
            path,
            more_data: more,
            _locks: locks,
        })
    }

    /// Returns whether no supervisor holds a directory.
    pub fn is_free(path: &Path) -> bool {
        lock(path).is_ok()
    }

    /// Returns the absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the key file, if the cluster is authenticated.
    pub fn key_file(&self) -> PathBuf {
        Self::key_file_in(&self.path)
    }

    /// Returns the key file of the cluster in this directory.
    pub fn key_file_in(path: &Path) -> PathBuf {
        path.join("keys.toml")
    }

    /// Directory of one host: configuration, log, state, data.
    pub fn host(&self, dir_name: &str) -> PathBuf {
        self.path.join("hosts").join(dir_name)
    }

    /// Returns all directories: the cluster's own, and the additional ones for its data.
    pub fn roots(&self) -> impl Iterator<Item = &Path> {
        [&self.path]
            .into_iter()
            .chain(&self.more_data)
            .map(PathBuf::as_path)
    }

    /// Data directories of the replica whose host's directory has this name.
    pub fn data_dirs(&self, dir_name: &str) -> Vec<PathBuf> {
        let more = self.more_data.iter().map(|root| root.join(dir_name));
        [self.host(dir_name).join("data")]
            .into_iter()
            .chain(more)
            .collect()
    }

    /// Renames the directory of a host that had another name in an earlier version.
    pub fn rename_former(&self) -> Result<(), SupervisorError> {
        let (former, now) = (self.host(FORMER_LEADER), self.host("leader-0"));
        if former.exists() && !now.exists() {
            fs::rename(&former, &now).map_err(SupervisorError::file("rename", former))?;
        }
        Ok(())
    }

    /// Directories of all hosts that ever existed.
    pub fn all_hosts(&self) -> Vec<PathBuf> {
        let found = fs::read_dir(self.path.join("hosts")).into_iter().flatten();
        found.flatten().map(|entry| entry.path()).collect()
    }

    /// Data directories of the replica with this name.
    pub fn replica_data(&self, name: &str) -> Vec<PathBuf> {
        self.data_dirs(&name.replace('/', "-"))
    }

    /// Whether a replica has data; an error if it has only some of its directories.
    fn has_data(&self, name: &str) -> Result<bool, SupervisorError> {
        let (there, gone): (Vec<PathBuf>, Vec<PathBuf>) = self
            .replica_data(name)
            .into_iter()
            .partition(|dir| dir.exists());
        match (there.first(), gone.first()) {
            (Some(there), Some(gone)) => Err(SupervisorError::ReplicaInPieces {
                replica: name.to_owned(),
                gone: gone.clone(),
                there: there.clone(),
            }),
            (there, _) => Ok(there.is_some()),
        }
    }

    /// Returns the configurations of the hosts in a cluster's directory, ordered by name.
    pub fn host_configs_in(path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(path.join("hosts"))? {
            let file = entry?.path().join("config.toml");
            if file.is_file() {
                files.push(file);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Returns what is there of the cluster in a directory although nobody listens at its socket.
    pub(crate) fn remains(path: &Path) -> Option<Remains> {
        Remains::find(path, LOCK, cluster_name_of)
    }

    /// Derived from the path, so that clusters in two directories never share a name.
    pub fn cluster_name(&self) -> String {
        cluster_name_of(&self.path)
    }

    /// Returns the record; `None` in a new directory.
    pub fn record(&self) -> Result<Option<ClusterRecord>, SupervisorError> {
        let path = self.record_path();
        let damaged = |reason: String| SupervisorError::DamagedRecord {
            path: path.clone(),
            reason,
        };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SupervisorError::file("read", &path)(error)),
        };
        ClusterRecord::parse(&text).map(Some).map_err(damaged)
    }

    /// Replaces the record; it is on disk on return.
    pub fn write_record(&self, record: &ClusterRecord) -> Result<(), SupervisorError> {
        let path = self.record_path();
        let text = serde_json::to_string_pretty(record).expect("a record is representable in JSON");
        inband_storage::replace(&path, text.as_bytes(), inband_storage::FILE_MODE)
            .map_err(SupervisorError::file("write", &path))
    }

    fn record_path(&self) -> PathBuf {
        self.path.join("cluster.json")
    }
}

fn cluster_name_of(path: &Path) -> String {
    let stem: String = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or("")
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(NAME_STEM_MAX_BYTES)
        .collect();
    let stem = stem.trim_matches('-');
    let stem = if stem.is_empty() { "inband" } else { stem };
    format!(
        "{stem}-{:06x}",
        fnv1a(path.as_os_str().as_encoded_bytes()) & 0xff_ffff
    )
}

/// Before any of them is created.
fn check_distinct(path: &Path, more_data: &[PathBuf]) -> Result<(), SupervisorError> {
    let mut seen = vec![path];
    for data in more_data {
        if seen.contains(&data.as_path()) {
            return Err(named_twice(data));
        }
        seen.push(data);
    }
    Ok(())
}

fn named_twice(data: &Path) -> SupervisorError {
    SupervisorError::BadSpec(format!("--data names {} twice", data.display()))
}

fn absolute(path: &Path) -> Result<PathBuf, SupervisorError> {
    path.canonicalize()
        .map_err(SupervisorError::file("open", path))
}

/// Locks a directory. An error names the process that holds it.
fn lock(dir: &Path) -> Result<FileLock, SupervisorError> {
    let path = dir.join(LOCK);
    FileLock::take(&path).map_err(|error| match error {
        LockError::InUse { owner } => SupervisorError::AlreadyRunning {
            dir: dir.to_owned(),
            owner,
        },
        LockError::Io(source) => SupervisorError::file("lock", path)(source),
    })
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
