//! Packs the commands of many connections into values and remembers who waits for which.
//!
//! Order (design, *must* 8): a connection has at most one undecided value, because values submitted
//! later may be decided earlier. Within a value its commands stand in their order.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use inband_paxos::log::{ReplicatedLog, SubmitError, Ticket};

use crate::connection::Connection;
use crate::front::Connections;
use crate::limits::{VALUES_IN_FLIGHT_BEFORE_FILLING, VALUES_IN_FLIGHT_MAX};
use crate::value::{ValueWriter, COMMAND_PREFIX_LEN_BYTES, VALUE_HEADER_LEN_BYTES};

/// The commands of one connection within a value.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Place of the connection.
    pub slot: usize,
    /// Its id; the place may have been given to another one since.
    pub connection_id: u64,
    /// How many commands.
    pub count: usize,
    /// When the first of them was read.
    pub received: Instant,
}

impl Part {
    /// The connection, unless it is gone.
    pub fn connection<'c>(&self, connections: &'c mut Connections) -> Option<&'c mut Connection> {
        connections
            .get_mut(self.slot)
            .filter(|c| c.id == self.connection_id)
    }
}

/// A value that the log refused for good, with the parts that wait for it.
#[derive(Debug)]
pub struct Rejected {
    /// Who waits.
    pub parts: Vec<Part>,
    /// Why it was refused.
    pub error: SubmitError,
}

/// A value that is undecided.
#[derive(Debug)]
struct InFlight {
    parts: Vec<Part>,
    /// The last session under which it was refused; ids ascend.
    refused_session: u64,
}

/// Packs commands into values.
#[derive(Debug)]
pub struct Packer {
    value_len_bytes_max: usize,
    writer: ValueWriter,
    /// Who has commands in the value being filled.
    parts: Vec<Part>,
    /// Connections with commands to pack.
    ready: VecDeque<usize>,
    in_flight: HashMap<Ticket, InFlight>,
    spare: Vec<Vec<Part>>,
    /// Values submitted so far.
    pub submitted: u64,
}

impl Packer {
    /// Pack into values of at most `value_len_bytes_max`.
    pub fn new(value_len_bytes_max: usize) -> Self {
        Self {
            value_len_bytes_max,
            writer: ValueWriter::new(),
            parts: Vec::new(),
            ready: VecDeque::new(),
            in_flight: HashMap::new(),
            spare: Vec::new(),
            submitted: 0,
        }
    }

    /// Longest encoded command that fits a value.
    pub fn command_len_bytes_max(&self) -> usize {
        let overhead = VALUE_HEADER_LEN_BYTES + COMMAND_PREFIX_LEN_BYTES;
        self.value_len_bytes_max.saturating_sub(overhead)
    }

