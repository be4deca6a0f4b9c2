//! One Redis client: its requests, their operations, and their answers in order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Buf;
use inband_resp::buffer::Buffer;
use inband_resp::front::{Arrival, ClientConnection, Readiness};
use inband_resp::limits::REQUEST_LEN_BYTES_MAX;
use inband_resp::password::Password;
use inband_resp::reply::{Protocol, Reply};
use inband_resp::request::{Found, RequestParser};
use inband_resp::timeouts::{ClientTimeouts, TimedOut, Timers};
use inband_resp::wire::Wire;

use super::command::{
    is_for_everybody, parse, Command, Credentials, Then, NOT_EXECUTED, NO_TRANSACTIONS,
};
use super::hits::Hit;
use crate::client::{check, Op, Outcome, SubmitError, Ticket};
use crate::limits::{
    GATEWAY_OUTPUT_BYTES_MAX, GATEWAY_PENDING_BYTES_MAX, GATEWAY_PENDING_MAX,
    GATEWAY_READ_BUDGET_BYTES, GATEWAY_STEPS_MAX,
};

/// Memory of an operation besides its key and its data.
const STEP_BYTES: usize = 256;

/// An operation of a request.
#[derive(Debug)]
enum Step {
    /// Not submitted yet.
    Waits(Op),
    Runs {
        key: Vec<u8>,
    },
    Done(Result<Outcome, SubmitError>),
}

/// A request that has not been answered.
#[derive(Debug)]
struct Pending {
    /// Approximate memory use.
    len_bytes: usize,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    Steps(Vec<Step>, Then),
    Local(Reply),
    Hello(Protocol),
}

#[derive(Debug)]
pub struct Connection {
    /// Never reused.
    pub id: u64,
    pub peer: SocketAddr,
    wire: Wire,
    came: Instant,
    last_request: Instant,
    is_readable: bool,
    is_read_closed: bool,
    is_writable: bool,
    /// Authenticated, or no password is required.
    is_trusted: bool,
    parser: RequestParser,
    input: Buffer,
    /// When an incomplete request began to wait for its remaining bytes.
    incomplete_since: Option<Instant>,
    output: Buffer,
    /// Since when the client has not read any of it.
    unread_since: Option<Instant>,
    pending: VecDeque<Pending>,
    /// Number of the first pending request.
    first_number: u64,
    /// Operations of all pending requests, and their bytes.
    steps: usize,
    pending_len_bytes: usize,
    /// The request number and the position in it of each operation in flight.
    running: HashMap<Ticket, (u64, usize)>,
    protocol: Protocol,
    read_budget_bytes: usize,
    /// MULTI was refused. Clients send the commands of a transaction, and EXEC, before they read that answer.
    is_after_multi: bool,
    /// No more requests are read; pending ones are still answered.
    is_input_over: bool,
    pub answered: u64,
}

/// Why an operation was not submitted.
#[derive(Debug)]
pub enum Refusal {
    Later,
    Never(SubmitError),
}

/// The context in which a connection advances.
pub struct Turn<'a, S> {
    pub submit: S,
    /// The password that clients must give.
    pub password: Option<&'a Password>,
    /// Counts refusals.
    pub hit: &'a mut dyn FnMut(Hit),
    /// A buffer to read from sockets.
    pub scratch: &'a mut [u8],
    pub now: Instant,
}

impl Connection {
    /// A client that has just connected.
    pub fn new(arrival: Arrival, is_trusted: bool) -> Connection {
        let mut parser = RequestParser::default();
        parser.set_untrusted(!is_trusted);
        Connection {
            id: arrival.id,
            peer: arrival.peer,
            wire: arrival.wire,
            came: arrival.now,
            last_request: arrival.now,
            is_readable: true,
            is_read_closed: false,
            is_writable: true,
            is_trusted,
            parser,
            input: Buffer::default(),
            incomplete_since: None,
            output: Buffer::default(),
            unread_since: None,
            pending: VecDeque::new(),
            first_number: 0,
            steps: 0,
            pending_len_bytes: 0,
            running: HashMap::new(),
            protocol: Protocol::Resp2,
            read_budget_bytes: 0,
            is_after_multi: false,
            is_input_over: false,
            answered: 0,
        }
    }

