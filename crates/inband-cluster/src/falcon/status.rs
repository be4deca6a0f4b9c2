//! What schedulers and clusters of Falcon say of themselves, over their sockets.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use inband_falcon::scheduler_node::{Status, WorkerStatus};
use inband_host::config::Dataplane;
use inband_host::key_file::KeyStatus;
use serde::{Deserialize, Serialize};

use crate::host_process::ProcessStatus;

/// A request to a scheduler's control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum SchedulerRequest {
    /// Answered by [`SchedulerReply::Status`].
    Status,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "body", rename_all = "lowercase")]
pub enum SchedulerReply {
    /// To [`SchedulerRequest::Status`].
    Status(Box<SchedulerStatus>),
    /// It was not understood, or failed.
    Error {
        /// One line.
        message: String,
    },
}

/// A scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchedulerStatus {
    /// Drawn at its start, in hexadecimal digits.
    pub incarnation: String,
    /// Where it listens.
    pub address: SocketAddrV4,
    /// Where its role runs.
    pub dataplane: Dataplane,
    /// Which task goes to whom.
    pub policy: String,
    /// Slots of its queues together.
    pub slots: usize,
    /// Tasks that a user may have in them.
    pub user_tasks_max: u32,
    /// Tasks in them.
    pub queued: u64,
    /// Those of each queue that has any, by its number.
    pub queues: BTreeMap<u8, u32>,
    /// How long the first of them has waited. `None`: there is none, or the role runs in the kernel.
    pub oldest_waits_us: Option<u64>,
    /// Tasks given to executors since its start.
    pub given: u64,
    /// The same in the last second or so.
    pub given_per_s: f64,
    /// Who does the work.
    pub workers: Vec<WorkerStatus>,
    /// If packets are authenticated: with which keys.
    pub keys: Option<KeyStatus>,
    /// Everything counted, by name.
    pub counters: BTreeMap<String, u64>,
}

impl SchedulerStatus {
    /// As a scheduler says it.
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

    /// All executors, those that have a task, and those that are parked.
    pub fn executors(&self) -> (u32, u32, u32) {
        let sum = |of: fn(&WorkerStatus) -> u8| self.workers.iter().map(|w| u32::from(of(w))).sum();
        (sum(|w| w.executors), sum(|w| w.busy), sum(|w| w.waiting))
    }
}

/// The whole cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// How it is reached.
    #[serde(alias = "door")]
    pub address: ClusterAddress,
    /// The process that watches over it.
    pub supervisor_pid: u32,
    /// Where the role of its scheduler runs, and why.
    pub notice: String,
    /// Its processes on this machine.
    pub processes: Vec<ProcessStatus>,
    /// What the scheduler says; `None` if it does not answer.
    pub scheduler: Option<SchedulerStatus>,
}

/// How a cluster is reached from this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterAddress {
    /// Its directory.
    pub data: PathBuf,
    /// Where its scheduler listens.
    pub scheduler: SocketAddrV4,
    /// Its keys.
    pub key_file: Option<PathBuf>,
    /// The network namespace in which it can be reached, if it has a network of its own.
    pub namespace: Option<PathBuf>,
}
