//! Timeouts of clients.

use std::time::{Duration, Instant};

use crate::limits::{
    AUTHENTICATION_MS_MAX, INCOMPLETE_REQUEST_MS_MAX, TIMEOUTS_CHECK_PERIOD_MS, UNREAD_MS_MAX,
};

/// Time limits for a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientTimeouts {
    /// For completing a request.
    pub incomplete: Duration,
    /// For authentication.
    pub password: Duration,
    /// For reading some of its replies.
    pub unread: Duration,
    /// For the next request; `None`: unlimited.
    pub idle: Option<Duration>,
}

/// Since when a client has kept its server waiting, by cause.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timers {
    /// For a request to be completed.
    pub incomplete: Option<Instant>,
    /// For the TLS handshake.
    pub handshake: Option<Instant>,
    /// For authentication.
    pub password: Option<Instant>,
    /// For reading some of its replies.
    pub unread: Option<Instant>,
    /// For the next request.
    pub idle: Option<Instant>,
}

/// When the timeouts of clients are checked: not at every turn of a server's loop.
#[derive(Debug)]
pub struct TimeoutChecks {
    last: Instant,
}

impl TimeoutChecks {
    pub fn new(now: Instant) -> TimeoutChecks {
        TimeoutChecks { last: now }
    }

    /// Returns whether to check now. If so, the next check is due a period later.
    pub fn are_due(&mut self, now: Instant) -> bool {
        let period = Duration::from_millis(TIMEOUTS_CHECK_PERIOD_MS);
        let are_due = now.saturating_duration_since(self.last) >= period;
        if are_due {
            self.last = now;
        }
        are_due
    }
}

/// The timeout that has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TimedOut {
    Unread,
    Handshake,
    Password,
    Incomplete,
    Idle,
}

impl Default for ClientTimeouts {
    fn default() -> ClientTimeouts {
        ClientTimeouts {
            incomplete: Duration::from_millis(INCOMPLETE_REQUEST_MS_MAX),
            password: Duration::from_millis(AUTHENTICATION_MS_MAX),
            unread: Duration::from_millis(UNREAD_MS_MAX),
            idle: None,
        }
    }
}

impl ClientTimeouts {
    /// Returns the timer that has run out, if one has.
    pub fn expired(&self, now: Instant, timers: &Timers) -> Option<TimedOut> {
        let is_over = |since: Option<Instant>, limit: Duration| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
        };
        match timers {
            w if is_over(w.unread, self.unread) => Some(TimedOut::Unread),
            w if is_over(w.handshake, self.password) => Some(TimedOut::Handshake),
            w if is_over(w.password, self.password) => Some(TimedOut::Password),
            w if is_over(w.incomplete, self.incomplete) => Some(TimedOut::Incomplete),
            w if self.idle.is_some_and(|idle| is_over(w.idle, idle)) => Some(TimedOut::Idle),
            _ => None,
        }
    }
}
