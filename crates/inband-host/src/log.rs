//! The interface between an application and a replicated log: it submits values and receives decided ones.
//!
//! [`ReplicatedLog`] separates the protocol from the services over it. `inband-kv` uses only this trait; tests drive it
//! with an in-memory log, programs with a system's protocol on real packets.
//!
//! Exactly-once (protocol.md, 8): a value may be decided in more than one instance, because a proposer retransmits
//! unanswered values. Instances are delivered in order, each once; whether the value in an instance is *new* is decided
//! by the application's [`crate::session::SessionTable`], which is part of the replicated state and therefore of every
//! snapshot.
//!
//! There are several logs, one per partition, each with its own instances, sessions and window. They are not ordered
//! relative to each other.

use std::time::Duration;

pub use crate::session::{Origin, ValueKind};

/// Bits of a ticket's number; the partition is in the bits above.
const TICKET_NUMBER_BITS: u32 = 48;

fn numbered(partition: usize, number: u64) -> u64 {
    assert!(partition <= usize::from(u16::MAX) && number >> TICKET_NUMBER_BITS == 0);
    (partition as u64) << TICKET_NUMBER_BITS | number
}

/// Identifies a submitted value at its proposer: partition (16 bits) | number (48 bits). Never reused in a process;
/// within a partition, tickets ascend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

impl Ticket {
    /// Returns the ticket with this number for a value of this partition.
    ///
    /// # Panics
    /// If the partition has more than 16 bits or the number more than 48.
    pub fn new(partition: usize, number: u64) -> Ticket {
        Ticket(numbered(partition, number))
    }

    /// The partition the value was submitted to.
    pub fn partition(self) -> usize {
        (self.0 >> TICKET_NUMBER_BITS) as usize
    }
}

/// Identifies a read in the process that requested it, as a [`Ticket`] identifies a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadTicket(pub u64);

impl ReadTicket {
    /// Returns the ticket with this number for a read of this partition.
    ///
    /// # Panics
    /// If the partition has more than 16 bits or the number more than 48.
    pub fn new(partition: usize, number: u64) -> ReadTicket {
        ReadTicket(numbered(partition, number))
    }

    /// Returns the partition that is read.
    pub fn partition(self) -> usize {
        (self.0 >> TICKET_NUMBER_BITS) as usize
    }
}

/// One decided instance, borrowed from a [`Burst`].
#[derive(Debug, Clone, Copy)]
pub struct Decided<'a> {
    /// Position in the log. Consecutive within and across bursts.
    pub instance: u64,
    /// Its submitter.
    pub origin: Origin,
    /// Set if this process submitted the value.
    pub ticket: Option<Ticket>,
    /// The value; its digest has been checked.
    pub value: &'a [u8],
}

/// Why a submitted value was not reported to its submitter as a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitFailure {
    /// The deadline passed; the value may still be decided later.
    #[error("outcome unknown: no decision within {0} ms; the command may or may not take effect")]
    OutcomeUnknown(u64),
    /// The value was certainly never applied and never will be.
    #[error("not applied: {0}")]
    NotApplied(&'static str),
}

/// Why a value was not accepted for submission. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too many values are undecided; wait for deliveries, then try again.
    #[error("{0} values are undecided already; wait for some to be decided")]
    WindowFull(usize),
    /// The value does not fit in one packet.
    #[error("value of {len_bytes} bytes is over the limit of {limit_bytes} bytes of one packet")]
    TooLong {
        /// Length of the value.
        len_bytes: usize,
        limit_bytes: usize,
    },
    /// The node has no proposer or is shutting down.
    #[error("this node does not accept values: {0}")]
    Closed(&'static str),
}

#[derive(Debug)]
struct Entry {
    instance: u64,
    origin: Origin,
    ticket: Option<Ticket>,
    start: usize,
    end: usize,
}

/// What one call of [`ReplicatedLog::poll`] produced. Reused between calls.
#[derive(Debug, Default)]
pub struct Burst {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Submissions that ended without a delivery.
    pub failed: Vec<(Ticket, SubmitFailure)>,
    /// Reads that may be answered once all bursts of this log up to and including this one are applied, with the
    /// instance up to which they see everything.
    pub confirmed: Vec<(ReadTicket, u64)>,
    /// Reads that cannot be answered; nothing has happened.
    pub reads_failed: Vec<(ReadTicket, SubmitFailure)>,
    /// Set when the log needs a checkpoint to continue: peers no longer hold the values after the applied position.
    /// Fetch one from a peer, install it and call [`ReplicatedLog::reset`]. Repeated in every burst until then.
    pub checkpoint_needed: bool,
}

impl Burst {
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties bursts, one for each of `partitions` logs.
    pub fn for_logs(partitions: usize) -> Vec<Burst> {
        (0..partitions).map(|_| Burst::new()).collect()
    }