    /// Notes that an operation has ended.
    pub fn done(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some((number, at)) = self.running.remove(&ticket) else {
            return;
        };
        let pending = &mut self.pending[(number - self.first_number) as usize];
        if let Outcome::Value(Some(data)) = &outcome {
            pending.len_bytes += data.len();
            self.pending_len_bytes += data.len();
        }
        if let Answer::Steps(steps, _) = &mut pending.answer {
            steps[at] = Step::Done(Ok(outcome));
        }
    }

    /// Reads, submits, answers and writes as much as one turn allows. Returns whether there is more to do at once.
    pub fn advance<S>(&mut self, turn: &mut Turn<'_, S>) -> Result<bool, Hit>
    where
        S: FnMut(Op) -> Result<Ticket, Refusal>,
    {
        self.read_budget_bytes = GATEWAY_READ_BUDGET_BYTES;
        loop {
            self.take_requests(turn);
            self.begin(&mut turn.submit);
            self.answer();
            self.write(turn.now)?;
            if self.is_finished() {
                return Err(Hit::Gone);
            }
            // Answers may have made room for input that has already been read.
            if self.can_parse() {
                continue;
            }
            if !self.read(turn.scratch)? {
                let may_read = self.has_room() && self.is_readable && !self.is_input_over;
                return Ok(may_read);
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.is_input_over && self.pending.is_empty() && self.has_nothing_unsent()
    }

    fn has_nothing_unsent(&self) -> bool {
        self.output.is_empty() && self.wire.is_flushed()
    }

    /// Returns whether there is room for another request. Without pending requests there is always room for one,
    /// whatever its size.
    fn has_room(&self) -> bool {
        let is_free = self.pending.is_empty()
            || (self.pending.len() < GATEWAY_PENDING_MAX
                && self.steps < GATEWAY_STEPS_MAX
                && self.pending_len_bytes < GATEWAY_PENDING_BYTES_MAX);
        is_free && self.output.len() < GATEWAY_OUTPUT_BYTES_MAX
    }

    /// Returns whether the input may hold a complete request, and there is room for it.
    fn can_parse(&self) -> bool {
        self.has_room()
            && !self.is_input_over
            && !self.input.is_empty()
            && self.incomplete_since.is_none()
    }

    /// Reads from the socket. Returns whether anything arrived.
    fn read(&mut self, scratch: &mut [u8]) -> Result<bool, Hit> {
        if !self.has_room() || self.is_input_over || self.read_budget_bytes == 0 {
            return Ok(false);
        }
        let room = scratch.len().min(self.read_budget_bytes);
        let (is_readable, is_read_closed) = (&mut self.is_readable, self.is_read_closed);
        let into = &mut scratch[..room];
        let len = match self.wire.read_available(into, is_readable, is_read_closed) {
            Ok(Some(len)) => len,
            Ok(None) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::InvalidData => return Err(Hit::Tls),
            Err(_) => return Err(Hit::Gone),
        };
        self.is_input_over = len == 0;
        self.input.extend_from_slice(&scratch[..len]);
        self.input.grown();
        self.read_budget_bytes -= len;
        Ok(true)
    }

    fn take_requests<S>(&mut self, turn: &mut Turn<'_, S>) {
        while self.has_room() && !self.is_input_over {
            let answer = match self.parser.next(&mut self.input) {
                Ok(Found::Incomplete) => {
                    let is_begun = !self.input.is_empty() || self.parser.is_inside_request();
                    self.incomplete_since =
                        is_begun.then(|| self.incomplete_since.unwrap_or(turn.now));
                    return;
                }
                Ok(Found::Empty) => None,
                Ok(Found::Oversize(len)) => {
                    (turn.hit)(Hit::Request);
                    Some(Answer::Local(Reply::error(format!(
                        "ERR request of {len} bytes is over the limit of {REQUEST_LEN_BYTES_MAX} bytes"
                    ))))
                }
                Ok(Found::Request) => Some(self.understand(turn)),
                Err(error) => {
                    (turn.hit)(Hit::Protocol);
                    self.push(Answer::Local(Reply::error(format!("ERR {error}"))));
                    self.end_input();
                    return;
                }
            };
            if !self.is_input_over {
                self.parser.consume(&mut self.input);
                self.input.shrunk();
            }
            self.incomplete_since = None;
            if let Some(answer) = answer {
                self.last_request = turn.now;
                self.push(answer);
            }
        }
    }

    /// Ignores everything pipelined after this request.
    fn end_input(&mut self) {
        self.is_input_over = true;
        self.input = Buffer::default();
        self.parser = RequestParser::default();
        self.incomplete_since = None;
    }

    fn push(&mut self, answer: Answer) {
        let len_bytes = match &answer {
            Answer::Steps(steps, _) => {
                self.steps += steps.len();
                steps.iter().map(Step::len_bytes).sum()
            }
            Answer::Local(reply) => reply.len_bytes(),
            Answer::Hello(_) => 0,
        };
        self.pending_len_bytes += len_bytes;
        self.pending.push_back(Pending { len_bytes, answer });
    }

    fn understand<S>(&mut self, turn: &mut Turn<'_, S>) -> Answer {
        let args = self.parser.args(&self.input);
        if !self.is_trusted && !is_for_everybody(args.get(0)) {
            return Answer::Local(Reply::error("NOAUTH Authentication required."));
        }
        match parse(args) {
            Command::Quit => {
                self.end_input();
                Answer::Local(Reply::Ok)
            }
            Command::EndOfTransaction(reply) if self.is_after_multi => {
                self.is_after_multi = false;
                Answer::Local(reply)
            }
            Command::EndOfTransaction(_) => Answer::Local(Reply::error("ERR without MULTI")),
            _ if self.is_after_multi => Answer::Local(Reply::error(NOT_EXECUTED)),
            Command::Multi => {
                self.is_after_multi = true;
                Answer::Local(Reply::error(NO_TRANSACTIONS))
            }
            Command::ClientId => Answer::Local(Reply::Integer(self.id as i64)),
            Command::One(operation, then) => Answer::Steps(vec![Step::Waits(operation)], then),
            Command::Several(operations, then) => {
                // All or nothing, as far as that can be checked in advance.
                let refused = operations.iter().find_map(|op| check(op).err());
                match refused {
                    Some(error) => Answer::Local(Reply::error(format!("ERR {error}"))),
                    None => {
                        let steps = operations.into_iter().map(Step::Waits);
                        Answer::Steps(steps.collect(), then)
                    }
                }
            }
            Command::TooLong(reply) => {
                (turn.hit)(Hit::Request);
                Answer::Local(reply)
            }
            Command::Local(reply) => Answer::Local(reply),
            Command::Auth(credentials) => match self.authenticate(&credentials, turn) {
                Ok(()) => Answer::Local(Reply::Ok),
                Err(reply) => Answer::Local(reply),
            },
            Command::Hello(protocol, credentials) => {
                let said = credentials.map(|c| self.authenticate(&c, turn));
                match said.unwrap_or(Ok(())) {
                    Err(reply) => Answer::Local(reply),
                    Ok(()) if !self.is_trusted => Answer::Local(Reply::error(
                        "NOAUTH HELLO must be called with the client already authenticated; HELLO <proto> AUTH \
                         <user> <pass> does both",
                    )),
                    Ok(()) => Answer::Hello(protocol.unwrap_or(self.protocol)),
                }
            }
        }
    }

    fn authenticate<S>(
        &mut self,
        credentials: &Credentials,
        turn: &mut Turn<'_, S>,
    ) -> Result<(), Reply> {
        let Some(password) = turn.password else {
            return Err(Reply::error(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?",
            ));
        };
        if !(credentials.is_default_user && password.is(&credentials.password)) {
            (turn.hit)(Hit::Password);
            return Err(Reply::error(
                "WRONGPASS invalid username-password pair or user is disabled.",
            ));
        }
        self.is_trusted = true;
        self.parser.set_untrusted(false);
        Ok(())
    }

    /// Submits every operation that no earlier request blocks: reads wait for writes, and writes for everything.
    fn begin(&mut self, submit: &mut impl FnMut(Op) -> Result<Ticket, Refusal>) {
        let mut is_behind_reads = false;
        for (number, pending) in (self.first_number..).zip(&mut self.pending) {
            let Answer::Steps(steps, then) = &mut pending.answer else {
                continue;
            };
            if steps.iter().all(|step| step.outcome().is_some()) {
                continue;
            }
            let is_read = then.is_read();
            if !is_read && is_behind_reads {
                return;
            }
            is_behind_reads = true;
            // A request may write a key twice; keep that order.
            let mut written: HashSet<Vec<u8>> = HashSet::new();
            for (at, step) in steps.iter_mut().enumerate() {
                match step {
                    Step::Runs { key } if !is_read => drop(written.insert(key.clone())),
                    Step::Done(_) | Step::Runs { .. } => {}
                    Step::Waits(operation) => {
                        if !is_read && !written.insert(operation.key().to_vec()) {
                            continue;
                        }
                        *step = match submit(operation.clone()) {
                            Ok(ticket) => {
                                self.running.insert(ticket, (number, at));
                                let key = operation.key().to_vec();
                                Step::Runs { key }
                            }
                            Err(Refusal::Later) => return,
                            Err(Refusal::Never(error)) => Step::Done(Err(error)),
                        };
                    }
                }
            }
            if !is_read {
                return;
            }
        }
    }

    /// Answers finished requests from the front of the queue while there is room.
    fn answer(&mut self) {
        while self.output.len() < GATEWAY_OUTPUT_BYTES_MAX {
            let Some(pending) = self.pending.front() else {
                return;
            };
            let reply = match &pending.answer {
                Answer::Steps(steps, then) => {
                    match steps.iter().map(Step::outcome).collect::<Option<Vec<_>>>() {
                        Some(outcomes) => reply(&outcomes, *then),
                        None => return,
                    }
                }
                Answer::Local(reply) => reply.clone(),
                Answer::Hello(protocol) => {
                    self.protocol = *protocol;
                    hello(*protocol)
                }
            };
            if let Answer::Steps(steps, _) = &pending.answer {
                self.steps -= steps.len();
            }
            self.pending_len_bytes -= pending.len_bytes;
            self.pending.pop_front();
            self.first_number += 1;
            reply.write_resp(&mut self.output, self.protocol);
            self.output.grown();
            self.answered += 1;
        }
    }

    fn write(&mut self, now: Instant) -> Result<(), Hit> {
        let before = self.output.len();
        while self.is_writable && !self.output.is_empty() {
            match self.wire.write(&self.output) {
                Ok(0) => return Err(Hit::Gone),
                Ok(len) => self.output.advance(len),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Hit::Gone),
            }
        }
        if self.is_writable && !self.wire.is_flushed() {
            match self.wire.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                done => done.map_err(|_| Hit::Gone)?,
            }
        }
        let is_taken = self.output.len() < before;
        self.output.shrunk();
        self.unread_since = match self.has_nothing_unsent() {
            true => None,
            false => self.unread_since.filter(|_| !is_taken).or(Some(now)),
        };
        Ok(())
    }

    /// Returns the timeout that this client has exceeded, if any.
    pub fn timed_out(&self, now: Instant, timeouts: &ClientTimeouts) -> Option<TimedOut> {
        let is_idle = self.pending.is_empty() && self.has_nothing_unsent();
        let timers = Timers {
            // If there is no room to read the rest, that is not the client's fault.
            incomplete: self.incomplete_since.filter(|_| self.has_room()),
            handshake: Some(self.came).filter(|_| self.wire.is_handshaking()),
            password: Some(self.came).filter(|_| !self.is_trusted),
            unread: self.unread_since,
            idle: Some(self.last_request).filter(|_| is_idle),
        };
        timeouts.expired(now, &timers)
    }

    /// Tells the client that the connection is about to close.
    pub fn say_goodbye(&mut self) {
        self.wire.say_goodbye();
    }
}

impl ClientConnection for Connection {
    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    fn note_readiness(&mut self, readiness: Readiness) {
        self.is_readable |= readiness.is_readable;
        self.is_read_closed |= readiness.is_read_closed;
        self.is_writable |= readiness.is_writable;
    }

