//! Sending commands that do not fit in one value: the proposer's side of [`crate::value::Chunk`].
//!
//! The first chunk is sent alone. Once it is applied the others follow, limited to part of the log's window. So
//! whatever happens to the proposer's session in between, all applied chunks of a command belong to one session, and a
//! refused chunk stays missing.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use inband_host::log::{SubmitError, SubmitFailure, Ticket};
use inband_host::session::Verdict;

use crate::limits::WINDOW_PER_CHUNKS;
use crate::packer::{Part, Submission};
use crate::store::{ChunkFate, Outcome};
use crate::value::{self, Chunk, CHUNK_HEADER_LEN_BYTES};

#[derive(Debug)]
struct Transfer {
    part: Part,
    command: Vec<u8>,
    count: u16,
    /// Index of the next chunk to send.
    next: u16,
    /// The first chunk has been applied.
    is_begun: bool,
    since: Instant,
}

/// An undecided chunk.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    transfer: u64,
    /// The last session under which it was refused; session ids only increase.
    refused_session: u64,
}

/// How a chunked command ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// Applied with its last chunk; that chunk's outcome holds the reply.
    Applied,
    /// Not applied, and never will be.
    NotApplied(String),
    /// It may or may not have been applied.
    Unknown(String),
}

#[derive(Debug)]
pub struct Ended {
    pub part: Part,
    pub ending: Ending,
    /// Its chunks that are still undecided.
    pub tickets: Vec<Ticket>,
}

/// What to do after a chunk was decided.
#[derive(Debug, Default)]
pub struct Decision {
    /// Tell the log that the chunk's session has expired; the log resubmits the chunk in a new one.
    pub session_refused: bool,
    /// Tell the log that the chunk has been answered.
    pub answered: bool,
    /// The command has ended.
    pub ended: Option<Ended>,
}

/// The chunked commands that one replica is sending to one log.
#[derive(Debug)]
pub struct Chunks {
    log: usize,
    chunk_len_bytes: usize,
    next_number: u64,
    transfers: BTreeMap<u64, Transfer>,
    in_flight: HashMap<Ticket, InFlight>,
    /// Abandoned transfers: the log must be told to drop their chunks.
    given_up: Vec<u64>,
    value: Vec<u8>,
}

