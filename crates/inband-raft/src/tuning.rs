//! Times and limits of a group, chosen by its user.

use serde::Serialize;

/// The caller's clock determines the length of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Tuning {
    /// Ticks between two heartbeats of a leader.
    pub heartbeat_ticks: usize,
    /// A follower that has heard nothing for this many ticks, up to twice as many, starts an election.
    pub election_ticks: usize,
    /// Approximate maximum size of the entries in one message.
    pub append_bytes_max: u64,
    /// Most messages with entries in flight to one peer.
    pub appends_max: usize,
    /// Consecutively proposed entries are sent in one message. Proposals are sent by [`crate::RaftNode::advance`], so a
    /// burst of proposals before it is one message per peer.
    pub batch_appends: bool,
    /// Commits are announced with the next entries or heartbeat, not at once: half as many messages, if followers learn
    /// of commits in another way or may learn late.
    pub quiet_commits: bool,
    /// A new peer that lacks at most this many entries becomes a voter.
    pub caught_up_entries: u64,
    /// The log is compacted once it has this many applied entries more than it keeps; a journal, once this many entries
    /// follow its initial state and they are at least as long as that state.
    pub compact_entries: usize,
    /// The state is written, to the journal or to a peer, in slices of this many bytes: one per call of
    /// [`crate::RaftNode::advance`].
    pub slice_bytes: usize,
    /// Applied entries kept in memory for peers that are behind: a journal keeps the state instead.
    pub keep_entries: usize,
    /// A peer that is silent for this many ticks while it is sent a snapshot is asked again what it lacks.
    pub snapshot_wait_ticks: usize,
}

impl Default for Tuning {
    /// For a log on a disk that is written rarely.
    fn default() -> Tuning {
        Tuning {
            heartbeat_ticks: 2,
            election_ticks: 10,
            append_bytes_max: 1 << 20,
            appends_max: 256,
            batch_appends: false,
            quiet_commits: false,
            caught_up_entries: 16,
            compact_entries: 256,
            slice_bytes: 1 << 20,
            keep_entries: 0,
            snapshot_wait_ticks: 20,
        }
    }
}
