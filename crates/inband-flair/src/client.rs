//! The client state machine: requests in, outcomes out. Every request ends by its deadline: done, failed, or with
//! unknown outcome.

use std::collections::{BTreeMap, BTreeSet};

use crate::dataplane::wire::{self, flag, Header, Type};

use crate::digests::Digests;
use crate::limits::{
    CLIENT_REQUESTS_MAX, CLIENT_WINDOW_MAX, KEY_AND_DATA_LEN_BYTES_MAX, KEY_LEN_BYTES_MAX,
};
use crate::packets::Packets;
use crate::reads::Reads;
use crate::timing::{ClientTiming, Nanos};

/// Timeouts of one switch before the client tries the next one.
const SILENCES_MAX: u32 = 2;

#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub set: u16,
    /// The number of switches.
    pub switches: u8,
    pub reads: Reads,
    /// Chosen at random: must be unique among the clients at one address.
    pub nonce: u64,
    pub timing: ClientTiming,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Get(Vec<u8>),
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

/// Identifies a request of a client; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The client's replica set.
    pub set: u16,
    /// The request's number in that set.
    pub number: u64,
}

/// Why a request was rejected; nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The key is empty.
    #[error("the key is empty; give one of 1 to {KEY_LEN_BYTES_MAX} bytes")]
    NoKey,
    /// The key is too long; the length in bytes.
    #[error(
        "a key of {0} bytes is over the limit of {KEY_LEN_BYTES_MAX} bytes; choose a shorter one"
    )]
    KeyTooLong(usize),
    /// Key and data together are too long; their length in bytes.
    #[error("key and data of {0} bytes together are over the limit of {KEY_AND_DATA_LEN_BYTES_MAX} bytes, which is what one packet carries; split the data over several keys")]
    TooLong(usize),
    /// Too many requests are in flight; their number.
    #[error("{0} requests are in flight, which is the limit; wait until some have ended")]
    TooMany(usize),
}

/// Why a request failed. It had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A read timed out, after this many milliseconds.
    #[error(
        "no switch and replica answered in {0} ms; is the cluster up? `inband status` shows it"
    )]
    NoAnswer(u64),
    /// A write was never sent because no session could be opened in this many milliseconds.
    #[error("no session could be opened in {0} ms; is the cluster up? `inband status` shows it")]
    NoSession(u64),
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Of a get: the data, or `None` if the key does not exist.
    Value(Option<Vec<u8>>),
    /// A put or delete was done.
    Written,
    /// A delete was done; the key did not exist.
    Missing,
    /// The request had no effect.
    Failed(Failure),
    /// A write that may or may not take effect. If it does, not before it was submitted.
    Unknown,
}

/// The output of the state machine.
#[derive(Debug, Default)]
pub struct Out {
    pub packets: Packets,
    /// Requests that ended.
    pub outcomes: Vec<(Ticket, Outcome)>,
}

/// Matches replies to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Open,
    Read(u64),
    Write(u64),
}

#[derive(Debug)]
struct Request {
    ticket: Ticket,
    op: Option<Op>,
    key_hash: u64,
    deadline: Nanos,
    due: Nanos,
    wait_ns: Nanos,
    /// The switch it was last sent to, and how many times in a row it timed out.
    switch: u8,
    silences: u32,
    nacks: u32,
}

#[derive(Debug)]
pub struct Client {
    config: Config,
    digests: Digests,
    /// The session; `None` while it is being opened or if none has been needed yet.
    session: Option<u64>,
    opens: u64,
    switch: u8,
    tickets: u64,
    /// The sequence number of the next write in the session.
    next_seq: u64,
    pending: BTreeMap<Name, Request>,
    due: BTreeSet<(Nanos, Name)>,
    /// Writes waiting for a session.
    waiting: BTreeMap<Ticket, Request>,
    repeated: u64,
}

