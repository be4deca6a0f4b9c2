//! A replicated log in memory, for tests and for measuring everything but the network.
//!
//! All handles of one [`MemoryCluster`] see the same log. A value is decided the moment it is
//! submitted, unless the test holds decisions back. Faults are asked for by the test.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inband_paxos::log::{
    Burst, Origin, ReplicatedLog, SubmitError, SubmitFailure, Ticket, ValueKind,
};

/// What fits one Ethernet frame after the headers, about.
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

struct Shared {
    /// Decided entries; the first is instance `first_instance`.
    entries: VecDeque<Entry>,
    first_instance: u64,
    held: Option<Vec<Entry>>,
    decide_twice: bool,
    entries_kept_max: usize,
    wakers: Vec<UnixStream>,
    peers: Vec<SocketAddr>,
}

impl Shared {
    fn decide(&mut self, entry: Entry) {
        if self.decide_twice && entry.origin.kind == ValueKind::Command {
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

    fn wake_all_but(&mut self, owner: usize) {
        for (_, waker) in self
            .wakers
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| *i != owner)
        {
            // A full pipe is as good as another byte in it; a closed one has nobody to wake.
            let _ = waker.write(&[0]);
        }
    }
}

/// The log that all handles share.
#[derive(Clone)]
pub struct MemoryCluster(Arc<Mutex<Shared>>);

impl Default for MemoryCluster {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryCluster {
    /// An empty log.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Shared {
            entries: VecDeque::new(),
            first_instance: 1,
            held: None,
            decide_twice: false,
            entries_kept_max: usize::MAX,
            wakers: Vec::new(),
            peers: Vec::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A further process on the log; it has applied everything up to `applied`.
    pub fn join(&self, applied: u64) -> std::io::Result<MemoryLog> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let mut shared = self.lock();
        let owner = shared.wakers.len();
        shared.wakers.push(writer);
        drop(shared);
        let mut log = MemoryLog {
            cluster: self.clone(),
            owner,
            reader,
            next_instance: applied + 1,
            session: 0,
            next_seq: 1,
            next_ticket: 1,
            unanswered: BTreeSet::new(),
            submitted: BTreeMap::new(),
            failures: Vec::new(),
            window: WINDOW_DEFAULT,
            fail_next: None,
        };
        log.open_session();
        Ok(log)
    }

    /// From now on decide nothing.
    pub fn hold(&self) {
        self.lock().held.get_or_insert_with(Vec::new);
    }

    /// Decide what was held back, the last submitted first.
    pub fn release_reversed(&self) {
        let mut shared = self.lock();
        for entry in shared.held.take().into_iter().flatten().rev() {
            shared.decide(entry);
        }
        shared.wake_all_but(usize::MAX);
    }

    /// Lose what was held back, for ever.
    pub fn lose_held(&self) {
        self.lock().held = None;
    }

    /// How many values are held back.
    pub fn held(&self) -> usize {
        self.lock().held.as_ref().map_or(0, Vec::len)
    }

    /// Decide every value in two instances, as a proposer that repeats itself does.
    pub fn decide_twice(&self) {
        self.lock().decide_twice = true;
    }

    /// Keep no more than so many decided values; who is further behind needs a checkpoint.
    pub fn keep_entries(&self, entries_max: usize) {
        self.lock().entries_kept_max = entries_max;
    }

    /// Number of the last decided instance.
    pub fn last_instance(&self) -> u64 {
        self.lock().last_instance()
    }

    /// Who serves checkpoints.
    pub fn set_checkpoint_peers(&self, peers: Vec<SocketAddr>) {
        self.lock().peers = peers;
    }

    /// Decide holes, as recovery does.
    pub fn decide_noops(&self, count: usize) {
        let origin = Origin {
            client_id: 0,
            client_seq: 0,
            client_low: 0,
            kind: ValueKind::Noop,
        };
        let mut shared = self.lock();
        for _ in 0..count {
            shared.decide(Entry {
                origin,
                owner: usize::MAX,
                ticket: None,
                value: Vec::new(),
            });
        }
        shared.wake_all_but(usize::MAX);
    }

