//! Cluster time, and the ticks that advance replicated time when there are no writes.

use std::time::Duration;

use super::Replica;
use crate::limits::{TICK_BACKLOG_MS, TICK_IDLE_MS, TICK_STAGGER_MS};
use crate::packer::Submission;

impl Replica {
    /// Reads cluster time.
    pub(super) fn look_at_clock(&mut self) {
        let applied_ms = self.machine.time_ms();
        let known = self.clock.time_ms(applied_ms);
        self.is_timeless = known.is_none();
        self.clock_ms = known.unwrap_or(applied_ms);
    }

    /// Proposes a tick when no other replica advances replicated time and a key is due to expire.
    pub(super) fn tick_if_due(&mut self) {
        if self.is_loading || self.is_timeless || self.farewell().is_some() {
            return;
        }
        for (lane, store) in self.lanes.iter_mut().zip(self.machine.stores()) {
            if store.earliest_expiry_ms() > self.clock_ms || lane.tick.is_some() {
                continue;
            }
            let has_backlog = store.earliest_expiry_ms() <= store.time_ms();
            let idle_ms = if has_backlog {
                TICK_BACKLOG_MS
            } else {
                TICK_IDLE_MS
            };
            let idle = Duration::from_millis(idle_ms + TICK_STAGGER_MS * self.config.replica_index);
            if self.now.saturating_duration_since(lane.last_delivery) >= idle {
                lane.tick = lane.packer.submit_tick(&mut Submission {
                    connections: &mut self.front.connections,
                    log: &mut *self.log,
                    clock_ms: self.clock_ms,
                    now: self.now,
                });
            }
        }
    }
}