/// Checks that the operation is within the limits.
pub(crate) fn check(op: &Op) -> Result<(), SubmitError> {
    let (key, data_len_bytes) = match op {
        Op::Get(key) | Op::Delete(key) => (key, 0),
        Op::Put(key, data) => (key, data.len()),
    };
    let len_bytes = key.len() + data_len_bytes;
    match key.len() {
        0 => Err(SubmitError::NoKey),
        key if key > KEY_LEN_BYTES_MAX => Err(SubmitError::KeyTooLong(key)),
        _ if len_bytes > KEY_AND_DATA_LEN_BYTES_MAX => Err(SubmitError::TooLong(len_bytes)),
        _ => Ok(()),
    }
}

impl Op {
    /// Returns the key that it reads or writes.
    pub fn key(&self) -> &[u8] {
        let (Op::Get(key) | Op::Delete(key) | Op::Put(key, _)) = self;
        key
    }

    /// Returns whether it is a read.
    pub fn is_read(&self) -> bool {
        matches!(self, Op::Get(_))
    }
}

impl Client {
    /// Creates a client without a session.
    pub fn new(config: Config) -> Client {
        Client {
            config,
            digests: Digests::default(),
            session: None,
            opens: 0,
            switch: 0,
            // A random start, so that replies to an earlier process on the same port match no request.
            tickets: config.nonce >> 1,
            next_seq: 1,
            pending: BTreeMap::new(),
            due: BTreeSet::new(),
            waiting: BTreeMap::new(),
            repeated: 0,
        }
    }

    /// Sets how keys and data are hashed. Must match the rest of the cluster, and must be called before the first
    /// request.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// Submits a request. Its outcome is in this call's `out` or in that of a later call.
    pub fn submit(&mut self, now: Nanos, op: Op, out: &mut Out) -> Result<Ticket, SubmitError> {
        check(&op)?;
        let under_way = self.under_way();
        let is_full = under_way >= CLIENT_REQUESTS_MAX || self.window() >= CLIENT_WINDOW_MAX;
        if is_full {
            return Err(SubmitError::TooMany(under_way));
        }
        self.tickets += 1;
        let ticket = self.ticket(self.tickets);
        let request = self.request(now, ticket, Some(op));
        match (&request.op, self.session) {
            (Some(Op::Get(_)), _) => self.begin(now, Name::Read(ticket.number), request, out),
            (_, Some(_)) => self.begin_write(now, request, out),
            (_, None) => {
                self.waiting.insert(ticket, request);
                self.open(now, out);
            }
        }
        Ok(ticket)
    }

    /// Handles a packet received from a switch.
    pub fn on_packet(&mut self, now: Nanos, packet: &[u8], out: &mut Out) {
        let Ok((header, key, data)) = wire::parse(packet) else {
            return;
        };
        if header.set == self.config.set {
            self.on_reply(now, &header, key, data, out);
        }
    }

    /// Handles a packet of this set.
    pub(crate) fn on_reply(
        &mut self,
        now: Nanos,
        header: &Header,
        key: &[u8],
        data: &[u8],
        out: &mut Out,
    ) {
        match header.kind {
            Type::ReadReply => self.on_value(header, key, data, out),
            Type::WriteReply => self.on_written(now, header, out),
            Type::Nack => self.on_nack(now, header, out),
            Type::Read | Type::Write | Type::Heartbeat | Type::Install => {}
        }
    }

    /// Returns when to call [`Client::tick`] next.
    pub fn due(&self) -> Option<Nanos> {
        let waiting = self.waiting.values().next().map(|r| r.deadline);
        let due = self.due.first().map(|(due, _)| *due);
        due.into_iter().chain(waiting).min()
    }

    /// Handles timeouts.
    pub fn tick(&mut self, now: Nanos, out: &mut Out) {
        while let Some((due, name)) = self.due.first().copied() {
            if due > now {
                break;
            }
            self.due.pop_first();
            self.on_due(now, name, out);
        }
        while let Some(entry) = self.waiting.first_entry() {
            if entry.get().deadline > now {
                break;
            }
            let failure = Failure::NoSession(self.config.timing.deadline_ms());
            let outcome = Outcome::Failed(failure);
            out.outcomes.push((entry.remove().ticket, outcome));
        }
        if !self.waiting.is_empty() {
            self.open(now, out);
        }
    }