    fn memory_bytes(&self) -> usize {
        let buffers = self.input.memory_bytes() + self.output.memory_bytes();
        buffers + self.parser.memory_bytes() + self.pending_len_bytes + self.wire.memory_bytes()
    }
}

impl Step {
    /// Approximate memory use, here and in the protocol client.
    fn len_bytes(&self) -> usize {
        match self {
            Step::Waits(Op::Put(key, data)) => STEP_BYTES + 2 * (key.len() + data.len()),
            Step::Waits(Op::Get(key) | Op::Delete(key)) => STEP_BYTES + 2 * key.len(),
            Step::Runs { key, .. } => STEP_BYTES + key.len(),
            Step::Done(_) => STEP_BYTES,
        }
    }

    fn outcome(&self) -> Option<&Result<Outcome, SubmitError>> {
        match self {
            Step::Done(outcome) => Some(outcome),
            _ => None,
        }
    }
}

fn reply(outcomes: &[&Result<Outcome, SubmitError>], then: Then) -> Reply {
    if let Some(problem) = problem(outcomes) {
        let is_partly_done = !then.is_read() && outcomes.len() > 1;
        return Reply::error(match is_partly_done {
            true => format!("{problem}; {}", done_in_words(outcomes)),
            false => problem,
        });
    }
    let values = || {
        outcomes.iter().map(|outcome| match outcome {
            Ok(Outcome::Value(Some(data))) => Reply::Bulk(data.clone()),
            _ => Reply::Nil,
        })
    };
    let count = |is_counted: fn(&Outcome) -> bool| {
        let outcomes = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok());
        Reply::Integer(outcomes.filter(|o| is_counted(o)).count() as i64)
    };
    match then {
        Then::Ok => Reply::Ok,
        Then::Value => values().next().unwrap_or(Reply::Nil),
        Then::Values => Reply::Array(values().collect()),
        Then::Deleted => count(|outcome| matches!(outcome, Outcome::Written)),
        Then::Existing => count(|outcome| matches!(outcome, Outcome::Value(Some(_)))),
    }
}

