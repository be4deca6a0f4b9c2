//! One Redis client: its requests, their operations, their answers in order.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

use bytes::{Buf, BytesMut};
use inband_resp::limits::REQUEST_LEN_BYTES_MAX;
use inband_resp::reply::{Protocol, Reply};
use inband_resp::request::{Found, RequestParser};
use mio::net::TcpStream;
use mio::Registry;

use super::command::{parse, Command, Then};
use crate::client::{Op, Outcome, SubmitError, Ticket};

/// Requests of one connection that are not answered yet; more are not read.
const PENDING_MAX: usize = 1024;
/// Bytes of answers that wait for a client to read them; then its requests are not read.
const OUTPUT_MAX_BYTES: usize = 1 << 20;
const READ_LEN_BYTES: usize = 64 << 10;

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The client has gone, or has said goodbye.
    Gone,
    /// It does not speak the protocol.
    Protocol,
}

impl Closed {
    /// Is it worth counting?
    pub fn is_misbehaviour(self) -> bool {
        self == Closed::Protocol
    }
}

/// An operation of a request.
#[derive(Debug)]
enum Step {
    /// Not begun: an earlier one uses its key.
    Waits(Op),
    Runs {
        ticket: Ticket,
        key: Vec<u8>,
        is_read: bool,
    },
    Done(Result<Outcome, SubmitError>),
}

/// A request that is not answered yet.
#[derive(Debug)]
enum Pending {
    Steps(Vec<Step>, Then),
    Local(Reply),
    Hello(Protocol),
    Quit,
}

/// See the module.
pub struct Connection {
    stream: TcpStream,
    parser: RequestParser,
    input: BytesMut,
    output: BytesMut,
    pending: VecDeque<Pending>,
    protocol: Protocol,
    /// The socket may have more to read.
    may_read: bool,
    /// Nothing more comes, or is taken; what is pending is answered.
    ends: Option<Closed>,
    answered: u64,
}

