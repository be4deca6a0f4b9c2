//! Clients that did not answer this worker. A dead client may have left thousands of tasks in the queue: they must not cost an
//! executor a full time-out each.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use crate::limits::SILENT_CLIENTS_MAX;
use crate::task::Attempt;
use crate::timing::{ExecutorTiming, Nanos};

/// See the module. A client leaves it when it is heard of.
#[derive(Debug)]
pub(super) struct Silent {
    timing: ExecutorTiming,
    /// Until when tasks of this client are left without asking it.
    skip_until: HashMap<SocketAddrV4, Nanos>,
}

impl Silent {
    pub fn new(timing: ExecutorTiming) -> Silent {
        let skip_until = HashMap::new();
        Silent { timing, skip_until }
    }

    /// An executor has asked this client in vain.
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

    /// It is there.
    pub fn heard(&mut self, client: &SocketAddrV4) {
        self.skip_until.remove(client);
    }

    /// How long an executor waits for the client's answer about this task; 0: it does not ask.
    pub fn client_timeout_ns(&self, now: Nanos, client: &SocketAddrV4, of: Attempt) -> Nanos {
        match self.skip_until.get(client) {
            // A client that submits a task again lives, even if it cannot be reached from here. This worker must not take
            // such tasks faster than those that can reach it.
            Some(_) if of.attempt > 1 => self.timing.client_silent_ns,
            Some(until) if now < *until => 0,
            Some(_) => self.timing.client_probe_ns,
            None => self.timing.client_silent_ns,
        }
    }
}
