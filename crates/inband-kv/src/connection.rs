//! One client's connection: its buffers, its queue of commands, its settings.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::{Buf, BytesMut};
use mio::net::TcpStream;

use crate::command::{Command, SessionStamp};
use crate::limits::{
    OUTPUT_HARD_BYTES_MAX, OUTPUT_SOFT_BYTES_MAX, PENDING_COMMANDS_MAX, PENDING_COMMAND_BYTES_MAX,
    READ_BUDGET_BYTES, REQUEST_LEN_BYTES_MAX,
};
use crate::parse::{parse, Request};
use crate::reply::{Protocol, Reply};
use crate::resp::{Args, Found, RequestParser};
use crate::table::CommandId;

/// Arguments that outlive the input buffer.
#[derive(Debug)]
pub struct OwnedArgs {
    bytes: Vec<u8>,
    ranges: Vec<(usize, usize)>,
}

impl OwnedArgs {
    fn new(args: Args<'_>) -> Self {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::with_capacity(args.len()));
        for arg in args.from(0) {
            ranges.push((bytes.len(), bytes.len() + arg.len()));
            bytes.extend_from_slice(arg);
        }
        Self { bytes, ranges }
    }

    /// The arguments.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }
}

/// A request that waits for those before it.
#[derive(Debug)]
pub enum Queued {
    /// Goes through the log; its encoded form is in the connection's `encoded`.
    Replicated {
        /// Length of the encoded form.
        len_bytes: usize,
        /// When it was read.
        received: Instant,
    },
    /// To be answered by this replica.
    Local(CommandId, OwnedArgs),
    /// Answered already.
    Answered(Reply),
}

/// `INBAND.SESSION id seq` as declared on a connection.
#[derive(Debug, Clone, Copy)]
struct SessionCursor {
    id: u64,
    low: u64,
    next_seq: u64,
}

/// What a connection must know to take requests.
#[derive(Debug, Clone, Copy)]
pub struct Intake {
    /// Longest encoded command that fits a value.
    pub command_len_bytes_max: usize,
    /// Refuse new commands for the log.
    pub is_draining: bool,
    /// Now.
    pub now: Instant,
}

/// One client's connection.
#[derive(Debug)]
pub struct Connection {
    /// Never reused, unlike the place in the table.
    pub id: u64,
    /// The socket.
    pub stream: TcpStream,
    /// The client's address.
    pub peer: SocketAddr,
    /// Version of the protocol spoken.
    pub protocol: Protocol,
    /// Name that the client gave itself.
    pub name: Vec<u8>,
    /// Library name and version that the client told.
    pub library: [Vec<u8>; 2],
    /// When it was accepted.
    pub accepted: Instant,
    /// When the last request was read.
    pub last_request: Instant,
    /// The socket may have something to read.
    pub is_readable: bool,
    /// The client closed its side: read on until the end.
    pub is_read_closed: bool,
    /// The socket may take something.
    pub is_writable: bool,
    /// A value with commands of this connection is undecided.
    pub has_value_in_flight: bool,
    /// It is in the list of those with commands to pack.
    pub is_in_ready_list: bool,
    /// It is in the list of those to be looked at.
    pub is_in_attention_list: bool,
    /// To be closed as soon as the output is written.
    pub is_closing: bool,
    /// Requests read so far.
    pub requests: u64,
    /// Unsent replies.
    pub output: BytesMut,
    input: BytesMut,
    parser: RequestParser,
    queue: VecDeque<Queued>,
    encoded: BytesMut,
    session: Option<SessionCursor>,
    /// The client sends no more, or is not listened to any more.
    is_input_over: bool,
    /// There are requests in the input for which there was no room.
    is_parser_blocked: bool,
}

impl Connection {
    /// A fresh connection.
    pub fn new(id: u64, stream: TcpStream, peer: SocketAddr, now: Instant) -> Self {
        Self {
            id,
            stream,
            peer,
            protocol: Protocol::Resp2,
            name: Vec::new(),
            library: Default::default(),
            accepted: now,
            last_request: now,
            is_readable: true,
            is_read_closed: false,
            is_writable: true,
            has_value_in_flight: false,
            is_in_ready_list: false,
            is_in_attention_list: false,
            is_closing: false,
            requests: 0,
            output: BytesMut::new(),
            input: BytesMut::new(),
            parser: RequestParser::default(),
            queue: VecDeque::new(),
            encoded: BytesMut::new(),
            session: None,
            is_input_over: false,
            is_parser_blocked: false,
        }
    }

