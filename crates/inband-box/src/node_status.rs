//! A node's status.

use crate::membership::Membership;
use crate::node::{Node, State};
use crate::role::Role;

/// What a node is doing, for its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Waiting for a leader.
    Waiting,
    /// Asking for promises, or pulling records.
    Electing,
    Following,
    /// Leading, but the epoch is not established yet.
    Establishing,
    Leading,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub doing: Doing,
    /// The highest epoch that it has proposed or promised.
    pub epoch: u64,
    /// The leader, as far as known.
    pub leader: Option<u8>,
    /// Whether it has lost its log, and does not count yet.
    pub recovering: bool,
    /// Whether it has no place in a cluster yet.
    pub is_new: bool,
    /// Zxid of its last record.
    pub last: u64,
    /// Zxid up to which everything is committed.
    pub committed: u64,
    /// Zxid up to which everything is applied.
    pub applied: u64,
    /// The membership, as far as it is applied here.
    pub membership: Membership,
    /// If leading: the membership once the change is committed.
    pub changes_to: Option<Membership>,
    /// Bytes of the leader's table that it has pulled so far, while it pulls it.
    pub pulled_bytes: u64,
    /// Records that the gateway is waiting for.
    pub outstanding: usize,
    /// Elections that it has begun.
    pub elections: u64,
    /// Packets with an epoch far beyond any that it knows.
    pub epochs_refused: u64,
}

impl Node {
    pub fn status(&self, role: &impl Role) -> Status {
        let now = role.view();
        Status {
            doing: match self.state {
                State::Waiting | State::Joining => Doing::Waiting,
                State::Electing(_) => Doing::Electing,
                // It does not hear its leader.
                State::Following { .. } if self.pre_election.is_some() => Doing::Waiting,
                State::Following { .. } => Doing::Following,
                State::Leading(_) if now.committed < now.established_at => Doing::Establishing,
                State::Leading(_) => Doing::Leading,
            },
            epoch: self.epoch(),
            leader: self.leader(),
            recovering: self.recovering,
            is_new: self.stored.new_id > 0,
            last: now.last,
            committed: now.committed,
            applied: now.applied,
            membership: self.membership,
            changes_to: self.pending().last().map(|(_, next)| *next),
            pulled_bytes: match &self.state {
                State::Following {
                    fetch: Some(fetch), ..
                } => fetch.pulled_bytes(),
                _ => 0,
            },
            outstanding: self.submitter.outstanding(),
            elections: self.elections,
            epochs_refused: self.epochs_refused,
        }
    }
}
