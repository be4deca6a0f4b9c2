//! One client: its requests, and the answers in order.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::time::{Duration, Instant};

use bytes::Buf;
use inband_resp::buffer::Buffer;
use inband_resp::front::{Arrival, ClientConnection, Readiness};
use inband_resp::wire::Wire;

use super::request::{command_of, count, get, is_read, stats, Keys};
use super::{Counters, Shared};
use crate::apply::{Fetched, Outcome};
use crate::command::Command;
use crate::limits::{
    ALLOCATION_OVERHEAD_BYTES, CLIENT_COMMANDS_MAX, CLIENT_OUTPUT_BYTES_MAX, CLIENT_READ_BYTES_MAX,
    INCOMPLETE_REQUEST_MS_MAX, READS_PER_TURN_BYTES_MAX, UNANSWERED_MS_MAX, UNREAD_MS_MAX,
};
use crate::memcached::reply::{debug, Awaited, MetaReply};
use crate::memcached::{parse, Parsed, Request};
use crate::store::{STALE, WON};

/// Maximum number of requests of one client before others get a turn.
const REQUESTS_PER_TURN_MAX: usize = 256;
/// A client without requests keeps memory for at most this many.
const IDLE_ENTRIES_MAX: usize = 32;

/// Why a client is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// It has disconnected, asked to quit, or sent something that is not a request.
    Gone,
    /// It has not completed a request, or has not read its answers, for too long.
    TimedOut,
    /// It has waited too long for an answer.
    NoQuorum,
    /// The outcome of its command is unknown.
    Unknown,
    /// It holds the most memory, and all clients together exceed the limit.
    Memory,
}

/// A read that waits.
#[derive(Debug)]
enum Read {
    Get { with_cas: bool, keys: Keys },
    Meta(Box<MetaReply>),
    Debug(Vec<u8>),
}

/// A request that has not been answered yet.
#[derive(Debug)]
enum Entry {
    Text(&'static str),
    Bytes(Vec<u8>),
    /// A command, and its outcome once it is known.
    Command(Awaited, Option<Outcome>),
    /// A read, and the read index that it waits for; 0: none.
    Read(Read, u64),
}

/// Which requests were begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// All that have arrived, or as many as there is room for.
    All,
    /// Those before a write that waits for reads.
    Waits,
    /// Those before a write that waits until fewer records are in flight.
    Held,
}

/// What a connection could do at once.
#[derive(Debug, Default, Clone, Copy)]
pub struct More {
    pub is_ready: bool,
    /// It can go on when fewer records are in flight.
    pub is_held: bool,
}

#[derive(Debug)]
pub struct Connection {
    pub id: u64,
    wire: Wire,
    is_local: bool,
    is_readable: bool,
    is_over: bool,
    input: Buffer,
    /// Bytes of input to discard.
    skip_bytes: u64,
    incomplete_since: Option<Instant>,
    output: Buffer,
    unread_since: Option<Instant>,
    entries: VecDeque<Entry>,
    /// What the entries refer to, on the heap.
    entries_heap_bytes: usize,
    /// Number of commands among the entries that have no outcome yet.
    commands: usize,
    /// Number of reads among the entries.
    reads: usize,
    /// The turn had no room for the answer to a read.
    is_deferred: bool,
    /// Since when its oldest request waits for an answer, also if it is held back.
    waits_since: Option<Instant>,
    /// The outcome of a command is unknown.
    is_unknown: bool,
}

impl ClientConnection for Connection {
    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    fn note_readiness(&mut self, readiness: Readiness) {
        self.is_readable |= readiness.is_readable || readiness.is_read_closed;
    }

    fn memory_bytes(&self) -> usize {
        let entries_bytes = self.entries.capacity() * size_of::<Entry>();
        let buffers_bytes = self.input.memory_bytes() + self.output.memory_bytes();
        buffers_bytes + entries_bytes + self.entries_heap_bytes
    }
}

