//! In-memory replicated logs, for tests and for measuring everything but the network.
//!
//! All handles of one [`MemoryCluster`] share the same logs. A value is decided as soon as it is submitted, unless the
//! test holds decisions back. Faults are injected by the test.

mod faults;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inband_host::log::{
    Burst, Origin, ReadTicket, ReplicatedLog, SubmitError, SubmitFailure, Ticket, ValueKind,
};

pub use faults::{replay, Faults, Tape};

/// Approximately the payload of one Ethernet frame.
pub const MEMORY_VALUE_LEN_BYTES_MAX: usize = 1376;

const BURST_VALUES_MAX: usize = 256;
const WINDOW_DEFAULT: usize = 1024;
const IDLE_POLL_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Entry {
    origin: Origin,
    owner: usize,
    ticket: Option<Ticket>,
    value: Vec<u8>,
}

impl Entry {
    /// Creates an entry that no handle waits for.
    fn unowned(kind: ValueKind, client_id: u64) -> Self {
        Self {
            origin: Origin {
                client_id,
                client_seq: 0,
                client_low: 0,
                kind,
            },
            owner: usize::MAX,
            ticket: None,
            value: Vec::new(),
        }
    }
}

struct Log {
    /// Decided entries; the first is instance `first_instance`.
    entries: VecDeque<Entry>,
    first_instance: u64,
    held: Option<Vec<Entry>>,
    entries_kept_max: usize,
}

impl Log {
    fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            first_instance: 1,
            held: None,
            entries_kept_max: usize::MAX,
        }
    }

    fn decide(&mut self, entry: Entry, twice: bool) {
        if twice && entry.origin.kind == ValueKind::Command {
            self.entries.push_back(entry.clone());
        }
        self.entries.push_back(entry);
        while self.entries.len() > self.entries_kept_max {
            self.entries.pop_front();
            self.first_instance += 1;
        }
    }

    fn last_instance(&self) -> u64 {
        self.first_instance + self.entries.len() as u64 - 1
    }
}

struct Shared {
    logs: Vec<Log>,
    decide_twice: bool,
    /// What replicas need is missing everywhere, for now.
    is_missing: bool,
    /// By handle and log: how many more values may be delivered. `None`: no limit.
    allowed: Option<BTreeMap<(usize, usize), usize>>,
    /// By handle and log: the instance reported as applied.
    applied: BTreeMap<(usize, usize), u64>,
    /// Number of read queries, from all handles.
    reads_asked: usize,
    /// Handles whose replica has said that it sends a checkpoint.
    senders: BTreeSet<usize>,
    /// Handles of hosts that were removed.
    removed: BTreeSet<usize>,
    wakers: Vec<UnixStream>,
    peers: Vec<SocketAddr>,
    /// By handle, if it has its own list.
    peers_of: BTreeMap<usize, Vec<SocketAddr>>,
}

impl Shared {
    fn wake_all_but(&mut self, owner: usize) {
        for (_, waker) in self
            .wakers
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| *i != owner)
        {
            // A full pipe wakes as well as another byte in it; a closed one has no reader to wake.
            let _ = waker.write(&[0]);
        }
    }

    fn decide(&mut self, log: usize, entry: Entry) {
        let twice = self.decide_twice;
        self.logs[log].decide(entry, twice);
    }
}

/// The logs that all handles share.
#[derive(Clone)]
pub struct MemoryCluster(Arc<Mutex<Shared>>);

impl Default for MemoryCluster {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryCluster {
    /// One empty log.
    pub fn new() -> Self {
        Self::with_partitions(1)
    }

