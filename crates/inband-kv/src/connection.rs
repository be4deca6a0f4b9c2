//! One client's connection: its buffers, its unanswered requests and its settings.
//!
//! Requests are numbered as they are read and answered in that order. Requests for the logs wait in *lanes*, one per
//! log: within a lane they keep their order, and at most one value of a lane is undecided. Lanes of different
//! partitions proceed in parallel. A request that involves more than one partition, or that this replica answers
//! itself, waits until all earlier requests are answered; only cross-partition requests can be in progress together, in
//! their own lane.
//!
//! If all requests that wait in a lane are reads when the lane is served, they need not go through the log.

mod ahead;
mod lanes;
mod pops;
mod requests;
mod subscribed;
mod transaction;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Buf;
use inband_resp::buffer::Buffer;
use inband_resp::front::{Arrival, ClientConnection, Readiness};
use inband_resp::limits::REQUEST_LEN_BYTES_MAX;
use inband_resp::reply::{Protocol, Reply};
use inband_resp::request::{Args, Found, RequestParser};
use inband_resp::timeouts::{ClientTimeouts, TimedOut, Timers};
use inband_resp::wire::Wire;

use crate::latencies::{Asked, Latencies};
use crate::limit_hits::LimitHit;
use crate::limits::{
    IN_FLIGHT_COMMAND_BYTES_MAX, OUTPUT_HARD_BYTES_MAX, OUTPUT_SOFT_BYTES_MAX,
    PENDING_COMMANDS_MAX, PENDING_COMMAND_BYTES_MAX, READ_BUDGET_BYTES,
};
use crate::parse::ReadMode;
use crate::partition::logs_of;
use crate::table::CommandId;
use crate::waiting_clients::Pop;
use ahead::Ahead;
pub use ahead::{Taken, Written};
pub(crate) use requests::over_limit;
pub use requests::Intake;
use requests::SessionCursor;
use subscribed::Subscribed;
pub use transaction::Item;
use transaction::{Transaction, Watches};

/// Arguments that must outlive the input buffer.
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

    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.ranges.len() * size_of::<(usize, usize)>()
    }
}

/// The result of [`Connection::next`].
#[derive(Debug)]
pub enum Next {
    /// Nothing can be processed now.
    Nothing,
    /// A command was queued in this lane.
    Command(usize),
    /// To be answered by this replica at once.
    Local(CommandId, OwnedArgs),
    /// `SCAN`; answered with [`Connection::answer_alone`].
    Scan(OwnedArgs),
    /// A blocking pop; answered with [`Connection::answer_alone`].
    Pop(Pop),
    /// A transaction without commands for the log; to be answered at once.
    LocalTransaction(Vec<Item>),
    /// `INBAND.EXPORT`: the connection switches to carrying an export only.
    Export,
    /// It has been answered.
    Answered,
}

/// A command that waits in a lane.
#[derive(Debug)]
struct Waiting {
    number: u64,
    len_bytes: usize,
    received: Instant,
    /// It can be read without the log.
    is_read: bool,
    /// Its reply can be as long as a stored value.
    replies_with_value: bool,
}

/// One connection's commands for one log.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    /// The encoded waiting commands.
    encoded: Buffer,
    /// How many of them must go through the log.
    waiting_writes: usize,
    /// Request numbers of the commands in the undecided value, or being read.
    in_flight: VecDeque<u64>,
    /// How many submitted commands have not been answered.
    unanswered: usize,
    /// Their encoded length; freed only when the last one is answered.
    unanswered_len_bytes: usize,
    is_in_ready_list: bool,
}

/// The kind of the unanswered requests: requests of another kind wait until all are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Each involves one partition.
    Partitions,
    /// Cross-partition requests.
    Several,
    /// A single request that must be the only one in progress.
    Alone,
}

/// A request that must be the only one in progress, because its reply needs further processing.
#[derive(Debug)]
enum Alone {
    /// `WATCH` of these keys; the reply holds their versions.
    Watch(Vec<Vec<u8>>),
    /// `EXEC` of these items, some of which do not go through a log.
    Exec(Vec<Item>),
    /// `SCAN`.
    Scan,
    /// A blocking pop, and its number among the waiting clients.
    Pop(Option<u64>),
}

/// A request that was read.
#[derive(Debug)]
struct Pending {
    asked: Asked,
    /// Its reply, if an earlier request has none yet.
    reply: Option<Reply>,
}

