//! Lines of replicated memory as registers: reads and writes of one or several lines, with requests kept in flight.
//!
//! **Guarantees.** Each line is linearizable: its reads and writes, by all clients, take effect one at a time, each
//! between its call and its return. A request for several lines is not atomic: each line is a register of its own, and
//! they take effect in any order. Nothing is cached.
//!
//! **Errors.** A request that fails with [`LineError::OutcomeUnknown`] may have written the lines that the error names, or may
//! still write them, at most once; lines that it does not name are written. With [`LineError::OutOfRange`] lines that exist may have
//! been written, if the memory became known to be smaller after the call. Every other error says that nothing was written.
//! Each request ends by [`MemoryConfig::deadline`].
//!
//! **Threads.** A client belongs to one thread at a time. For several threads connect several clients.
//!
//! ```no_run
//! use inband_memory::cluster::Cluster;
//! use inband_memory::line_client::LineClient;
//!
//! let cluster = Cluster::load(".inband-memory".as_ref())?;
//! let mut memory = LineClient::connect(cluster.config()?)?;
//! memory.write(7, &[1; 64])?;
//! assert_eq!(memory.read(7)?, [1; 64]);
//!
//! // Several under way:
//! let first = memory.begin_read(&[0, 1, 2])?;
//! let second = memory.begin_write(&[(9, [2; 64])])?;
//! while let Some(done) = memory.wait(None)? {
//!     assert!(done.request == first || done.request == second);
//!     done.result?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use crate::client::{Op, Outcome, Ticket};
use crate::lines::{Chunk, Lines, CHUNK_LINES, LINE_LEN_BYTES};
use crate::memory::{ConnectError, Memory, MemoryConfig};
use crate::wire::lines_of;

pub type Line = [u8; LINE_LEN_BYTES];

/// Maximum number of lines in flight, over all requests: 4 MiB.
pub const LINES_UNDER_WAY_MAX: usize = 65_536;

/// Why a request failed.
#[derive(Debug)]
pub enum LineError {
    /// The memory has no such line. Nothing was sent for this line; a request for several lines was carried out for
    /// those that exist.
    OutOfRange {
        line: u64,
        /// The number of lines of the memory.
        lines: u64,
    },
    /// A request would write this line twice. Nothing was sent.
    Duplicate(u64),
    /// More than [`LINES_UNDER_WAY_MAX`] lines would be in flight. Nothing was sent; wait until some requests have
    /// completed.
    TooMany {
        /// Lines in flight, including those of this request.
        lines: usize,
    },
    /// These lines may have been written, or may still be, at most once. The request's other lines have been written.
    OutcomeUnknown(Vec<u64>),
    /// These lines were not read by the deadline.
    TimedOut(Vec<u64>),
    /// The socket failed. The outcome of the requests in flight is unknown.
    Socket(io::Error),
}

impl std::fmt::Display for LineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LineError::OutOfRange { line, lines } => {
                write!(f, "line {line}: the memory has lines 0 to {}", lines - 1)
            }
            LineError::Duplicate(line) => write!(
                f,
                "line {line} is to be written twice by one request; write it once, or by two requests"
            ),
            LineError::TooMany { lines } => write!(
                f,
                "{lines} lines would be under way, at most {LINES_UNDER_WAY_MAX} may; wait until some requests have ended"
            ),
            LineError::OutcomeUnknown(lines) => write!(
                f,
                "{} may have been written or not: its switch failed, or no majority of servers answered in time; read to find out",
                named(lines)
            ),
            LineError::TimedOut(lines) => write!(
                f,
                "{} could not be read in time; `inband status` says which servers and switches run",
                named(lines)
            ),
            LineError::Socket(error) => write!(f, "the socket failed: {error}"),
        }
    }
}

impl std::error::Error for LineError {}

/// Formats a few lines by number, many by the first one and their count.
fn named(lines: &[u64]) -> String {
    match lines {
        [line] => format!("line {line}"),
        [first, ..] => format!("{} lines (the first is {first})", lines.len()),
        [] => "no line".to_owned(),
    }
}

#[derive(Debug)]
pub struct Done {
    /// The number that `begin_read` or `begin_write` returned.
    pub request: u64,
    /// For a read, the lines in the order they were asked for; for a write, empty.
    pub result: Result<Vec<Line>, LineError>,
}

struct Request {
    lines: Vec<u64>,
    /// `None` for a write.
    read: Option<BTreeMap<u64, Line>>,
    chunks_left: usize,
    failed: Vec<u64>,
    /// Lines that do not exist, and the number of lines that do.
    out_of_range: Option<(Vec<u64>, u64)>,
}

