//! Closes clients that hold too much memory, or block for too long.

use super::Replica;
use crate::limit_hits::LimitHit;

impl Replica {
    /// Closes a client that has hit a limit.
    pub(super) fn close_for(&mut self, slot: usize, hit: LimitHit) {
        if let Some(client) = self.front.connections.get(slot) {
            self.guard.note_closed(client, hit);
            self.close(slot);
        }
    }

    /// Closes clients that have exceeded a time limit.
    pub(super) fn close_timed_out(&mut self) {
        let (clients, timeouts) = (&self.front.connections, &self.config.timeouts);
        for (slot, hit) in self.guard.timed_out(clients, timeouts, self.now) {
            self.close_for(slot, hit);
        }
    }

    /// Closes the clients that hold most memory until the total is within the limit.
    pub(super) fn bound_memory(&mut self) {
        let max_bytes = self.config.clients_memory_bytes_max;
        while let Some(slot) = self.front.connections.largest_beyond(max_bytes) {
            self.close_for(slot, LimitHit::Memory);
        }
    }
}
