//! The directory of a cluster: what survives `down`, and the rule by which `up` continues.
//!
//! Acceptors keep their votes in memory. So after a stop, only the replicas' data are left, and
//! they are complete only if the stop was clean: everything decided was applied at every live
//! replica, and the record says so. A new start is always a new epoch (design, *must* 5 and 6).

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::layout::ClusterSpec;
use crate::supervisor::SupervisorError;

const RECORD_FORMAT: u32 = 1;
/// A cluster's name: what fits of the directory's name, a dash, and digits of a hash of its path.
const NAME_STEM_MAX_BYTES: usize = 20;

/// `cluster.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// Of this file.
    pub format: u32,
    /// Name of the cluster.
    pub name: String,
    /// The last epoch in which an acceptor may have voted.
    pub epoch: u32,
    /// First instance of that epoch.
    pub first_instance: u64,
    /// Number of replicas.
    pub replicas: usize,
    /// Number of acceptors.
    pub acceptors: usize,
    /// The clean-stop marker: everything decided, ever, is at or below this instance and applied
    /// at every replica that was alive. Absent while the cluster runs.
    pub clean_at: Option<u64>,
}

/// How the next start goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartPlan {
    /// To be written before any acceptor starts.
    pub record: ClusterRecord,
    /// What the user should know, one line each.
    pub notices: Vec<String>,
}

/// A cluster's directory, locked for as long as this lives.
#[derive(Debug)]
pub struct ClusterDir {
    path: PathBuf,
    _lock: Flock<File>,
}