impl Connection {
    /// Creates the connection of a new client.
    pub fn new(arrival: Arrival, local_ports: &[u16]) -> Connection {
        let port = arrival.wire.tcp.local_addr().map(|address| address.port());
        Connection {
            id: arrival.id,
            is_local: port.is_ok_and(|port| local_ports.contains(&port)),
            wire: arrival.wire,
            is_readable: true,
            is_over: false,
            input: Buffer::default(),
            skip_bytes: 0,
            incomplete_since: None,
            output: Buffer::default(),
            unread_since: None,
            entries: VecDeque::new(),
            entries_heap_bytes: 0,
            commands: 0,
            reads: 0,
            is_deferred: false,
            waits_since: None,
            is_unknown: false,
        }
    }

    /// Returns the read index that its last read waits for.
    pub fn barrier(&self) -> Option<u64> {
        let barriers = self.entries.iter().rev();
        barriers
            .take(usize::from(self.reads > 0) * CLIENT_COMMANDS_MAX)
            .find_map(|entry| match entry {
                Entry::Read(_, barrier) => Some(*barrier),
                _ => None,
            })
    }

    /// Settles its oldest command with this outcome; `None` if it is unknown.
    pub fn settle(&mut self, outcome: Option<Outcome>) {
        let mut commands = self.entries.iter_mut();
        let waiting = commands.find_map(|entry| match entry {
            Entry::Command(_, waiting @ None) => Some(waiting),
            _ => None,
        });
        let Some(waiting) = waiting else {
            debug_assert!(false, "an outcome that nothing waits for");
            return;
        };
        self.is_unknown |= outcome.is_none();
        self.entries_heap_bytes += outcome.as_ref().map_or(0, outcome_heap_bytes);
        *waiting = outcome;
        self.commands -= 1;
    }

    /// Returns why the client must be closed, if a timeout has expired.
    pub fn timed_out(&self, now: Instant) -> Option<Closed> {
        let is_over = |since: Option<Instant>, ms: u64| {
            since.is_some_and(|since| {
                now.saturating_duration_since(since) >= Duration::from_millis(ms)
            })
        };
        if is_over(self.waits_since, UNANSWERED_MS_MAX) {
            return Some(Closed::NoQuorum);
        }
        let is_timed_out = is_over(self.unread_since, UNREAD_MS_MAX)
            || is_over(self.incomplete_since, INCOMPLETE_REQUEST_MS_MAX);
        is_timed_out.then_some(Closed::TimedOut)
    }

    /// Tells the client why it is closed, if possible.
    pub fn say_goodbye(&mut self, why: Closed) {
        let text = match why {
            // All that it asked for is held back.
            Closed::NoQuorum if self.entries.is_empty() => {
                "SERVER_ERROR no quorum; it was not done\r\n"
            }
            Closed::NoQuorum => "SERVER_ERROR no quorum; whether it was done is unknown\r\n",
            Closed::Unknown => "SERVER_ERROR whether it was done is unknown\r\n",
            Closed::Gone | Closed::TimedOut | Closed::Memory => "",
        };
        // In the middle of an answer the text would be taken for data.
        if !text.is_empty() && self.output.is_empty() {
            let _ = self.wire.write(text.as_bytes());
        }
        self.wire.say_goodbye();
    }

    /// Reads, begins, answers and writes, as far as possible in one turn.
    pub(super) fn advance(
        &mut self,
        slot: usize,
        shared: &mut Shared,
        scratch: &mut [u8],
    ) -> Result<More, Closed> {
        if self.is_unknown {
            return Err(Closed::Unknown);
        }
        let now = Instant::now();
        let mut more = More::default();
        let mut budget_bytes = CLIENT_READ_BYTES_MAX;
        let mut budget_requests = REQUESTS_PER_TURN_MAX;
        loop {
            self.answer_all(slot, shared, now)?;
            let begun = self.begin(slot, shared, &mut budget_requests, now)?;
            more.is_held = begun == Begun::Held;
            // What was begun earlier may be answered now.
            self.answer_all(slot, shared, now)?;
            let is_done = self.entries.is_empty() && self.output.is_empty();
            if self.is_over && is_done && (self.input.is_empty() || self.incomplete_since.is_some())
            {
                return Err(Closed::Gone);
            }
            if budget_requests == 0 {
                more.is_ready = true;
                break;
            }
            let is_there = !self.input.is_empty() && self.incomplete_since.is_none();
            if begun == Begun::All && is_there && self.has_room() {
                continue;
            }
            if is_there || !self.is_readable || self.is_over || !self.has_room() {
                break;
            }
            if budget_bytes == 0 {
                more.is_ready = true;
                break;
            }
            self.read(scratch, &mut budget_bytes)?;
        }
        if self.entries.is_empty() && self.entries.capacity() > IDLE_ENTRIES_MAX {
            self.entries = VecDeque::new();
        }
        more.is_ready |= std::mem::take(&mut self.is_deferred);
        let waits = more.is_held || !self.entries.is_empty();
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
        Ok(more)
    }