impl Request {
    fn result(mut self) -> Result<Vec<Line>, LineError> {
        let (missing, lines) = self.out_of_range.unwrap_or_default();
        if self.failed.is_empty() {
            if let Some(line) = missing.into_iter().min() {
                return Err(LineError::OutOfRange { line, lines });
            }
            let read = self.read.as_ref();
            return Ok(read.map_or_else(Vec::new, |read| {
                self.lines.iter().map(|line| read[line]).collect()
            }));
        }
        // That a line may still be written matters more. Lines that an error of unknown outcome does not name have been
        // written.
        self.failed.extend(missing);
        self.failed.sort_unstable();
        Err(match self.read {
            None => LineError::OutcomeUnknown(self.failed),
            Some(_) => LineError::TimedOut(self.failed),
        })
    }
}

/// A client of replicated memory. See the [module](self).
pub struct LineClient {
    memory: Memory,
    requests: BTreeMap<u64, Request>,
    /// By ticket: the request, the chunk, and its lines.
    tickets: HashMap<Ticket, (u64, u64, u16)>,
    done: VecDeque<Done>,
    next: u64,
    lines_under_way: usize,
}

fn place(line: u64) -> (u64, usize) {
    let lines = CHUNK_LINES as u64;
    (line / lines, (line % lines) as usize)
}

impl LineClient {
    /// Finds the active switch and opens a session. Dropping the client closes it.
    pub fn connect(config: MemoryConfig) -> Result<LineClient, ConnectError> {
        Ok(LineClient {
            memory: Memory::connect(config)?,
            requests: BTreeMap::new(),
            tickets: HashMap::new(),
            done: VecDeque::new(),
            next: 1,
            lines_under_way: 0,
        })
    }

    /// Returns the number of lines of the memory.
    pub fn lines(&self) -> u64 {
        self.memory.chunks() * CHUNK_LINES as u64
    }

    /// Blocks until the line is read or the deadline has passed.
    pub fn read(&mut self, line: u64) -> Result<Line, LineError> {
        let lines = self.read_lines(&[line])?;
        Ok(lines[0])
    }

    /// Blocks until the line is written or the deadline has passed.
    pub fn write(&mut self, line: u64, value: &Line) -> Result<(), LineError> {
        self.write_lines(&[(line, *value)])
    }

    /// Reads lines, in any order and number. The read is not atomic: each line is a register of its own.
    pub fn read_lines(&mut self, lines: &[u64]) -> Result<Vec<Line>, LineError> {
        let request = self.begin_read(lines)?;
        self.finish(request)
    }

    /// Writes lines, each of which may occur only once. The write is not atomic.
    pub fn write_lines(&mut self, values: &[(u64, Line)]) -> Result<(), LineError> {
        let request = self.begin_write(values)?;
        self.finish(request).map(drop)
    }

    /// Sends a read and returns its number at once. [`LineClient::wait`] returns its result.
    pub fn begin_read(&mut self, lines: &[u64]) -> Result<u64, LineError> {
        self.check(lines)?;
        let mut chunks = BTreeMap::<u64, u16>::new();
        for line in lines {
            let (chunk, at) = place(*line);
            *chunks.entry(chunk).or_default() |= 1 << at;
        }
        let ops = chunks.into_iter();
        let ops = ops.map(|(chunk, lines)| Op::Read { chunk, lines });
        Ok(self.begin(lines.to_vec(), Some(BTreeMap::new()), ops.collect()))
    }

    /// Sends a write and returns its number at once. Requests in flight at the same time take effect in any order.
    pub fn begin_write(&mut self, values: &[(u64, Line)]) -> Result<u64, LineError> {
        let lines: Vec<u64> = values.iter().map(|(line, _)| *line).collect();
        self.check(&lines)?;
        let mut seen = BTreeSet::new();
        if let Some(twice) = lines.iter().find(|line| !seen.insert(**line)) {
            return Err(LineError::Duplicate(*twice));
        }
        let mut chunks = BTreeMap::<u64, (u16, Box<Chunk>)>::new();
        for (line, value) in values {
            let (chunk, at) = place(*line);
            let zeros = || (0, Box::new([[0; LINE_LEN_BYTES]; CHUNK_LINES]));
            let (lines, from) = chunks.entry(chunk).or_insert_with(zeros);
            *lines |= 1 << at;
            from[at] = *value;
        }
        let op = |(chunk, (lines, from))| Op::Write {
            chunk,
            lines,
            from,
            sole_writer: false,
        };
        Ok(self.begin(lines, None, chunks.into_iter().map(op).collect()))
    }

