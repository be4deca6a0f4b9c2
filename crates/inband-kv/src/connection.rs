//! One client's connection: its buffers, its unanswered requests, its settings.
//!
//! Requests are numbered as they are read, and answered in that order. Those for the logs wait in
//! *lanes*, one a log: within a lane they keep their order, and at most one value of them is
//! undecided. Lanes of different partitions go on side by side. A request that concerns more than
//! one partition, or that is answered by this replica, waits until all before it are answered; only
//! requests over several partitions go on together, in their lane.
//!
//! When it is a lane's turn and all that waits in it only reads, it need not go through the log.

mod lanes;
mod transaction;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Buf;
use inband_resp::buffer::Buffer;
use inband_resp::front::{Arrival, ClientConnection, Readiness};
use inband_resp::limits::REQUEST_LEN_BYTES_MAX;
use inband_resp::reply::{Protocol, Reply};
use inband_resp::request::{Args, Found, RequestParser};
use inband_resp::timeouts::{ClientTimeouts, TimedOut, Timers};
use inband_resp::wire::Wire;

use crate::client_sessions;
use crate::command::{Command, Route, SessionStamp};
use crate::limit_hits::{LimitHit, LimitHits};
use crate::limits::{
    COMMAND_LEN_BYTES_MAX, IN_FLIGHT_COMMAND_BYTES_MAX, KEY_LEN_BYTES_MAX, OUTPUT_HARD_BYTES_MAX,
    OUTPUT_SOFT_BYTES_MAX, PENDING_COMMANDS_MAX, PENDING_COMMAND_BYTES_MAX, READ_BUDGET_BYTES,
    REQUEST_KEYS_MAX, STORED_VALUE_LEN_BYTES_MAX,
};
use crate::local;
use crate::parse::{parse, ReadMode, Request};
use crate::partition::logs_of;
use crate::table::CommandId;
pub use transaction::Item;
use transaction::{Transaction, Watches};

/// Arguments that outlive the input buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
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

    fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.ranges.len() * size_of::<(usize, usize)>()
    }
}

/// What [`Connection::next`] found.
#[derive(Debug)]
pub enum Next {
    /// Nothing that could be taken now.
    Nothing,
    /// A command that now waits in this lane.
    Command(usize),
    /// To be answered by this replica, at once.
    Local(CommandId, OwnedArgs),
    /// `SCAN`, to be answered by [`Connection::answer_alone`].
    Scan(OwnedArgs),
    /// A transaction in which nothing goes through a log, to be answered at once.
    LocalTransaction(Vec<Item>),
    /// `INBAND.EXPORT`: the connection is to carry an export and nothing else.
    Export,
    /// Answered already.
    Answered,
}

/// A command that waits in a lane.
#[derive(Debug)]
struct Waiting {
    number: u64,
    len_bytes: usize,
    received: Instant,
    /// It need not go through the log.
    is_read: bool,
    /// Its reply may be as long as a value.
    replies_with_value: bool,
}

/// The commands of one connection for one log.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    /// The encoded forms of those that wait.
    encoded: Buffer,
    /// Those among them that must go through the log.
    waiting_writes: usize,
    /// Numbers of those in the undecided value, or being read.
    in_flight: VecDeque<u64>,
    /// How many of those that were in a value are not answered.
    unanswered: usize,
    /// Bytes of those, all together until the last is answered.
    unanswered_len_bytes: usize,
    is_in_ready_list: bool,
}

/// What the unanswered requests are: other kinds wait until all are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Each for one partition.
    Partitions,
    /// Over several partitions.
    Several,
    /// One that goes alone.
    Alone,
}

/// A request that goes alone because something is to be done with its reply.
#[derive(Debug)]
enum Alone {
    /// `WATCH` of these keys; the reply holds their versions.
    Watch(Vec<Vec<u8>>),
    /// `EXEC` of these items, some of which did not go through a log.
    Exec(Vec<Item>),
    /// `SCAN`.
    Scan,
}

/// `INBAND.SESSION id seq` as declared on a connection.
#[derive(Debug, Clone, Copy)]
struct SessionCursor {
    id: u64,
    low: u64,
    next_seq: u64,
}

