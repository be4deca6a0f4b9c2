//! What a scheduler knows of itself, for people.

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

/// Tasks that left a queue, by how.
const GIVEN: [&str; 2] = ["falcon_given", "falcon_woken"];

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Drawn at its start.
    pub incarnation: u64,
    /// Where the role runs.
    pub dataplane: Dataplane,
    /// Sizes and rules.
    pub falcon: FalconConfig,
    /// Tasks in its queues, of those that have any: number of the queue, tasks.
    pub queues: Vec<(u8, u32)>,
    /// How long the task that came first, of those in the queues, has waited. `None`: there is none, or the role
    /// runs in the kernel, where nobody notes when tasks come.
    pub oldest_waits_ns: Option<Nanos>,
    /// Tasks given to executors since its start.
    pub given: u64,
    /// Workers by their numbers.
    pub workers: Vec<WorkerStatus>,
    /// Everything counted, by name.
    pub counters: BTreeMap<&'static str, u64>,
}

/// A worker as its scheduler knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub number: u16,
    /// As it calls itself.
    pub name: String,
    /// Where it is.
    pub address: SocketAddrV4,
    /// What its tasks may need.
    pub resources: Vec<String>,
    /// How many tasks it runs at a time.
    pub executors: u8,
    /// Of these: given a task, and not heard of since.
    pub busy: u8,
    /// Of these: parked at the scheduler.
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

/// Tasks given to executors, of everything counted.
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
