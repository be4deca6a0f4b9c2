//! memcached's clients: over TCP, and over UDP ([`datagrams`]).
//!
//! The writes of one turn over all connections become one batch of records; writes that arrive while records are in
//! flight share the next batch. Reads come from the shared table. *Strong* reads wait until a round that began after
//! they arrived has shown how far the table must be; all reads of a turn share that round. *Local* reads are answered
//! at once. Requests of one connection take effect and are answered in order: a read waits for the writes before it, a
//! write for the reads before it.

mod connection;
pub mod datagrams;
mod request;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inband_resp::front::{Front, Ready};
use mio::Waker;

use crate::apply::Outcome;
use crate::command::{Batch, Command};
use crate::limits::{
    CLIENTS_MAX, CLIENTS_MEMORY_BYTES_MAX, CLIENT_READ_BYTES_MAX, READS_PER_TURN_BYTES_MAX,
    RECORDS_BEFORE_GATHERING, RECORDS_UNDER_WAY_MAX, RECORD_LEN_BYTES_MAX, TIMEOUT_CHECK_PERIOD_MS,
};
use crate::registers::Client;
use crate::store::Reader;
use connection::{Closed, Connection};
use datagrams::{Datagrams, Listener};

/// Longest sleep: the gateway must notice that it is to stop.
const IDLE_MAX: Duration = Duration::from_millis(100);
/// memcached's reply to a client that is one too many.
const TOO_MANY_CLIENTS: &[u8] = b"ERROR Too many open connections\r\n";

/// What a gateway needs from its node.
pub trait Submit {
    /// Submits the value of a record, which is the next part of the session's command stream. Returns its number, from
    /// 1.
    fn submit(&mut self, value: Vec<u8>) -> u64;

    /// Asks for a read index: [`Event::Barrier`] follows once the table has everything that was acknowledged to any
    /// client before this call.
    fn barrier(&mut self, id: u64);

    /// Takes the events that have occurred.
    fn events(&mut self, into: &mut Vec<Event>);

    /// Tells the node that everything of this turn has been submitted.
    fn flush(&mut self) {}
}

/// An event at the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Results of the next commands, in the order they were submitted.
    Outcomes(Vec<Outcome>),
    /// The read index asked for under this number, and all earlier ones, have been reached.
    Barrier(u64),
    /// The node was brought up to date by a copy of the table: the outcomes of records up to this one are unknown,
    /// unless they were reported before.
    Unknown(u64),
    /// The outcome of a SET that the packet program has proposed for this client.
    Answer(Client, Outcome),
}

/// Configuration of a gateway.
#[derive(Debug, Clone)]
pub struct Settings {
    pub clients_max: usize,
    /// Maximum memory that all clients together may make the gateway hold.
    pub memory_bytes_max: usize,
    /// Ports at which reads are local.
    pub local_ports: Vec<u16>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            clients_max: CLIENTS_MAX,
            memory_bytes_max: CLIENTS_MEMORY_BYTES_MAX,
            local_ports: Vec::new(),
        }
    }
}

#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub connections: AtomicU64,
    pub connections_total: AtomicU64,
    pub connections_refused: AtomicU64,
    /// Requests of all kinds; one may have several keys.
    pub requests: AtomicU64,
    pub cmd_get: AtomicU64,
    pub cmd_set: AtomicU64,
    pub cmd_touch: AtomicU64,
    pub cmd_flush: AtomicU64,
    pub get_hits: AtomicU64,
    pub get_misses: AtomicU64,
    pub records: AtomicU64,
    pub barriers: AtomicU64,
    pub timed_out: AtomicU64,
    pub memory_closed: AtomicU64,
    pub datagrams: AtomicU64,
    /// Datagrams that were not answered: from outside the network, not a request, or too many at once.
    pub datagrams_refused: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BTreeMap::from([
            ("gateway_connections", get(&self.connections)),
            ("gateway_connections_total", get(&self.connections_total)),
            (
                "gateway_connections_refused",
                get(&self.connections_refused),
            ),
            ("gateway_requests", get(&self.requests)),
            ("gateway_cmd_get", get(&self.cmd_get)),
            ("gateway_cmd_set", get(&self.cmd_set)),
            ("gateway_cmd_touch", get(&self.cmd_touch)),
            ("gateway_cmd_flush", get(&self.cmd_flush)),
            ("gateway_get_hits", get(&self.get_hits)),
            ("gateway_get_misses", get(&self.get_misses)),
            ("gateway_records", get(&self.records)),
            ("gateway_barriers", get(&self.barriers)),
            ("gateway_closed_timed_out", get(&self.timed_out)),
            ("gateway_closed_memory", get(&self.memory_closed)),
            ("gateway_datagrams", get(&self.datagrams)),
            ("gateway_datagrams_refused", get(&self.datagrams_refused)),
        ])
    }
}

