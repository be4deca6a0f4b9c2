//! Decides which clients must be closed: they hold too much memory, or block for too long.

use std::sync::Arc;
use std::time::Instant;

use inband_resp::front::{Accepted, ClientConnection, Connections};
use inband_resp::timeouts::{ClientTimeouts, TimeoutChecks};

use crate::connection::Connection;
use crate::limit_hits::{LimitHit, LimitHits, RateLimit};

/// What the owner of client connections needs to hold them to their limits. Each limit that is hit is counted, and
/// logged at a bounded rate.
#[derive(Debug)]
pub(crate) struct Guard {
    limit_hits: Arc<LimitHits>,
    log_limit: RateLimit,
    checks: TimeoutChecks,
}

impl Guard {
    pub(crate) fn new(limit_hits: Arc<LimitHits>, now: Instant) -> Guard {
        Guard {
            limit_hits,
            log_limit: RateLimit::default(),
            checks: TimeoutChecks::new(now),
        }
    }

    /// Notes clients that could not be accepted.
    pub(crate) fn note_refused(&self, accepted: &Accepted) {
        (0..accepted.refused).for_each(|_| self.limit_hits.count(LimitHit::Clients));
        let Some(error) = &accepted.failure else {
            return;
        };
        self.limit_hits.count(LimitHit::Accept);
        if self.log_limit.is_due() {
            tracing::warn!(
                "accepting a client: {error}; raise the limit of open files (ulimit -n) or lower \
                 host.limits.max_clients"
            );
        }
    }

    /// Notes that a client is closed because it has hit a limit.
    pub(crate) fn note_closed(&self, client: &Connection, hit: LimitHit) {
        self.limit_hits.count(hit);
        if self.log_limit.is_due() {
            let (peer, memory_bytes) = (client.peer, client.memory_bytes());
            tracing::warn!(
                "closed the client at {peer}, which held {memory_bytes} bytes: {}; see docs/limits.md",
                hit.counter()
            );
        }
    }

    /// Returns the clients that have exceeded a time limit; empty if it is too soon to check again.
    pub(crate) fn timed_out(
        &mut self,
        clients: &Connections<Connection>,
        timeouts: &ClientTimeouts,
        now: Instant,
    ) -> Vec<(usize, LimitHit)> {
        if !self.checks.are_due(now) {
            return Vec::new();
        }
        let places = clients.places();
        let late =
            places.filter_map(|(slot, client)| Some((slot, client.timed_out(now, timeouts)?)));
        late.collect()
    }
}
