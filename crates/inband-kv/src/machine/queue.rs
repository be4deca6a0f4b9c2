//! The entries that are decided and not yet executed in all their partitions.

use std::collections::{BTreeMap, VecDeque};

use inband_host::log::Ticket;

use super::WantedMarker;
use crate::command::Command;
use crate::store::QueueEntry;

/// A cross-partition command.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) time_ms: u64,
    pub(super) command: Vec<u8>,
    /// The partitions involved, ascending; never empty.
    pub(super) involved: Vec<usize>,
    /// Set if this process submitted it: the value that contains it, for which a client waits.
    pub(super) ticket: Option<Ticket>,
    /// It changes nothing but replicated time: its reads are executed only where a client waits for them.
    pub(super) is_free: bool,
    /// Number of partitions that have not executed it.
    waiting: usize,
}

impl Entry {
    /// `None` if the command is malformed.
    pub(super) fn new(queued: QueueEntry, partitions: usize) -> Option<Self> {
        let (command, stamp) = Command::decode(&queued.command)?;
        let involved = command.involved(partitions);
        let is_free = command.only_reads() && stamp.is_none();
        (!involved.is_empty()).then_some(Self {
            time_ms: queued.time_ms,
            involved,
            ticket: queued.ticket,
            is_free,
            waiting: 0,
            command: queued.command,
        })
    }

    pub(super) fn is_own(&self) -> bool {
        self.ticket.is_some()
    }
}

pub(super) struct Queue {
    pub(super) entries: BTreeMap<u64, Entry>,
    /// By partition, the entries to execute, in order.
    pending: Vec<VecDeque<u64>>,
    /// The last entry that the log has delivered.
    pub(super) delivered: u64,
    /// Approximate memory of the entries.
    pub(super) len_bytes: usize,
}

/// Approximate memory of an entry besides its command.
const ENTRY_LEN_BYTES: usize = 160;

impl Queue {
    pub(super) fn new(partitions: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            pending: vec![VecDeque::new(); partitions],
            delivered: 0,
            len_bytes: 0,
        }
    }

    /// Queues an entry, the latest so far, for these partitions.
    pub(super) fn push(&mut self, number: u64, mut entry: Entry, waiting: &[usize]) {
        entry.waiting = waiting.len();
        self.len_bytes += ENTRY_LEN_BYTES + entry.command.len();
        for partition in waiting {
            self.pending[*partition].push_back(number);
        }
        self.entries.insert(number, entry);
    }

    /// Takes an entry to be executed now; its command is not needed again.
    ///
    /// # Panics
    /// If it is not in the queue.
    pub(super) fn take(&mut self, number: u64) -> Entry {
        let queued = self.entries.get_mut(&number).expect("it is queued");
        let command = std::mem::take(&mut queued.command);
        self.len_bytes -= command.len();
        Entry {
            command,
            ..queued.clone()
        }
    }

    /// Returns the next entry that a partition executes.
    pub(super) fn next(&self, partition: usize) -> Option<u64> {
        self.pending[partition].front().copied()
    }

    /// Returns whether this partition has executed everything that a marker covers.
    pub(super) fn may_pass(&self, partition: usize, marker: u64) -> bool {
        let next = self.next(partition);
        marker <= self.delivered && next.is_none_or(|next| next > marker)
    }

    /// Returns whether the next entry of a partition is the last one that the marker covers.
    pub(super) fn is_last_at(&self, partition: usize, marker: Option<u64>) -> bool {
        let after = self.pending[partition].get(1);
        marker.is_some_and(|marker| after.is_none_or(|after| *after > marker))
    }

    /// A partition has executed its next entry. Returns the entry if this was its last partition.
    pub(super) fn done(&mut self, number: u64, partition: usize) -> Option<Entry> {
        let next = self.pending[partition].pop_front();
        debug_assert_eq!(next, Some(number), "entries are executed in order");
        let entry = self.entries.get_mut(&number)?;
        entry.waiting -= 1;
        if entry.waiting > 0 {
            return None;
        }
        let entry = self.entries.remove(&number)?;
        self.len_bytes -= ENTRY_LEN_BYTES + entry.command.len();
        Some(entry)
    }

    pub(super) fn wanted_marker(&self, partition: usize, seen: u64) -> Option<WantedMarker> {
        let pending = &self.pending[partition];
        let unseen = pending.iter().rev().take_while(|number| **number > seen);
        let mut wanted = None;
        for number in unseen {
            let is_own = self.entries.get(number).is_some_and(Entry::is_own);
            let wanted = wanted.get_or_insert(WantedMarker {
                entry: *number,
                is_own: false,
            });
            wanted.is_own |= is_own;
        }
        wanted
    }
}
