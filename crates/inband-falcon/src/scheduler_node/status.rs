//! The status of a scheduler.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use crate::dataplane::registers::ExecutorState;
use crate::dataplane::wire::EXECUTORS;
use crate::dataplane::FalconConfig;
use inband_host::config::Dataplane;
use serde::{Deserialize, Serialize};

use super::{Backend, SchedulerNode};
use crate::registry;
use crate::scheduler::SET;
use crate::timing::Nanos;

/// Counters of tasks that left a queue.
const GIVEN: [&str; 2] = ["falcon_given", "falcon_woken"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub incarnation: u64,
    /// Where the role runs.
    pub dataplane: Dataplane,
    pub falcon: FalconConfig,
    /// Number and tasks of each queue that is not empty.
    pub queues: Vec<(u8, u32)>,
    /// How long the oldest queued task has waited. `None`: there is none, or the role runs in the kernel, where arrival
    /// times are not recorded.
    pub oldest_waits_ns: Option<Nanos>,
    /// Tasks given to executors since its start.
    pub given: u64,
    /// Workers by number.
    pub workers: Vec<WorkerStatus>,
    /// All counters, by name.
    pub counters: BTreeMap<&'static str, u64>,
}

/// The scheduler's view of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub number: u16,
    /// Its own name.
    pub name: String,
    pub address: SocketAddrV4,
    /// Names of its resources.
    pub resources: Vec<String>,
    /// How many tasks it runs at a time.
    pub executors: u8,
    /// Executors that were given a task and have not been heard from since.
    pub busy: u8,
    /// Executors parked at the scheduler.
    pub waiting: u8,
}

impl Status {
    pub(super) fn of(node: &SchedulerNode) -> Status {
        let registers = node.backend.registers();
        let falcon = registers.config();
        let counters = node.counters();
        let queues = (0..falcon.policy.queues()).map(|queue| {
            let tasks = registers.queue(SET, queue).tasks();
            (queue as u8, tasks)
        });
        let queues: Vec<(u8, u32)> = queues.filter(|(_, tasks)| *tasks > 0).collect();
        Status {
            incarnation: node.scheduler.incarnation(),
            dataplane: node.dataplane,
            falcon,
            oldest_waits_ns: oldest_waits_ns(node, &queues),
            queues,
            given: given(&counters),
            workers: workers(node),
            counters,
        }
    }

    /// Tasks in all queues.
    pub fn queued(&self) -> u64 {
        self.queues.iter().map(|(_, tasks)| u64::from(*tasks)).sum()
    }
}

/// Returns the number of tasks given to executors, from all counters.
pub(super) fn given(counters: &BTreeMap<&'static str, u64>) -> u64 {
    let counts = GIVEN.iter().filter_map(|name| counters.get(name));
    counts.sum()
}

fn oldest_waits_ns(node: &SchedulerNode, queues: &[(u8, u32)]) -> Option<Nanos> {
    let Backend::Soft(switch) = &node.backend else {
        return None;
    };
    let first_came = |(queue, _): &(u8, u32)| {
        let queue = usize::from(*queue);
        let registers = switch.registers();
        let first = registers.queue(SET, queue).retrieve;
        registers.slot(SET, queue, first).came_ns
    };
    let came_ns = queues.iter().map(first_came).min()?;
    Some(node.clock.now().saturating_sub(came_ns))
}

fn workers(node: &SchedulerNode) -> Vec<WorkerStatus> {
    let registers = node.backend.registers();
    let of = |(number, worker): (u16, &registry::Worker<SocketAddrV4>)| {
        let first = usize::from(number) * EXECUTORS as usize;
        let executors = first..first + usize::from(worker.said.executors);
        let records = executors.map(|executor| registers.executor(SET, executor));
        let states = records
            .filter(|record| record.worker_incarnation == worker.incarnation)
            .map(|record| record.state);
        let states: Vec<ExecutorState> = states.collect();
        let count = |wanted| states.iter().filter(|state| **state == wanted).count() as u8;
        WorkerStatus {
            number,
            name: worker.said.name.clone(),
            address: worker.address,
            resources: node
                .scheduler
                .resource_names()
                .of_bitmap(worker.said.resources),
            executors: worker.said.executors,
            busy: count(ExecutorState::Busy),
            waiting: count(ExecutorState::Waits),
        }
    };
    node.scheduler.workers().map(of).collect()
}
