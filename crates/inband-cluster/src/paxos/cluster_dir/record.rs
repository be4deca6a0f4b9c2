//! The record of a cluster, `cluster.json` in its directory: members, epoch, how it was stopped. Also the earlier
//! formats.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use inband_paxos::config::{bounds, logs_of, Durability, Role};
use serde::{Deserialize, Serialize};

use crate::paxos::layout::kind_of;
use crate::paxos::supervisor::SupervisorError;

/// The format that is written.
pub(super) const RECORD_FORMAT: u32 = 3;
/// The name of `leader/0` in records of earlier versions. Now `leader` is only a role: whichever host leads.
pub(super) const FORMER_LEADER: &str = "leader";

/// `cluster.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// The format of this file.
    pub format: u32,
    pub name: String,
    /// The last known epoch in which an acceptor may have voted.
    pub epoch: u32,
    /// First instance of every log since the last start with empty acceptors.
    pub first_instances: Vec<u64>,
    /// Partitions of the key space.
    pub partitions: u32,
    /// Number of directories over which the partitions are spread.
    pub data_dirs: usize,
    /// What votes survive.
    pub durability: Durability,
    /// Packets carry tags, with the keys in the directory's key file. Fixed for the lifetime of the cluster.
    #[serde(default)]
    pub authenticated: bool,
    /// The last start had a password for clients, and TLS.
    #[serde(default)]
    pub had_password: bool,
    #[serde(default)]
    pub had_resp_tls: bool,
    /// Names of the hosts that the first start was asked for.
    pub asked: Vec<String>,
    /// The members, in the order of their ids.
    pub hosts: Vec<HostRecord>,
    /// The id of the next new host. Ids are never reused.
    pub next_id: u16,
    /// By kind: the number of the next new host, for its name.
    pub next_numbers: BTreeMap<String, u32>,
    /// The clean-stop marker: everything ever decided in each log is at or below this instance, and was applied at
    /// every live replica. Absent while the cluster runs.
    pub clean_at: Option<Vec<u64>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRecord {
    /// Id of the node.
    pub id: u8,
    /// `acceptor/0`, ...
    pub name: String,
    pub roles: Vec<Role>,
    /// Where its packets go.
    pub address: SocketAddrV4,
    /// The host is being added or removed; only the control plane knows whether it is a member.
    #[serde(default)]
    pub changing: bool,
}

/// The first format, of clusters with one log.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordOfOneLog {
    #[serde(rename = "format")]
    _format: u32,
    name: String,
    epoch: u32,
    first_instance: u64,
    replicas: usize,
    #[serde(rename = "acceptors")]
    _acceptors: usize,
    clean_at: Option<u64>,
}

/// The second format, of clusters with fixed members.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordOfFixedMembers {
    #[serde(rename = "format")]
    _format: u32,
    name: String,
    epoch: u32,
    first_instances: Vec<u64>,
    partitions: u32,
    data_dirs: usize,
    replicas: usize,
    #[serde(rename = "acceptors")]
    _acceptors: usize,
    #[serde(default)]
    durability: Durability,
    #[serde(default, rename = "hosts")]
    _hosts: Vec<String>,
    clean_at: Option<Vec<u64>>,
}

impl From<RecordOfOneLog> for RecordOfFixedMembers {
    fn from(old: RecordOfOneLog) -> Self {
        Self {
            _format: old._format,
            name: old.name,
            epoch: old.epoch,
            first_instances: vec![old.first_instance],
            partitions: 1,
            data_dirs: 1,
            replicas: old.replicas,
            _acceptors: old._acceptors,
            durability: Durability::Memory,
            _hosts: Vec::new(),
            clean_at: old.clean_at.map(|at| vec![at]),
        }
    }
}

impl From<RecordOfFixedMembers> for ClusterRecord {
    /// The result has no members: the next start founds the control plane with the hosts that it is asked for.
    fn from(old: RecordOfFixedMembers) -> Self {
        Self {
            format: RECORD_FORMAT,
            name: old.name,
            epoch: old.epoch,
            first_instances: old.first_instances,
            partitions: old.partitions,
            data_dirs: old.data_dirs,
            durability: old.durability,
            authenticated: false, // until its founding, which is to come
            had_password: false,
            had_resp_tls: false,
            asked: (0..old.replicas).map(|i| format!("replica/{i}")).collect(),
            hosts: Vec::new(),
            next_id: 1,
            next_numbers: BTreeMap::new(),
            clean_at: old.clean_at,
        }
    }
}

impl ClusterRecord {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct AnyRecord {
            format: u32,
        }
        let in_words = |e: serde_json::Error| e.to_string();
        let any: AnyRecord = serde_json::from_str(text).map_err(in_words)?;
        let mut record: Self = match any.format {
            1 => serde_json::from_str::<RecordOfOneLog>(text)
                .map(RecordOfFixedMembers::from)
                .map(Self::from),
            2 => serde_json::from_str::<RecordOfFixedMembers>(text).map(Self::from),
            RECORD_FORMAT => serde_json::from_str(text),
            other => return Err(format!("format {other}, this is {RECORD_FORMAT}")),
        }
        .map_err(in_words)?;
        let hosts = record.hosts.iter_mut().map(|host| &mut host.name);
        for name in hosts.chain(&mut record.asked) {
            if name == FORMER_LEADER {
                *name = format!("{FORMER_LEADER}/0");
            }
        }
        let logs = logs_of(record.partitions);
        let is_whole = |positions: &Vec<u64>| positions.len() == logs;
        if !is_whole(&record.first_instances)
            || record.first_instances.contains(&0)
            || !record.clean_at.as_ref().is_none_or(is_whole)
        {
            return Err(format!(
                "{} partitions have {logs} logs, and the instances are of others",
                record.partitions
            ));
        }
        Ok(record)
    }

    /// Records a host that is being added.
    pub fn add_host(&mut self, host: HostRecord) {
        self.next_id = self.next_id.max(u16::from(host.id) + 1);
        let (kind, number) = kind_of(&host.name);
        let next = self.next_numbers.entry(kind.to_owned()).or_default();
        *next = (*next).max(number + 1);
        self.hosts.push(host);
    }

    /// Id and name of the next new host of a kind.
    pub fn next_host(&self, kind: &str) -> Result<(u8, String), SupervisorError> {
        let id = u8::try_from(self.next_id)
            .ok()
            .filter(|id| bounds::NODE_ID.contains(&u64::from(*id)));
        let id = id.ok_or_else(|| {
            SupervisorError::WrongState(format!(
                "all ids up to {} have been used, and none is used twice; export the data and \
                 import it into a new cluster",
                bounds::NODE_ID.end()
            ))
        })?;
        let number = self.next_numbers.get(kind).copied().unwrap_or(0);
        Ok((id, format!("{kind}/{number}")))
    }

    pub fn host_mut(&mut self, id: u8) -> Option<&mut HostRecord> {
        self.hosts.iter_mut().find(|host| host.id == id)
    }
}
