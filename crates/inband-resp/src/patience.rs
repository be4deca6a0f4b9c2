//! How long a client may keep its server waiting.

use std::time::{Duration, Instant};

use crate::limits::{AUTHENTICATION_MS_MAX, INCOMPLETE_REQUEST_MS_MAX, UNREAD_MS_MAX};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a request to end that has begun.
    pub incomplete: Duration,
    /// For the password.
    pub password: Duration,
    /// For the client to take some of its replies.
    pub unread: Duration,
    /// For a further request; `None`: for ever.
    pub idle: Option<Duration>,
}

/// Since when a client keeps its server waiting.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// For a request to end.
    pub incomplete: Option<Instant>,
    /// For the TLS handshake.
    pub handshake: Option<Instant>,
    /// For the password.
    pub password: Option<Instant>,
    /// To take some of its replies.
    pub unread: Option<Instant>,
    /// For a further request.
    pub idle: Option<Instant>,
}

/// What a client has taken too long for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stuck {
    Unread,
    Handshake,
    Password,
    Incomplete,
    Idle,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            incomplete: Duration::from_millis(INCOMPLETE_REQUEST_MS_MAX),
            password: Duration::from_millis(AUTHENTICATION_MS_MAX),
            unread: Duration::from_millis(UNREAD_MS_MAX),
            idle: None,
        }
    }
}

impl Patience {
    /// What there is no more patience for.
    pub fn is_over(&self, now: Instant, waits: &Waits) -> Option<Stuck> {
        let is_over = |since: Option<Instant>, limit: Duration| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
        };
        match waits {
            w if is_over(w.unread, self.unread) => Some(Stuck::Unread),
            w if is_over(w.handshake, self.password) => Some(Stuck::Handshake),
            w if is_over(w.password, self.password) => Some(Stuck::Password),
            w if is_over(w.incomplete, self.incomplete) => Some(Stuck::Incomplete),
            w if self.idle.is_some_and(|idle| is_over(w.idle, idle)) => Some(Stuck::Idle),
            _ => None,
        }
    }
}