impl SessionCursor {
    fn stamp(&mut self) -> SessionStamp {
        let seq = self.next_seq;
        self.next_seq += 1;
        SessionStamp {
            id: self.id,
            seq,
            low: self.low,
        }
    }
}

/// What a connection must know to take requests.
#[derive(Debug, Clone, Copy)]
pub struct Intake<'a> {
    /// Number of partitions.
    pub partitions: usize,
    /// Refuse commands for the logs with this reply.
    pub refusal: Option<&'a Reply>,
    /// Refuse those that need room on the disk with this reply.
    pub write_refusal: Option<&'a Reply>,
    /// Not those that make room.
    pub has_room_to_delete: bool,
    /// How a connection reads that has not said how.
    pub reads: ReadMode,
    /// Now.
    pub now: Instant,
    /// Where to count what is refused.
    pub hits: &'a LimitHits,
}

impl Intake<'_> {
    /// What this command is refused with.
    fn refusal_of(&self, command: &Command<'_>) -> Option<&Reply> {
        let is_refused = match self.has_room_to_delete {
            true => command.needs_room(),
            false => !command.only_reads(),
        };
        let write_refusal = self.write_refusal.filter(|_| is_refused);
        write_refusal.inspect(|_| self.hits.count(LimitHit::Disk));
        self.refusal.or(write_refusal)
    }
}

/// One client's connection.
#[derive(Debug)]
pub struct Connection {
    /// Never reused, unlike the place in the table.
    pub id: u64,
    /// The socket.
    pub wire: Wire,
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
    /// It is in the list of those to be looked at.
    pub is_in_attention_list: bool,
    /// It has said the password, or there is none.
    is_trusted: bool,
    /// To be closed as soon as the output is written.
    pub is_closing: bool,
    /// Requests read so far.
    pub requests: u64,
    /// Unsent replies.
    pub output: Buffer,
    /// Since when the client takes nothing of them.
    unread_since: Option<Instant>,
    input: Buffer,
    parser: RequestParser,
    /// Since when there is a part of a request, and more of it could be read.
    incomplete_since: Option<Instant>,
    /// Replies to the unanswered requests, as far as there are any; the first is missing.
    replies: VecDeque<Option<Reply>>,
    /// About how long those are that wait for one before them.
    held_reply_bytes: usize,
    /// Number of the oldest unanswered request.
    first_number: u64,
    mode: Mode,
    alone: Option<(Alone, Option<Reply>)>,
    lanes: Vec<Lane>,
    /// Bytes of all encoded commands that wait.
    encoded_len_bytes: usize,
    /// Bytes of all commands that are undecided or being read.
    in_flight_len_bytes: usize,
    /// Memory of all lanes' buffers.
    lanes_memory_bytes: usize,
    session: Option<SessionCursor>,
    /// How this connection reads, if it has said so.
    reads: Option<ReadMode>,
    transaction: Option<Transaction>,
    watches: Watches,
    /// Bytes that may still be read in this turn.
    read_budget_bytes: usize,
    /// The client sends no more, or is not listened to any more.
    is_input_over: bool,
    /// There are requests in the input for which there was no room.
    is_parser_blocked: bool,
    /// The parser has found a request that must wait until all before it are answered.
    is_held: bool,
}

impl Connection {
    /// A fresh connection.
    pub fn new(arrival: Arrival, partitions: usize, is_trusted: bool) -> Self {
        let Arrival {
            id,
            wire,
            peer,
            now,
        } = arrival;
        let mut parser = RequestParser::default();
        parser.set_untrusted(!is_trusted);
        Self {
            id,
            wire,
            peer,
            protocol: Protocol::Resp2,
            name: Vec::new(),
            library: Default::default(),
            accepted: now,
            last_request: now,
            is_readable: true,
            is_read_closed: false,
            is_writable: true,
            is_in_attention_list: false,
            is_trusted,
            is_closing: false,
            requests: 0,
            output: Buffer::default(),
            unread_since: None,
            input: Buffer::default(),
            parser,
            incomplete_since: None,
            replies: VecDeque::new(),
            held_reply_bytes: 0,
            first_number: 0,
            mode: Mode::Partitions,
            alone: None,
            lanes: (0..logs_of(partitions)).map(|_| Lane::default()).collect(),
            encoded_len_bytes: 0,
            in_flight_len_bytes: 0,
            lanes_memory_bytes: 0,
            session: None,
            reads: None,
            transaction: None,
            watches: Watches::default(),
            read_budget_bytes: 0,
            is_input_over: false,
            is_parser_blocked: false,
            is_held: false,
        }
    }