/// A command whose outcome is not known yet.
struct Waiting {
    /// Slot and id of its connection.
    slot: usize,
    id: u64,
    /// The record in which it ends.
    seq: u64,
}

/// State that connections share in a turn.
pub(crate) struct Shared {
    pub(crate) reader: Reader,
    batch: Batch,
    /// Commands of this turn, by slot and id, and where each ends in the batch.
    begun: Vec<(usize, u64, usize)>,
    waiting: VecDeque<Waiting>,
    /// Number of records submitted.
    submitted: u64,
    /// The read index that this turn's reads wait for, and whether there are such reads.
    barrier: u64,
    is_barrier_wanted: bool,
    reached: u64,
    /// Bytes of answers to reads that this turn has room for.
    reads_left_bytes: usize,
    /// The first connection of this turn whose reads found no room.
    deferred: Option<usize>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) started: Instant,
}

impl Shared {
    /// Submits a command of a connection in this turn.
    fn submit(&mut self, slot: usize, id: u64, command: &Command) {
        self.batch.push(command);
        self.begun.push((slot, id, self.batch.len_bytes()));
    }

    /// Returns the read index that a read arriving now must wait for.
    fn wants_barrier(&mut self) -> u64 {
        self.is_barrier_wanted = true;
        self.barrier
    }

    /// Returns the number of records that were submitted but not settled.
    fn under_way(&self) -> u64 {
        let settled = self.waiting.front().map_or(self.submitted, |w| w.seq - 1);
        self.submitted - settled
    }

    /// Returns whether so many records are in flight that none may be added.
    fn is_full(&self) -> bool {
        self.under_way() >= RECORDS_UNDER_WAY_MAX
    }

    /// Returns whether this turn's commands wait for more, to share a record with them. Whatever settles a record
    /// begins a turn.
    fn gathers(&self) -> bool {
        self.under_way() >= RECORDS_BEFORE_GATHERING
            && self.batch.len_bytes() < RECORD_LEN_BYTES_MAX
    }
}

/// A gateway for memcached's clients, on one thread. See the [module](self).
pub struct Gateway<S> {
    front: Front<Connection>,
    /// By the order of their listeners.
    datagrams: Vec<Datagrams>,
    ready: Ready,
    /// Connections to visit in the next turn.
    attention: Vec<usize>,
    /// Connections that wait until fewer records are in flight.
    held: Vec<usize>,
    settings: Settings,
    scratch: Vec<u8>,
    submit: S,
    shared: Shared,
    /// Connections whose reads wait for a read index, by that index.
    reading: VecDeque<(u64, usize)>,
    events: Vec<Event>,
    timeouts_checked_at: Instant,
}

impl<S: Submit> Gateway<S> {
    /// Creates a gateway that serves the clients of `listeners` from a table, and submits their commands to `submit`.
    pub fn new(
        listeners: Vec<TcpListener>,
        reader: Reader,
        submit: S,
        settings: Settings,
    ) -> io::Result<Gateway<S>> {
        Gateway::with_datagrams(listeners, Vec::new(), reader, submit, settings)
    }

