//! Snapshots in transit between two nodes, in numbered parts: a whole state would block sender, link and receiver. The
//! receiver keeps parts that overtake others, and acknowledges with the number of the next one that it lacks. Every
//! part is a message of the library's kind MsgSnapshot; only the last one is passed to the library.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::machine::{Frozen, StateMachine};
use crate::message::{RaftMessage, Snapshot};

/// Parts in flight to one peer.
pub(crate) const WINDOW_PARTS: usize = 4;
/// Parts that are unacknowledged for this many ticks are retransmitted.
const RESEND_TICKS: usize = 10;

/// A snapshot that is being sent.
pub(crate) struct Sending<F> {
    /// The message, without the data of a part.
    message: RaftMessage,
    frozen: F,
    /// Unacknowledged parts; `first` is the number of the first of them.
    unacknowledged: VecDeque<Bytes>,
    first: u64,
    /// All parts have been produced: the last one is empty.
    is_written: bool,
    /// Ticks since the last new acknowledgement.
    silent_ticks: usize,
}

impl<F: Frozen> Sending<F> {
    pub fn new(message: RaftMessage, frozen: F) -> Sending<F> {
        Sending {
            message,
            frozen,
            unacknowledged: VecDeque::new(),
            first: 0,
            is_written: false,
            silent_ticks: 0,
        }
    }

    pub fn to(&self) -> u64 {
        self.message.to
    }

    pub fn into_frozen(self) -> F {
        self.frozen
    }

    /// Returns whether the next part may be sent.
    pub fn has_room(&self) -> bool {
        !self.is_written && self.unacknowledged.len() < WINDOW_PARTS
    }

    /// Produce the next part.
    pub fn next(&mut self, len_bytes: usize) -> RaftMessage {
        let part = self.frozen.next_part(len_bytes);
        self.is_written = part.is_none();
        self.unacknowledged
            .push_back(part.unwrap_or_default().into());
        self.message(self.unacknowledged.len() - 1)
    }

    fn message(&self, at: usize) -> RaftMessage {
        let is_last = self.is_written && at + 1 == self.unacknowledged.len();
        let data = self.unacknowledged[at].clone();
        self.message
            .with_part(self.first + at as u64, is_last, data)
    }

    /// Returns the number of the transfer.
    pub fn number(&self) -> u64 {
        self.message.transfer()
    }

    /// The peer has acknowledged all parts before `next`.
    pub fn acknowledged(&mut self, next: u64) {
        let end = self.first + self.unacknowledged.len() as u64;
        if (self.first + 1..=end).contains(&next) {
            self.unacknowledged.drain(..(next - self.first) as usize);
            self.first = next;
            self.silent_ticks = 0;
        }
    }

    /// Returns whether the peer has received everything.
    pub fn is_done(&self) -> bool {
        self.is_written && self.unacknowledged.is_empty()
    }

    /// A clock tick. Retransmissions are added to `out`.
    pub fn tick(&mut self, out: &mut Vec<RaftMessage>) {
        self.silent_ticks += 1;
        if self.silent_ticks % RESEND_TICKS == 0 {
            out.extend((0..self.unacknowledged.len()).map(|at| self.message(at)));
        }
    }

    /// Returns whether the peer has been silent for so long that the transfer is abandoned.
    pub fn is_given_up(&self, wait_ticks: usize) -> bool {
        self.silent_ticks > wait_ticks.max(RESEND_TICKS)
    }
}

/// A snapshot that is being received.
pub(crate) struct Receiving<M> {
    from: u64,
    term: u64,
    transfer: u64,
    snapshot: Snapshot,
    pub state: M,
    /// The next part expected.
    pub next: u64,
    /// Parts that arrived early, and whether each is the last one.
    early: BTreeMap<u64, (Bytes, bool)>,
    pub silent_ticks: usize,
}

impl<M: StateMachine> Receiving<M> {
    /// Starts with the first part of a snapshot.
    pub fn new(message: &RaftMessage, snapshot: &Snapshot) -> Receiving<M> {
        Receiving {
            from: message.from,
            term: message.term(),
            transfer: message.transfer(),
            snapshot: snapshot.without_data(),
            state: M::default(),
            next: 0,
            early: BTreeMap::new(),
            silent_ticks: 0,
        }
    }

    /// Returns whether it was started after the transfer of this message.
    pub fn is_later_than(&self, message: &RaftMessage) -> bool {
        (self.from, self.term) == (message.from, message.term())
            && self.transfer > message.transfer()
    }

    /// Accepts a part. Returns true if it was the last missing one, `None` if it is damaged.
    pub fn take(&mut self, number: u64, is_last: bool, data: &Bytes) -> Option<bool> {
        if (self.next..self.next + WINDOW_PARTS as u64).contains(&number) {
            self.early.insert(number, (data.clone(), is_last));
        }
        while let Some((data, is_last)) = self.early.remove(&self.next) {
            if !data.is_empty() && !self.state.restore_part(&data) {
                return None;
            }
            self.next += 1;
            self.silent_ticks = 0;
            if is_last {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Returns whether it belongs to the same transfer. Another transfer of the same snapshot may be split differently.
    pub fn is_of(&self, message: &RaftMessage, snapshot: &Snapshot) -> bool {
        (self.from, self.term, self.transfer) == (message.from, message.term(), message.transfer())
            && self.snapshot == snapshot.without_data()
    }
}
