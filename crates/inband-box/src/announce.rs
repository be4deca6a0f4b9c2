//! Keeps the service manager (systemd) informed about a node: ready, at work, stopping.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use inband_host::notify::Notifier;

use crate::status::Status;

/// How often the status is looked at.
const PERIOD: Duration = Duration::from_millis(100);

/// Tells the service manager what a node does. It is called by the node's main loop, so that a loop that hangs says
/// nothing.
pub struct Announcer {
    notifier: Notifier,
    has_been_ready: bool,
    said: String,
    look_at: Instant,
}

impl Announcer {
    /// Informs the service manager that the environment names, if there is one.
    pub fn from_environment() -> Announcer {
        Announcer {
            notifier: Notifier::from_environment(),
            has_been_ready: false,
            said: String::new(),
            look_at: Instant::now(),
        }
    }

    /// The main loop has turned. `READY=1` is sent once, when `/ready` would answer 200 for the first time; after that only
    /// the status changes.
    pub fn turned(&mut self, status: &Mutex<Option<Status>>) {
        let now = Instant::now();
        self.notifier.turned(now);
        if !self.notifier.is_heard() || now < self.look_at {
            return;
        }
        self.look_at = now + PERIOD;
        let status = status.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(status) = &*status else { return };
        let (is_ready, words) = match status.check_ready() {
            Ok(()) => (true, format!("ready: {}", status.state)),
            Err(why) => (false, format!("not ready: {why}")),
        };
        if is_ready && !self.has_been_ready {
            self.has_been_ready = true;
            self.notifier.ready(&words);
        } else if words != self.said {
            self.notifier.status(&words);
        }
        self.said = words;
    }

    /// The node is told to stop.
    pub fn stopping(&self) {
        self.notifier.stopping();
    }
}
