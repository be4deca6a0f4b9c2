//! Clients that did not answer this worker. A dead client may have left thousands of tasks in the queue, and they must
//! not each cost an executor a full timeout.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use crate::limits::SILENT_CLIENTS_MAX;
use crate::task::Attempt;
use crate::timing::{ExecutorTiming, Nanos};

/// Silent clients. One is removed when it is heard from.
#[derive(Debug)]
pub(super) struct Silent {
    timing: ExecutorTiming,
    /// Until when tasks of this client are dropped without asking it.
    skip_until: HashMap<SocketAddrV4, Nanos>,
}

impl Silent {
    pub fn new(timing: ExecutorTiming) -> Silent {
        let skip_until = HashMap::new();
        Silent { timing, skip_until }
    }

    /// An executor got no answer from this client.
    pub fn found(&mut self, now: Nanos, client: SocketAddrV4) {
        if self.skip_until.len() >= SILENT_CLIENTS_MAX {
            let first = self.skip_until.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(client, _)| *client) {
                self.skip_until.remove(&first);
            }
        }
        let until = now + self.timing.client_skip_ns;
        self.skip_until.insert(client, until);
    }

    /// The client was heard from.
    pub fn heard(&mut self, client: &SocketAddrV4) {
        self.skip_until.remove(client);
    }

    /// Returns how long an executor waits for the client's answer about this task; 0: it does not ask.
    pub fn client_timeout_ns(&self, now: Nanos, client: &SocketAddrV4, of: Attempt) -> Nanos {
        match self.skip_until.get(client) {
            // A client that resubmits a task is alive, even if it cannot be reached from here. This worker must not
            // take such tasks faster than workers that can reach it.
            Some(_) if of.attempt > 1 => self.timing.client_silent_ns,
            Some(until) if now < *until => 0,
            Some(_) => self.timing.client_probe_ns,
            None => self.timing.client_silent_ns,
        }
    }
}