    /// Number of undecided values.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Nothing is undecided, being filled or waiting to be packed.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.writer.is_empty() && self.ready.is_empty()
    }

    /// A connection has commands to pack.
    pub fn push_ready(&mut self, slot: usize, connection: &mut Connection) {
        if !connection.is_in_ready_list {
            connection.is_in_ready_list = true;
            self.ready.push_back(slot);
        }
    }

    /// Pack and submit as much as the policy and the log allow.
    pub fn pack(
        &mut self,
        connections: &mut Connections,
        log: &mut dyn ReplicatedLog,
        wall_ms: u64,
        rejected: &mut Vec<Rejected>,
    ) {
        while let Some(slot) = self.ready.front().copied() {
            let connection = connections.get_mut(slot).filter(|c| c.is_in_ready_list);
            let Some(connection) = connection.filter(|c| c.is_ready_to_pack()) else {
                if let Some(connection) = connections.get_mut(slot) {
                    connection.is_in_ready_list = false;
                }
                self.ready.pop_front();
                continue;
            };
            if !self.is_good_fit(connection) {
                if !self.submit(log, wall_ms, rejected) {
                    return;
                }
                continue;
            }
            self.take_commands(slot, connection);
            connection.is_in_ready_list = false;
            self.ready.pop_front();
        }
        if !self.writer.is_empty() && self.in_flight.len() < VALUES_IN_FLIGHT_BEFORE_FILLING {
            self.submit(log, wall_ms, rejected);
        }
    }

    /// Should the connection's commands go into the value being filled? They should not be torn
    /// apart if the next value has room for all: the second half would wait for the first.
    fn is_good_fit(&self, connection: &Connection) -> bool {
        let room = self
            .value_len_bytes_max
            .saturating_sub(self.writer.len_bytes());
        let prefixes = connection.queued_len() * COMMAND_PREFIX_LEN_BYTES;
        let all = connection.encoded_len_bytes() + prefixes;
        let first = connection.front_command().map_or(0, |(c, _)| c.len());
        let first = first + COMMAND_PREFIX_LEN_BYTES;
        let empty_room = self.value_len_bytes_max - VALUE_HEADER_LEN_BYTES;
        self.writer.is_empty() || all <= room || (first <= room && all > empty_room)
    }

    fn take_commands(&mut self, slot: usize, connection: &mut Connection) {
        let mut part: Option<Part> = None;
        while let Some((command, received)) = connection.front_command() {
            let len = self.writer.len_bytes() + command.len() + COMMAND_PREFIX_LEN_BYTES;
            if len > self.value_len_bytes_max {
                break;
            }
            self.writer.push(command);
            connection.pop_command();
            let first = Part {
                slot,
                connection_id: connection.id,
                count: 0,
                received,
            };
            part.get_or_insert(first).count += 1;
        }
        connection.has_value_in_flight = part.is_some();
        self.parts.extend(part);
    }

    /// Submit the value being filled; `false` if the log has no room for it now.
    fn submit(
        &mut self,
        log: &mut dyn ReplicatedLog,
        wall_ms: u64,
        rejected: &mut Vec<Rejected>,
    ) -> bool {
        if self.in_flight.len() >= VALUES_IN_FLIGHT_MAX || log.submit_room(0) == 0 {
            return false;
        }
        let result = log.submit(0, self.writer.finish(wall_ms));
        if matches!(result, Err(SubmitError::WindowFull(_))) {
            return false;
        }
        let parts = std::mem::replace(&mut self.parts, self.spare.pop().unwrap_or_default());
        self.writer.clear();
        match result {
            Ok(ticket) => {
                self.submitted += 1;
                self.in_flight.insert(
                    ticket,
                    InFlight {
                        parts,
                        refused_session: 0,
                    },
                );
            }
            Err(error) => rejected.push(Rejected { parts, error }),
        }
        true
    }

    /// Submit a tick: a value without commands. `None`: not now.
    pub fn submit_tick(&mut self, log: &mut dyn ReplicatedLog, wall_ms: u64) -> Option<Ticket> {
        if !self.writer.is_empty() || log.submit_room(0) == 0 {
            return None;
        }
        let ticket = log.submit(0, self.writer.finish(wall_ms)).ok()?;
        self.submitted += 1;
        self.in_flight.insert(
            ticket,
            InFlight {
                parts: Vec::new(),
                refused_session: 0,
            },
        );
        Some(ticket)
    }

    /// Who waits for a value; it is no longer in flight. `None`: nobody ever did, or was told.
    pub fn take_parts(&mut self, ticket: Ticket) -> Option<Vec<Part>> {
        self.in_flight.remove(&ticket).map(|value| value.parts)
    }

    /// Note that a value was refused under `session_id`. Must it be submitted again? Not if it was
    /// answered meanwhile, nor if this is a further copy under a session that was given up before:
    /// then it is on its way under a new session, and once more would apply it twice.
    pub fn note_refused(&mut self, ticket: Ticket, session_id: u64) -> bool {
        match self.in_flight.get_mut(&ticket) {
            Some(value) if value.refused_session < session_id => {
                value.refused_session = session_id;
                true
            }
            _ => false,
        }
    }

    /// Take all undecided values.
    pub fn take_all(&mut self) -> Vec<(Ticket, Vec<Part>)> {
        self.in_flight
            .drain()
            .map(|(ticket, value)| (ticket, value.parts))
            .collect()
    }

    /// Some connection has commands to pack.
    pub fn has_waiting(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Take everything that waits to be packed out of the queues: who waits for how many replies.
    pub fn reject_waiting(&mut self, connections: &mut Connections) -> Vec<(usize, usize)> {
        let mut waiting = Vec::new();
        for slot in self.ready.drain(..) {
            let Some(connection) = connections.get_mut(slot) else {
                continue;
            };
            connection.is_in_ready_list = false;
            let mut count = 0;
            while connection.is_ready_to_pack() {
                connection.pop_command();
                count += 1;
            }
            waiting.push((slot, count));
        }
        waiting
    }

    /// Keep the memory of parts for the next value.
    pub fn recycle(&mut self, mut parts: Vec<Part>) {
        parts.clear();
        self.spare.push(parts);
    }
}
