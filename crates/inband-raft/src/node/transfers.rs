//! Sending and receiving snapshots.

use raft::{ProgressState, SnapshotStatus};

use super::{Outcome, RaftNode};
use crate::machine::StateMachine;
use crate::message::{RaftMessage, Snapshot};
use crate::transfer::{Receiving, Sending, WINDOW_PARTS};

/// With this many applied entries the log is compacted even if a peer that was sent a snapshot lacks them.
const HELD_ENTRIES_MAX: usize = 1 << 20;
/// The same limit in bytes of entries.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// How long such a peer may make no progress, because it writes the state to its disk, in multiples of
/// [`crate::Tuning::snapshot_wait_ticks`].
const HELD_WAITS: usize = 10;

/// A peer that has received all parts has acknowledged within this many ticks, or its answer was lost: then it is
/// asked. One that writes the state to its disk answers when that is done.
const FOLLOW_UP_TICKS: usize = 10;

/// A peer that was sent a snapshot and lacks later entries, which must therefore stay in the log.
pub(super) struct Behind {
    peer: u64,
    matched: u64,
    /// Ticks without progress.
    silent_ticks: usize,
}

impl<M: StateMachine> RaftNode<M> {
    /// The library has started to send a snapshot.
    pub(super) fn begin_sending(&mut self, mut message: RaftMessage, index: u64) {
        let to = message.to;
        self.transfers += 1;
        message.set_transfer(self.transfers);
        self.stop_sending(to);
        let log = self.raw.mut_store();
        // The library requests the state together with the message.
        if let Some(state) = log.take_wanted(to, index) {
            self.sending.push(Sending::new(message, state));
            self.behind.retain(|behind| behind.peer != to);
            self.behind.push(Behind {
                peer: to,
                matched: 0,
                silent_ticks: 0,
            });
        }
    }

    fn stop_sending(&mut self, to: u64) {
        if let Some(at) = self.sending.iter().position(|s| s.to() == to) {
            let stopped = self.sending.swap_remove(at);
            self.raw.mut_store().give_back(stopped.into_frozen());
        }
    }

    /// Sends the next slice, to each peer in turn.
    pub(super) fn send_part(&mut self, outcome: &mut Outcome<M::Output>) {
        self.stop_what_is_not_awaited();
        let mut left = self.tuning.slice_bytes;
        while let Some(at) = self.sending.iter().position(Sending::has_room) {
            let mut sending = self.sending.remove(at);
            let part = sending.next(left);
            self.sending.push(sending);
            left = left.saturating_sub(part.part_len_bytes());
            outcome.messages.push(part);
            if left == 0 {
                break;
            }
        }
    }

    /// Stops transfers when this node no longer leads, or the library knows that a peer needs no snapshot.
    fn stop_what_is_not_awaited(&mut self) {
        let leads = self.is_leader();
        let raft = &self.raw.raft;
        let awaits = |peer: u64| {
            let progress = raft.prs().get(peer);
            leads && progress.is_some_and(|p| p.state == ProgressState::Snapshot)
        };
        let peers = self.sending.iter().map(Sending::to);
        let stopped: Vec<u64> = peers.filter(|peer| !awaits(*peer)).collect();
        stopped.into_iter().for_each(|peer| self.stop_sending(peer));
        if !leads {
            self.behind.clear();
        }
    }

    pub(super) fn on_parts_answered(&mut self, from: u64, transfer: u64, next: Option<u64>) {
        let is_it = |s: &Sending<M::Frozen>| (s.to(), s.number()) == (from, transfer);
        let Some(at) = self.sending.iter().position(is_it) else {
            return;
        };
        let Some(next) = next else {
            return self.give_up_sending(from);
        };
        self.sending[at].acknowledged(next);
        if self.sending[at].is_done() {
            self.stop_sending(from);
            self.snapshots.push((from, FOLLOW_UP_TICKS));
        }
    }

