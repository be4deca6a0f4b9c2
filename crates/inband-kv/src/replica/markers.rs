//! Markers: they tell partitions to execute cross-partition commands.

use std::time::{Duration, Instant};

use inband_host::log::Ticket;

use super::Replica;
use crate::limits::{MARKER_REPEAT_MS, MARKER_STAGGER_MS};
use crate::packer::Submission;

/// The state of the marker that a partition waits for.
#[derive(Debug, Default)]
pub(super) struct Marker {
    /// The marker that this replica has submitted, and its entry.
    in_flight: Option<(Ticket, u64)>,
    /// Since when the marker is missing and this replica has not submitted it.
    wanted_since: Option<Instant>,
    /// Since when any marker is missing.
    missing_since: Option<Instant>,
}

impl Marker {
    /// A value has ended; forget it if it was the marker.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        if self.in_flight.is_some_and(|(own, _)| own == ticket) {
            self.in_flight = None;
        }
    }

    /// Since when any marker has been missing.
    pub(super) fn missing_since(&self) -> Option<Instant> {
        self.missing_since
    }
}

impl Replica {
    /// Submits the missing markers: at once for commands of this replica's clients, for others after a delay in which
    /// their own replica should have done it.
    pub(super) fn submit_markers(&mut self) {
        let stagger_ms = MARKER_STAGGER_MS * self.config.replica_index;
        let repeat_after = Duration::from_millis(MARKER_REPEAT_MS + stagger_ms);
        for partition in 0..self.machine.partitions() {
            let lane = &mut self.lanes[partition];
            let Some(wanted) = self.machine.wanted_marker(partition) else {
                (lane.marker.wanted_since, lane.marker.missing_since) = (None, None);
                continue;
            };
            lane.marker.missing_since.get_or_insert(self.now);
            let is_covered = |(_, entry): (_, u64)| entry >= wanted.entry;
            if lane.marker.in_flight.is_some_and(is_covered) {
                continue;
            }
            let since = *lane.marker.wanted_since.get_or_insert(self.now);
            let is_due = self.now.saturating_duration_since(since) >= repeat_after;
            if !wanted.is_own && !is_due {
                continue;
            }
            let mut to = Submission {
                connections: &mut self.front.connections,
                log: &mut *self.log,
                clock_ms: self.clock_ms,
                now: self.now,
            };
            let ticket = lane.packer.submit_marker(wanted.entry, &mut to);
            lane.marker.in_flight = ticket.map(|ticket| (ticket, wanted.entry));
        }
    }
}
