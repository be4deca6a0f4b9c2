//! A proposer, sans-I/O: it opens a session, and sends each request until a learner answers or its deadline has passed.

use std::collections::BTreeMap;

use crate::request::Request;
use crate::wire::{flag, intact, Header, Type};

const MS: u64 = 1_000_000;
/// How long an answer may take before the request is sent again, to the next serializer, in nanoseconds.
pub const RETRY_NS: u64 = 20 * MS;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the log, once; it was decided in this instance, or if it was decided twice, in one of the two.
    Delivered(u64),
    /// The deadline has passed, or the session has expired meanwhile: it may be in the log, now or later.
    Unknown,
}

struct Sent {
    packet: Vec<u8>,
    serializer: usize,
    again_at: u64,
    deadline: u64,
}

/// What it wants: packets to be signed, and to which serializer they go, from 0.
pub type Out = Vec<(usize, Vec<u8>)>;

/// See the module.
pub struct Proposer {
    serializers: usize,
    /// The one that answered last.
    current: usize,
    reply_to: u64,
    /// Of its opening, drawn at its start.
    nonce: u64,
    session: Option<u64>,
    next: u64,
    sent: BTreeMap<u64, Sent>,
    done: Vec<(u64, Outcome)>,
}

/// Requests under way at a time: fewer than a session remembers.
pub const OUTSTANDING_MAX: usize = 1024;

/// The number of the request that opens the session.
const OPENING: u64 = 0;

impl Proposer {
    /// `serializers`: how many there are. `nonce`: drawn at its start. Its session is opened by [`Proposer::tick`].
    pub fn new(serializers: usize, reply_to: u64, nonce: u64) -> Proposer {
        Proposer {
            serializers,
            current: 0,
            reply_to,
            nonce,
            session: None,
            next: 1,
            sent: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// May it submit? Its session is open, and not too much is under way.
    pub fn is_ready(&self) -> bool {
        self.session.is_some() && self.sent.len() < OUTSTANDING_MAX
    }

    /// Its session's id.
    pub fn session(&self) -> Option<u64> {
        self.session
    }

    /// Requests under way.
    pub fn outstanding(&self) -> usize {
        self.sent
            .keys()
            .filter(|number| **number != OPENING)
            .count()
    }

    /// Submit a value. Returns its number, with which [`Proposer::take_done`] tells its outcome.
    ///
    /// # Panics
    /// If it is not [`Proposer::is_ready`].
    pub fn submit(&mut self, now: u64, value: &[u8], deadline: u64, out: &mut Out) -> u64 {
        assert!(self.is_ready(), "it may submit");
        let number = self.next;
        self.next += 1;
        let low = self.sent.keys().next().copied().unwrap_or(number);
        let request = Request {
            client: self.session.expect("the session is open"),
            number,
            low,
            opens: false,
            reply_to: self.reply_to,
            value: value.to_vec(),
        };
        self.send(now, &request, deadline, out);
        number
    }

    fn send(&mut self, now: u64, request: &Request, deadline: u64, out: &mut Out) {
        let packet = request.packet();
        out.push((self.current, packet.clone()));
        let sent = Sent {
            packet,
            serializer: self.current,
            again_at: now + RETRY_NS,
            deadline,
        };
        self.sent.insert(request.number, sent);
    }

    /// A packet has arrived.
    pub fn on_packet(&mut self, packet: &[u8]) {
        let Some((header, _)) = intact(packet) else {
            return;
        };
        if header.kind != Type::Reply {
            return;
        }
        match self.session {
            None if header.client == self.nonce && header.request == OPENING => {
                self.session = Some(header.instance);
                self.answered(OPENING);
            }
            Some(session) if header.client == session => self.on_reply(&header),
            _ => {}
        }
    }

    fn on_reply(&mut self, header: &Header) {
        if !self.sent.contains_key(&header.request) {
            return;
        }
        self.answered(header.request);
        let outcome = if header.has(flag::REFUSED) {
            Outcome::Unknown
        } else {
            Outcome::Delivered(header.instance)
        };
        self.done.push((header.request, outcome));
    }

    fn answered(&mut self, number: u64) {
        if let Some(sent) = self.sent.remove(&number) {
            self.current = sent.serializer;
        }
    }

    /// Requests that have ended since the last call.
    pub fn take_done(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.done)
    }

    /// When [`Proposer::tick`] is due.
    pub fn due(&self) -> u64 {
        if self.session.is_none() && self.sent.is_empty() {
            return 0;
        }
        let due = self
            .sent
            .values()
            .map(|sent| sent.again_at.min(sent.deadline));
        due.min().unwrap_or(u64::MAX)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: u64, out: &mut Out) {
        if self.session.is_none() && self.sent.is_empty() {
            let opening = Request {
                client: self.nonce,
                number: OPENING,
                low: 0,
                opens: true,
                reply_to: self.reply_to,
                value: Vec::new(),
            };
            self.send(now, &opening, u64::MAX, out);
        }
        let over: Vec<u64> = self
            .sent
            .iter()
            .filter(|(_, sent)| now >= sent.deadline)
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.sent.remove(&number);
            self.done.push((number, Outcome::Unknown));
        }
        for sent in self.sent.values_mut().filter(|sent| now >= sent.again_at) {
            sent.serializer = (sent.serializer + 1) % self.serializers;
            sent.again_at = now + RETRY_NS;
            out.push((sent.serializer, sent.packet.clone()));
        }
    }
}
