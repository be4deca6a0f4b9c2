//! The directory of a cluster: what survives `down`, and the rule by which `up` continues.
//!
//! Acceptors keep their votes in memory. So after a stop, only the replicas' data is left, and it is complete only if
//! the stop was clean: everything decided was applied at every live replica, and the record says so. A new start is a
//! new epoch (protocol.md, 5 and 6). Only in `sync` mode an unclean stop leaves the votes in the acceptors' journals;
//! the next start then continues in the same epoch.

mod record;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use inband_host::file_lock::{FileLock, LockError};
use inband_paxos::config::{logs_of, Durability, Role};
use inband_paxos::node::JOURNAL_DIR;

use crate::paxos::control::instances;
use crate::paxos::layout::{kind_of, ClusterSpec, HostPlan};
use crate::paxos::supervisor::SupervisorError;
use crate::system_file;
use record::RECORD_FORMAT;
pub use record::{ClusterRecord, HostRecord};

/// Not a secret: the umask decides.
const RECORD_MODE: u32 = 0o666;
/// A cluster's name is a prefix of the directory's name, a dash, and digits of a hash of its path.
const NAME_STEM_MAX_BYTES: usize = 20;

/// How to start the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartPlan {
    /// To be written before any acceptor starts, with the addresses of new hosts.
    pub record: ClusterRecord,
    /// The hosts to start, in the order of their ids.
    pub hosts: Vec<PlannedHost>,
    /// Acceptors that have lost their votes may start over after the record's first instances.
    pub may_begin_empty: bool,
    /// What the user should know, one line each.
    pub notices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedHost {
    /// Id of the node.
    pub id: u8,
    pub plan: HostPlan,
    /// Where its packets go, if it is already a member.
    pub address: Option<SocketAddrV4>,
}