    /// Empties logs for this many partitions.
    pub fn with_partitions(partitions: usize) -> Self {
        let logs = (0..crate::partition::logs_of(partitions)).map(|_| Log::new());
        Self(Arc::new(Mutex::new(Shared {
            logs: logs.collect(),
            decide_twice: false,
            is_missing: false,
            allowed: None,
            applied: BTreeMap::new(),
            reads_asked: 0,
            senders: BTreeSet::new(),
            removed: BTreeSet::new(),
            wakers: Vec::new(),
            peers: Vec::new(),
            peers_of: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn logs(&self) -> usize {
        self.lock().logs.len()
    }

    /// Number of replicas that have told their log that they send a checkpoint.
    pub fn checkpoint_senders(&self) -> usize {
        self.lock().senders.len()
    }

    pub fn partitions(&self) -> usize {
        crate::partition::partitions_of_logs(self.logs())
    }

    /// Adds a process that has applied everything up to these instances.
    pub fn join(&self, applied: &[u64]) -> std::io::Result<MemoryLog> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let mut shared = self.lock();
        let owner = shared.wakers.len();
        shared.wakers.push(writer);
        drop(shared);
        let lane = |applied: &u64| Lane {
            next_instance: applied + 1,
            is_paused: false,
            session: 0,
            next_seq: 1,
            unanswered: BTreeSet::new(),
        };
        let mut log = MemoryLog {
            cluster: self.clone(),
            owner,
            reader,
            lanes: applied.iter().map(lane).collect(),
            next_ticket: 1,
            submitted: BTreeMap::new(),
            failures: Vec::new(),
            reads: Vec::new(),
            window: WINDOW_DEFAULT,
            fail_next: None,
            fail_reads: Vec::new(),
            failed_reads: Vec::new(),
        };
        (0..applied.len()).for_each(|partition| log.open_session(partition));
        Ok(log)
    }

    /// Stops deciding values.
    pub fn hold(&self) {
        (0..self.logs()).for_each(|log| self.hold_log(log));
    }

    /// Stops deciding values in this log.
    pub fn hold_log(&self, log: usize) {
        self.lock().logs[log].held.get_or_insert_with(Vec::new);
    }

    /// Decides the held values, in each log in reverse order of submission.
    pub fn release_reversed(&self) {
        (0..self.logs()).for_each(|log| self.release_log_reversed(log));
    }

    /// Decides the held values of this log in reverse order of submission.
    pub fn release_log_reversed(&self, log: usize) {
        let mut shared = self.lock();
        let held = shared.logs[log].held.take();
        for entry in held.into_iter().flatten().rev() {
            shared.decide(log, entry);
        }
        shared.wake_all_but(usize::MAX);
    }

    /// Drops the held values.
    pub fn lose_held(&self) {
        self.lock().logs.iter_mut().for_each(|log| log.held = None);
    }

    /// Returns the number of held values.
    pub fn held(&self) -> usize {
        let held = |log: &Log| log.held.as_ref().map_or(0, Vec::len);
        self.lock().logs.iter().map(held).sum()
    }

    /// Decides each value in two instances, as a proposer that retransmits does.
    pub fn decide_twice(&self) {
        self.lock().decide_twice = true;
    }

    /// Keeps at most this many decided values per log; a replica further behind needs a checkpoint.
    pub fn keep_entries(&self, entries_max: usize) {
        for log in &mut self.lock().logs {
            log.entries_kept_max = entries_max;
        }
    }

    /// What replicas need next is missing everywhere, or has been found.
    pub fn set_missing(&self, is_missing: bool) {
        self.lock().is_missing = is_missing;
    }

    pub fn last_instance_of(&self, log: usize) -> u64 {
        self.lock().logs[log].last_instance()
    }

    /// Returns the last decided instance of the first log.
    pub fn last_instance(&self) -> u64 {
        self.last_instance_of(0)
    }

    /// From now on deliver only [allowed](Self::allow) values.
    pub fn pace(&self) {
        self.lock().allowed = Some(BTreeMap::new());
    }

    /// Delivers this many more values of a log to a handle.
    pub fn allow(&self, owner: usize, log: usize, values: usize) {
        if let Some(allowed) = &mut self.lock().allowed {
            *allowed.entry((owner, log)).or_default() += values;
        }
    }

    /// Delivers everything again.
    pub fn unpace(&self) {
        let mut shared = self.lock();
        shared.allowed = None;
        shared.wake_all_but(usize::MAX);
    }

    /// Returns the number of read queries.
    pub fn reads_asked(&self) -> usize {
        self.lock().reads_asked
    }

    /// Removes the host of a handle from the configuration.
    pub fn remove(&self, owner: usize) {
        let mut shared = self.lock();
        shared.removed.insert(owner);
        shared.wake_all_but(usize::MAX);
    }

    /// Returns the instance of a log that a handle has reported as applied.
    pub fn applied(&self, owner: usize, log: usize) -> u64 {
        self.lock().applied.get(&(owner, log)).copied().unwrap_or(0)
    }

    /// Sets the addresses that serve checkpoints.
    pub fn set_checkpoint_peers(&self, peers: Vec<SocketAddr>) {
        self.lock().peers = peers;
    }

    /// Sets the other replicas of a future handle: `after` calls of [`join`](Self::join) are made before its own.
    pub fn set_peers_of_next(&self, after: usize, peers: Vec<SocketAddr>) {
        let mut shared = self.lock();
        let owner = shared.wakers.len() + after;
        shared.peers_of.insert(owner, peers);
    }

    /// Decides no-ops in all logs, as recovery does.
    pub fn decide_noops(&self, count: usize) {
        self.decide_unowned(|log, shared| {
            for _ in 0..count {
                shared.decide(log, Entry::unowned(ValueKind::Noop, 0));
            }
        });
    }

    /// Expires all proposer sessions, by opening as many as a table holds.
    pub fn expire_proposer_sessions(&self) {
        self.decide_unowned(|log, shared| {
            for nonce in 0..inband_host::session::SESSIONS_MAX as u64 {
                shared.decide(log, Entry::unowned(ValueKind::OpenSession, nonce));
            }
        });
    }

    fn decide_unowned(&self, mut decide: impl FnMut(usize, &mut Shared)) {
        let mut shared = self.lock();
        (0..shared.logs.len()).for_each(|log| decide(log, &mut shared));
        shared.wake_all_but(usize::MAX);
    }
}

/// A handle's state for one log.
struct Lane {
    next_instance: u64,
    is_paused: bool,
    session: u64,
    next_seq: u64,
    unanswered: BTreeSet<u64>,
}

/// The logs as seen by one process.
pub struct MemoryLog {
    cluster: MemoryCluster,
    owner: usize,
    reader: UnixStream,
    lanes: Vec<Lane>,
    next_ticket: u64,
    /// Sequence and value of unanswered submissions, by ticket.
    submitted: BTreeMap<Ticket, (u64, Vec<u8>)>,
    failures: Vec<(Ticket, SubmitFailure)>,
    /// Reads with the instance that each must wait for.
    reads: Vec<(ReadTicket, u64)>,
    window: usize,
    fail_next: Option<(SubmitFailure, bool)>,
    fail_reads: Vec<SubmitFailure>,
    failed_reads: Vec<(ReadTicket, SubmitFailure)>,
}

impl MemoryLog {
    /// Returns the number of this handle.
    pub fn owner(&self) -> usize {
        self.owner
    }

    /// Makes the next value fail with `failure`; with `decide` it is decided nevertheless.
    pub fn fail_next(&mut self, failure: SubmitFailure, decide: bool) {
        self.fail_next = Some((failure, decide));
    }

    /// Makes the next read fail.
    pub fn fail_next_reads(&mut self, count: usize, failure: SubmitFailure) {
        self.fail_reads = vec![failure; count];
    }

    /// Allows this many undecided values per log.
    pub fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    fn open_session(&mut self, partition: usize) {
        let mut entry = Entry::unowned(ValueKind::OpenSession, self.owner as u64);
        entry.owner = self.owner;
        let mut shared = self.cluster.lock();
        shared.decide(partition, entry);
        let session = shared.logs[partition].last_instance();
        shared.wake_all_but(self.owner);
        drop(shared);
        let lane = &mut self.lanes[partition];
        lane.session = session;
        lane.next_seq = 1;
        lane.unanswered.clear();
    }

    fn send(&mut self, ticket: Ticket, value: Vec<u8>) {
        let partition = ticket.partition();
        let lane = &mut self.lanes[partition];
        let seq = lane.next_seq;
        lane.next_seq += 1;
        lane.unanswered.insert(seq);
        let origin = Origin {
            client_id: lane.session,
            client_seq: seq,
            client_low: lane.unanswered.first().copied().unwrap_or(seq),
            kind: ValueKind::Command,
        };
        let entry = Entry {
            origin,
            owner: self.owner,
            ticket: Some(ticket),
            value: value.clone(),
        };
        self.submitted.insert(ticket, (seq, value));
        let failure = self.fail_next.take();
        self.failures
            .extend(failure.map(|(failure, _)| (ticket, failure)));
        if failure.is_some_and(|(_, decide)| !decide) {
            return;
        }
        let mut shared = self.cluster.lock();
        match &mut shared.logs[partition].held {
            Some(held) => held.push(entry),
            None => shared.decide(partition, entry),
        }
        shared.wake_all_but(self.owner);
    }

    fn forget(&mut self, ticket: Ticket) -> Option<Vec<u8>> {
        let (seq, value) = self.submitted.remove(&ticket)?;
        self.lanes[ticket.partition()].unanswered.remove(&seq);
        Some(value)
    }
}

impl ReplicatedLog for MemoryLog {
    fn partitions(&self) -> usize {
        self.lanes.len()
    }

    fn max_value_len_bytes(&self) -> usize {
        MEMORY_VALUE_LEN_BYTES_MAX
    }

    fn submit_room(&self, partition: usize) -> usize {
        let of = |p: usize| Ticket::new(p, 0)..Ticket::new(p + 1, 0);
        let submitted = self.submitted.range(of(partition)).count();
        self.window.saturating_sub(submitted)
    }

    fn submit(&mut self, partition: usize, value: &[u8]) -> Result<Ticket, SubmitError> {
        if self.submit_room(partition) == 0 {
            return Err(SubmitError::WindowFull(self.window));
        }
        if value.len() > MEMORY_VALUE_LEN_BYTES_MAX {
            return Err(SubmitError::TooLong {
                len_bytes: value.len(),
                limit_bytes: MEMORY_VALUE_LEN_BYTES_MAX,
            });
        }
        let ticket = Ticket::new(partition, self.next_ticket);
        self.next_ticket += 1;
        self.send(ticket, value.to_vec());
        Ok(ticket)
    }

    fn poll(&mut self, bursts: &mut [Burst]) {
        let mut drained = [0u8; 256];
        while matches!(self.reader.read(&mut drained), Ok(1..)) {}
        for (ticket, failure) in std::mem::take(&mut self.failures) {
            self.forget(ticket);
            bursts[ticket.partition()].failed.push((ticket, failure));
        }
        for (ticket, failure) in std::mem::take(&mut self.failed_reads) {
            bursts[ticket.partition()]
                .reads_failed
                .push((ticket, failure));
        }
        let mut shared = self.cluster.lock();
        let Shared {
            logs,
            allowed,
            is_missing,
            ..
        } = &mut *shared;
        for (partition, (lane, log)) in self.lanes.iter_mut().zip(logs).enumerate() {
            let burst = &mut bursts[partition];
            if *is_missing || lane.next_instance < log.first_instance {
                burst.checkpoint_needed = true;
                continue;
            }
            if lane.is_paused {
                continue;
            }
            let mut none = 0;
            let allowed = match allowed {
                None => &mut BURST_VALUES_MAX.clone(),
                Some(allowed) => allowed
                    .get_mut(&(self.owner, partition))
                    .unwrap_or(&mut none),
            };
            let skip = (lane.next_instance - log.first_instance) as usize;
            for entry in log.entries.iter().skip(skip).take(*allowed) {
                let ticket = entry.ticket.filter(|_| entry.owner == self.owner);
                burst.push(lane.next_instance, entry.origin, ticket, &entry.value);
                lane.next_instance += 1;
                *allowed -= 1;
            }
        }
        drop(shared);
        let lanes = &self.lanes;
        self.reads.retain(|(ticket, instance)| {
            let partition = ticket.partition();
            let is_delivered = lanes[partition].next_instance > *instance;
            if is_delivered {
                bursts[partition].confirmed.push((*ticket, *instance));
            }
            !is_delivered
        });
    }

    fn pause(&mut self, partition: usize, is_paused: bool) {
        self.lanes[partition].is_paused = is_paused;
    }

    fn applied(&mut self, partition: usize, instance: u64) {
        assert!(
            instance < self.lanes[partition].next_instance,
            "applied what was delivered"
        );
        let mut shared = self.cluster.lock();
        let before = shared.applied.insert((self.owner, partition), instance);
        assert!(before.is_none_or(|before| before < instance));
    }

    fn sends_checkpoint(&mut self) {
        self.cluster.lock().senders.insert(self.owner);
    }

    fn reset(&mut self, partition: usize, applied: u64) {
        let next = applied + 1;
        let lane = &mut self.lanes[partition];
        assert!(next >= lane.next_instance, "delivery never goes back");
        lane.next_instance = next;
    }

    fn session_refused(&mut self, ticket: Ticket) {
        self.open_session(ticket.partition());
        if let Some((_, value)) = self.submitted.remove(&ticket) {
            self.send(ticket, value);
        }
    }

    fn answered(&mut self, ticket: Ticket) {
        self.forget(ticket);
    }

    fn confirm_read(&mut self, partition: usize) -> ReadTicket {
        self.cluster.lock().reads_asked += 1;
        let ticket = ReadTicket::new(partition, self.next_ticket);
        self.next_ticket += 1;
        match self.fail_reads.pop() {
            Some(failure) => self.failed_reads.push((ticket, failure)),
            None => {
                let instance = self.cluster.last_instance_of(partition);
                self.reads.push((ticket, instance));
            }
        }
        ticket
    }

    fn wake_fds(&self) -> Vec<RawFd> {
        vec![self.reader.as_raw_fd()]
    }

    fn poll_timeout(&self) -> Duration {
        if self.failures.is_empty() && self.failed_reads.is_empty() && self.reads.is_empty() {
            IDLE_POLL_TIMEOUT
        } else {
            Duration::ZERO
        }
    }

    fn is_member(&self) -> bool {
        !self.cluster.lock().removed.contains(&self.owner)
    }

    fn checkpoint_peers(&self) -> Vec<SocketAddr> {
        let shared = self.cluster.lock();
        shared
            .peers_of
            .get(&self.owner)
            .unwrap_or(&shared.peers)
            .clone()
    }
}
