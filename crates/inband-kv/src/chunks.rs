//! Sending commands that do not fit one value: the proposer's side of [`crate::value::Chunk`].
//!
//! The first chunk goes alone; once it is applied the others follow, a bounded part of the log's
//! window at a time. So whatever becomes of the proposer's session in between, all chunks of a
//! command that are applied belong to one session, and one that is refused is missing forever.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use inband_paxos::log::{SubmitError, SubmitFailure, Ticket};
use inband_paxos::session::Verdict;

use crate::limits::WINDOW_PER_CHUNKS;
use crate::packer::{Part, Submission};
use crate::store::{ChunkFate, Outcome};
use crate::value::{Chunk, CHUNK_HEADER_LEN_BYTES};

/// A command that is being sent.
#[derive(Debug)]
struct Transfer {
    part: Part,
    command: Vec<u8>,
    count: u16,
    /// Chunk to be sent next.
    next: u16,
    /// The first chunk is applied.
    is_begun: bool,
    since: Instant,
}

/// A chunk that is undecided.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    transfer: u64,
    /// The last session under which it was refused; ids ascend.
    refused_session: u64,
}

/// How a command ended that was sent in chunks.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was applied with its last chunk, whose outcome has the reply.
    Applied,
    /// It was not applied and never will be.
    NotApplied(String),
    /// Nobody knows.
    Unknown(String),
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Who waits.
    pub part: Part,
    /// How.
    pub ending: Ending,
    /// Its chunks that are undecided still.
    pub tickets: Vec<Ticket>,
}

/// What to do after a chunk was decided.
#[derive(Debug, Default)]
pub struct Decision {
    /// Tell the log that the chunk's session is gone: it submits the chunk again in a new one.
    pub session_refused: bool,
    /// Tell the log that the chunk is answered.
    pub answered: bool,
    /// Its command has ended.
    pub ended: Option<Ended>,
}

/// The commands that one replica sends to one log in chunks.
#[derive(Debug)]
pub struct Chunks {
    log: usize,
    chunk_len_bytes: usize,
    /// Number of the next transfer.
    next_number: u64,
    transfers: BTreeMap<u64, Transfer>,
    in_flight: HashMap<Ticket, InFlight>,
    /// Transfers whose rest was not sent: the log is told to forget them.
    given_up: Vec<u64>,
    value: Vec<u8>,
}

impl Chunks {
    /// Send to `log` in values of at most `value_len_bytes_max`.
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

    /// Commands that are being sent.
    pub fn len(&self) -> usize {
        self.transfers.len()
    }

    /// Nothing is being sent.
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Chunks that are undecided.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Send a command.
    pub fn push(&mut self, part: Part, command: Vec<u8>, now: Instant) {
        let count = command.len().div_ceil(self.chunk_len_bytes).max(1);
        let transfer = Transfer {
            part,
            // Commands are bounded, and so are chunks from below.
            count: u16::try_from(count).unwrap_or(u16::MAX),
            command,
            next: 0,
            is_begun: false,
            since: now,
        };
        self.transfers.insert(self.next_number, transfer);
        self.next_number += 1;
    }

    /// Submit as many chunks as the log has room for. `window` values are undecided or could be.
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

    /// Submit the next chunk of a transfer; `false` if there is none to be sent now.
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

    /// Let the log forget what will never be complete. Nobody waits for that; if it gets lost, the
    /// chunks stay until their session ends.
    fn submit_given_up(&mut self, to: &mut Submission<'_>) {
        while let Some(number) = self.given_up.pop() {
            let chunk = Chunk {
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

    /// A value of this replica was decided. `None`: it is no chunk.
    pub fn decided(&mut self, outcome: &Outcome) -> Option<Decision> {
        let chunk = self.in_flight.get_mut(&outcome.ticket)?;
        let number = chunk.transfer;
        let mut decision = Decision::default();
        match outcome.verdict {
            Verdict::Nothing => return Some(decision),
            // A further copy under a session that was given up before.
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
            // Its first occurrence was delivered before, and not here.
            None => {
                let why = "a part of the command was applied, what became of it is lost";
                self.end(number, Ending::Unknown(why.into()))
            }
        };
        Some(decision)
    }

    /// A value of this replica failed. `None`: it is no chunk. `Some(None)`: nobody waits for it.
    pub fn failed(&mut self, ticket: Ticket, failure: SubmitFailure) -> Option<Option<Ended>> {
        let number = self.in_flight.remove(&ticket)?.transfer;
        let ending = match failure {
            SubmitFailure::NotApplied(why) => Ending::NotApplied(why.into()),
            SubmitFailure::OutcomeUnknown(_) => self.lost(number, &failure.to_string()),
        };
        Some(self.end(number, ending))
    }

    /// How a command ends of which a chunk is lost: what was not sent yet will be missing forever.
    fn lost(&self, number: u64, why: &str) -> Ending {
        match self.transfers.get(&number) {
            Some(transfer) if transfer.next < transfer.count => {
                Ending::NotApplied("a part of the command was not decided in time".into())
            }
            _ => Ending::Unknown(why.into()),
        }
    }

    /// End all commands that are being sent for longer than `age`.
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

    /// End everything; the tickets of what nobody waits for come with it.
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
