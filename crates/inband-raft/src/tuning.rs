//! Times and limits of a group, chosen by who uses it.

use serde::Serialize;

/// See the module. A tick is as long as its caller's clock makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Tuning {
    /// Ticks between two heartbeats of a leader.
    pub heartbeat_ticks: usize,
    /// A follower that has heard nothing for this many ticks, and up to twice as many, stands for election.
    pub election_ticks: usize,
    /// Bytes of entries in one message, about.
    pub append_bytes_max: u64,
    /// Messages of entries on their way to one peer.
    pub appends_max: usize,
    /// Entries proposed one after the other travel in one message. What was proposed leaves with
    /// [`crate::RaftNode::advance`], so a burst of proposals before it is one message a peer.
    pub batch_appends: bool,
    /// That entries are committed is said with the next entries, or the next heartbeat, not at once: half as many
    /// messages, where followers learn it in another way or may be late.
    pub quiet_commits: bool,
    /// A new peer that lacks at most this many entries is given its vote.
    pub caught_up_entries: u64,
    /// The log is shortened once it has this many applied entries more than it keeps; a journal, once so many entries are
    /// behind the state that it begins with, and not before they are as long as that state.
    pub compact_entries: usize,
    /// The state is written, to the journal or to a peer, in slices of so many bytes: one with each call of
    /// [`crate::RaftNode::advance`].
    pub slice_bytes: usize,
    /// Applied entries kept for peers that are behind, in memory: a journal keeps the state instead.
    pub keep_entries: usize,
    /// A peer that is silent for so many ticks while it is sent a snapshot is asked again what it lacks.
    pub snapshot_wait_ticks: usize,
}

impl Default for Tuning {
    /// For a log on a disk that is written seldom.
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
