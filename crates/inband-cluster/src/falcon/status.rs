//! The status of schedulers and clusters of Falcon, as sent over their sockets.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use inband_falcon::scheduler_node::{Status, WorkerStatus};
use inband_host::config::Dataplane;
use inband_host::key_file::KeyStatus;
use inband_host::live_keys::LiveKeys;
use serde::{Deserialize, Serialize};

use crate::host_process::ProcessStatus;

/// A request to the control socket of a scheduler or a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum SchedulerRequest {
    Status,
    /// Answered when the process uses the keys that are in its file now.
    ReloadKeys,
}

/// The answer to a [`SchedulerRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum SchedulerReply {
    Status(Box<SchedulerStatus>),
    /// To [`SchedulerRequest::ReloadKeys`]; `None`: packets are not authenticated.
    Keys(Option<KeyStatus>),
    /// The request was not understood, or failed.
    Error {
        /// One line.
        message: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchedulerStatus {
    /// Drawn at its start, in hexadecimal digits.
    pub incarnation: String,
    /// The address at which it listens.
    pub address: SocketAddrV4,
    /// Where its role runs.
    pub dataplane: Dataplane,
    pub policy: String,
    /// Slots of all queues together.
    pub slots: usize,
    /// Maximum queued tasks per user.
    pub user_tasks_max: u32,
    pub queued: u64,
    /// Queued tasks by queue number; empty queues are left out.
    pub queues: BTreeMap<u8, u32>,
    /// How long the oldest queued task has waited. `None`: no task is queued, or the role runs in the kernel.
    pub oldest_waits_us: Option<u64>,
    /// Tasks given to executors since the start.
    pub given: u64,
    /// Tasks given per second, over about the last second.
    pub given_per_s: f64,
    pub workers: Vec<WorkerStatus>,
    /// The keys in use, if packets are authenticated.
    pub keys: Option<KeyStatus>,
    /// All counters, by name.
    pub counters: BTreeMap<String, u64>,
}

impl SchedulerReply {
    /// Has a process read its key file again.
    pub fn to_reload(keys: &LiveKeys) -> SchedulerReply {
        match keys.reload() {
            Ok(keys) => SchedulerReply::Keys(keys),
            Err(error) => SchedulerReply::Error {
                message: format!("{error:#}"),
            },
        }
    }
}

impl SchedulerStatus {
    /// Converts a scheduler's status.
    pub fn of(
        status: Status,
        address: SocketAddrV4,
        given_per_s: f64,
        keys: Option<KeyStatus>,
    ) -> SchedulerStatus {
        let owned = |(name, count): (&str, u64)| (name.to_owned(), count);
        SchedulerStatus {
            incarnation: format!("{:016x}", status.incarnation),
            address,
            dataplane: status.dataplane,
            policy: status.falcon.policy.to_string(),
            slots: status.falcon.slots,
            user_tasks_max: status.falcon.user_tasks_max,
            queued: status.queued(),
            queues: status.queues.into_iter().collect(),
            oldest_waits_us: status.oldest_waits_ns.map(|ns| ns / 1000),
            given: status.given,
            given_per_s,
            workers: status.workers,
            keys,
            counters: status.counters.into_iter().map(owned).collect(),
        }
    }

    /// Returns the number of executors, of those that have a task, and of those that are parked.
    pub fn executors(&self) -> (u32, u32, u32) {
        let sum = |of: fn(&WorkerStatus) -> u8| self.workers.iter().map(|w| u32::from(of(w))).sum();
        (sum(|w| w.executors), sum(|w| w.busy), sum(|w| w.waiting))
    }
}

/// The status of the whole cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    #[serde(alias = "door")]
    pub address: ClusterAddress,
    /// The supervisor's process id.
    pub supervisor_pid: u32,
    /// Where the scheduler's role runs, and why.
    pub notice: String,
    /// The cluster's processes on this machine.
    pub processes: Vec<ProcessStatus>,
    /// The scheduler's status; `None` if it does not answer.
    pub scheduler: Option<SchedulerStatus>,
}

/// How to reach a cluster from this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterAddress {
    /// The cluster's directory.
    pub data: PathBuf,
    pub scheduler: SocketAddrV4,
    pub key_file: Option<PathBuf>,
    /// The network namespace in which the cluster can be reached, if it has its own network.
    pub namespace: Option<PathBuf>,
}