    pub(super) fn tick_transfers(&mut self) {
        let wait_ticks = self.tuning.snapshot_wait_ticks;
        for sending in &mut self.sending {
            sending.tick(&mut self.outgoing);
        }
        let given_up = self.sending.iter().filter(|s| s.is_given_up(wait_ticks));
        let given_up: Vec<u64> = given_up.map(Sending::to).collect();
        given_up
            .into_iter()
            .for_each(|peer| self.give_up_sending(peer));
        for behind in &mut self.behind {
            behind.silent_ticks += 1;
        }
        if let Some(receiving) = &mut self.receiving {
            receiving.silent_ticks += 1;
            if receiving.silent_ticks > wait_ticks {
                self.stop_receiving();
            }
        }
    }

    /// The library determines what the peer lacks, and starts again.
    fn give_up_sending(&mut self, peer: u64) {
        self.stop_sending(peer);
        self.behind.retain(|behind| behind.peer != peer);
        self.raw.report_snapshot(peer, SnapshotStatus::Failure);
    }

    fn stop_receiving(&mut self) {
        if let Some(stopped) = self.receiving.take() {
            self.raw.mut_store().give_back(stopped.state.freeze());
        }
    }

    /// A part of a snapshot has arrived. Returns whether the library must be told, because the snapshot is complete or
    /// not needed.
    pub(super) fn is_for_library(&mut self, message: &RaftMessage) -> bool {
        let Some((snapshot, number, is_last)) = message.part() else {
            return false;
        };
        if message.term() < self.term() || self.received.is_some() {
            return false;
        }
        if !self.needs(snapshot) {
            // The library reports what this node has. The first snapshot for a new peer predates its membership.
            self.stop_receiving();
            self.outgoing.push(message.parts_refused());
            return true;
        }
        let current = self.receiving.as_ref();
        if current.is_none_or(|current| !current.is_of(message, snapshot)) {
            if current.is_some_and(|current| current.is_later_than(message)) {
                return false;
            }
            // The first ones may have been overtaken, but not by this many.
            if number >= WINDOW_PARTS as u64 {
                self.outgoing.push(message.parts_refused());
                return false;
            }
            self.stop_receiving();
            self.receiving = Some(Receiving::new(message, snapshot));
        }
        let Some(receiving) = &mut self.receiving else {
            return false;
        };
        let Some(is_whole) = receiving.take(number, is_last, &snapshot.data) else {
            self.stop_receiving();
            return false;
        };
        let answer = message.parts_taken(receiving.next);
        self.outgoing.push(answer);
        if !is_whole {
            return false;
        }
        let received = self.receiving.take();
        self.received = received.map(|received| (snapshot.index, received.state));
        true
    }

    /// Returns whether the library would install it.
    fn needs(&self, snapshot: &Snapshot) -> bool {
        let peers = &snapshot.peers;
        let mut members = peers.voters.iter().chain(&peers.learners);
        members.any(|id| *id == self.id())
            && snapshot.index >= self.raw.raft.raft_log.committed
            && self.term_at(snapshot.index) != Some(snapshot.term)
    }

    /// Drops a snapshot that the library did not install.
    pub(super) fn drop_received(&mut self) {
        if let Some((_, state)) = self.received.take() {
            self.raw.mut_store().give_back(state.freeze());
        }
    }

    /// Returns whether the log must keep its entries.
    pub(super) fn holds_entries(&mut self) -> bool {
        let (last, keep) = (self.last_index(), self.tuning.keep_entries as u64);
        let wait_ticks = HELD_WAITS * self.tuning.snapshot_wait_ticks;
        let prs = self.raw.raft.prs();
        self.behind.retain_mut(|behind| {
            let matched = prs.get(behind.peer).map_or(u64::MAX, |p| p.matched);
            if matched > behind.matched {
                (behind.matched, behind.silent_ticks) = (matched, 0);
            }
            matched.saturating_add(keep) < last && behind.silent_ticks < wait_ticks
        });
        let log = self.raw.store();
        let is_short = log.done() < HELD_ENTRIES_MAX && log.entries_bytes() < HELD_BYTES_MAX;
        !self.behind.is_empty() && is_short
    }
}
