//! Clients that wait for cross-partition commands.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use inband_resp::reply::Reply;

use super::Replica;
use crate::control::add;
use crate::limits::{PARTITION_STUCK_MS, SEVERAL_QUEUED_BYTES_MAX};
use crate::packer::Part;

/// A client that waits for an entry.
#[derive(Debug, Clone, Copy)]
struct Waiter {
    part: Part,
    number: u64,
    since: Instant,
}

/// The waiters by entry.
#[derive(Debug, Default)]
pub(super) struct Several {
    waiters: HashMap<u64, Waiter>,
}

impl Several {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}

impl Replica {
    /// Returns the reply to cross-partition commands while they are refused: each decided one holds up all its
    /// partitions until the slowest has reached it.
    pub(super) fn several_refusal(&self) -> Option<Reply> {
        let queued_bytes = self.machine.queued_bytes();
        if queued_bytes > SEVERAL_QUEUED_BYTES_MAX {
            return Some(Reply::error(format!(
                "TRYAGAIN not applied: the commands over several partitions that wait take {queued_bytes} \
                 bytes, and the limit is {SEVERAL_QUEUED_BYTES_MAX}"
            )));
        }
        let mut partitions = 0..self.machine.partitions();
        let partition = partitions.find(|partition| self.is_stuck(*partition))?;
        Some(Reply::error(format!(
            "TRYAGAIN not applied: partition {partition} has decided nothing for {PARTITION_STUCK_MS} ms \
             or more, and commands over several partitions wait for it; has it a leader? Commands of one \
             of the other partitions are taken"
        )))
    }

    /// Returns whether any partition has made no progress for too long.
    pub(super) fn is_any_stuck(&self) -> bool {
        (0..self.machine.partitions()).any(|partition| self.is_stuck(partition))
    }

    /// Returns whether a partition has made no progress for too long. A partition that stands at a marker waits for
    /// another one and is not stuck.
    fn is_stuck(&self, partition: usize) -> bool {
        let lane = &self.lanes[partition];
        let is_long_ago = |since: Instant| {
            let age = self.now.saturating_duration_since(since);
            age >= Duration::from_millis(PARTITION_STUCK_MS)
        };
        if !is_long_ago(lane.last_delivery) || self.machine.is_standing(partition) {
            return false;
        }
        let asked = [lane.marker.missing_since(), lane.packer.oldest_submission()];
        asked.into_iter().flatten().any(is_long_ago)
    }

    /// A value of cross-partition commands was decided; its commands are the entries from `first` on.
    pub(super) fn expect_entries(&mut self, log: usize, parts: Vec<Part>, first: u64) {
        let mut entry = first;
        for part in &parts {
            let mut connection = part.connection(&mut self.front.connections);
            for _ in 0..part.count {
                let number = connection.as_mut().and_then(|c| c.take_in_flight(log));
                let waiter = Waiter {
                    part: *part,
                    number: number.unwrap_or(0),
                    since: self.now,
                };
                self.several.waiters.insert(entry, waiter);
                entry += 1;
            }
        }
        self.lanes[log].packer.recycle(parts);
    }

    /// An entry of this process was executed.
    pub(super) fn finish_entry(&mut self, entry: u64, reply: Reply) {
        let Some(waiter) = self.several.waiters.remove(&entry) else {
            return;
        };
        self.waiting_commands -= 1;
        let round_trip = self.now.saturating_duration_since(waiter.part.received);
        self.control.counters.add_latency(round_trip, 1);
        let log = self.machine.partitions();
        if let Some(connection) = waiter.part.connection(&mut self.front.connections) {
            connection.answer_taken(log, waiter.number, reply);
            self.lanes[log]
                .packer
                .push_ready(waiter.part.slot, connection);
            self.serve(waiter.part.slot);
        }
    }

    /// Entries that have waited for longer than `age`, or all if `age` is zero, end with an unknown outcome.
    pub(super) fn give_up_entries(&mut self, age: Duration, why: &str) {
        let now = self.now;
        let is_over = |w: &Waiter| age.is_zero() || now.saturating_duration_since(w.since) > age;
        let mut entries: Vec<u64> = Vec::new();
        entries.extend(
            self.several
                .waiters
                .iter()
                .filter(|(_, w)| is_over(w))
                .map(|(e, _)| *e),
        );
        entries.sort_unstable();
        add(
            &self.control.counters.outcomes_unknown_total,
            entries.len() as u64,
        );
        for entry in entries {
            let reply = Reply::error(format!("UNKNOWN outcome unknown: {why}"));
            self.finish_entry(entry, reply);
        }
    }
}