/// Returns the error to report, if any. An unknown outcome takes precedence.
fn problem(outcomes: &[&Result<Outcome, SubmitError>]) -> Option<String> {
    let is_unknown =
        |outcome: &&Result<Outcome, SubmitError>| matches!(outcome, Ok(Outcome::Unknown));
    if outcomes.iter().any(is_unknown) {
        let says = "UNKNOWN no answer in time: the write may have been done, or be done later";
        return Some(says.into());
    }
    outcomes.iter().find_map(|outcome| match outcome {
        Err(error) => Some(format!("ERR {error}")),
        Ok(Outcome::Failed(why)) => Some(format!("ERR {why}")),
        Ok(_) => None,
    })
}

/// Returns the second part of an error: how much of a command on several keys was done.
fn done_in_words(outcomes: &[&Result<Outcome, SubmitError>]) -> String {
    let count = |is_counted: fn(&Outcome) -> bool| {
        let outcomes = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok());
        outcomes.filter(|o| is_counted(o)).count()
    };
    let written = count(|outcome| matches!(outcome, Outcome::Written | Outcome::Missing));
    let unknown = count(|outcome| matches!(outcome, Outcome::Unknown));
    format!(
        "commands of several keys are not atomic: of {} keys {written} were written, {unknown} are unknown",
        outcomes.len()
    )
}

fn hello(protocol: Protocol) -> Reply {
    let version = match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    Reply::Map(vec![
        (Reply::bulk("server"), Reply::bulk("inband-flair")),
        (Reply::bulk("proto"), Reply::Integer(version)),
    ])
}