    /// Waits for the next request to complete, in any order. Returns `None` if no request is in flight, or if the
    /// timeout has expired; without a timeout each request still ends by its deadline.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Done>, LineError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(done) = self.done.pop_front() {
                return Ok(Some(done));
            }
            if !self.turn(until)? {
                return Ok(None);
            }
        }
    }

    /// Returns the number of requests that have not completed, or that [`LineClient::wait`] has not returned yet.
    pub fn under_way(&self) -> usize {
        self.requests.len() + self.done.len()
    }

    /// See [`Memory::abandon`].
    #[doc(hidden)]
    pub fn abandon(self) {
        self.memory.abandon();
    }

    fn check(&self, lines: &[u64]) -> Result<(), LineError> {
        let count = self.lines();
        if let Some(line) = lines.iter().find(|line| **line >= count) {
            return Err(LineError::OutOfRange {
                line: *line,
                lines: count,
            });
        }
        let lines = self.lines_under_way + lines.len();
        match lines <= LINES_UNDER_WAY_MAX {
            true => Ok(()),
            false => Err(LineError::TooMany { lines }),
        }
    }

    fn begin(&mut self, lines: Vec<u64>, read: Option<BTreeMap<u64, Line>>, ops: Vec<Op>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.lines_under_way += lines.len();
        let request = Request {
            lines,
            read,
            chunks_left: ops.len(),
            failed: Vec::new(),
            out_of_range: None,
        };
        if ops.is_empty() {
            self.end(number, request);
            return number;
        }
        self.requests.insert(number, request);
        for op in ops {
            let (Op::Read { chunk, lines } | Op::Write { chunk, lines, .. }) = &op;
            let (chunk, lines) = (*chunk, *lines);
            let ticket = self.memory.submit(op);
            self.tickets.insert(ticket, (number, chunk, lines));
        }
        number
    }

    /// Waits until part of a request has completed. Returns false if nothing has by then, or if nothing is in flight.
    fn turn(&mut self, until: Option<Instant>) -> Result<bool, LineError> {
        let done = self.memory.wait_done_until(until);
        let Some((ticket, outcome)) = done.map_err(LineError::Socket)? else {
            return Ok(false);
        };
        let Some((number, chunk, lines)) = self.tickets.remove(&ticket) else {
            return Ok(true);
        };
        let Some(mut request) = self.requests.remove(&number) else {
            return Ok(true);
        };
        let line_at = |at: usize| chunk * CHUNK_LINES as u64 + at as u64;
        match (outcome, &mut request.read) {
            (Outcome::Read(values, _), Some(read)) => {
                read.extend(lines_of(lines).map(|at| (line_at(at), values[at])));
            }
            (Outcome::Written, _) => {}
            (Outcome::OutOfRange(chunks), _) => {
                let (missing, exist) = request.out_of_range.get_or_insert_default();
                missing.extend(lines_of(lines).map(line_at));
                *exist = chunks * CHUNK_LINES as u64;
            }
            _ => request.failed.extend(lines_of(lines).map(line_at)),
        }
        request.chunks_left -= 1;
        match request.chunks_left {
            0 => self.end(number, request),
            _ => drop(self.requests.insert(number, request)),
        }
        Ok(true)
    }

    fn end(&mut self, number: u64, request: Request) {
        self.lines_under_way -= request.lines.len();
        self.done.push_back(Done {
            request: number,
            result: request.result(),
        });
    }

    /// Waits until this request has completed; others that complete meanwhile are kept for [`LineClient::wait`].
    fn finish(&mut self, number: u64) -> Result<Vec<Line>, LineError> {
        loop {
            let ended = self.done.iter().position(|done| done.request == number);
            if let Some(done) = ended.and_then(|at| self.done.remove(at)) {
                return done.result;
            }
            self.turn(None)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(failed: &[u64], read: bool) -> Request {
        Request {
            lines: vec![3, 999],
            read: read.then(BTreeMap::new),
            chunks_left: 0,
            failed: failed.to_vec(),
            out_of_range: Some((vec![999, 992], 128)),
        }
    }

    #[test]
    fn lines_that_do_not_exist_are_reported_as_such_unless_others_are_in_doubt() {
        let is_range = |result| {
            matches!(
                result,
                Err(LineError::OutOfRange {
                    line: 992,
                    lines: 128
                })
            )
        };
        assert!(is_range(request(&[], false).result()));
        assert!(is_range(request(&[], true).result()));
        let unknown = request(&[3], false).result();
        assert!(matches!(unknown, Err(LineError::OutcomeUnknown(lines)) if lines == [3, 992, 999]));
        let timed_out = request(&[3], true).result();
        assert!(matches!(timed_out, Err(LineError::TimedOut(lines)) if lines == [3, 992, 999]));
    }
}