    fn has_room(&self) -> bool {
        self.entries.len() < CLIENT_COMMANDS_MAX && self.output.len() < CLIENT_OUTPUT_BYTES_MAX
    }

    fn read(&mut self, scratch: &mut [u8], budget_bytes: &mut usize) -> Result<(), Closed> {
        let room = scratch.len().min(*budget_bytes);
        match self.wire.read(&mut scratch[..room]) {
            Ok(0) => self.is_over = true,
            Ok(len_bytes) => {
                *budget_bytes -= len_bytes;
                let skip = self.skip_bytes.min(len_bytes as u64) as usize;
                self.skip_bytes -= skip as u64;
                self.input.extend_from_slice(&scratch[skip..len_bytes]);
                self.input.grown();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(Closed::Gone),
        }
        Ok(())
    }

    fn write(&mut self, now: Instant) -> Result<(), Closed> {
        while !self.output.is_empty() {
            match self.wire.write(&self.output) {
                Ok(0) => return Err(Closed::Gone),
                Ok(len_bytes) => {
                    self.output.advance(len_bytes);
                    self.unread_since = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.unread_since = Some(self.unread_since.unwrap_or(now));
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Closed::Gone),
            }
        }
        self.output.shrunk();
        Ok(())
    }

    /// Begins the requests that have arrived.
    fn begin(
        &mut self,
        slot: usize,
        shared: &mut Shared,
        budget: &mut usize,
        now: Instant,
    ) -> Result<Begun, Closed> {
        while self.has_room() && !self.input.is_empty() && *budget > 0 {
            // Taken out, because the entries must not borrow from self.
            let input = std::mem::take(&mut self.input);
            let parsed = parse(&input);
            let Parsed::Whole {
                len_bytes,
                skip_bytes,
                request,
            } = parsed
            else {
                let is_hopeless = parsed == Parsed::Hopeless;
                self.input = input;
                self.incomplete_since = Some(self.incomplete_since.unwrap_or(now));
                return match is_hopeless {
                    true => Err(Closed::Gone),
                    false => Ok(Begun::All),
                };
            };
            self.incomplete_since = None;
            let is_write = !is_read(&request);
            let must_wait = is_write && self.reads > 0;
            let is_held = is_write && shared.is_full();
            if must_wait || is_held {
                self.input = input;
                return Ok(match must_wait {
                    true => Begun::Waits,
                    false => Begun::Held,
                });
            }
            *budget -= 1;
            let is_quit = request == Request::Quit;
            self.understand(slot, shared, request);
            self.input = input;
            self.input.advance(len_bytes);
            let skip = skip_bytes.min(self.input.len() as u64);
            self.input.advance(skip as usize);
            self.skip_bytes = skip_bytes - skip;
            self.input.shrunk();
            if is_quit {
                self.is_over = true;
                self.input = Buffer::default();
            }
        }
        Ok(Begun::All)
    }

    fn submit(&mut self, slot: usize, shared: &mut Shared, command: &Command, awaited: Awaited) {
        shared.submit(slot, self.id, command);
        self.commands += 1;
        self.push(Entry::Command(awaited, None));
    }

    fn push(&mut self, entry: Entry) {
        self.entries_heap_bytes += entry.heap_bytes();
        self.reads += usize::from(matches!(entry, Entry::Read(..)));
        self.entries.push_back(entry);
    }

    fn push_read(&mut self, shared: &mut Shared, read: Read) {
        let barrier = match self.is_local {
            true => 0,
            false => shared.wants_barrier(),
        };
        self.push(Entry::Read(read, barrier));
    }

    fn understand(&mut self, slot: usize, shared: &mut Shared, request: Request) {
        if let Some((command, awaited)) = command_of(&request) {
            count(&request, &shared.counters);
            return self.submit(slot, shared, &command, awaited);
        }
        match request {
            Request::Get { with_cas, keys } => {
                let keys = Keys::new(&keys);
                self.push_read(shared, Read::Get { with_cas, keys });
            }
            Request::Meta(meta) if meta.is_read() => {
                let reply = Box::new(MetaReply::new(&meta));
                self.push_read(shared, Read::Meta(reply));
            }
            Request::Debug { key } => self.push_read(shared, Read::Debug(key.into_owned())),
            Request::GetAndTouch {
                with_cas,
                exptime_s,
                keys,
            } => {
                Counters::add(&shared.counters.cmd_touch, keys.len() as u64);
                if keys.is_empty() {
                    self.push(Entry::Text("END"));
                }
                for (n, key) in keys.iter().enumerate() {
                    let command = Command::Fetch {
                        key,
                        create_exptime_s: None,
                        exptime_s: Some(exptime_s),
                        recache_s: None,
                        touches_first: true,
                        is_binary_key: false,
                        marks_read: true,
                        takes_token: false,
                    };
                    let awaited = Awaited::Item {
                        key: key.to_vec(),
                        with_cas,
                        is_last: n + 1 == keys.len(),
                    };
                    self.submit(slot, shared, &command, awaited);
                }
            }
            Request::Stats(what) => {
                let bytes = stats(what, shared);
                self.push(Entry::Bytes(bytes));
            }
            Request::Say(text) => self.push(Entry::Text(text)),
            Request::Quit => {}
            Request::Store { .. }
            | Request::Delete { .. }
            | Request::Arithmetic { .. }
            | Request::Touch { .. }
            | Request::FlushAll { .. }
            | Request::Meta(_) => unreachable!("it is a command"),
        }
    }

    /// Answers what can be answered, as far as the client accepts it.
    fn answer_all(&mut self, slot: usize, shared: &mut Shared, now: Instant) -> Result<(), Closed> {
        loop {
            self.answer(slot, shared);
            let has_filled = self.output.len() >= CLIENT_OUTPUT_BYTES_MAX;
            self.write(now)?;
            // If the socket has taken everything, no event will report that there is room.
            if !has_filled || self.output.len() >= CLIENT_OUTPUT_BYTES_MAX {
                return Ok(());
            }
        }
    }

    /// Answers requests from the oldest on, until the output is full.
    fn answer(&mut self, slot: usize, shared: &mut Shared) {
        while self.output.len() < CLIENT_OUTPUT_BYTES_MAX {
            let Some(mut entry) = self.entries.pop_front() else {
                break;
            };
            self.entries_heap_bytes -= entry.heap_bytes();
            let mut out = Vec::new();
            let was_read = matches!(entry, Entry::Read(..));
            let is_answered = match &mut entry {
                Entry::Text(text) => {
                    if !text.is_empty() {
                        out.extend_from_slice(text.as_bytes());
                        out.extend_from_slice(b"\r\n");
                    }
                    true
                }
                Entry::Bytes(bytes) => {
                    out = std::mem::take(bytes);
                    true
                }
                Entry::Command(_, None) => false,
                Entry::Command(awaited, Some(outcome)) => {
                    awaited.say(outcome, shared.reader.time_ms(), &mut out);
                    true
                }
                Entry::Read(_, barrier) if *barrier > shared.reached => false,
                Entry::Read(..) if shared.reads_left_bytes == 0 => {
                    shared.deferred.get_or_insert(slot);
                    self.is_deferred = true;
                    false
                }
                Entry::Read(read, _) => match read.answer(shared, &mut out) {
                    Answered::Whole => {
                        self.reads -= 1;
                        true
                    }
                    Answered::Part => false,
                    Answered::MustWrite => {
                        let Read::Meta(reply) = read else {
                            unreachable!("only meta commands write");
                        };
                        let command = Command::Fetch {
                            key: reply.key(),
                            create_exptime_s: None,
                            exptime_s: None,
                            recache_s: None,
                            touches_first: false,
                            is_binary_key: false,
                            marks_read: !reply.flags().does_not_count,
                            takes_token: true,
                        };
                        shared.submit(slot, self.id, &command);
                        self.commands += 1;
                        self.reads -= 1;
                        entry = Entry::Command(Awaited::Meta(reply.clone()), None);
                        false
                    }
                },
            };
            if !out.is_empty() {
                self.output.extend_from_slice(&out);
                self.output.grown();
            }
            if was_read {
                shared.reads_left_bytes = shared.reads_left_bytes.saturating_sub(out.len());
            }
            if is_answered {
                self.waits_since = None;
                continue;
            }
            let is_part = !out.is_empty();
            if is_part {
                self.waits_since = None;
            }
            self.entries_heap_bytes += entry.heap_bytes();
            self.entries.push_front(entry);
            if !is_part {
                break;
            }
        }
    }
}

impl Entry {
    fn heap_bytes(&self) -> usize {
        match self {
            Entry::Text(_) => 0,
            Entry::Bytes(bytes) => bytes.capacity() + ALLOCATION_OVERHEAD_BYTES,
            Entry::Command(awaited, outcome) => {
                awaited.heap_bytes() + outcome.as_ref().map_or(0, outcome_heap_bytes)
            }
            Entry::Read(Read::Get { keys, .. }, _) => keys.heap_bytes(),
            Entry::Read(Read::Meta(reply), _) => reply.boxed_bytes(),
            Entry::Read(Read::Debug(key), _) => key.capacity() + ALLOCATION_OVERHEAD_BYTES,
        }
    }
}

fn outcome_heap_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Fetched(fetched) => {
            size_of::<Fetched>() + fetched.item.value.capacity() + 2 * ALLOCATION_OVERHEAD_BYTES
        }
        _ => 0,
    }
}