    /// Expire all sessions of proposers, by opening as many as a table holds.
    pub fn expire_proposer_sessions(&self) {
        let mut shared = self.lock();
        for nonce in 0..inband_paxos::session::SESSIONS_MAX as u64 {
            let kind = ValueKind::OpenSession;
            let origin = Origin {
                client_id: nonce,
                client_seq: 0,
                client_low: 0,
                kind,
            };
            shared.decide(Entry {
                origin,
                owner: usize::MAX,
                ticket: None,
                value: Vec::new(),
            });
        }
        shared.wake_all_but(usize::MAX);
    }
}

/// The log as one process sees it.
pub struct MemoryLog {
    cluster: MemoryCluster,
    owner: usize,
    reader: UnixStream,
    next_instance: u64,
    session: u64,
    next_seq: u64,
    next_ticket: u64,
    unanswered: BTreeSet<u64>,
    /// Sequence and value of what is not answered, by ticket.
    submitted: BTreeMap<Ticket, (u64, Vec<u8>)>,
    failures: Vec<(Ticket, SubmitFailure)>,
    window: usize,
    fail_next: Option<(SubmitFailure, bool)>,
}

impl MemoryLog {
    /// Let the next value fail with `failure`; if `decide`, it is decided nevertheless.
    pub fn fail_next(&mut self, failure: SubmitFailure, decide: bool) {
        self.fail_next = Some((failure, decide));
    }

    /// Allow so many undecided values.
    pub fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    fn open_session(&mut self) {
        let kind = ValueKind::OpenSession;
        let origin = Origin {
            client_id: self.owner as u64,
            client_seq: 0,
            client_low: 0,
            kind,
        };
        let mut shared = self.cluster.lock();
        shared.decide(Entry {
            origin,
            owner: self.owner,
            ticket: None,
            value: Vec::new(),
        });
        self.session = shared.last_instance();
        shared.wake_all_but(self.owner);
        drop(shared);
        self.next_seq = 1;
        self.unanswered.clear();
    }

    fn send(&mut self, ticket: Ticket, value: Vec<u8>) {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.unanswered.insert(seq);
        let origin = Origin {
            client_id: self.session,
            client_seq: seq,
            client_low: self.unanswered.first().copied().unwrap_or(seq),
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
        match &mut shared.held {
            Some(held) => held.push(entry),
            None => shared.decide(entry),
        }
        shared.wake_all_but(self.owner);
    }
}

impl ReplicatedLog for MemoryLog {
    fn partitions(&self) -> usize {
        1
    }

    fn max_value_len_bytes(&self) -> usize {
        MEMORY_VALUE_LEN_BYTES_MAX
    }

    fn submit_room(&self, _partition: usize) -> usize {
        self.window.saturating_sub(self.submitted.len())
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
        let burst = &mut bursts[0];
        let mut drained = [0u8; 256];
        while matches!(self.reader.read(&mut drained), Ok(1..)) {}
        for (ticket, failure) in self.failures.drain(..) {
            if let Some((seq, _)) = self.submitted.remove(&ticket) {
                self.unanswered.remove(&seq);
            }
            burst.failed.push((ticket, failure));
        }
        let shared = self.cluster.lock();
        if self.next_instance < shared.first_instance {
            burst.checkpoint_needed = true;
            return;
        }
        let skip = (self.next_instance - shared.first_instance) as usize;
        for entry in shared.entries.iter().skip(skip).take(BURST_VALUES_MAX) {
            let ticket = entry.ticket.filter(|_| entry.owner == self.owner);
            burst.push(self.next_instance, entry.origin, ticket, &entry.value);
            self.next_instance += 1;
        }
    }

    fn applied(&mut self, _partition: usize, instance: u64) {
        assert_eq!(
            instance + 1,
            self.next_instance,
            "applied what was delivered"
        );
    }

    fn reset(&mut self, _partition: usize, applied: u64) {
        self.next_instance = applied + 1;
    }

    fn session_refused(&mut self, ticket: Ticket) {
        self.open_session();
        if let Some((_, value)) = self.submitted.remove(&ticket) {
            self.send(ticket, value);
        }
    }

    fn answered(&mut self, ticket: Ticket) {
        if let Some((seq, _)) = self.submitted.remove(&ticket) {
            self.unanswered.remove(&seq);
        }
    }

    fn wake_fds(&self) -> Vec<RawFd> {
        vec![self.reader.as_raw_fd()]
    }

    fn poll_timeout(&self) -> Duration {
        if self.failures.is_empty() {
            IDLE_POLL_TIMEOUT
        } else {
            Duration::ZERO
        }
    }

    fn checkpoint_peers(&self) -> Vec<SocketAddr> {
        self.cluster.lock().peers.clone()
    }
}