#[derive(Debug)]
pub struct Connection {
    /// Never reused, unlike the slot in the table.
    pub id: u64,
    pub wire: Wire,
    pub peer: SocketAddr,
    /// Version of the protocol spoken.
    pub protocol: Protocol,
    pub name: Vec<u8>,
    /// Library name and version from `CLIENT SETINFO`.
    pub library: [Vec<u8>; 2],
    /// When it was accepted.
    pub accepted: Instant,
    /// When the last request was read.
    pub last_request: Instant,
    /// The socket may have data to read.
    pub is_readable: bool,
    /// The client has closed its side; what remains is still read.
    pub is_read_closed: bool,
    /// The socket may accept data.
    pub is_writable: bool,
    pub is_in_attention_list: bool,
    /// It is authenticated, or no password is required.
    is_trusted: bool,
    /// Close it as soon as the output is written.
    pub is_closing: bool,
    /// Number of requests read so far.
    pub requests: u64,
    pub output: Buffer,
    /// Since when the client has accepted no output.
    unread_since: Option<Instant>,
    input: Buffer,
    parser: RequestParser,
    /// Since when the input ends in an incomplete request, although more could be read.
    incomplete_since: Option<Instant>,
    /// The unanswered requests, in order; the reply to the first is always missing.
    replies: VecDeque<Pending>,
    /// Approximate length of replies that wait for an earlier one.
    held_reply_bytes: usize,
    /// Number of the oldest unanswered request.
    first_number: u64,
    /// The request that is being taken.
    asked: Asked,
    latencies: Arc<Latencies>,
    mode: Mode,
    alone: Option<(Alone, Option<Reply>)>,
    /// Memory of the blocking pop in progress.
    pop_bytes: usize,
    lanes: Vec<Lane>,
    /// Length of all encoded commands that wait.
    encoded_len_bytes: usize,
    /// Length of all commands that are undecided or being read.
    in_flight_len_bytes: usize,
    /// Memory held by the buffers of all lanes.
    lanes_memory_bytes: usize,
    session: Option<SessionCursor>,
    /// The read mode, if this connection has chosen one.
    reads: Option<ReadMode>,
    /// `READONLY`: reads are not redirected.
    pub is_readonly: bool,
    transaction: Option<Transaction>,
    watches: Watches,
    subscribed: Subscribed,
    /// Number of prefixes that it watches.
    pub watchers: usize,
    /// Memory for that.
    pub watchers_bytes: usize,
    /// How many bytes may still be read in this turn.
    read_budget_bytes: usize,
    ahead: Ahead,
    /// The client sends no more, or its input is no longer processed.
    is_input_over: bool,
    /// The input holds requests for which there was no room.
    is_parser_blocked: bool,
    /// The parser has found a request that must wait until all earlier ones are answered.
    is_held: bool,
}