enum Answered {
    Whole,
    /// There is more, but the client must take this part first.
    Part,
    /// The request needs a command.
    MustWrite,
}

impl Read {
    fn answer(&mut self, shared: &Shared, out: &mut Vec<u8>) -> Answered {
        let (reader, counters) = (&shared.reader, &shared.counters);
        let now_ms = reader.time_ms();
        match self {
            Read::Get { with_cas, keys } => {
                while let Some(key) = keys.take_next() {
                    get(shared, key, *with_cas, out);
                    if out.len() >= READS_PER_TURN_BYTES_MAX {
                        return Answered::Part;
                    }
                }
                out.extend_from_slice(b"END\r\n");
            }
            Read::Debug(key) => match reader.get(key) {
                Some(item) => debug(out, key, &item, now_ms),
                None => out.extend_from_slice(b"EN\r\n"),
            },
            Read::Meta(reply) => {
                let key = reply.key();
                let item = match reader.get(key) {
                    Some(item) if item.meta.marks & (STALE | WON) == STALE => {
                        return Answered::MustWrite;
                    }
                    other => other,
                };
                if item.is_some() && !reply.flags().does_not_count {
                    reader.get_and_mark(key, now_ms / 1000);
                }
                Counters::add(&counters.cmd_get, 1);
                let outcome = match item {
                    None => {
                        Counters::add(&counters.get_misses, 1);
                        Outcome::NotFound
                    }
                    Some(item) => {
                        Counters::add(&counters.get_hits, 1);
                        Outcome::Fetched(Box::new(Fetched {
                            before: item.meta,
                            was_won: item.meta.marks & WON != 0,
                            has_won: false,
                            item,
                        }))
                    }
                };
                reply.say(&outcome, now_ms, out);
            }
        }
        Answered::Whole
    }
}
