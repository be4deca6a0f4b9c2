//! Packs the commands of many connections for one log into values, and remembers which connections wait for which
//! value.
//!
//! Order (protocol.md, 8): a connection has at most one undecided value in a log, because values submitted later may be
//! decided earlier. Within a value its commands are in order.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use inband_host::log::{ReadTicket, ReplicatedLog, SubmitError, Ticket};

use crate::chunks::Chunks;
use crate::connection::{Connection, OwnedArgs};
use crate::limits::{
    IDLE_READS_BYTES_MAX, READS_PER_VALUE_MAX, TRANSFERS_PER_REPLICA_MAX,
    VALUES_IN_FLIGHT_BEFORE_FILLING, VALUES_IN_FLIGHT_MAX,
};
use crate::value::{self, ValueWriter, COMMAND_PREFIX_LEN_BYTES, VALUE_HEADER_LEN_BYTES};
use inband_resp::front::Connections;

/// The commands of one connection within a value.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Slot of the connection.
    pub slot: usize,
    /// Its id; the slot may have been reused since.
    pub connection_id: u64,
    /// Number of commands.
    pub count: usize,
    /// When the first of them was read.
    pub received: Instant,
}

impl Part {
    /// `count` commands of the connection in `slot`.
    pub fn of(slot: usize, connection: &Connection, count: usize, received: Instant) -> Part {
        Part {
            slot,
            connection_id: connection.id,
            count,
            received,
        }
    }

    /// Returns the connection, unless it is closed.
    pub fn connection<'c>(
        &self,
        connections: &'c mut Connections<Connection>,
    ) -> Option<&'c mut Connection> {
        connections
            .get_mut(self.slot)
            .filter(|c| c.id == self.connection_id)
    }
}

/// A value that the log has rejected permanently, with the parts that wait for it.
#[derive(Debug)]
pub struct Rejected {
    pub log: usize,
    pub parts: Vec<Part>,
    /// Tickets of the chunks that were already submitted.
    pub tickets: Vec<Ticket>,
    pub error: SubmitError,
}

/// A value that is undecided, or decided and not yet applied by this replica.
#[derive(Debug)]
struct InFlight {
    parts: Vec<Part>,
    submitted: Instant,
    /// The last session under which it was refused; session ids only increase.
    refused_session: u64,
}

/// Read-only commands of many connections, and the instance that must be applied before they are executed.
#[derive(Debug, Default)]
pub struct Reads {
    /// The waiting connections, part by part.
    pub parts: Vec<Part>,
    /// Connections that wait for a page of `SCAN`.
    pub scans: Vec<(Part, OwnedArgs)>,
    /// The encoded commands, concatenated.
    bytes: Vec<u8>,
    lens: Vec<usize>,
    ticket: Option<ReadTicket>,
    /// The instance that must be applied first, once known.
    instance: Option<u64>,
    since: Option<Instant>,
}

impl Reads {
    fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.scans.is_empty()
    }

    /// `count` encoded commands, starting with number `first`.
    pub fn commands(&self, first: usize, count: usize) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut at: usize = self.lens[..first].iter().sum();
        self.lens[first..first + count].iter().map(move |len| {
            at += len;
            &self.bytes[at - len..at]
        })
    }

    fn clear(&mut self) {
        self.parts.clear();
        self.scans.clear();
        self.bytes.clear();
        self.lens.clear();
    }
}

/// Packs commands into values.
#[derive(Debug)]
pub struct Packer {
    /// The log that the values go to, and so the connections' lane.
    log: usize,
    value_len_bytes_max: usize,
    writer: ValueWriter,
    /// Connections with commands in the current value.
    parts: Vec<Part>,
    /// Connections with commands to pack.
    ready: VecDeque<usize>,
    in_flight: HashMap<Ticket, InFlight>,
    spare: Vec<Vec<Part>>,
    /// Not sent to the log yet.
    reads: Reads,
    /// Sent to the log.
    reads_in_flight: VecDeque<Reads>,
    spare_reads: Vec<Reads>,
    /// Commands that do not fit in one value.
    pub chunks: Chunks,
    /// Connections with such a command, while too many are being sent.
    large: VecDeque<usize>,
    /// Values submitted so far.
    pub submitted: u64,
}

/// What the packer needs to submit values.
pub struct Submission<'a> {
    pub connections: &'a mut Connections<Connection>,
    pub log: &'a mut dyn ReplicatedLog,
    /// Cluster time.
    pub clock_ms: u64,
    pub now: Instant,
}

