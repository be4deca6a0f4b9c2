//! Closes clients that hold too much memory, or block for too long.

use std::time::Duration;

use super::Replica;
use crate::limit_hits::LimitHit;
use inband_resp::front::ClientConnection;
use inband_resp::limits::STUCK_CLIENTS_PERIOD_MS;

impl Replica {
    /// Closes a client that has hit a limit.
    pub(super) fn close_for(&mut self, slot: usize, hit: LimitHit) {
        let Some(connection) = self.front.connections.get(slot) else {
            return;
        };
        self.control.limit_hits.count(hit);
        if self.log_limit.is_due() {
            let (peer, memory_bytes) = (connection.peer, connection.memory_bytes());
            tracing::warn!(
                "closed the client at {peer}, which held {memory_bytes} bytes: {}; see docs/limits.md",
                hit.counter()
            );
        }
        self.close(slot);
    }

    /// Closes clients that have exceeded a time limit.
    pub(super) fn close_stuck(&mut self) {
        let period = Duration::from_millis(STUCK_CLIENTS_PERIOD_MS);
        if self.now.saturating_duration_since(self.stuck_looked_at) < period {
            return;
        }
        self.stuck_looked_at = self.now;
        let (now, timeouts) = (self.now, self.config.timeouts);
        let places = self.front.connections.places();
        let stuck = places.filter_map(|(slot, c)| Some((slot, c.timed_out(now, &timeouts)?)));
        for (slot, hit) in stuck.collect::<Vec<_>>() {
            self.close_for(slot, hit);
        }
    }

    /// Closes the clients that hold most memory until the total is within the limit.
    pub(super) fn bound_memory(&mut self) {
        while self.front.connections.memory_bytes() > self.config.clients_memory_bytes_max {
            let Some(slot) = self.front.connections.largest() else {
                return;
            };
            self.close_for(slot, LimitHit::Memory);
        }
    }
}