    /// Read and understand requests as far as the bounds allow. `scratch` is where the socket is
    /// read into. Returns the number of commands queued for the log, or the error of the socket.
    pub fn take_requests(&mut self, intake: Intake, scratch: &mut [u8]) -> io::Result<usize> {
        let mut replicated = 0;
        let mut budget = READ_BUDGET_BYTES;
        loop {
            replicated += self.parse_input(intake);
            if !self.is_readable || self.is_input_over || !self.has_room() || budget == 0 {
                return Ok(replicated);
            }
            let room = scratch.len().min(budget);
            match self.stream.read(&mut scratch[..room]) {
                Ok(0) => {
                    self.is_readable = false;
                    self.is_input_over = true;
                }
                Ok(len) => {
                    self.input.extend_from_slice(&scratch[..len]);
                    budget -= len;
                    if len < room && !self.is_read_closed {
                        // Edge-triggered readiness: what comes from now on makes a new event. The
                        // end of the stream makes none if it was there before.
                        self.is_readable = false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_readable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// May further requests be queued?
    fn has_room(&self) -> bool {
        self.queue.len() < PENDING_COMMANDS_MAX
            && self.encoded.len() < PENDING_COMMAND_BYTES_MAX
            && self.output.len() < OUTPUT_SOFT_BYTES_MAX
    }

    /// Would [`take_requests`](Self::take_requests) do something?
    pub fn has_input_work(&self) -> bool {
        self.has_room() && ((self.is_readable && !self.is_input_over) || self.is_parser_blocked)
    }

    fn parse_input(&mut self, intake: Intake) -> usize {
        let mut replicated = 0;
        self.is_parser_blocked = false;
        while !self.input.is_empty() {
            if !self.has_room() {
                self.is_parser_blocked = true;
                break;
            }
            match self.parser.next(&mut self.input) {
                Ok(Found::Incomplete) => break,
                Ok(Found::Request) => replicated += self.take_request(intake),
                Ok(Found::Oversize(len)) => self.refuse(format!(
                    "ERR request of {len} bytes is over the limit of {REQUEST_LEN_BYTES_MAX} bytes; \
                     one command must fit {} bytes in this release",
                    intake.command_len_bytes_max
                )),
                Ok(Found::Empty) => {}
                Err(error) => {
                    self.refuse(format!("ERR {error}"));
                    self.end_input();
                    self.is_closing = true;
                    break;
                }
            }
            self.parser.consume(&mut self.input);
        }
        replicated
    }

    fn refuse(&mut self, text: String) {
        self.requests += 1;
        self.queue.push_back(Queued::Answered(Reply::error(text)));
    }

    fn end_input(&mut self) {
        self.is_input_over = true;
        self.input = BytesMut::new();
        self.parser = RequestParser::default();
    }

    /// Queue the request just found; 1 if it goes through the log.
    fn take_request(&mut self, intake: Intake) -> usize {
        self.requests += 1;
        self.last_request = intake.now;
        let args = self.parser.args(&self.input);
        let queued = match parse(args) {
            Err(reply) => Queued::Answered(reply),
            Ok(Request::Local(spec)) => {
                let queued = Queued::Local(spec.id, OwnedArgs::new(args));
                if spec.id == CommandId::Quit {
                    self.queue.push_back(queued);
                    // What is pipelined after a QUIT is not executed. The parser still owes the
                    // request it found; it is replaced, so there is nothing to consume.
                    self.end_input();
                    return 0;
                }
                queued
            }
            Ok(Request::UseSession { id, seq }) => {
                self.session = Some(SessionCursor {
                    id,
                    low: seq,
                    next_seq: seq,
                });
                Queued::Answered(Reply::Ok)
            }
            Ok(Request::Replicated(_)) if intake.is_draining => {
                Queued::Answered(Reply::error("ERR shutting down; use another replica"))
            }
            Ok(Request::Replicated(command)) => {
                let before = self.encoded.len();
                let stamp = self
                    .session
                    .filter(|_| command != Command::SessionNew)
                    .map(|s| SessionStamp {
                        id: s.id,
                        seq: s.next_seq,
                        low: s.low,
                    });
                command.encode(stamp, &mut self.encoded);
                let len_bytes = self.encoded.len() - before;
                let limit = intake.command_len_bytes_max;
                if len_bytes > limit {
                    self.encoded.truncate(before);
                    Queued::Answered(over_limit(&command, len_bytes, limit))
                } else {
                    if let (Some(session), Some(_)) = (&mut self.session, stamp) {
                        session.next_seq += 1;
                    }
                    Queued::Replicated {
                        len_bytes,
                        received: intake.now,
                    }
                }
            }
        };
        let replicated = matches!(queued, Queued::Replicated { .. });
        self.queue.push_back(queued);
        usize::from(replicated)
    }

    /// The next request, if it is this replica's turn to answer it.
    pub fn next_local(&mut self) -> Option<Queued> {
        if self.has_value_in_flight || self.output.len() >= OUTPUT_SOFT_BYTES_MAX {
            return None;
        }
        match self.queue.front() {
            Some(Queued::Local(..) | Queued::Answered(_)) => self.queue.pop_front(),
            _ => None,
        }
    }

    /// Is there a request whose turn it is?
    pub fn has_turn(&self) -> bool {
        !self.queue.is_empty()
            && !self.has_value_in_flight
            && self.output.len() < OUTPUT_SOFT_BYTES_MAX
            && !self.is_in_ready_list
    }

    /// Is the next request one for the log, with nothing before it?
    pub fn is_ready_to_pack(&self) -> bool {
        !self.has_value_in_flight
            && self.output.len() < OUTPUT_SOFT_BYTES_MAX
            && matches!(self.queue.front(), Some(Queued::Replicated { .. }))
    }

    /// Requests that wait, of all kinds.
    pub fn queued_len(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of all encoded commands that wait.
    pub fn encoded_len_bytes(&self) -> usize {
        self.encoded.len()
    }

    /// The next command for the log: its encoded form and when it was read.
    pub fn front_command(&self) -> Option<(&[u8], Instant)> {
        match self.queue.front() {
            Some(Queued::Replicated {
                len_bytes,
                received,
            }) => Some((&self.encoded[..*len_bytes], *received)),
            _ => None,
        }
    }

    /// Drop the next command for the log from the queue.
    pub fn pop_command(&mut self) {
        if let Some(Queued::Replicated { len_bytes, .. }) = self.queue.front() {
            self.encoded.advance(*len_bytes);
            self.queue.pop_front();
        }
    }

    /// Commands for the log that wait.
    pub fn queued_commands(&self) -> usize {
        self.queue
            .iter()
            .filter(|q| matches!(q, Queued::Replicated { .. }))
            .count()
    }

    /// Forget everything that `RESET` resets.
    pub fn reset(&mut self) {
        self.protocol = Protocol::Resp2;
        self.name.clear();
        self.session = None;
    }

    /// Append a reply to the output.
    pub fn reply(&mut self, reply: &Reply) {
        reply.write_resp(&mut self.output, self.protocol);
    }

    /// Write as much output as the socket takes.
    pub fn write_output(&mut self) -> io::Result<()> {
        if self.output.len() > OUTPUT_HARD_BYTES_MAX {
            return Err(io::Error::other("the client does not read its replies"));
        }
        while self.is_writable && !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => self.output.advance(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_writable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Nothing is left to do for this client.
    pub fn is_finished(&self) -> bool {
        let is_answered = self.queue.is_empty() && !self.has_value_in_flight;
        self.output.is_empty() && is_answered && (self.is_closing || self.is_input_over)
    }
}

fn over_limit(command: &Command<'_>, len_bytes: usize, limit: usize) -> Reply {
    let over = len_bytes - limit;
    Reply::error(match command.value_len_bytes() {
        Some(value_len) if value_len > over => format!(
            "ERR value of {value_len} bytes is over the limit of {} bytes (one command must fit in \
             one packet in this release)",
            value_len - over
        ),
        _ => format!(
            "ERR command of {len_bytes} bytes is over the limit of {limit} bytes (one command must \
             fit in one packet in this release); use shorter or fewer keys"
        ),
    })
}