    /// Like [`Gateway::new`], and also serves clients that send datagrams.
    pub fn with_datagrams(
        listeners: Vec<TcpListener>,
        datagrams: Vec<Listener>,
        reader: Reader,
        submit: S,
        settings: Settings,
    ) -> io::Result<Gateway<S>> {
        let datagrams = (0..).zip(datagrams);
        let datagrams = datagrams.map(|(place, listener)| Datagrams::new(place, listener));
        let datagrams = datagrams.collect::<io::Result<Vec<_>>>()?;
        let fds: Vec<_> = datagrams.iter().map(Datagrams::fd).collect();
        let front = Front::new(listeners, &fds, settings.clients_max, None)?
            .refusing_with(TOO_MANY_CLIENTS);
        let shared = Shared {
            reader,
            batch: Batch::default(),
            begun: Vec::new(),
            waiting: VecDeque::new(),
            submitted: 0,
            barrier: 1,
            is_barrier_wanted: false,
            reached: 0,
            reads_left_bytes: 0,
            deferred: None,
            counters: Arc::default(),
            started: Instant::now(),
        };
        Ok(Gateway {
            front,
            datagrams,
            ready: Ready::default(),
            attention: Vec::new(),
            held: Vec::new(),
            settings,
            scratch: vec![0; CLIENT_READ_BYTES_MAX],
            submit,
            shared,
            reading: VecDeque::new(),
            events: Vec::new(),
            timeouts_checked_at: Instant::now(),
        })
    }

    /// Returns the handle that wakes the gateway when there are events; it can be taken once.
    pub fn take_waker(&mut self) -> Option<Waker> {
        self.front.take_waker()
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.front.local_addrs()
    }

    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Submits the first command of the session.
    fn open(&mut self) {
        let chunks = self.shared.reader.chunks();
        // No connection has this id.
        self.shared.submit(usize::MAX, 0, &Command::Open { chunks });
    }

    /// Serves clients until told to stop.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        self.open();
        self.end_turn();
        while !stop.load(Ordering::Acquire) {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        self.take_events();
        let timeout = self.timeout();
        self.front.wait(timeout, &mut self.ready)?;
        self.accept();
        for datagrams in &mut self.datagrams {
            datagrams.receive(&mut self.shared, Instant::now());
        }
        let mut slots = std::mem::take(&mut self.attention);
        slots.append(&mut self.ready.connections);
        self.shared.reads_left_bytes = READS_PER_TURN_BYTES_MAX;
        let deferred = self.shared.deferred.take();
        if let Some(first) = slots.iter().position(|slot| Some(*slot) == deferred) {
            slots.rotate_left(first);
        }
        slots.into_iter().for_each(|slot| self.advance(slot));
        self.end_turn();
        self.close_timed_out();
        self.bound_memory();
        Ok(())
    }

    fn timeout(&mut self) -> Duration {
        self.submit.events(&mut self.events);
        let has_datagrams = self.datagrams.iter().any(|d| d.is_ready);
        if has_datagrams || !self.attention.is_empty() || !self.events.is_empty() {
            return Duration::ZERO;
        }
        let pause = self.front.accept_pause(Instant::now());
        pause.map_or(IDLE_MAX, |pause| IDLE_MAX.min(pause))
    }

    /// Submits what this turn has gathered.
    fn end_turn(&mut self) {
        if !self.shared.gathers() {
            self.submit_batch();
        }
        let shared = &mut self.shared;
        if std::mem::take(&mut shared.is_barrier_wanted) {
            self.submit.barrier(shared.barrier);
            shared.barrier += 1;
            Counters::add(&shared.counters.barriers, 1);
        }
        self.submit.flush();
    }

    fn submit_batch(&mut self) {
        let shared = &mut self.shared;
        let mut ends = shared.begun.drain(..).peekable();
        let mut len_bytes = 0;
        let (submit, waiting) = (&mut self.submit, &mut shared.waiting);
        let mut last = shared.submitted;
        shared.batch.take(|value| {
            len_bytes += value.len();
            let seq = submit.submit(value);
            last = seq;
            Counters::add(&shared.counters.records, 1);
            while let Some((slot, id, _)) = ends.next_if(|(_, _, end)| *end <= len_bytes) {
                waiting.push_back(Waiting { slot, id, seq });
            }
        });
        shared.submitted = last;
    }

    fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.submit.events(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Outcomes(outcomes) => {
                    for outcome in outcomes {
                        self.settle(Some(outcome));
                    }
                }
                Event::Unknown(seq) => {
                    while self.shared.waiting.front().is_some_and(|w| w.seq <= seq) {
                        self.settle(None);
                    }
                }
                Event::Answer(client, outcome) => {
                    let mut datagrams = self.datagrams.iter();
                    if let Some(datagrams) = datagrams.find(|d| d.is_local() != client.is_strong) {
                        datagrams.answer_set(client, &outcome, &self.shared);
                    }
                }
                Event::Barrier(id) => {
                    self.shared.reached = self.shared.reached.max(id);
                    let done = self.reading.partition_point(|(barrier, _)| *barrier <= id);
                    let slots = self.reading.drain(..done).map(|(_, slot)| slot);
                    self.attention.extend(slots);
                    for datagrams in &mut self.datagrams {
                        datagrams.answer_reads(&self.shared);
                    }
                }
            }
        }
        self.events = events;
        if !self.shared.is_full() {
            self.attention.append(&mut self.held);
        }
        self.attention.sort_unstable();
        self.attention.dedup();
    }

    /// Settles the oldest command with this outcome, or with `None` if it is unknown.
    fn settle(&mut self, outcome: Option<Outcome>) {
        let Some(waiting) = self.shared.waiting.pop_front() else {
            debug_assert!(false, "an outcome of no command");
            return;
        };
        let mut datagrams = self.datagrams.iter_mut();
        if let Some(datagrams) = datagrams.find(|d| d.slot() == waiting.slot) {
            return datagrams.settle(waiting.id, outcome.as_ref(), &self.shared);
        }
        let connection = self.front.connections.get_mut(waiting.slot);
        // The connection may be gone, and another one in its slot.
        if let Some(connection) = connection.filter(|c| c.id == waiting.id) {
            connection.settle(outcome);
            self.attention.push(waiting.slot);
        }
    }

    fn accept(&mut self) {
        let local_ports = &self.settings.local_ports;
        let make = |arrival| Connection::new(arrival, local_ports);
        let accepted = self.front.accept(Instant::now(), make);
        let counters = &self.shared.counters;
        Counters::add(&counters.connections_total, accepted.slots.len() as u64);
        Counters::add(&counters.connections_refused, accepted.refused);
        self.attention.extend(accepted.slots);
        if let Some(error) = accepted.failure {
            tracing::warn!(
                "accepting a client: {error}; raise the limit of open files (ulimit -n)"
            );
        }
        self.count_connections();
    }

    fn count_connections(&self) {
        let connections = self.front.connections.len() as u64;
        let counter = &self.shared.counters.connections;
        counter.store(connections, Ordering::Relaxed);
    }

    fn advance(&mut self, slot: usize) {
        let Some(connection) = self.front.connections.get_mut(slot) else {
            return;
        };
        let barrier = self.shared.barrier;
        let wanted = connection.barrier();
        match connection.advance(slot, &mut self.shared, &mut self.scratch) {
            Ok(more) => {
                if more.is_held {
                    self.held.push(slot);
                }
                if more.is_ready {
                    self.attention.push(slot);
                }
                // Reads of this turn wait for the index of this turn; others are in the queue already.
                if connection.barrier() != wanted && connection.barrier() == Some(barrier) {
                    self.reading.push_back((barrier, slot));
                }
                self.front.connections.account(slot);
            }
            Err(why) => self.close(slot, why),
        }
    }

    fn close(&mut self, slot: usize, why: Closed) {
        let Some(mut connection) = self.front.close(slot) else {
            return;
        };
        connection.say_goodbye(why);
        let counters = &self.shared.counters;
        match why {
            Closed::Gone => {}
            Closed::Memory => Counters::add(&counters.memory_closed, 1),
            Closed::TimedOut | Closed::NoQuorum | Closed::Unknown => {
                Counters::add(&counters.timed_out, 1)
            }
        }
        self.count_connections();
    }

    /// Closes clients that have kept the gateway waiting for too long, or have waited too long themselves.
    fn close_timed_out(&mut self) {
        let now = Instant::now();
        let period = Duration::from_millis(TIMEOUT_CHECK_PERIOD_MS);
        if now.saturating_duration_since(self.timeouts_checked_at) < period {
            return;
        }
        self.timeouts_checked_at = now;
        for datagrams in &mut self.datagrams {
            datagrams.forget_old(now);
        }
        let places = self.front.connections.places();
        let timed_out = places.filter_map(|(slot, c)| Some((slot, c.timed_out(now)?)));
        for (slot, why) in timed_out.collect::<Vec<_>>() {
            self.close(slot, why);
        }
    }

    /// Closes the clients that hold most memory until the total is within its limit.
    fn bound_memory(&mut self) {
        while self.front.connections.memory_bytes() > self.settings.memory_bytes_max {
            let Some(slot) = self.front.connections.largest() else {
                return;
            };
            self.close(slot, Closed::Memory);
        }
    }
}
