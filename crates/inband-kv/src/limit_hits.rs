//! Counters of how often each limit was hit: refusals and disconnections of clients and peers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A limit that was hit. Each has a counter in `inband status --json` and in the metrics, and a row in docs/limits.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitHit {
    /// A client was refused because too many were connected.
    Clients,
    /// A client could not be accepted because descriptors or memory had run out.
    Accept,
    /// A client was disconnected because it did not read its replies.
    Unread,
    /// A client was disconnected because its unsent replies exceeded the hard limit.
    Output,
    /// A client was disconnected because it did not complete a request.
    Incomplete,
    /// A client was disconnected because it was idle for too long.
    Idle,
    /// The client holding most memory was disconnected because all of them together held too much.
    Memory,
    /// A client was disconnected because of a protocol error.
    Protocol,
    /// A client sent a wrong password.
    Password,
    /// A client was disconnected because it did not authenticate in time.
    Unauthenticated,
    /// A client was disconnected because it did not use TLS or rejected this host's certificate.
    Tls,
    /// A request was too long, or named too many keys.
    Request,
    /// Reads waited because this turn of the loop had already read enough.
    TurnReplies,
    /// An export was refused because too many were running.
    Exports,
    /// A cross-partition command was refused because too many wait, or a partition is stuck.
    Several,
    /// A blocking pop was refused because too many clients wait.
    Waiting,
    /// A subscriber was disconnected because it did not read its messages.
    Subscriber,
    /// A subscriber was disconnected because messages for it were lost.
    LostMessages,
    /// A write was refused because there was too little room on a disk.
    Disk,
    /// A peer was refused a checkpoint because too many transfers were running.
    CheckpointTransfers,
    /// A checkpoint transfer was ended because the peer was too slow.
    CheckpointPace,
    /// A peer that connected for a checkpoint did not speak the protocol.
    CheckpointProtocol,
}

impl LimitHit {
    pub const ALL: [LimitHit; 22] = [
        LimitHit::Clients,
        LimitHit::Accept,
        LimitHit::Unread,
        LimitHit::Output,
        LimitHit::Incomplete,
        LimitHit::Idle,
        LimitHit::Memory,
        LimitHit::Protocol,
        LimitHit::Password,
        LimitHit::Unauthenticated,
        LimitHit::Tls,
        LimitHit::Request,
        LimitHit::TurnReplies,
        LimitHit::Exports,
        LimitHit::Several,
        LimitHit::Waiting,
        LimitHit::Subscriber,
        LimitHit::LostMessages,
        LimitHit::Disk,
        LimitHit::CheckpointTransfers,
        LimitHit::CheckpointPace,
        LimitHit::CheckpointProtocol,
    ];

    pub fn counter(self) -> &'static str {
        match self {
            LimitHit::Clients => "kv_connections_refused",
            LimitHit::Accept => "kv_accepts_failed",
            LimitHit::Unread => "kv_closed_unread",
            LimitHit::Output => "kv_closed_output",
            LimitHit::Incomplete => "kv_closed_incomplete",
            LimitHit::Idle => "kv_closed_idle",
            LimitHit::Memory => "kv_closed_memory",
            LimitHit::Protocol => "kv_closed_protocol",
            LimitHit::Password => "kv_passwords_refused",
            LimitHit::Unauthenticated => "kv_closed_unauthenticated",
            LimitHit::Tls => "kv_closed_tls",
            LimitHit::Request => "kv_requests_over_limit",
            LimitHit::TurnReplies => "kv_reads_postponed",
            LimitHit::Exports => "kv_exports_refused",
            LimitHit::Several => "kv_several_refused",
            LimitHit::Waiting => "kv_waits_refused",
            LimitHit::Subscriber => "kv_closed_subscriber",
            LimitHit::LostMessages => "kv_closed_lost_messages",
            LimitHit::Disk => "kv_writes_refused_disk",
            LimitHit::CheckpointTransfers => "kv_checkpoints_refused",
            LimitHit::CheckpointPace => "kv_checkpoints_too_slow",
            LimitHit::CheckpointProtocol => "kv_checkpoint_protocol_errors",
        }
    }
}

/// One counter per limit. Any thread may increment it.
#[derive(Debug, Default)]
pub struct LimitHits([AtomicU64; LimitHit::ALL.len()]);

impl LimitHits {
    pub fn count(&self, hit: LimitHit) {
        self.0[hit as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self, hit: LimitHit) -> u64 {
        self.0[hit as usize].load(Ordering::Relaxed)
    }

    pub fn snapshot(&self) -> [u64; LimitHit::ALL.len()] {
        LimitHit::ALL.map(|hit| self.get(hit))
    }
}

/// Rate-limits a message in the program's log that outsiders can cause and could otherwise flood.
#[derive(Debug)]
pub struct RateLimit {
    begun: Instant,
    /// Nothing is due earlier than this many milliseconds after `begun`.
    next_ms: AtomicU64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            next_ms: AtomicU64::new(0),
        }
    }
}

impl RateLimit {
    /// Shortest time between two messages.
    pub const PERIOD: Duration = Duration::from_secs(10);

    /// Returns whether the next message is due. Of several concurrent callers, only one gets `true`.
    pub fn is_due(&self) -> bool {
        let now_ms = self.begun.elapsed().as_millis() as u64;
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        let after_ms = now_ms + Self::PERIOD.as_millis() as u64;
        let relaxed = Ordering::Relaxed;
        now_ms >= next_ms
            && self
                .next_ms
                .compare_exchange(next_ms, after_ms, relaxed, relaxed)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names_of_their_own_and_stand_in_order() {
        let names: std::collections::BTreeSet<_> = LimitHit::ALL.map(LimitHit::counter).into();
        assert_eq!(names.len(), LimitHit::ALL.len());
        for (at, hit) in LimitHit::ALL.into_iter().enumerate() {
            assert_eq!(at, hit as usize);
        }
    }

    #[test]
    fn one_line_in_a_while() {
        let log_limit = RateLimit::default();
        assert!(log_limit.is_due());
        assert!((0..1000).all(|_| !log_limit.is_due()));
    }
}