    /// A new turn: the connection may read from its socket again.
    pub fn start_turn(&mut self) {
        self.read_budget_bytes = READ_BUDGET_BYTES;
    }

    /// Take the next request, reading as far as the bounds allow. `scratch` is where the socket is
    /// read into.
    pub fn next(&mut self, intake: &Intake<'_>, scratch: &mut [u8]) -> io::Result<Next> {
        loop {
            self.is_parser_blocked = false;
            if !self.has_room() {
                self.is_parser_blocked = !self.input.is_empty();
                return Ok(Next::Nothing);
            }
            if !self.is_held {
                match self.parser.next(&mut self.input) {
                    Ok(Found::Request) => {}
                    Ok(Found::Incomplete) => {
                        let is_begun = !self.input.is_empty() || self.parser.is_inside_request();
                        self.incomplete_since = match is_begun {
                            true => Some(self.incomplete_since.unwrap_or(intake.now)),
                            false => None,
                        };
                        if !self.read(scratch)? {
                            return Ok(Next::Nothing);
                        }
                        continue;
                    }
                    Ok(Found::Empty) => {
                        self.parser.consume(&mut self.input);
                        continue;
                    }
                    Ok(Found::Oversize(len)) => {
                        self.consume();
                        intake.hits.count(LimitHit::Request);
                        return Ok(self.refuse(format!(
                            "ERR request of {len} bytes is over the limit of \
                             {REQUEST_LEN_BYTES_MAX} bytes"
                        )));
                    }
                    Err(error) => {
                        self.end_input();
                        self.is_closing = true;
                        intake.hits.count(LimitHit::Protocol);
                        return Ok(self.refuse(format!("ERR {error}")));
                    }
                }
            }
            let next = self.take_request(intake);
            self.is_held = next.is_none();
            let Some(next) = next else {
                return Ok(Next::Nothing);
            };
            self.requests += 1;
            self.last_request = intake.now;
            self.consume();
            return Ok(next);
        }
    }

    /// Drop the request just found.
    fn consume(&mut self) {
        self.parser.consume(&mut self.input);
        self.input.shrunk();
        self.incomplete_since = None;
    }