    /// Returns the number of requests in flight.
    pub fn under_way(&self) -> usize {
        let opening = usize::from(self.pending.contains_key(&Name::Open));
        self.pending.len() + self.waiting.len() - opening
    }

    /// Returns the number of retransmissions.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    fn ticket(&self, number: u64) -> Ticket {
        let set = self.config.set;
        Ticket { set, number }
    }

    fn request(&self, now: Nanos, ticket: Ticket, op: Option<Op>) -> Request {
        let reads = self.config.reads;
        let key_hash = op.as_ref().map_or(0, |op| {
            reads.route(self.digests.of_key(op.key()), op.is_read())
        });
        Request {
            ticket,
            op,
            key_hash,
            deadline: now + self.config.timing.deadline_ns,
            due: now,
            wait_ns: self.config.timing.retry_ns,
            switch: self.switch,
            silences: 0,
            nacks: 0,
        }
    }

    /// Returns the lowest write in flight.
    fn low(&self) -> u64 {
        let mut writes = self.pending.range(Name::Write(0)..);
        match writes.next() {
            Some((Name::Write(seq), _)) => *seq,
            _ => self.next_seq,
        }
    }

    fn window(&self) -> usize {
        (self.next_seq - self.low()) as usize + self.waiting.len()
    }

    fn begin(&mut self, now: Nanos, name: Name, request: Request, out: &mut Out) {
        self.due.insert((request.due, name));
        self.pending.insert(name, request);
        self.send(now, name, out);
    }

    fn begin_write(&mut self, now: Nanos, request: Request, out: &mut Out) {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.begin(now, Name::Write(seq), request, out);
    }

    /// Opens a session, unless that is already in progress. The number that identifies the request is also its key.
    fn open(&mut self, now: Nanos, out: &mut Out) {
        if self.pending.contains_key(&Name::Open) {
            return;
        }
        self.opens += 1;
        let mut request = self.request(now, self.ticket(0), None);
        let hash = self.digests.of_key(&self.open_key());
        request.key_hash = self.config.reads.route(hash, false);
        self.begin(now, Name::Open, request, out);
    }

    fn open_key(&self) -> [u8; 8] {
        self.config.nonce.wrapping_add(self.opens).to_be_bytes()
    }

    fn send(&mut self, now: Nanos, name: Name, out: &mut Out) {
        let (low, session, open_key) = (self.low(), self.session, self.open_key());
        let Some(request) = self.pending.get_mut(&name) else {
            return;
        };
        self.due.remove(&(request.due, name));
        request.switch = self.switch;
        request.due = (now + request.wait_ns).min(request.deadline);
        self.due.insert((request.due, name));
        let kind = match name {
            Name::Read(_) => Type::Read,
            Name::Open | Name::Write(_) => Type::Write,
        };
        let mut header = Header::new(kind, self.config.set, 0);
        header.key_hash = request.key_hash;
        let (key, data): (&[u8], &[u8]) = match &request.op {
            None => (&open_key, &[]),
            Some(Op::Put(key, data)) => (key, data),
            Some(Op::Get(key) | Op::Delete(key)) => (key, &[]),
        };
        header.digest = self.digests.of_data(data);
        match name {
            Name::Open => {
                header.flags = flag::OPEN;
                header.client_seq = u64::from_be_bytes(open_key);
            }
            Name::Read(number) => header.client_seq = number,
            Name::Write(seq) => {
                header.client_id = session.expect("a write has a session");
                header.client_seq = seq;
                header.window = (seq - low) as u16;
                if matches!(request.op, Some(Op::Delete(_))) {
                    header.flags = flag::DELETE;
                }
            }
        }
        out.packets.push(request.switch, &header, key, data);
    }

    fn end(&mut self, name: Name) -> Option<Request> {
        let request = self.pending.remove(&name)?;
        self.due.remove(&(request.due, name));
        Some(request)
    }

    fn on_value(&mut self, header: &Header, key: &[u8], data: &[u8], out: &mut Out) {
        let name = Name::Read(header.client_seq);
        let asked = self.pending.get(&name).and_then(|r| r.op.as_ref());
        let is_for_it = asked.is_some_and(|op| op.key() == key) && header.client_id == 0;
        let is_whole = header.digest == self.digests.of_data(data) && !header.has(flag::REFUSED);
        if !is_for_it || !is_whole {
            return;
        }
        if let Some(request) = self.end(name) {
            let value = (!header.has(flag::MISSING)).then(|| data.to_vec());
            out.outcomes.push((request.ticket, Outcome::Value(value)));
        }
    }

    fn on_written(&mut self, now: Nanos, header: &Header, out: &mut Out) {
        let opened = u64::from_be_bytes(self.open_key());
        if self.session.is_none() {
            // While a session is being opened, no write is in flight.
            if header.client_seq == opened && self.end(Name::Open).is_some() {
                self.session = Some(header.client_id);
                self.next_seq = 1;
                for (_, request) in std::mem::take(&mut self.waiting) {
                    self.begin_write(now, request, out);
                }
            }
            return;
        }
        if self.session != Some(header.client_id) {
            return;
        }
        if header.has(flag::REFUSED) {
            return self.lose_session(out);
        }
        if let Some(request) = self.end(Name::Write(header.client_seq)) {
            let outcome = match header.has(flag::MISSING) {
                true => Outcome::Missing,
                false => Outcome::Written,
            };
            out.outcomes.push((request.ticket, outcome));
        }
    }

    /// The replicas have dropped the session. Writes in flight may have been applied before that, so their outcome is
    /// unknown.
    fn lose_session(&mut self, out: &mut Out) {
        self.session = None;
        let is_write = |name: &&Name| matches!(name, Name::Write(_));
        let writes: Vec<Name> = self.pending.keys().filter(is_write).copied().collect();
        for request in writes.into_iter().filter_map(|name| self.end(name)) {
            out.outcomes.push((request.ticket, Outcome::Unknown));
        }
    }

    /// The switch has no session: try the next switch, and pause after trying all of them.
    fn on_nack(&mut self, now: Nanos, header: &Header, out: &mut Out) {
        let name = match (header.has(flag::OPEN), header.client_id) {
            (true, _) => Name::Open,
            (false, 0) => Name::Read(header.client_seq),
            (false, _) => Name::Write(header.client_seq),
        };
        let Some(request) = self.pending.get_mut(&name) else {
            return;
        };
        request.nacks += 1;
        let all_asked = request.nacks % u32::from(self.config.switches) == 0;
        if request.switch == self.switch {
            self.switch = (self.switch + 1) % self.config.switches;
        }
        request.silences = 0;
        request.wait_ns = self.config.timing.retry_ns;
        if !all_asked {
            return self.send(now, name, out);
        }
        let due = (now + self.config.timing.nack_ns).min(request.deadline);
        self.due.remove(&(request.due, name));
        request.due = due;
        self.due.insert((due, name));
    }

    fn on_due(&mut self, now: Nanos, name: Name, out: &mut Out) {
        let Some(request) = self.pending.get_mut(&name) else {
            return;
        };
        if now >= request.deadline {
            return self.give_up(name, out);
        }
        request.silences += 1;
        request.wait_ns = (request.wait_ns * 2).min(self.config.timing.retry_max_ns);
        if request.silences % SILENCES_MAX == 0 && request.switch == self.switch {
            self.switch = (self.switch + 1) % self.config.switches;
        }
        self.repeated += 1;
        self.send(now, name, out);
    }

    fn give_up(&mut self, name: Name, out: &mut Out) {
        let Some(request) = self.end(name) else {
            return;
        };
        match name {
            Name::Open => {} // `tick` opens it again if writes are still waiting
            Name::Read(_) => {
                let failure = Failure::NoAnswer(self.config.timing.deadline_ms());
                let outcome = Outcome::Failed(failure);
                out.outcomes.push((request.ticket, outcome));
            }
            Name::Write(_) => out.outcomes.push((request.ticket, Outcome::Unknown)),
        }
    }
}
