//! Counters of refused requests and closed connections.

use std::collections::BTreeMap;

use inband_resp::timeouts::TimedOut;

/// Why a connection was closed or a request refused. Each has a counter and a row in docs/limits.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hit {
    /// The client disconnected or sent QUIT; not a limit.
    Gone,
    /// Too many clients.
    Clients,
    /// Accepting failed: out of file descriptors or memory.
    Accept,
    /// The client did not read its answers.
    Unread,
    /// A request was not completed in time.
    Incomplete,
    /// The client was idle for too long.
    Idle,
    /// All clients together used too much memory, and this one the most.
    Memory,
    Protocol,
    /// Wrong password.
    Password,
    /// The client did not authenticate in time.
    Unauthenticated,
    /// The TLS handshake failed.
    Tls,
    /// A request was too long or named too many keys.
    Request,
}

impl Hit {
    fn counter(self) -> Option<&'static str> {
        Some(match self {
            Hit::Gone => return None,
            Hit::Clients => "gateway_connections_refused",
            Hit::Accept => "gateway_accepts_failed",
            Hit::Unread => "gateway_closed_unread",
            Hit::Incomplete => "gateway_closed_incomplete",
            Hit::Idle => "gateway_closed_idle",
            Hit::Memory => "gateway_closed_memory",
            Hit::Protocol => "gateway_closed_protocol",
            Hit::Password => "gateway_passwords_refused",
            Hit::Unauthenticated => "gateway_closed_unauthenticated",
            Hit::Tls => "gateway_closed_tls",
            Hit::Request => "gateway_requests_over_limit",
        })
    }
}

impl From<TimedOut> for Hit {
    fn from(stuck: TimedOut) -> Hit {
        match stuck {
            TimedOut::Unread => Hit::Unread,
            TimedOut::Handshake => Hit::Tls,
            TimedOut::Password => Hit::Unauthenticated,
            TimedOut::Incomplete => Hit::Incomplete,
            TimedOut::Idle => Hit::Idle,
        }
    }
}

/// The number of hits of each kind.
#[derive(Debug, Default)]
pub struct Hits(BTreeMap<Hit, u64>);

impl Hits {
    pub fn count(&mut self, hit: Hit) {
        *self.0.entry(hit).or_default() += 1;
    }

    /// Returns the counters that are not zero, by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counters = self.0.iter();
        counters.filter_map(|(hit, count)| Some((hit.counter()?, *count)))
    }
}