impl Connection {
    pub fn new(
        arrival: Arrival,
        partitions: usize,
        is_trusted: bool,
        latencies: &Arc<Latencies>,
    ) -> Self {
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
            asked: latencies.ask(None),
            latencies: latencies.clone(),
            mode: Mode::Partitions,
            alone: None,
            pop_bytes: 0,
            lanes: (0..logs_of(partitions)).map(|_| Lane::default()).collect(),
            encoded_len_bytes: 0,
            in_flight_len_bytes: 0,
            lanes_memory_bytes: 0,
            session: None,
            reads: None,
            is_readonly: false,
            transaction: None,
            watches: Watches::default(),
            subscribed: Subscribed::default(),
            watchers: 0,
            watchers_bytes: 0,
            read_budget_bytes: 0,
            ahead: Ahead::default(),
            is_input_over: false,
            is_parser_blocked: false,
            is_held: false,
        }
    }

    /// Starts a new turn: the connection may read from its socket again.
    pub fn start_turn(&mut self) {
        self.read_budget_bytes = READ_BUDGET_BYTES;
    }

    /// Takes the next request, reading as far as the limits allow. `scratch` is the buffer for socket reads.
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

    fn consume(&mut self) {
        self.parser.consume(&mut self.input);
        self.input.shrunk();
        self.incomplete_since = None;
    }

    /// Reads once from the socket. Returns whether there was data.
    fn read(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        if self.is_input_over || self.read_budget_bytes == 0 {
            return Ok(false);
        }
        let room = scratch.len().min(self.read_budget_bytes);
        let (is_readable, is_read_closed) = (&mut self.is_readable, self.is_read_closed);
        let into = &mut scratch[..room];
        let len = self
            .wire
            .read_available(into, is_readable, is_read_closed)?;
        self.is_input_over = len == Some(0);
        let len = len.unwrap_or(0);
        self.input.extend_from_slice(&scratch[..len]);
        self.input.grown();
        self.read_budget_bytes -= len;
        Ok(len > 0)
    }

    /// Returns whether more requests may be accepted.
    fn has_room(&self) -> bool {
        self.replies.len() < PENDING_COMMANDS_MAX
            && self.encoded_len_bytes < PENDING_COMMAND_BYTES_MAX
            && self.in_flight_len_bytes < IN_FLIGHT_COMMAND_BYTES_MAX
            && self.has_reply_room()
    }

    /// Returns whether there is room for more replies.
    pub fn has_reply_room(&self) -> bool {
        self.output.len() + self.held_reply_bytes < OUTPUT_SOFT_BYTES_MAX
    }

    /// Returns whether [`next`](Self::next) would find something.
    pub fn has_input_work(&self) -> bool {
        if self.is_held {
            return self.replies.is_empty() && self.has_room();
        }
        self.has_room() && ((self.is_readable && !self.is_input_over) || self.is_parser_blocked)
    }

    fn refuse(&mut self, text: String) -> Next {
        self.requests += 1;
        self.asked = self.latencies.ask(None);
        self.answered(Reply::error(text))
    }

    /// Number a new request and answer it.
    fn answered(&mut self, reply: Reply) -> Next {
        let number = self.number();
        self.answer(number, reply);
        Next::Answered
    }

    /// Assigns a number to a new request.
    fn number(&mut self) -> u64 {
        self.replies.push_back(Pending {
            asked: self.asked,
            reply: None,
        });
        self.first_number + self.replies.len() as u64 - 1
    }

    fn end_input(&mut self) {
        self.is_input_over = true;
        self.input = Buffer::default();
        self.parser = RequestParser::default();
        self.incomplete_since = None;
    }

    /// Answers a request: its reply is sent once all earlier requests are answered.
    fn answer(&mut self, number: u64, reply: Reply) {
        let place = (number - self.first_number) as usize;
        if place > 0 {
            self.held_reply_bytes += reply.len_bytes();
            self.replies[place].reply = Some(reply);
            return;
        }
        self.reply(&reply);
        self.pop_reply();
        let next = |all: &mut VecDeque<Pending>| all.front_mut()?.reply.take();
        while let Some(reply) = next(&mut self.replies) {
            self.held_reply_bytes -= reply.len_bytes();
            self.reply(&reply);
            self.pop_reply();
        }
    }

    fn pop_reply(&mut self) {
        match self.replies.pop_front() {
            Some(pending) if self.ahead.is_under_way() => self.ahead.answered.push(pending.asked),
            Some(pending) => self.latencies.answer(pending.asked),
            None => {}
        }
        self.first_number += 1;
    }

    /// Answers a request that was returned as [`Next::Local`] or [`Next::LocalTransaction`].
    pub fn answer_local(&mut self, reply: Reply) {
        self.answered(reply);
    }

    /// If the request that runs alone has its reply: the items of its transaction, some of which this replica still has
    /// to answer, and the replies of the others. [`answer_alone`] completes it.
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
            Alone::Scan | Alone::Pop(_) => Some((Vec::new(), reply)),
        }
    }

    /// Answers the request that runs alone.
    pub fn answer_alone(&mut self, reply: Reply) {
        self.alone = None;
        self.pop_bytes = 0;
        self.answer(self.first_number, reply);
    }

    /// Returns whether it is authenticated, or no password is required.
    pub fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Sets whether it is authenticated.
    pub fn trust(&mut self, is_trusted: bool) {
        self.is_trusted = is_trusted;
        self.parser.set_untrusted(!is_trusted);
    }

    /// Resets the state that `RESET` resets.
    pub fn reset(&mut self) {
        self.protocol = Protocol::Resp2;
        self.name.clear();
        self.session = None;
        self.reads = None;
        self.is_readonly = false;
        self.transaction = None;
        self.watches = Watches::default();
    }

    fn reply(&mut self, reply: &Reply) {
        reply.write_resp(&mut self.output, self.protocol);
        self.output.grown();
    }

    /// Returns whether the unsent replies exceed the hard limit.
    pub fn is_over_output_limit(&self) -> bool {
        self.output.len() > OUTPUT_HARD_BYTES_MAX
    }

    /// Writes as much output as the socket accepts.
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

    /// Returns the time limit that this client has exceeded, if any.
    pub fn timed_out(&self, now: Instant, timeouts: &ClientTimeouts) -> Option<LimitHit> {
        // Input that cannot be read for lack of room is not the client's fault.
        let incomplete = self.incomplete_since.filter(|_| self.has_room());
        let handshaking = Some(self.accepted).filter(|_| self.wire.is_handshaking());
        let untrusted = Some(self.accepted).filter(|_| !self.is_trusted);
        let idle_since = Some(self.last_request).filter(|_| {
            let is_doing_nothing = self.replies.is_empty() && self.output.is_empty();
            // As in Redis, a subscriber may be silent for any time.
            let is_pushed_to = self.subscriptions() + self.watchers > 0;
            is_doing_nothing && !is_pushed_to && !self.has_input_work()
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

    /// Approximate memory that the replica holds for this client.
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
            + self.pop_bytes
            + self.subscribed.memory_bytes()
            + self.watchers_bytes
    }

    /// Nothing remains to be done for this client.
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
