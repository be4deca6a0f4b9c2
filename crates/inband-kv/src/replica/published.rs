//! What other threads see of a replica.

use std::sync::atomic::Ordering;

use super::Replica;
use crate::control::set;

impl Replica {
    /// Publishes the counters to other threads.
    pub(super) fn publish(&self) {
        let c = &self.control.counters;
        for (counter, applied) in c.applied_instances.iter().zip(self.machine.applied()) {
            set(counter, applied);
        }
        let stores = || self.machine.stores();
        set(&c.time_ms, self.machine.time_ms());
        set(&c.keys, self.machine.keys());
        let sessions = stores().map(|store| store.client_sessions()).max();
        set(&c.client_sessions, sessions.unwrap_or(0) as u64);
        set(&c.connected_clients, self.front.connections.len() as u64);
        set(&c.connections_total, self.front.accepted());
        set(&c.waiting_clients, self.waiting.waiting() as u64);
        let memory_bytes = self.front.connections.memory_bytes();
        set(&c.clients_memory_bytes, memory_bytes as u64);
        let submitted = self.lanes.iter().map(|lane| lane.packer.submitted).sum();
        set(&c.values_submitted_total, submitted);
        set(&c.worker_rounds_total, self.workers.rounds());
        set(&c.worker_cpu_us_total, self.workers.cpu_us());
        let logs = 0..self.lanes.len();
        let delivered_bytes: usize = logs.map(|log| self.machine.delivered_bytes(log)).sum();
        set(&c.delivered_bytes, delivered_bytes as u64);
        set(&c.values_in_flight, self.in_flight() as u64);
        c.is_loading.store(self.is_loading, Ordering::Relaxed);
        let is_behind = self.catch_up.is_behind(self.now);
        c.is_behind.store(is_behind, Ordering::Relaxed);
        let is_catching_up = self.catch_up.is_under_way();
        c.is_catching_up.store(is_catching_up, Ordering::Relaxed);
        let is_idle = self.waiting_commands == 0
            && self.several.is_empty()
            && self.lanes.iter().all(|lane| lane.packer.is_idle());
        c.is_drained
            .store(self.control.is_draining() && is_idle, Ordering::Release);
    }
}