impl Packer {
    /// `value_len_bytes_max` is the longest value that `log` accepts.
    pub fn new(log: usize, value_len_bytes_max: usize) -> Self {
        Self {
            log,
            value_len_bytes_max,
            writer: ValueWriter::new(),
            parts: Vec::new(),
            ready: VecDeque::new(),
            in_flight: HashMap::new(),
            spare: Vec::new(),
            reads: Reads::default(),
            reads_in_flight: VecDeque::new(),
            spare_reads: Vec::new(),
            chunks: Chunks::new(log, value_len_bytes_max),
            large: VecDeque::new(),
            submitted: 0,
        }
    }

    /// Longest encoded command that fits in one value.
    fn command_len_bytes_max(&self) -> usize {
        let overhead = VALUE_HEADER_LEN_BYTES + COMMAND_PREFIX_LEN_BYTES;
        self.value_len_bytes_max.saturating_sub(overhead)
    }

    /// Returns the number of undecided values, chunked commands and batches of reads.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() + self.chunks.len() + self.reads_in_flight.len()
    }

    /// Nothing is undecided, being filled, being read or waiting to be packed.
    pub fn is_idle(&self) -> bool {
        let is_packed = self.writer.is_empty() && self.ready.is_empty() && self.large.is_empty();
        self.in_flight() == 0 && is_packed && self.reads.is_empty()
    }

    /// A connection may have commands to pack.
    pub fn push_ready(&mut self, slot: usize, connection: &mut Connection) {
        if connection.enter_ready_list(self.log) {
            self.ready.push_back(slot);
        }
    }

    /// Pack and submit as much as the policy and the log allow.
    pub fn pack(&mut self, to: &mut Submission<'_>, rejected: &mut Vec<Rejected>) {
        if self.chunks.len() < TRANSFERS_PER_REPLICA_MAX {
            self.ready.extend(self.large.drain(..));
        }
        while let Some(slot) = self.ready.front().copied() {
            let log = self.log;
            let connection = to.connections.get_mut(slot);
            let Some(connection) = connection.filter(|c| c.is_ready_to_pack(log)) else {
                if let Some(connection) = to.connections.get_mut(slot) {
                    connection.leave_ready_list(log);
                }
                self.ready.pop_front();
                continue;
            };
            if connection.has_only_reads(log) {
                self.take_reads(slot, connection);
                connection.leave_ready_list(log);
                self.ready.pop_front();
                continue;
            }
            let first = connection.front_command(log).map_or(0, |(c, _)| c.len());
            if first > self.command_len_bytes_max() {
                self.ready.pop_front();
                self.take_large(slot, connection, to.now);
                continue;
            }
            if !self.is_good_fit(connection) {
                if !self.submit(to, rejected) {
                    return;
                }
                continue;
            }
            self.take_commands(slot, connection);
            connection.leave_ready_list(log);
            self.ready.pop_front();
        }
        self.ask(to);
        self.submit_chunks(to, rejected);
        if !self.writer.is_empty() && self.in_flight.len() < VALUES_IN_FLIGHT_BEFORE_FILLING {
            self.submit(to, rejected);
        }
    }

    /// Starts to send a command that does not fit in one value, or lets it wait.
    fn take_large(&mut self, slot: usize, connection: &mut Connection, now: Instant) {
        if self.chunks.len() >= TRANSFERS_PER_REPLICA_MAX {
            self.large.push_back(slot);
            return;
        }
        connection.leave_ready_list(self.log);
        let Some((command, received)) = connection.front_command(self.log) else {
            return;
        };
        let command = command.to_vec();
        connection.pop_command(self.log);
        let part = Part::of(slot, connection, 1, received);
        self.chunks.push(part, command, now);
    }

    fn submit_chunks(&mut self, to: &mut Submission<'_>, rejected: &mut Vec<Rejected>) {
        let undecided = self.in_flight.len() + self.chunks.in_flight();
        let window = undecided + to.log.submit_room(self.log);
        for (ended, error) in self.chunks.submit(to, window) {
            rejected.push(Rejected {
                log: self.log,
                parts: vec![ended.part],
                tickets: ended.tickets,
                error,
            });
        }
    }

    fn take_reads(&mut self, slot: usize, connection: &mut Connection) {
        let mut part: Option<Part> = None;
        while let Some((command, received)) = connection.front_command(self.log) {
            self.reads.bytes.extend_from_slice(command);
            self.reads.lens.push(command.len());
            connection.pop_command(self.log);
            let first = Part::of(slot, connection, 0, received);
            part.get_or_insert(first).count += 1;
        }
        self.reads.parts.extend(part);
    }

    /// A connection waits for a page of `SCAN`.
    pub fn push_scan(&mut self, part: Part, args: OwnedArgs) {
        self.reads.scans.push((part, args));
    }

    /// Asks the log for the instance that the reads must wait for: all reads of a turn share one query.
    fn ask(&mut self, to: &mut Submission<'_>) {
        if self.reads.is_empty() {
            return;
        }
        let next = self.spare_reads.pop().unwrap_or_default();
        let mut reads = std::mem::replace(&mut self.reads, next);
        reads.ticket = Some(to.log.confirm_read(self.log));
        (reads.instance, reads.since) = (None, Some(to.now));
        self.reads_in_flight.push_back(reads);
    }

    /// The reads of this ticket may be executed once `instance` is applied.
    pub fn confirm_reads(&mut self, ticket: ReadTicket, instance: u64) {
        let mut all = self.reads_in_flight.iter_mut();
        if let Some(reads) = all.find(|reads| reads.ticket == Some(ticket)) {
            reads.instance = Some(instance);
        }
    }

    /// Takes a batch of reads that may be executed with `applied` as the last applied instance.
    pub fn take_confirmed(&mut self, applied: u64) -> Option<Reads> {
        let is_ready = |r: &Reads| r.instance.is_some_and(|instance| instance <= applied);
        let at = self.reads_in_flight.iter().position(is_ready)?;
        self.reads_in_flight.remove(at)
    }

    /// Takes the reads with this ticket.
    pub fn take_reads_of(&mut self, ticket: ReadTicket) -> Option<Reads> {
        let mut all = self.reads_in_flight.iter();
        let at = all.position(|reads| reads.ticket == Some(ticket))?;
        self.reads_in_flight.remove(at)
    }

    /// Takes a batch of reads that has waited for longer than `age`.
    pub fn take_overdue_reads(&mut self, now: Instant, age: Duration) -> Option<Reads> {
        let is_overdue = |since: Instant| now.saturating_duration_since(since) > age;
        let mut all = self.reads_in_flight.iter();
        let at = all.position(|reads| reads.since.is_some_and(is_overdue))?;
        self.reads_in_flight.remove(at)
    }

    /// Keeps the memory of a batch of reads for reuse.
    pub fn recycle_reads(&mut self, mut reads: Reads) {
        if reads.bytes.capacity() > IDLE_READS_BYTES_MAX {
            return;
        }
        reads.clear();
        self.spare_reads.push(reads);
    }

    /// Returns whether the connection's commands should go into the current value. They should not be split if the next
    /// value has room for all of them: the second half would wait for the first.
    fn is_good_fit(&self, connection: &Connection) -> bool {
        let room = self
            .value_len_bytes_max
            .saturating_sub(self.writer.len_bytes());
        let prefixes = connection.waiting_len(self.log) * COMMAND_PREFIX_LEN_BYTES;
        let all = connection.waiting_len_bytes(self.log) + prefixes;
        let first = connection
            .front_command(self.log)
            .map_or(0, |(c, _)| c.len());
        let first = first + COMMAND_PREFIX_LEN_BYTES;
        let empty_room = self.value_len_bytes_max - VALUE_HEADER_LEN_BYTES;
        self.writer.is_empty() || all <= room || (first <= room && all > empty_room)
    }

    fn take_commands(&mut self, slot: usize, connection: &mut Connection) {
        let mut part: Option<Part> = None;
        let mut reads = 0;
        while let Some((command, received)) = connection.front_command(self.log) {
            let len = self.writer.len_bytes() + command.len() + COMMAND_PREFIX_LEN_BYTES;
            if len > self.value_len_bytes_max || reads == READS_PER_VALUE_MAX {
                break;
            }
            self.writer.push(command);
            reads += usize::from(connection.pop_command(self.log));
            let first = Part::of(slot, connection, 0, received);
            part.get_or_insert(first).count += 1;
        }
        self.parts.extend(part);
    }

    /// Submits the current value; `false` if the log has no room for it now.
    fn submit(&mut self, to: &mut Submission<'_>, rejected: &mut Vec<Rejected>) -> bool {
        if self.in_flight.len() >= VALUES_IN_FLIGHT_MAX || to.log.submit_room(self.log) == 0 {
            return false;
        }
        let result = to.log.submit(self.log, self.writer.finish(to.clock_ms));
        if matches!(result, Err(SubmitError::WindowFull(_))) {
            return false;
        }
        let parts = std::mem::replace(&mut self.parts, self.spare.pop().unwrap_or_default());
        self.writer.clear();
        match result {
            Ok(ticket) => self.submitted(ticket, parts, to.now),
            Err(error) => rejected.push(Rejected {
                log: self.log,
                parts,
                tickets: Vec::new(),
                error,
            }),
        }
        true
    }

    fn submitted(&mut self, ticket: Ticket, parts: Vec<Part>, now: Instant) {
        self.submitted += 1;
        self.in_flight.insert(
            ticket,
            InFlight {
                parts,
                submitted: now,
                refused_session: 0,
            },
        );
    }

    /// Submits a tick: a value without commands. `None`: not possible now.
    pub fn submit_tick(&mut self, to: &mut Submission<'_>) -> Option<Ticket> {
        if !self.writer.is_empty() || to.log.submit_room(self.log) == 0 {
            return None;
        }
        let ticket = to.log.submit(self.log, self.writer.finish(to.clock_ms));
        self.submitted(ticket.ok()?, Vec::new(), to.now);
        ticket.ok()
    }

    /// Submits a value with one command for which no client waits. `None`: not possible now.
    pub fn submit_alone(&mut self, command: &[u8], to: &mut Submission<'_>) -> Option<Ticket> {
        if to.log.submit_room(self.log) == 0 {
            return None;
        }
        let mut writer = ValueWriter::new();
        writer.push(command);
        let ticket = to.log.submit(self.log, writer.finish(to.clock_ms)).ok()?;
        self.submitted(ticket, Vec::new(), to.now);
        Some(ticket)
    }

    /// Submits a marker. `None`: not possible now.
    pub fn submit_marker(&mut self, entry: u64, to: &mut Submission<'_>) -> Option<Ticket> {
        if to.log.submit_room(self.log) == 0 {
            return None;
        }
        let ticket = to.log.submit(self.log, &value::marker(entry)).ok()?;
        self.submitted(ticket, Vec::new(), to.now);
        Some(ticket)
    }

    /// Takes the parts that wait for a value, which is no longer in flight. `None`: nothing waits for it.
    pub fn take_parts(&mut self, ticket: Ticket) -> Option<Vec<Part>> {
        self.in_flight.remove(&ticket).map(|value| value.parts)
    }

    /// Note that a value was refused under `session_id`. Returns whether it must be submitted again: not if it has been
    /// answered meanwhile, nor if this is another copy under a session that was already given up, because then the
    /// value is in flight under a new session and another submission would apply it twice.
    pub fn note_refused(&mut self, ticket: Ticket, session_id: u64) -> bool {
        match self.in_flight.get_mut(&ticket) {
            Some(value) if value.refused_session < session_id => {
                value.refused_session = session_id;
                true
            }
            _ => false,
        }
    }

    /// Returns when the oldest undecided value was submitted.
    pub fn oldest_submission(&self) -> Option<Instant> {
        let values = self.in_flight.values();
        values.map(|value| value.submitted).min()
    }

    /// Returns whether a command waits to be packed.
    pub fn has_waiting(&self) -> bool {
        !self.ready.is_empty() || !self.large.is_empty()
    }

    /// Takes all undecided values.
    pub fn take_all(&mut self) -> Vec<(Ticket, Vec<Part>)> {
        self.in_flight
            .drain()
            .map(|(ticket, value)| (ticket, value.parts))
            .collect()
    }

    /// Takes the values submitted more than `age` ago.
    pub fn take_overdue(&mut self, now: Instant, age: Duration) -> Vec<(Ticket, Vec<Part>)> {
        let is_overdue = |value: &InFlight| now.saturating_duration_since(value.submitted) > age;
        let overdue: Vec<Ticket> = self
            .in_flight
            .iter()
            .filter_map(|(ticket, value)| is_overdue(value).then_some(*ticket))
            .collect();
        let take = |ticket| Some((ticket, self.in_flight.remove(&ticket)?.parts));
        overdue.into_iter().filter_map(take).collect()
    }

    /// Removes everything that waits to be packed from the queues. Returns the connections with their numbers of
    /// replies.
    pub fn reject_waiting(
        &mut self,
        connections: &mut Connections<Connection>,
    ) -> Vec<(usize, usize)> {
        let mut waiting = Vec::new();
        for slot in self.ready.drain(..).chain(self.large.drain(..)) {
            let Some(connection) = connections.get_mut(slot) else {
                continue;
            };
            connection.leave_ready_list(self.log);
            if !connection.is_ready_to_pack(self.log) {
                continue;
            }
            let mut count = 0;
            while connection.front_command(self.log).is_some() {
                connection.pop_command(self.log);
                count += 1;
            }
            waiting.push((slot, count));
        }
        waiting
    }

    /// Keeps the memory of `parts` for reuse.
    pub fn recycle(&mut self, mut parts: Vec<Part>) {
        parts.clear();
        self.spare.push(parts);
    }
}