/// Reads the position in every log from the data directories of the replica with this name.
pub type AppliedAt<'a> = dyn Fn(&str, &[PathBuf]) -> Result<Vec<u64>, SupervisorError> + 'a;

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
        fs::create_dir_all(path.join("hosts")).map_err(SupervisorError::file("create", path))?;
        let path = absolute(path)?;
        let mut locks = vec![lock(&path)?];
        system_file::claim(&path, super::COMMAND)?;
        let mut more = Vec::with_capacity(more_data.len());
        for data in more_data {
            fs::create_dir_all(data).map_err(SupervisorError::file("create", data))?;
            let data = absolute(data)?;
            if data == path || more.contains(&data) {
                return Err(SupervisorError::BadSpec(format!(
                    "--data names {} twice",
                    data.display()
                )));
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

    /// Returns the control socket of the supervisor of the cluster in this directory.
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
        inband_storage::replace(&path, text.as_bytes(), RECORD_MODE)
            .map_err(SupervisorError::file("write", &path))
    }

    /// Decides how to start.
    pub fn plan(
        &self,
        spec: &ClusterSpec,
        applied_at: &AppliedAt<'_>,
    ) -> Result<StartPlan, SupervisorError> {
        let logs = logs_of(spec.partitions);
        let mut record = ClusterRecord {
            format: RECORD_FORMAT,
            name: self.cluster_name(),
            epoch: 1,
            first_instances: vec![1; logs],
            partitions: spec.partitions,
            data_dirs: 1 + self.more_data.len(),
            durability: spec.durability,
            authenticated: spec.authenticated,
            asked: spec.hosts().into_iter().map(|host| host.name).collect(),
            hosts: Vec::new(),
            next_id: 1,
            next_numbers: BTreeMap::new(),
            clean_at: None,
        };
        let last = self.record()?;
        if let Some(last) = &last {
            self.check_shape(last, &record)?;
            record.hosts.clone_from(&last.hosts);
            record.asked.clone_from(&last.asked);
            record.next_id = last.next_id;
            record.next_numbers.clone_from(&last.next_numbers);
            if !last.hosts.is_empty() {
                record.authenticated = last.authenticated;
            }
        }
        let hosts = planned(spec, &record);
        let (mut present, mut missing) = (Vec::new(), Vec::new());
        for host in hosts.iter().filter(|host| host.plan.has(Role::Replica)) {
            let name = &host.plan.name;
            // A replica that is being added may not have data yet.
            let is_changing = |host: &HostRecord| host.changing && host.name == *name;
            if self.has_data(name)? {
                present.push(name.clone());
            } else if !record.hosts.iter().any(is_changing) {
                missing.push(name.clone());
            }
        }
        let Some(last) = last else {
            if let Some(name) = present.first() {
                return Err(SupervisorError::DamagedRecord {
                    path: self.record_path(),
                    reason: format!("it is gone, but {name} has data"),
                });
            }
            return Ok(StartPlan {
                record,
                hosts,
                may_begin_empty: true,
                notices: Vec::new(),
            });
        };
        let is_founded = !last.hosts.is_empty();
        let has_journals = last.durability == Durability::Sync && last.clean_at.is_none();
        if has_journals && !spec.accept_loss {
            let notices = vec![self.go_on(&last, spec, &missing)?];
            record.epoch = last.epoch;
            record.first_instances = last.first_instances;
            return Ok(StartPlan {
                record,
                hosts,
                may_begin_empty: false,
                notices,
            });
        }
        // After a clean stop in `sync` mode the acceptors continue from their journals, in the same epoch.
        let keeps_votes = last.durability == Durability::Sync && spec.durability == last.durability;
        let steps = u32::from(!(is_founded && keeps_votes));
        record.epoch = last.epoch.checked_add(steps).ok_or_else(|| {
            SupervisorError::BadSpec("all 4294967295 epochs of this cluster are used up".into())
        })?;
        let gone = || SupervisorError::ReplicaMissing {
            dir: self.path.clone(),
            missing: missing.join(", "),
        };
        if let Some(applied) = last.clean_at {
            record.first_instances = behind(&applied);
            let mut notices = Vec::new();
            if applied.iter().any(|&at| at > 0) && !missing.is_empty() {
                // One remaining replica is enough: all live ones were equal.
                if present.is_empty() {
                    return Err(gone());
                }
                notices.push(format!(
                    "{} starts empty and copies a peer's checkpoint",
                    missing.join(", ")
                ));
            }
            return Ok(StartPlan {
                record,
                hosts,
                may_begin_empty: true,
                notices,
            });
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
        // Instances that an earlier clean stop or continuation counted as applied are never reused, even if the data
        // that holds them is gone.
        let mut best: Vec<u64> = last.first_instances.iter().map(|first| first - 1).collect();
        let mut found = Vec::new();
        for name in &present {
            let applied = applied_at(name, &self.replica_data(name))?;
            if applied.len() != logs {
                return Err(SupervisorError::Inspect {
                    replica: name.clone(),
                    reason: format!("it tells of {} logs, the cluster has {logs}", applied.len()),
                });
            }
            best.iter_mut()
                .zip(&applied)
                .for_each(|(best, &applied)| *best = applied.max(*best));
            found.push(format!("{name} up to {}", instances(&applied)));
        }
        record.first_instances = behind(&best);
        let best = instances(&best);
        let mut notices = vec![
            format!(
                "continuing after an unclean stop from {best}: {}",
                found.join(", ")
            ),
            format!(
                "may be missing: what epoch {} decided after {best} and no replica had on its \
                 disk; clients may hold replies to some of it if a power cut took the replicas' \
                 last writes",
                last.epoch
            ),
        ];
        if !missing.is_empty() {
            notices.push(format!(
                "missing: all data of {}; whatever only they had applied is lost",
                missing.join(", ")
            ));
        }
        Ok(StartPlan {
            record,
            hosts,
            may_begin_empty: true,
            notices,
        })
    }

    /// Whether a cluster in `sync` mode that was not stopped cleanly can continue in its epoch: all decisions are in
    /// the acceptors' journals.
    fn go_on(
        &self,
        last: &ClusterRecord,
        spec: &ClusterSpec,
        missing: &[String],
    ) -> Result<String, SupervisorError> {
        let refuse = |why: &str| {
            let dir = self.path.display();
            Err(SupervisorError::LayoutChanged(format!(
                "the cluster in {dir} was not stopped cleanly and goes on in its epoch, {}: {why}",
                last.epoch
            )))
        };
        if spec.durability != last.durability {
            return refuse(
                "its durability is sync, so use --durability sync, and change it after a clean \
                 `inband down`",
            );
        }
        if last.hosts.is_empty() {
            return refuse(
                "it was made by a version without a control plane; start it with that version, \
                 and stop it cleanly, before it goes on with this one",
            );
        }
        // Whatever a majority of replicas holds durably may have been trimmed from the journals.
        let journal = |host: &HostRecord| {
            let dir = self.host(&host.name.replace('/', "-"));
            dir.join(JOURNAL_DIR)
        };
        let has_started = last.hosts.iter().any(|host| journal(host).exists());
        let is_replica = |host: &&HostRecord| host.roles.contains(&Role::Replica);
        let replicas = last.hosts.iter().filter(is_replica).count();
        if missing.len() > replicas.saturating_sub(1) / 2 && has_started {
            return Err(SupervisorError::ReplicaMissing {
                dir: self.path.clone(),
                missing: missing.join(", "),
            });
        }
        Ok(format!(
            "going on in epoch {} after an unclean stop, from the acceptors' journals",
            last.epoch
        ))
    }

    /// Refuses to continue a cluster with a different set of hosts or partitions.
    fn check_shape(
        &self,
        is: &ClusterRecord,
        asked: &ClusterRecord,
    ) -> Result<(), SupervisorError> {
        let refuse = |why: String| {
            let dir = self.path.display();
            Err(SupervisorError::LayoutChanged(format!(
                "the cluster in {dir} {why}, or another --data directory"
            )))
        };
        let of_now: Vec<String> = is.hosts.iter().map(|host| host.name.clone()).collect();
        for kind in ["replica", "acceptor", "leader", "controller"] {
            // A record without members is from a version in which only the number of replicas was fixed.
            if of_now.is_empty() && kind != "replica" {
                break;
            }
            let count = |names: &[String]| names.iter().filter(|n| kind_of(n).0 == kind).count();
            let (first, now, wanted) = (count(&is.asked), count(&of_now), count(&asked.asked));
            let now = if of_now.is_empty() { first } else { now };
            if wanted != first && wanted != now {
                return refuse(format!(
                    "has {now} {kind}s and --{kind}s {wanted} was asked for; start it with \
                     --{kind}s {now} and change its members with `inband member`"
                ));
            }
        }
        if is.partitions != asked.partitions {
            return refuse(format!(
                "has {} partitions and --partitions {} was asked for; a key is kept in the \
                 partition that its hash names among {}: use --partitions {}, move the keys with \
                 `inband export` and `inband import` into a cluster of {}",
                is.partitions, asked.partitions, is.partitions, is.partitions, asked.partitions
            ));
        }
        if is.data_dirs != asked.data_dirs {
            return refuse(format!(
                "has its partitions in {} directories and --data names {}; partition k is in \
                 directory k mod {}: name the same ones, in their order",
                is.data_dirs, asked.data_dirs, is.data_dirs
            ));
        }
        Ok(())
    }

    fn record_path(&self) -> PathBuf {
        self.path.join("cluster.json")
    }
}

fn absolute(path: &Path) -> Result<PathBuf, SupervisorError> {
    path.canonicalize()
        .map_err(SupervisorError::file("open", path))
}

/// Returns the members of the record or, if there are none yet, the requested hosts.
fn planned(spec: &ClusterSpec, record: &ClusterRecord) -> Vec<PlannedHost> {
    let asked = spec.hosts();
    if record.hosts.is_empty() {
        let number = |(i, plan): (usize, HostPlan)| PlannedHost {
            id: (i + 1) as u8,
            plan,
            address: None,
        };
        return asked.into_iter().enumerate().map(number).collect();
    }
    let host = |host: &HostRecord| PlannedHost {
        id: host.id,
        plan: HostPlan {
            name: host.name.clone(),
            roles: host.roles.clone(),
            dataplane: asked
                .iter()
                .find(|asked| asked.name == host.name)
                .map_or_else(Default::default, |asked| asked.dataplane),
        },
        address: Some(host.address),
    };
    record.hosts.iter().map(host).collect()
}

/// Locks a directory. An error names the process that holds it.
fn lock(dir: &Path) -> Result<FileLock, SupervisorError> {
    let path = dir.join("supervisor.lock");
    FileLock::take(&path).map_err(|error| match error {
        LockError::InUse { owner } => SupervisorError::AlreadyRunning {
            dir: dir.to_owned(),
            owner,
        },
        LockError::Io(source) => SupervisorError::file("lock", path)(source),
    })
}

/// Returns the instances right after these.
fn behind(applied: &[u64]) -> Vec<u64> {
    applied.iter().map(|at| at + 1).collect()
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
        let dir = ClusterDir::open(&temporary.path().join("c"), &[]).expect("lock");
        let spec = ClusterSpec::new("inband", dir.path());
        (temporary, dir, spec)
    }

    fn add_data(dir: &ClusterDir, replicas: std::ops::Range<usize>) {
        let dirs = replicas.flat_map(|i| dir.replica_data(&format!("replica/{i}")));
        dirs.for_each(|dir| fs::create_dir_all(dir).expect("data"));
    }

    /// The record of a start once its hosts have addresses.
    fn started(plan: StartPlan) -> ClusterRecord {
        let mut record = plan.record;
        for host in plan.hosts {
            record.add_host(HostRecord {
                id: host.id,
                name: host.plan.name,
                roles: host.plan.roles,
                address: SocketAddrV4::new([10, 77, 0, host.id].into(), 7400),
                changing: false,
            });
        }
        record
    }

    /// Replica i has applied 100 + 10 i.
    fn applied(name: &str, _: &[PathBuf]) -> Result<Vec<u64>, SupervisorError> {
        Ok(vec![100 + 10 * u64::from(kind_of(name).1)])
    }

    fn never(_: &str, _: &[PathBuf]) -> Result<Vec<u64>, SupervisorError> {
        panic!("nothing to inspect")
    }

    #[test]
    fn a_directory_of_another_system_is_refused() {
        let temporary = tempfile::tempdir().expect("a directory");
        fs::write(temporary.path().join("system"), "flair\n").expect("written");
        let refused = ClusterDir::open(temporary.path(), &[]).expect_err("it is of FLAIR");
        let refused = refused.to_string();
        assert!(
            refused.contains("a cluster of `inband up flair`"),
            "{refused}"
        );
    }

    #[test]
    fn a_fresh_directory_starts_with_epoch_1() {
        let (_t, dir, spec) = setup();
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!(plan.record.epoch, 1);
        assert_eq!(plan.record.first_instances, [1]);
        assert!(plan.record.name.starts_with("c-") && plan.record.name.len() == 8);
    }

    #[test]
    fn a_clean_stop_is_continued_in_the_next_epoch() {
        let (_t, dir, spec) = setup();
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        record.clean_at = Some(vec![41]);
        dir.write_record(&record).expect("write");
        add_data(&dir, 0..2);
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!(plan.record.epoch, 2);
        assert_eq!(plan.record.first_instances, [42]);
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
        record.clean_at = Some(vec![41]);
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
        assert_eq!(plan.record.epoch, 2);
        assert_eq!(plan.record.first_instances, [111]);
        let found = "replica/0 up to instance 100, replica/1 up to instance 110";
        assert!(plan.notices[0].contains(found), "{}", plan.notices[0]);
        assert!(plan.notices[1].contains("after instance 110"));
        assert!(plan.notices[2].contains("replica/2"));
    }

    #[test]
    fn an_unclean_stop_in_sync_mode_goes_on_in_its_epoch() {
        let (_t, dir, mut spec) = setup();
        spec.durability = Durability::Sync;
        let mut record = started(dir.plan(&spec, &never).expect("plan"));
        (record.epoch, record.first_instances) = (4, vec![500]);
        dir.write_record(&record).expect("write");
        add_data(&dir, 1..3);
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!(plan.record, record);
        assert!(plan.notices[0].contains("epoch 4"), "{:?}", plan.notices);
        assert!(!plan.may_begin_empty);

        let mut memory = spec.clone();
        memory.durability = Durability::Memory;
        let error = dir.plan(&memory, &never).expect_err("mode").to_string();
        assert!(error.contains("--durability sync"), "{error}");
        let mut other = spec.clone();
        other.leader = crate::paxos::layout::LeaderLayout::WithAcceptor;
        let error = dir.plan(&other, &never).expect_err("hosts").to_string();
        assert!(error.contains("has 1 leaders"), "{error}");

        // With journals that may have been trimmed, a majority of the replicas is needed.
        fs::remove_dir_all(dir.host("replica-1")).expect("remove");
        dir.plan(&spec, &never)
            .expect("no acceptor has ever started");
        fs::create_dir_all(dir.host("acceptor-0").join(JOURNAL_DIR)).expect("create");
        let error = dir.plan(&spec, &never).expect_err("data").to_string();
        assert!(error.contains("replica/0, replica/1"), "{error}");

        // After a clean stop the mode may change; otherwise the acceptors continue.
        record.clean_at = Some(vec![600]);
        dir.write_record(&record).expect("write");
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!((plan.record.epoch, plan.may_begin_empty), (4, true));
        let plan = dir.plan(&memory, &never).expect("plan");
        assert_eq!(
            (plan.record.epoch, &plan.record.first_instances[..]),
            (5, &[601][..])
        );
        assert_eq!(plan.record.durability, Durability::Memory);
    }

    #[test]
    fn members_of_now_are_started_whatever_the_first_start_was_asked_for() {
        let (_t, dir, mut spec) = setup();
        let mut record = started(dir.plan(&spec, &never).expect("plan"));
        assert_eq!(
            record.next_host("acceptor").expect("next"),
            (8, "acceptor/3".into())
        );
        record.add_host(HostRecord {
            id: 8,
            name: "acceptor/3".into(),
            roles: vec![Role::Acceptor],
            address: "10.77.0.8:7400".parse().expect("address"),
            changing: true,
        });
        record.hosts.retain(|host| host.name != "acceptor/1");
        assert_eq!(
            record.next_host("acceptor").expect("next"),
            (9, "acceptor/4".into())
        );
        record.clean_at = Some(vec![0]);
        dir.write_record(&record).expect("write");
        for acceptors in ["3", "udp:3"] {
            spec.acceptors = acceptors.parse().expect("acceptors");
            let plan = dir.plan(&spec, &never).expect("plan");
            assert_eq!(plan.record.hosts, record.hosts);
            let names: Vec<&str> = plan.hosts.iter().map(|h| h.plan.name.as_str()).collect();
            assert_eq!(names[1..3], ["acceptor/0", "acceptor/2"]);
            assert_eq!(names[6], "acceptor/3");
            assert_eq!(plan.hosts[6].address, Some(record.hosts[6].address));
        }
        spec.acceptors = "5".parse().expect("acceptors");
        let error = dir.plan(&spec, &never).expect_err("five").to_string();
        assert!(
            error.contains("has 3 acceptors and --acceptors 5"),
            "{error}"
        );
        assert!(error.contains("inband member"), "{error}");

        record.next_id = 255;
        let error = record
            .next_host("replica")
            .expect_err("used up")
            .to_string();
        assert!(error.contains("up to 254"), "{error}");
    }

    #[test]
    fn a_record_of_the_time_of_fixed_members_is_read() {
        let (_t, dir, mut spec) = setup();
        let old = r#"{"format": 2, "name": "c", "epoch": 3, "first_instances": [7], "partitions": 1,
            "data_dirs": 1, "replicas": 3, "acceptors": 3, "durability": "sync",
            "hosts": ["leader", "acceptor/0"], "clean_at": CLEAN}"#;
        let path = dir.path().join("cluster.json");
        fs::write(&path, old.replace("CLEAN", "[41]")).expect("write");
        add_data(&dir, 0..3);
        spec.durability = Durability::Sync;
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!((plan.record.epoch, plan.hosts.len()), (4, 7));
        assert!(plan.hosts.iter().all(|host| host.address.is_none()));
        fs::write(&path, old.replace("CLEAN", "null")).expect("write");
        let error = dir.plan(&spec, &never).expect_err("unclean").to_string();
        assert!(
            error.contains("a version without a control plane"),
            "{error}"
        );
    }

    #[test]
    fn instances_are_never_given_out_twice() {
        let (_t, dir, mut spec) = setup();
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        record.first_instances = vec![500];
        dir.write_record(&record).expect("write");
        add_data(&dir, 0..3);
        spec.accept_loss = true;
        let plan = dir.plan(&spec, &applied).expect("plan");
        assert_eq!(plan.record.first_instances, [500]);
    }

    #[test]
    fn each_log_continues_from_the_replica_that_is_most_advanced_in_it() {
        let (_t, dir, mut spec) = setup();
        spec.partitions = 2;
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        assert_eq!(record.first_instances, [1, 1, 1]);
        record.first_instances = vec![1, 1, 31];
        dir.write_record(&record).expect("write");
        add_data(&dir, 0..3);
        spec.accept_loss = true;
        let at = |name: &str, _: &[PathBuf]| {
            let number = kind_of(name).1 as usize;
            Ok([vec![7, 20, 30], vec![9, 4, 30], vec![8, 5, 29]][number].clone())
        };
        let plan = dir.plan(&spec, &at).expect("plan");
        assert_eq!(plan.record.first_instances, [10, 21, 31]);
        assert!(plan.notices[0].contains("from instances 9, 20, 30"));
        let error = dir.plan(&spec, &applied).expect_err("too few").to_string();
        assert!(
            error.contains("tells of 1 logs, the cluster has 3"),
            "{error}"
        );
    }

    #[test]
    fn a_record_of_the_time_of_one_log_is_read() {
        let (_t, dir, mut spec) = setup();
        let old = r#"{"format": 1, "name": "old-c0ffee", "epoch": 3, "first_instance": 7,
            "replicas": 3, "acceptors": 3, "clean_at": 41}"#;
        fs::write(dir.path().join("cluster.json"), old).expect("write");
        add_data(&dir, 0..3);
        let record = dir.record().expect("read").expect("there");
        assert_eq!(record.first_instances, [7]);
        assert_eq!(record.clean_at, Some(vec![41]));
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!((plan.record.epoch, plan.record.format), (4, RECORD_FORMAT));
        assert_eq!(plan.record.first_instances, [42]);
        spec.partitions = 4;
        let error = dir.plan(&spec, &never).expect_err("layout").to_string();
        assert!(
            error.contains("has 1 partitions and --partitions 4"),
            "{error}"
        );
    }

    #[test]
    fn another_number_of_replicas_is_refused() {
        let (_t, dir, mut spec) = setup();
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        record.clean_at = Some(vec![0]);
        dir.write_record(&record).expect("write");
        spec.replicas = 5;
        let error = dir.plan(&spec, &never).expect_err("layout").to_string();
        assert!(error.contains("has 3 replicas and --replicas 5"), "{error}");
    }

    #[test]
    fn partitions_are_spread_over_directories_and_found_again() {
        let (temporary, dir, mut spec) = setup();
        drop(dir);
        spec.partitions = 4;
        let disk = temporary.path().join("disk");
        let open = |more: &[PathBuf]| ClusterDir::open(&temporary.path().join("c"), more);
        let dir = open(std::slice::from_ref(&disk)).expect("lock");
        let error = ClusterDir::open(&temporary.path().join("other"), std::slice::from_ref(&disk));
        let error = error.expect_err("another cluster's").to_string();
        assert!(error.contains("disk is running already"), "{error}");
        let mut record = dir.plan(&spec, &never).expect("plan").record;
        record.clean_at = Some(vec![9; 5]);
        dir.write_record(&record).expect("write");
        add_data(&dir, 0..3);
        dir.plan(&spec, &never).expect("all there");

        // As if a disk were not mounted.
        fs::remove_dir_all(disk.join("replica-1")).expect("remove");
        let error = dir.plan(&spec, &never).expect_err("in pieces").to_string();
        assert!(error.contains("disk/replica-1 is gone"), "{error}");
        fs::remove_dir_all(&dir.replica_data("replica/1")[0]).expect("remove");
        let plan = dir.plan(&spec, &never).expect("copies");
        assert!(plan.notices[0].contains("replica/1 starts empty"));

        drop(dir);
        let fewer = open(&[]).expect("lock");
        let error = fewer.plan(&spec, &never).expect_err("fewer").to_string();
        assert!(
            error.contains("in 2 directories and --data names 1"),
            "{error}"
        );
        drop(fewer);
        let error = open(&[disk.clone(), disk]).expect_err("twice").to_string();
        assert!(error.contains("twice"), "{error}");
    }

    #[test]
    fn damage_is_named() {
        let (_t, dir, spec) = setup();
        fs::write(dir.path().join("cluster.json"), "{").expect("write");
        let error = dir.plan(&spec, &never).expect_err("damaged").to_string();
        assert!(error.contains("cluster.json is damaged"), "{error}");
        let record = dir.path().join("cluster.json");
        for (text, says) in [
            (r#"{"format": 4}"#, "format 4, this is 3"),
            (
                r#"{"format": 2, "name": "c", "epoch": 1, "first_instances": [1, 1], "partitions": 1,
                    "data_dirs": 1, "replicas": 3, "acceptors": 3, "clean_at": null}"#,
                "1 partitions have 1 logs",
            ),
        ] {
            fs::write(&record, text).expect("write");
            let error = dir.plan(&spec, &never).expect_err("damaged").to_string();
            assert!(error.contains(says), "{error}");
        }
        fs::remove_file(record).expect("remove");
        add_data(&dir, 0..1);
        let error = dir.plan(&spec, &never).expect_err("gone").to_string();
        assert!(error.contains("replica/0 has data"), "{error}");
    }

    #[test]
    fn a_directory_has_one_supervisor() {
        let (_t, dir, _) = setup();
        let error = ClusterDir::open(dir.path(), &[])
            .expect_err("locked")
            .to_string();
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
    }
}