impl Chunks {
    /// `value_len_bytes_max` is the longest value that `log` accepts.
    pub fn new(log: usize, value_len_bytes_max: usize) -> Self {
        Self {
            log,
            chunk_len_bytes: value_len_bytes_max - CHUNK_HEADER_LEN_BYTES,
            next_number: 1,
            transfers: BTreeMap::new(),
            in_flight: HashMap::new(),
            given_up: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Returns the number of commands being sent.
    pub fn len(&self) -> usize {
        self.transfers.len()
    }

    /// Returns whether no command is being sent.
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Returns the number of undecided chunks.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub fn push(&mut self, part: Part, command: Vec<u8>, now: Instant) {
        let count = command.len().div_ceil(self.chunk_len_bytes).max(1);
        let transfer = Transfer {
            part,
            // The length of a command is bounded, and a chunk has a minimum size.
            count: u16::try_from(count).unwrap_or(u16::MAX),
            command,
            next: 0,
            is_begun: false,
            since: now,
        };
        self.transfers.insert(self.next_number, transfer);
        self.next_number += 1;
    }

    /// Submits as many chunks as the log accepts. `window`: values that are in flight or could be.
    pub fn submit(&mut self, to: &mut Submission<'_>, window: usize) -> Vec<(Ended, SubmitError)> {
        let in_flight_max = (window / WINDOW_PER_CHUNKS).max(1);
        let mut rejected = Vec::new();
        self.submit_given_up(to);
        for number in self.transfers.keys().copied().collect::<Vec<_>>() {
            while self.in_flight.len() < in_flight_max {
                match self.submit_next(number, to) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(SubmitError::WindowFull(_)) => return rejected,
                    Err(error) => {
                        let ending = Ending::NotApplied(error.to_string());
                        rejected.extend(self.end(number, ending).map(|ended| (ended, error)));
                        break;
                    }
                }
            }
        }
        rejected
    }

    /// Submits the next chunk of a transfer; `false` if no chunk can be sent now.
    fn submit_next(&mut self, number: u64, to: &mut Submission<'_>) -> Result<bool, SubmitError> {
        let Some(transfer) = self.transfers.get_mut(&number) else {
            return Ok(false);
        };
        let index = transfer.next;
        if index >= transfer.count || (index > 0 && !transfer.is_begun) {
            return Ok(false);
        }
        if to.log.submit_room(self.log) == 0 {
            return Err(SubmitError::WindowFull(0));
        }
        let from = usize::from(index) * self.chunk_len_bytes;
        let len = self.chunk_len_bytes.min(transfer.command.len() - from);
        let chunk = Chunk {
            version: value::first_byte_for(&transfer.command),
            time_ms: to.clock_ms,
            transfer: number,
            index,
            count: transfer.count,
            bytes: &transfer.command[from..from + len],
        };
        chunk.write(&mut self.value);
        let ticket = to.log.submit(self.log, &self.value)?;
        transfer.next += 1;
        let chunk = InFlight {
            transfer: number,
            refused_session: 0,
        };
        self.in_flight.insert(ticket, chunk);
        Ok(true)
    }

    /// Tells the log to drop transfers that will never complete. Nothing waits for this; if it is lost, the chunks stay
    /// until their session ends.
    fn submit_given_up(&mut self, to: &mut Submission<'_>) {
        while let Some(number) = self.given_up.pop() {
            let chunk = Chunk {
                version: 0,
                time_ms: to.clock_ms,
                transfer: number,
                index: 0,
                count: 0,
                bytes: &[],
            };
            chunk.write(&mut self.value);
            let room = to.log.submit_room(self.log);
            match to.log.submit(self.log, &self.value) {
                Ok(ticket) => {
                    let chunk = InFlight {
                        transfer: number,
                        refused_session: 0,
                    };
                    self.in_flight.insert(ticket, chunk);
                }
                Err(SubmitError::WindowFull(_)) if room == 0 => {
                    self.given_up.push(number);
                    return;
                }
                Err(_) => {}
            }
        }
    }

    /// A value of this replica was decided. Returns `None` if it is not a chunk.
    pub fn decided(&mut self, outcome: &Outcome) -> Option<Decision> {
        let chunk = self.in_flight.get_mut(&outcome.ticket)?;
        let number = chunk.transfer;
        let mut decision = Decision::default();
        match outcome.verdict {
            Verdict::Nothing => return Some(decision),
            // Another copy under a session that was already given up.
            Verdict::Refused if chunk.refused_session >= outcome.session_id => {
                return Some(decision);
            }
            Verdict::Refused => {
                chunk.refused_session = outcome.session_id;
                decision.session_refused = true;
                let is_begun = self.transfers.get(&number).is_some_and(|t| t.is_begun);
                if is_begun {
                    let why =
                        "the session in which it was sent in parts has expired; send it again";
                    decision.ended = self.end(number, Ending::NotApplied(why.into()));
                }
                return Some(decision);
            }
            Verdict::Apply | Verdict::Duplicate => {}
        }
        decision.answered = true;
        self.in_flight.remove(&outcome.ticket);
        decision.ended = match outcome.chunk {
            Some(ChunkFate::Stored) => {
                if let Some(transfer) = self.transfers.get_mut(&number) {
                    transfer.is_begun = true;
                }
                None
            }
            Some(ChunkFate::Complete) => self.end(number, Ending::Applied),
            Some(ChunkFate::Dropped) => {
                let why =
                    "too many large commands were under way, or it took too long; send it again";
                self.end(number, Ending::NotApplied(why.into()))
            }
            // Its first occurrence was delivered earlier, in an instance that this replica did not see.
            None => {
                let why = "a part of the command was applied, what became of it is lost";
                self.end(number, Ending::Unknown(why.into()))
            }
        };
        Some(decision)
    }

    /// A value of this replica failed. `None`: it is not a chunk. `Some(None)`: its command has already ended.
    pub fn failed(&mut self, ticket: Ticket, failure: SubmitFailure) -> Option<Option<Ended>> {
        let number = self.in_flight.remove(&ticket)?.transfer;
        let ending = match failure {
            SubmitFailure::NotApplied(why) => Ending::NotApplied(why.into()),
            SubmitFailure::OutcomeUnknown(_) => self.lost(number, &failure.to_string()),
        };
        Some(self.end(number, ending))
    }

    /// Returns how a command ends when one of its chunks is lost: chunks not sent yet will stay missing.
    fn lost(&self, number: u64, why: &str) -> Ending {
        match self.transfers.get(&number) {
            Some(transfer) if transfer.next < transfer.count => {
                Ending::NotApplied("a part of the command was not decided in time".into())
            }
            _ => Ending::Unknown(why.into()),
        }
    }

    /// Ends all commands that have been in progress for longer than `age`.
    pub fn end_overdue(&mut self, now: Instant, age: Duration, why: &str) -> Vec<Ended> {
        let is_overdue = |t: &Transfer| now.saturating_duration_since(t.since) > age;
        let overdue: Vec<u64> = self
            .transfers
            .iter()
            .filter_map(|(number, transfer)| is_overdue(transfer).then_some(*number))
            .collect();
        let end = |number| self.end(number, self.lost(number, why));
        overdue.into_iter().filter_map(end).collect()
    }

    /// Ends everything; also returns the tickets of chunks whose command has already ended.
    pub fn end_all(&mut self, why: &str) -> (Vec<Ended>, Vec<Ticket>) {
        let numbers: Vec<u64> = self.transfers.keys().copied().collect();
        let end = |number| self.end(number, self.lost(number, why));
        let ended = numbers.into_iter().filter_map(end).collect();
        let rest = self.in_flight.drain().map(|(ticket, _)| ticket);
        (ended, rest.collect())
    }

    fn end(&mut self, number: u64, ending: Ending) -> Option<Ended> {
        let transfer = self.transfers.remove(&number)?;
        let is_of = |chunk: &InFlight| chunk.transfer == number;
        let tickets: Vec<Ticket> = self
            .in_flight
            .iter()
            .filter_map(|(ticket, chunk)| is_of(chunk).then_some(*ticket))
            .collect();
        tickets.iter().for_each(|ticket| {
            self.in_flight.remove(ticket);
        });
        if matches!(ending, Ending::NotApplied(_)) && transfer.is_begun {
            self.given_up.push(number);
        }
        Some(Ended {
            part: transfer.part,
            ending,
            tickets,
        })
    }
}