impl ClusterDir {
    /// Create it if need be, and lock it.
    pub fn open(path: &Path) -> Result<Self, SupervisorError> {
        fs::create_dir_all(path.join("hosts")).map_err(SupervisorError::file("create", path))?;
        let path = path
            .canonicalize()
            .map_err(SupervisorError::file("open", path))?;
        let lock_path = path.join("supervisor.lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(SupervisorError::file("open", &lock_path))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, _)) => {
                let mut owner = String::new();
                let _ = file.read_to_string(&mut owner);
                return Err(SupervisorError::AlreadyRunning { dir: path, owner });
            }
        };
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| write!(&mut *lock, "{}", std::process::id()))
            .map_err(SupervisorError::file("write", &lock_path))?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directory of one host: configuration, log, state, data.
    pub fn host(&self, dir_name: &str) -> PathBuf {
        self.path.join("hosts").join(dir_name)
    }

    /// Data directory of a replica.
    pub fn replica_data(&self, index: usize) -> PathBuf {
        self.host(&format!("replica-{index}")).join("data")
    }

    /// The control socket of the supervisor of a cluster's directory.
    pub fn socket_in(path: &Path) -> PathBuf {
        path.join("supervisor.sock")
    }

    /// Derived from the path, so that clusters in two directories never share a name.
    pub fn cluster_name(&self) -> String {
        let stem: String = self
            .path
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
            fnv1a(self.path.as_os_str().as_encoded_bytes()) & 0xff_ffff
        )
    }

    /// The record, or `None` in a fresh directory.
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
        let record: ClusterRecord =
            serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        if record.format != RECORD_FORMAT {
            return Err(damaged(format!(
                "format {}, this is {RECORD_FORMAT}",
                record.format
            )));
        }
        Ok(Some(record))
    }

    /// Replace the record; on return it is on disk.
    pub fn write_record(&self, record: &ClusterRecord) -> Result<(), SupervisorError> {
        let path = self.record_path();
        let temporary = path.with_extension("json.tmp");
        let text = serde_json::to_string_pretty(record).expect("a record is representable in JSON");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(SupervisorError::file("write", &path))
    }

    /// Decide how to start. `applied_at` reads the position out of a replica's data directory.
    pub fn plan(
        &self,
        spec: &ClusterSpec,
        applied_at: &dyn Fn(usize, &Path) -> Result<u64, SupervisorError>,
    ) -> Result<StartPlan, SupervisorError> {
        let mut record = ClusterRecord {
            format: RECORD_FORMAT,
            name: self.cluster_name(),
            epoch: 1,
            first_instance: 1,
            replicas: spec.replicas,
            acceptors: spec.acceptors.0.len(),
            clean_at: None,
        };
        let (present, missing): (Vec<usize>, Vec<usize>) =
            (0..spec.replicas).partition(|&i| self.replica_data(i).exists());
        let Some(last) = self.record()? else {
            if let Some(&i) = present.first() {
                return Err(SupervisorError::DamagedRecord {
                    path: self.record_path(),
                    reason: format!("it is gone, but replica/{i} has data"),
                });
            }
            return Ok(StartPlan {
                record,
                notices: Vec::new(),
            });
        };
        if last.replicas != spec.replicas {
            return Err(SupervisorError::LayoutChanged(format!(
                "the cluster in {} has {} replicas and --replicas {} was asked for; the number of \
                 replicas of a cluster cannot be changed yet: use --replicas {}, or another --data \
                 directory",
                self.path.display(),
                last.replicas,
                spec.replicas,
                last.replicas
            )));
        }
        record.epoch = last.epoch.checked_add(1).ok_or_else(|| {
            SupervisorError::BadSpec("all 4294967295 epochs of this cluster are used up".into())
        })?;
        let names = |replicas: &[usize]| {
            replicas
                .iter()
                .map(|i| format!("replica/{i}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let gone = || SupervisorError::ReplicaMissing {
            dir: self.path.clone(),
            missing: names(&missing),
        };
        if let Some(applied) = last.clean_at {
            record.first_instance = applied + 1;
            let mut notices = Vec::new();
            if applied > 0 && !missing.is_empty() {
                // One that is left is enough: all that were alive were equal.
                if present.is_empty() {
                    return Err(gone());
                }
                notices.push(format!(
                    "{} starts empty and copies a peer's checkpoint",
                    names(&missing)
                ));
            }
            return Ok(StartPlan { record, notices });
        }
        if !spec.accept_loss {
            return Err(SupervisorError::Unclean {
                dir: self.path.clone(),
                epoch: last.epoch,
            });
        }
        if !missing.is_empty() && !spec.accept_missing_replicas {
            return Err(gone());
        }
        let positions = present
            .iter()
            .map(|&i| Ok((i, applied_at(i, &self.replica_data(i))?)))
            .collect::<Result<Vec<_>, SupervisorError>>()?;
        // What an earlier clean stop or continuation counted as applied is not given out again,
        // even if the data that hold it are gone.
        let floor = last.first_instance - 1;
        let best = positions.iter().map(|p| p.1).max().unwrap_or(0).max(floor);
        record.first_instance = best + 1;
        let found: Vec<String> = positions
            .iter()
            .map(|(i, applied)| format!("replica/{i} up to {applied}"))
            .collect();
        let mut notices = vec![
            format!("continuing after an unclean stop from instance {best}: {}", found.join(", ")),
            format!(
                "may be missing: what epoch {} decided after instance {best} and no replica had on \
                 its disk; clients may hold replies to some of it if a power cut took the replicas' \
                 last writes",
                last.epoch
            ),
        ];
        if !missing.is_empty() {
            notices.push(format!(
                "missing: all data of {}; whatever only they had applied is lost",
                names(&missing)
            ));
        }
        Ok(StartPlan { record, notices })
    }

    fn record_path(&self) -> PathBuf {
        self.path.join("cluster.json")
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> (tempfile::TempDir, ClusterDir, ClusterSpec) {
        let temporary = tempfile::tempdir().expect("a directory");
        let dir = ClusterDir::open(&temporary.path().join("c")).expect("lock");
        let spec = ClusterSpec::new("inband", dir.path());
        (temporary, dir, spec)
    }

    fn add_data(dir: &ClusterDir, replicas: std::ops::Range<usize>) {
        replicas.for_each(|i| fs::create_dir_all(dir.replica_data(i)).expect("data"));
    }

    /// Replica i has applied 100 + 10 i.
    fn applied(index: usize, _: &Path) -> Result<u64, SupervisorError> {
        Ok(100 + 10 * index as u64)
    }

    fn never(_: usize, _: &Path) -> Result<u64, SupervisorError> {
        panic!("nothing to inspect")
    }

    #[test]
    fn a_fresh_directory_starts_with_epoch_1() {
        let (_t, dir, spec) = setup();
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!((plan.record.epoch, plan.record.first_instance), (1, 1));
        assert!(plan.record.name.starts_with("c-") && plan.record.name.len() == 8);
    }

    #[test]
    fn a_clean_stop_is_continued_in_the_next_epoch() {
        let (_t, dir, spec) = setup();
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        record.clean_at = Some(41);
        dir.write_record(&record).expect("write");
        add_data(&dir, 0..2);
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!((plan.record.epoch, plan.record.first_instance), (2, 42));
        assert_eq!(
            plan.record.clean_at, None,
            "the marker goes before anything starts"
        );
        assert!(
            plan.notices[0].contains("replica/2 starts empty"),
            "{:?}",
            plan.notices
        );
    }

    #[test]
    fn a_clean_stop_without_any_data_is_not_continued() {
        let (_t, dir, spec) = setup();
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        record.clean_at = Some(41);
        dir.write_record(&record).expect("write");
        let error = dir
            .plan(&spec, &never)
            .expect_err("nothing left")
            .to_string();
        assert!(
            error.contains("replica/0, replica/1, replica/2 are missing"),
            "{error}"
        );
    }

    #[test]
    fn an_unclean_stop_is_refused_unless_loss_is_accepted() {
        let (_t, dir, mut spec) = setup();
        let record = dir.plan(&spec, &never).expect("plan").record;
        dir.write_record(&record).expect("write");
        add_data(&dir, 0..2);
        let error = dir.plan(&spec, &never).expect_err("unclean").to_string();
        assert!(
            error.contains("not stopped cleanly") && error.contains("--accept-loss"),
            "{error}"
        );
        spec.accept_loss = true;
        let error = dir.plan(&spec, &applied).expect_err("missing").to_string();
        assert!(error.contains("data of replica/2 are missing"), "{error}");
        spec.accept_missing_replicas = true;
        let plan = dir.plan(&spec, &applied).expect("plan");
        assert_eq!((plan.record.epoch, plan.record.first_instance), (2, 111));
        assert!(plan.notices[0].contains("replica/0 up to 100, replica/1 up to 110"));
        assert!(plan.notices[1].contains("after instance 110"));
        assert!(plan.notices[2].contains("replica/2"));
    }

    #[test]
    fn instances_are_never_given_out_twice() {
        let (_t, dir, mut spec) = setup();
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        record.first_instance = 500;
        dir.write_record(&record).expect("write");
        add_data(&dir, 0..3);
        spec.accept_loss = true;
        let plan = dir.plan(&spec, &applied).expect("plan");
        assert_eq!(plan.record.first_instance, 500);
    }

    #[test]
    fn another_number_of_replicas_is_refused() {
        let (_t, dir, mut spec) = setup();
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        record.clean_at = Some(0);
        dir.write_record(&record).expect("write");
        spec.replicas = 5;
        let error = dir.plan(&spec, &never).expect_err("layout").to_string();
        assert!(error.contains("has 3 replicas and --replicas 5"), "{error}");
    }

    #[test]
    fn damage_is_named() {
        let (_t, dir, spec) = setup();
        fs::write(dir.path().join("cluster.json"), "{").expect("write");
        let error = dir.plan(&spec, &never).expect_err("damaged").to_string();
        assert!(error.contains("cluster.json is damaged"), "{error}");
        fs::remove_file(dir.path().join("cluster.json")).expect("remove");
        add_data(&dir, 0..1);
        let error = dir.plan(&spec, &never).expect_err("gone").to_string();
        assert!(error.contains("replica/0 has data"), "{error}");
    }

    #[test]
    fn a_directory_has_one_supervisor() {
        let (_t, dir, _) = setup();
        let error = ClusterDir::open(dir.path())
            .expect_err("locked")
            .to_string();
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
    }
}