    /// Clears everything, but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.failed.clear();
        self.confirmed.clear();
        self.reads_failed.clear();
        self.checkpoint_needed = false;
    }

    /// Appends one decided instance.
    pub fn push(&mut self, instance: u64, origin: Origin, ticket: Option<Ticket>, value: &[u8]) {
        if let Some(last) = self.entries.last() {
            assert_eq!(
                last.instance + 1,
                instance,
                "instances are delivered in order"
            );
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.entries.push(Entry {
            instance,
            origin,
            ticket,
            start,
            end: self.bytes.len(),
        });
    }

    /// Total length of its values.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends everything in `other`, leaving it empty.
    pub fn append(&mut self, other: &mut Burst) {
        if self.is_empty() {
            self.clear();
            std::mem::swap(self, other);
            return;
        }
        for decided in other.decided() {
            self.push(
                decided.instance,
                decided.origin,
                decided.ticket,
                decided.value,
            );
        }
        self.failed.append(&mut other.failed);
        self.confirmed.append(&mut other.confirmed);
        self.reads_failed.append(&mut other.reads_failed);
        self.checkpoint_needed |= other.checkpoint_needed;
        other.clear();
    }

    /// Returns the decided instance at `index`, counted from 0 in this burst.
    pub fn get(&self, index: usize) -> Option<Decided<'_>> {
        self.entries.get(index).map(|e| self.view(e))
    }

    fn view(&self, e: &Entry) -> Decided<'_> {
        Decided {
            instance: e.instance,
            origin: e.origin,
            ticket: e.ticket,
            value: &self.bytes[e.start..e.end],
        }
    }

    /// Returns the decided instances, in order.
    pub fn decided(&self) -> impl ExactSizeIterator<Item = Decided<'_>> {
        self.entries.iter().map(|e| self.view(e))
    }

    /// Nothing decided, failed or confirmed, no checkpoint needed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.failed.is_empty()
            && self.confirmed.is_empty()
            && self.reads_failed.is_empty()
            && !self.checkpoint_needed
    }
}

/// Replicated logs as seen by one process. Not thread-safe: one thread owns them and calls `poll`.
///
/// # Panics
/// Every method that takes a partition panics if there is no such log.
pub trait ReplicatedLog {
    /// Returns the number of logs; partitions are counted from 0.
    fn partitions(&self) -> usize;

    /// Length in bytes of the longest value that [`submit`](Self::submit) accepts.
    fn max_value_len_bytes(&self) -> usize;

    /// Returns how many more values may be submitted to this log now.
    fn submit_room(&self, partition: usize) -> usize;

    /// Submits a value; the next `poll` sends it. It will appear in a burst with this ticket, or as a failure, within
    /// the configured deadline. Values submitted later may be decided earlier.
    fn submit(&mut self, partition: usize, value: &[u8]) -> Result<Ticket, SubmitError>;

    /// Does everything that is ready, without blocking, and appends the results to the burst of their partition. There
    /// are as many bursts as logs.
    fn poll(&mut self, bursts: &mut [Burst]);

    /// Pauses or resumes delivery for this log, for example because what was delivered cannot be applied yet.
    fn pause(&mut self, partition: usize, is_paused: bool);

    /// Everything in this log up to and including `instance` has been applied and survives a crash of this process.
    /// Drives the trimming of the acceptors' rings.
    fn applied(&mut self, partition: usize, instance: u64);

    /// A peer is being sent a checkpoint of the state here. A log that keeps decided values for its peers keeps those
    /// from now on, within its limits, until the peer has had time to install the checkpoint and to catch up. Called
    /// repeatedly while the checkpoint is made and sent.
    fn sends_checkpoint(&mut self) {}

    /// A checkpoint of this partition was installed (or the process starts with state): deliver from `applied + 1` on.
    fn reset(&mut self, partition: usize, applied: u64);

    /// The session table refused a value of this process's own session, which has expired. The log opens a new session
    /// and submits the value again with the same ticket.
    fn session_refused(&mut self, ticket: Ticket);

    /// The value with `ticket` has been answered. Called by the application when its first occurrence is applied, so
    /// that the low-water mark can advance.
    fn answered(&mut self, ticket: Ticket);

    /// Requests a linearizable read. The ticket appears in the `confirmed` list of a burst; a state that has applied
    /// everything up to that point shows every value decided before this call. Otherwise it appears in `reads_failed`
    /// within the submission deadline.
    fn confirm_read(&mut self, partition: usize) -> ReadTicket;

    /// File descriptors that become readable when `poll` has work to do.
    fn wake_fds(&self) -> Vec<std::os::fd::RawFd>;

    /// Longest time that the caller may sleep before it must call `poll` again. Must be called right before each sleep:
    /// from then on the descriptors of `wake_fds` become readable.
    fn poll_timeout(&self) -> Duration;

    /// TCP addresses of the peers that can serve a checkpoint.
    fn checkpoint_peers(&self) -> Vec<std::net::SocketAddr>;

    /// Returns whether the configuration in force names this host. If not, nothing that it submits is decided.
    fn is_member(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_names_its_partition() {
        let ticket = Ticket::new(3, 7);
        assert_eq!((ticket.partition(), ticket.0 & 0xffff), (3, 7));
        assert_eq!(Ticket::new(0, 9), Ticket(9));
        assert!(std::panic::catch_unwind(|| Ticket::new(0, 1 << 48)).is_err());
    }
}
