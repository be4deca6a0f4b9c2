//! How a cluster continues after its last stop.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use inband_paxos::config::{logs_of, Durability, Role};
use inband_paxos::node::JOURNAL_DIR;

use super::record::RECORD_FORMAT;
use super::{ClusterDir, ClusterRecord, HostRecord};
use crate::paxos::control::instances;
use crate::paxos::layout::{kind_of, ClusterSpec, HostPlan};
use crate::paxos::supervisor::SupervisorError;

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

/// Returns the instances right after these.
fn behind(applied: &[u64]) -> Vec<u64> {
    applied.iter().map(|at| at + 1).collect()
}

impl ClusterDir {
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
            had_password: false,
            had_resp_tls: false,
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
            (record.had_password, record.had_resp_tls) = (last.had_password, last.had_resp_tls);
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
                "the cluster in {dir} was not stopped cleanly and continues in its epoch, {}: {why}",
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
                "it was made by a version without a control plane; start it with that version \
                 and stop it cleanly before you use this one",
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
            "continuing in epoch {} after an unclean stop, from the acceptors' journals",
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
                    "has --{kind}s {now}, and --{kind}s {wanted} was asked for; start it with \
                     --{kind}s {now} and change its members with `inband member`"
                ));
            }
        }
        if is.partitions != asked.partitions {
            return refuse(format!(
                "has --partitions {}, and --partitions {} was asked for; a key is kept in the \
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
}
