//! What Redis clients were refused, or hung up on for.

use std::collections::BTreeMap;

use inband_resp::timeouts::TimedOut;

/// Why a connection ended, or a request was refused. Each has a counter, and a row in docs/limits.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hit {
    /// The client has gone, or has said goodbye; no limit.
    Gone,
    /// It came when there were too many.
    Clients,
    /// It could not be accepted: descriptors or memory had run out.
    Accept,
    /// It did not read its answers.
    Unread,
    /// Its request did not end.
    Incomplete,
    /// It said nothing for too long.
    Idle,
    /// All clients together held too much memory, and it most.
    Memory,
    /// It did not speak the protocol.
    Protocol,
    /// It said a wrong password.
    Password,
    /// It did not say the password in time.
    Unauthenticated,
    /// It did not speak TLS, or refused the gateway's certificate.
    Tls,
    /// A request was too long, or named too many keys.
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

/// How often each was hit.
#[derive(Debug, Default)]
pub struct Hits(BTreeMap<Hit, u64>);

impl Hits {
    /// Once more.
    pub fn count(&mut self, hit: Hit) {
        *self.0.entry(hit).or_default() += 1;
    }

    /// Those that were, by the names of their counters.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counters = self.0.iter();
        counters.filter_map(|(hit, count)| Some((hit.counter()?, *count)))
    }
}
