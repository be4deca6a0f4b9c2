//! The application of one log on a replica: a counter with a session table, following the contract of
//! [`inband_paxos::log::ReplicatedLog`].

use std::collections::BTreeMap;

use inband_ground::auth::Digest;
use inband_paxos::dataplane::wire;
use inband_paxos::log::{Decided, ValueKind};
use inband_paxos::session::{SessionTable, Verdict};

use crate::paxos::mutation::Mutation;
use crate::trace::mix;

/// Replicated state. Equal histories give equal states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The last applied instance.
    pub applied: u64,
    /// The number of applied commands.
    pub counter: u64,
    /// Hash of everything applied, in order.
    pub hash: u64,
    sessions: SessionTable,
    /// For a mutation: the highest sequence of each session.
    highest_sequence: BTreeMap<u64, u64>,
}

/// A replica's state of one log, in memory and on disk.
#[derive(Debug, Default)]
pub struct App {
    pub live: State,
    /// Survives a crash.
    pub durable: State,
}

/// Returns a command's number: the first bytes of its value.
pub fn command_id(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.get(..8)?.try_into().ok()?))
}

/// Returns a hash of everything that distinguishes one decided value from another.
pub fn value_key(digest: u64, client_id: u64, client_seq: u64, client_low: u64, flags: u16) -> u64 {
    [client_id, client_seq, client_low, u64::from(flags)]
        .into_iter()
        .fold(mix(1, digest), mix)
}

/// Returns the [`value_key`] of a decided value.
pub fn decided_key(decided: &Decided<'_>, digest: Digest) -> u64 {
    let flags = match decided.origin.kind {
        ValueKind::Command => 0,
        ValueKind::Noop => wire::flag::NOOP,
        ValueKind::OpenSession => wire::flag::OPEN,
    };
    let origin = &decided.origin;
    value_key(
        digest.of(decided.value),
        origin.client_id,
        origin.client_seq,
        origin.client_low,
        flags,
    )
}

impl App {
    /// Applies the next instance.
    pub fn apply(&mut self, decided: &Decided<'_>, mutation: Option<Mutation>) -> Verdict {
        let state = &mut self.live;
        let verdict = match mutation {
            Some(Mutation::NoSessionTable) if decided.origin.kind == ValueKind::Command => {
                Verdict::Apply
            }
            Some(Mutation::HighestSequenceOnly) if decided.origin.kind == ValueKind::Command => {
                state.highest_only(decided)
            }
            _ => state.sessions.admit(decided.instance, &decided.origin),
        };
        state.applied = decided.instance;
        state.counter += u64::from(verdict == Verdict::Apply);
        state.hash = mix(
            mix(state.hash, decided_key(decided, Digest::PLAIN)),
            verdict as u64,
        );
        verdict
    }

    /// Writes the state in memory to disk.
    pub fn flush(&mut self) {
        self.durable = self.live.clone();
    }

    /// Loses what was not on disk.
    pub fn crash(&mut self) {
        self.live = self.durable.clone();
    }

    /// Installs a peer's state durably.
    pub fn install(&mut self, state: &State) {
        self.live = state.clone();
        self.flush();
    }
}

impl State {
    fn highest_only(&mut self, decided: &Decided<'_>) -> Verdict {
        let origin = &decided.origin;
        let highest = self.highest_sequence.entry(origin.client_id).or_default();
        if origin.client_seq <= *highest {
            return Verdict::Duplicate;
        }
        *highest = origin.client_seq;
        Verdict::Apply
    }
}