impl Connection {
    /// A client that has just come.
    pub fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            parser: RequestParser::default(),
            input: BytesMut::new(),
            output: BytesMut::new(),
            pending: VecDeque::new(),
            protocol: Protocol::Resp2,
            may_read: true,
            ends: None,
            answered: 0,
        }
    }

    /// The poll says so.
    pub fn has_input(&mut self) {
        self.may_read = true;
    }

    /// Requests answered since the last call.
    pub fn take_answered(&mut self) -> u64 {
        std::mem::take(&mut self.answered)
    }

    /// Poll it no more.
    pub fn deregister(&mut self, registry: &Registry) {
        // Closing the socket does the same.
        let _ = registry.deregister(&mut self.stream);
    }

    /// An operation has ended.
    pub fn done(&mut self, done: Ticket, outcome: Outcome) {
        let steps = self.pending.iter_mut().flat_map(|pending| match pending {
            Pending::Steps(steps, _) => steps.iter_mut(),
            _ => [].iter_mut(),
        });
        for step in steps {
            if matches!(step, Step::Runs { ticket, .. } if *ticket == done) {
                *step = Step::Done(Ok(outcome));
                return;
            }
        }
    }

    /// Read, begin, answer, write, as far as it goes.
    pub fn advance(
        &mut self,
        submit: &mut impl FnMut(Op) -> Result<Ticket, SubmitError>,
    ) -> Result<(), Closed> {
        loop {
            self.parse();
            self.begin(submit);
            self.answer();
            self.write()?;
            if self.ends.is_some() && self.pending.is_empty() && self.output.is_empty() {
                return Err(self.ends.unwrap_or(Closed::Gone));
            }
            if !self.read()? {
                return Ok(());
            }
        }
    }

    fn has_room(&self) -> bool {
        self.ends.is_none()
            && self.pending.len() < PENDING_MAX
            && self.output.len() < OUTPUT_MAX_BYTES
    }

    /// Has something come?
    fn read(&mut self) -> Result<bool, Closed> {
        if !self.may_read || !self.has_room() {
            return Ok(false);
        }
        let mut buffer = [0; READ_LEN_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.ends = Some(Closed::Gone);
                Ok(true)
            }
            Ok(len) => {
                self.input.extend_from_slice(&buffer[..len]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.may_read = false;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(_) => Err(Closed::Gone),
        }
    }

    fn parse(&mut self) {
        while self.has_room() {
            let pending = match self.parser.next(&mut self.input) {
                Ok(Found::Incomplete) => return,
                Ok(Found::Empty) => None,
                Ok(Found::Oversize(len)) => Some(Pending::Local(Reply::error(format!(
                    "ERR a request of {len} bytes is over the limit of {REQUEST_LEN_BYTES_MAX}"
                )))),
                Ok(Found::Request) => Some(understand(parse(self.parser.args(&self.input)))),
                Err(error) => {
                    let reply = Reply::error(format!("ERR {error}"));
                    self.pending.push_back(Pending::Local(reply));
                    self.ends = Some(Closed::Protocol);
                    return;
                }
            };
            self.parser.consume(&mut self.input);
            if matches!(pending, Some(Pending::Quit)) {
                self.ends = Some(Closed::Gone);
            }
            self.pending.extend(pending);
        }
    }

    /// Begin what no earlier operation stands in the way of.
    fn begin(&mut self, submit: &mut impl FnMut(Op) -> Result<Ticket, SubmitError>) {
        let mut used: Vec<(Vec<u8>, bool)> = Vec::new();
        for pending in &mut self.pending {
            let Pending::Steps(steps, _) = pending else {
                continue;
            };
            for step in steps {
                match step {
                    Step::Done(_) => {}
                    Step::Runs { key, is_read, .. } => used.push((key.clone(), *is_read)),
                    Step::Waits(operation) => {
                        let (key, is_read) = (operation.key().to_vec(), operation.is_read());
                        let is_free = used
                            .iter()
                            .all(|(other, reads)| *other != key || (*reads && is_read));
                        used.push((key.clone(), is_read));
                        if !is_free {
                            continue;
                        }
                        *step = match submit(operation.clone()) {
                            Ok(ticket) => Step::Runs {
                                ticket,
                                key,
                                is_read,
                            },
                            // As many as may be are under way: later.
                            Err(SubmitError::TooMany(_)) => return,
                            Err(error) => Step::Done(Err(error)),
                        };
                    }
                }
            }
        }
    }

    /// Answer from the front what is done.
    fn answer(&mut self) {
        loop {
            let reply = match self.pending.front() {
                None => return,
                Some(Pending::Steps(steps, then)) => {
                    match steps.iter().map(outcome).collect::<Option<Vec<_>>>() {
                        Some(outcomes) => reply(&outcomes, *then),
                        None => return,
                    }
                }
                Some(Pending::Local(reply)) => reply.clone(),
                Some(Pending::Quit) => Reply::Ok,
                Some(Pending::Hello(protocol)) => {
                    self.protocol = *protocol;
                    hello(*protocol)
                }
            };
            self.pending.pop_front();
            reply.write_resp(&mut self.output, self.protocol);
            self.answered += 1;
        }
    }

    fn write(&mut self) -> Result<(), Closed> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(Closed::Gone),
                Ok(len) => self.output.advance(len),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Closed::Gone),
            }
        }
        Ok(())
    }
}

fn understand(command: Command) -> Pending {
    match command {
        Command::One(operation, then) => Pending::Steps(vec![Step::Waits(operation)], then),
        Command::Several(operations, then) => {
            Pending::Steps(operations.into_iter().map(Step::Waits).collect(), then)
        }
        Command::Local(reply) => Pending::Local(reply),
        Command::Hello(protocol) => Pending::Hello(protocol),
        Command::Quit => Pending::Quit,
    }
}

fn outcome(step: &Step) -> Option<&Result<Outcome, SubmitError>> {
    match step {
        Step::Done(outcome) => Some(outcome),
        _ => None,
    }
}

fn reply(outcomes: &[&Result<Outcome, SubmitError>], then: Then) -> Reply {
    for outcome in outcomes {
        match outcome {
            Err(error) => return Reply::error(format!("ERR {error}")),
            Ok(Outcome::Failed(why)) => return Reply::error(format!("ERR {why}")),
            Ok(Outcome::Unknown) => {
                return Reply::error(
                    "UNKNOWN no answer in time: the write may have been done, or be done later",
                )
            }
            Ok(_) => {}
        }
    }
    let values = || {
        outcomes.iter().map(|outcome| match outcome {
            Ok(Outcome::Value(Some(data))) => Reply::Bulk(data.clone()),
            _ => Reply::Nil,
        })
    };
    match then {
        Then::Ok => Reply::Ok,
        Then::Value => values().next().unwrap_or(Reply::Nil),
        Then::Values => Reply::Array(values().collect()),
        Then::Count => {
            let existed = |outcome: &&&Result<Outcome, SubmitError>| {
                matches!(outcome, Ok(Outcome::Value(Some(_)) | Outcome::Written))
            };
            Reply::Integer(outcomes.iter().filter(existed).count() as i64)
        }
    }
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