    /// Read once from the socket; was there anything?
    fn read(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        while self.is_readable && !self.is_input_over && self.read_budget_bytes > 0 {
            let room = scratch.len().min(self.read_budget_bytes);
            match self.wire.read(&mut scratch[..room]) {
                Ok(0) => {
                    self.is_readable = false;
                    self.is_input_over = true;
                }
                Ok(len) => {
                    self.input.extend_from_slice(&scratch[..len]);
                    self.input.grown();
                    self.read_budget_bytes -= len;
                    let is_drained = len < room && self.wire.is_drained_by_short_read();
                    if is_drained && !self.is_read_closed {
                        // Edge-triggered readiness: what comes from now on makes a new event. The
                        // end of the stream makes none if it was there before.
                        self.is_readable = false;
                    }
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_readable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// May further requests be taken?
    fn has_room(&self) -> bool {
        self.replies.len() < PENDING_COMMANDS_MAX
            && self.encoded_len_bytes < PENDING_COMMAND_BYTES_MAX
            && self.in_flight_len_bytes < IN_FLIGHT_COMMAND_BYTES_MAX
            && self.has_reply_room()
    }

    /// Is there room for further replies?
    pub fn has_reply_room(&self) -> bool {
        self.output.len() + self.held_reply_bytes < OUTPUT_SOFT_BYTES_MAX
    }

    /// Would [`next`](Self::next) find something?
    pub fn has_input_work(&self) -> bool {
        if self.is_held {
            return self.replies.is_empty() && self.has_room();
        }
        self.has_room() && ((self.is_readable && !self.is_input_over) || self.is_parser_blocked)
    }

    fn refuse(&mut self, text: String) -> Next {
        self.requests += 1;
        self.answered(Reply::error(text))
    }

    /// Give a new request its reply.
    fn answered(&mut self, reply: Reply) -> Next {
        let number = self.number();
        self.answer(number, reply);
        Next::Answered
    }

    /// Number a new request.
    fn number(&mut self) -> u64 {
        self.replies.push_back(None);
        self.first_number + self.replies.len() as u64 - 1
    }

    fn end_input(&mut self) {
        self.is_input_over = true;
        self.input = Buffer::default();
        self.parser = RequestParser::default();
        self.incomplete_since = None;
    }

    /// Take the request just found; `None` if it must wait.
    fn take_request(&mut self, intake: &Intake<'_>) -> Option<Next> {
        // Taken out, so that the arguments do not borrow the rest of the connection.
        let input = std::mem::take(&mut self.input);
        let parser = std::mem::take(&mut self.parser);
        let next = self.take(parser.args(&input), intake);
        if !self.is_input_over || !self.is_closing {
            (self.input, self.parser) = (input, parser);
        }
        next
    }

    fn take(&mut self, args: Args<'_>, intake: &Intake<'_>) -> Option<Next> {
        if !self.is_trusted && !local::is_for_everybody(args.get(0)) {
            return Some(self.answered(Reply::error("NOAUTH Authentication required.")));
        }
        if self.alone.is_some() {
            return None;
        }
        if self.transaction.is_some() {
            if let Some(next) = self.take_queued(args, intake) {
                return Some(next);
            }
        }
        match parse(args) {
            Err(reply) => Some(self.answered(reply)),
            Ok(Request::Local(spec)) => self.replies.is_empty().then(|| {
                if spec.id == CommandId::Quit {
                    // What is pipelined after a QUIT is not executed.
                    self.end_input();
                    self.is_closing = true;
                }
                Next::Local(spec.id, OwnedArgs::new(args))
            }),
            Ok(Request::UseSession { id, seq }) => {
                self.session = Some(SessionCursor {
                    id,
                    low: seq,
                    next_seq: seq,
                });
                Some(self.answered(Reply::Ok))
            }
            Ok(Request::UseReads(mode)) => {
                self.reads = Some(mode);
                Some(self.answered(Reply::Ok))
            }
            Ok(Request::Scan) => self.scan(args, intake),
            Ok(Request::Export) => match intake.refusal {
                Some(refusal) => Some(self.answered(refusal.clone())),
                None => self.replies.is_empty().then_some(Next::Export),
            },
            Ok(Request::Multi) => Some(self.multi()),
            Ok(Request::Exec) => self.exec(intake),
            Ok(Request::Discard) => Some(self.discard()),
            Ok(Request::Unwatch) => Some(self.unwatch()),
            Ok(Request::Replicated(Command::SessionNew { .. })) => {
                let owner = client_sessions::owner_of(self.peer.ip());
                self.take_command(&Command::SessionNew { owner }, intake)
            }
            Ok(Request::Replicated(command)) => self.take_command(&command, intake),
        }
    }

    /// Put a command into its lane; `None` if it must wait.
    fn take_command(&mut self, command: &Command<'_>, intake: &Intake<'_>) -> Option<Next> {
        if let Some(refusal) = intake.refusal_of(command) {
            return Some(self.answered(refusal.clone()));
        }
        let (lane, mode) = match command.route(intake.partitions) {
            _ if matches!(command, Command::Watch(_)) && !self.replies.is_empty() => return None,
            Route::Partition(partition) => (partition, Mode::Partitions),
            Route::Several => (intake.partitions, Mode::Several),
        };
        if !self.replies.is_empty() && self.mode != mode {
            return None;
        }
        if let Some(reply) = over_limit(command) {
            intake.hits.count(LimitHit::Request);
            return Some(self.answered(reply));
        }
        let session = self.session;
        let stamp = match command {
            Command::SessionNew { .. } | Command::Watch(_) => None,
            _ => self.session.as_mut().map(SessionCursor::stamp),
        };
        let encoded = &mut self.lanes[lane].encoded;
        let (before, memory_before_bytes) = (encoded.len(), encoded.memory_bytes());
        command.encode(stamp, encoded);
        let len_bytes = encoded.len() - before;
        encoded.grown();
        self.lanes_memory_bytes += encoded.memory_bytes() - memory_before_bytes;
        if len_bytes > COMMAND_LEN_BYTES_MAX {
            encoded.truncate(before);
            self.session = session;
            intake.hits.count(LimitHit::Request);
            return Some(self.answered(Reply::error(format!(
                "ERR command of {len_bytes} bytes is over the limit of {COMMAND_LEN_BYTES_MAX} \
                 bytes; use shorter or fewer keys and values"
            ))));
        }
        self.mode = mode;
        if let Command::Watch(keys) = command {
            self.mode = Mode::Alone;
            let keys = keys.iter().map(<[u8]>::to_vec).collect();
            self.alone = Some((Alone::Watch(keys), None));
        }
        // A session keeps the replies to its commands, and `WATCH` makes the log keep versions.
        let is_read = mode == Mode::Partitions
            && stamp.is_none()
            && command.only_reads()
            && !matches!(command, Command::Watch(_))
            && self.reads.unwrap_or(intake.reads) == ReadMode::Position;
        self.encoded_len_bytes += len_bytes;
        let number = self.number();
        let lane_of = &mut self.lanes[lane];
        lane_of.waiting_writes += usize::from(!is_read);
        lane_of.waiting.push_back(Waiting {
            number,
            len_bytes,
            received: intake.now,
            is_read,
            replies_with_value: command.replies_with_value(),
        });
        Some(Next::Command(lane))
    }

    /// `SCAN`; `None` if it must wait.
    fn scan(&mut self, args: Args<'_>, intake: &Intake<'_>) -> Option<Next> {
        if !self.replies.is_empty() {
            return None;
        }
        if let Some(refusal) = intake.refusal {
            return Some(self.answered(refusal.clone()));
        }
        self.number();
        self.mode = Mode::Alone;
        self.alone = Some((Alone::Scan, None));
        Some(Next::Scan(OwnedArgs::new(args)))
    }

    /// Answer a request: its reply is sent when all before it are.
    fn answer(&mut self, number: u64, reply: Reply) {
        let place = (number - self.first_number) as usize;
        if place > 0 {
            self.held_reply_bytes += reply.len_bytes();
            self.replies[place] = Some(reply);
            return;
        }
        self.reply(&reply);
        self.pop_reply();
        while let Some(Some(reply)) = self.replies.front_mut().map(Option::take) {
            self.held_reply_bytes -= reply.len_bytes();
            self.reply(&reply);
            self.pop_reply();
        }
    }

    fn pop_reply(&mut self) {
        self.replies.pop_front();
        self.first_number += 1;
    }

    /// Answer a request that was found to be [`Next::Local`] or [`Next::LocalTransaction`].
    pub fn answer_local(&mut self, reply: Reply) {
        self.answered(reply);
    }

    /// A request that went alone has its reply: the items of its transaction, some of which are
    /// still to be answered here, and the replies of the others. [`answer_alone`] ends it.
    ///
    /// [`answer_alone`]: Self::answer_alone
    pub fn take_alone(&mut self) -> Option<(Vec<Item>, Reply)> {
        let (_, reply) = self.alone.as_mut()?;
        let reply = reply.take()?;
        match self.alone.take()?.0 {
            Alone::Watch(keys) => {
                let reply = self.watches.add(keys, reply);
                Some((Vec::new(), reply))
            }
            Alone::Exec(items) => Some((items, reply)),
            Alone::Scan => Some((Vec::new(), reply)),
        }
    }

    /// Answer a request that went alone.
    pub fn answer_alone(&mut self, reply: Reply) {
        self.alone = None;
        self.answer(self.first_number, reply);
    }

    /// Has it said the password, or is there none?
    pub fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// It has said the password; or is asked for it again.
    pub fn trust(&mut self, is_trusted: bool) {
        self.is_trusted = is_trusted;
        self.parser.set_untrusted(!is_trusted);
    }

    /// Forget everything that `RESET` resets.
    pub fn reset(&mut self) {
        self.protocol = Protocol::Resp2;
        self.name.clear();
        self.session = None;
        self.reads = None;
        self.transaction = None;
        self.watches = Watches::default();
    }

    fn reply(&mut self, reply: &Reply) {
        reply.write_resp(&mut self.output, self.protocol);
        self.output.grown();
    }

    /// Are there more unsent replies than any client may have?
    pub fn is_over_output_limit(&self) -> bool {
        self.output.len() > OUTPUT_HARD_BYTES_MAX
    }

    /// Write as much output as the socket takes.
    pub fn write_output(&mut self, now: Instant) -> io::Result<()> {
        let before = self.output.len();
        while self.is_writable && !self.output.is_empty() {
            match self.wire.write(&self.output) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => self.output.advance(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_writable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.is_writable && !self.wire.is_flushed() {
            match self.wire.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_writable = false;
                }
                done => done?,
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

    fn has_nothing_unsent(&self) -> bool {
        self.output.is_empty() && self.wire.is_flushed()
    }

    /// The limit that this client has run into by letting time pass.
    pub fn timed_out(&self, now: Instant, timeouts: &ClientTimeouts) -> Option<LimitHit> {
        // What cannot be read for want of room is not the client's fault.
        let incomplete = self.incomplete_since.filter(|_| self.has_room());
        let handshaking = Some(self.accepted).filter(|_| self.wire.is_handshaking());
        let untrusted = Some(self.accepted).filter(|_| !self.is_trusted);
        let idle_since = Some(self.last_request).filter(|_| {
            self.replies.is_empty() && self.output.is_empty() && !self.has_input_work()
        });
        let timers = Timers {
            incomplete,
            handshake: handshaking,
            password: untrusted,
            unread: self.unread_since,
            idle: idle_since,
        };
        timeouts.expired(now, &timers).map(|timer| match timer {
            TimedOut::Unread => LimitHit::Unread,
            TimedOut::Handshake => LimitHit::Tls,
            TimedOut::Password => LimitHit::Unauthenticated,
            TimedOut::Incomplete => LimitHit::Incomplete,
            TimedOut::Idle => LimitHit::Idle,
        })
    }

    /// Memory that this client makes the replica hold, about.
    fn held_bytes(&self) -> usize {
        let buffers = self.input.memory_bytes() + self.output.memory_bytes();
        let requests = self.parser.memory_bytes() + self.lanes_memory_bytes;
        let transaction = self.transaction.as_ref().map_or(0, |t| t.memory_bytes());
        buffers
            + requests
            + self.in_flight_len_bytes
            + self.held_reply_bytes
            + transaction
            + self.wire.memory_bytes()
            + self.watches.memory_bytes()
    }

    /// Nothing is left to do for this client.
    pub fn is_finished(&self) -> bool {
        let is_answered = self.replies.is_empty() && !self.is_held && !self.is_parser_blocked;
        self.has_nothing_unsent() && is_answered && (self.is_closing || self.is_input_over)
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
        self.held_bytes()
    }
}

/// The error of a command that stores too long a key or value.
fn over_limit(command: &Command<'_>) -> Option<Reply> {
    let (key_len_bytes, value_len_bytes) = command.stored_len_bytes();
    let over = |what, len_bytes, limit| {
        (len_bytes > limit).then(|| {
            Reply::error(format!(
                "ERR {what} of {len_bytes} bytes is over the limit of {limit} bytes"
            ))
        })
    };
    over("key", key_len_bytes, KEY_LEN_BYTES_MAX)
        .or_else(|| over("value", value_len_bytes, STORED_VALUE_LEN_BYTES_MAX))
        .or_else(|| too_many_keys(command.keys()))
}

/// The error of a command or transaction of so many keys, if they are too many.
fn too_many_keys(keys: usize) -> Option<Reply> {
    (keys > REQUEST_KEYS_MAX).then(|| {
        Reply::error(format!(
            "ERR {keys} keys are over the limit of {REQUEST_KEYS_MAX} keys; use several commands"
        ))
    })
}
