//! A proposer, sans-I/O: it opens a session, and sends each request until a learner answers or its deadline has passed.

mod time_out;
mod window;

use std::collections::BTreeMap;

use inband_host::session::SEQUENCES_ABOVE_LOW_MAX;

use crate::request::Request;
use crate::wire::{flag, intact, Header, Type};

use time_out::TimeOut;
pub use time_out::{FIRST_NS, MAX_NS, MIN_NS};
use window::Window;

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
    /// The last one that it was sent to, when, and how often it was sent again.
    serializer: usize,
    sent_at: u64,
    repeats: u32,
    again_at: u64,
    deadline: u64,
}

/// What it wants: packets to be signed, and to which serializer they go, from 0.
pub type Out = Vec<(usize, Vec<u8>)>;

/// See the module.
pub struct Proposer {
    serializers: usize,
    /// The one that new requests go to.
    current: usize,
    /// When a request that went to it was answered last.
    answered_at: u64,
    time_out: TimeOut,
    window: Window,
    reply_to: u64,
    /// Of its opening, drawn at its start.
    nonce: u64,
    session: Option<u64>,
    next: u64,
    sent: BTreeMap<u64, Sent>,
    done: Vec<(u64, Outcome)>,
}

/// Most requests under way at a time.
pub const OUTSTANDING_MAX: usize = 1024;
/// From the oldest request under way to the next: fewer than a session remembers.
const SPAN_MAX: u64 = SEQUENCES_ABOVE_LOW_MAX as u64 / 2;

/// The number of the request that opens the session.
const OPENING: u64 = 0;

impl Proposer {
    /// `serializers`: how many there are. `nonce`: drawn at its start. Its session is opened by [`Proposer::tick`].
    pub fn new(serializers: usize, reply_to: u64, nonce: u64) -> Proposer {
        Proposer {
            serializers,
            current: 0,
            answered_at: 0,
            time_out: TimeOut::default(),
            window: Window::default(),
            reply_to,
            nonce,
            session: None,
            next: 1,
            sent: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// May it submit? Its session is open, not too much is under way, and the oldest request is not too far behind: learners
    /// remember what was applied above it.
    pub fn is_ready(&self) -> bool {
        let oldest = self.sent.keys().next().copied().unwrap_or(self.next);
        self.session.is_some()
            && self.sent.len() < self.window.size()
            && self.next - oldest < SPAN_MAX
    }

    /// Its session's id.
    pub fn session(&self) -> Option<u64> {
        self.session
    }

    /// The serializer that new requests go to, from 0.
    pub fn serializer(&self) -> usize {
        self.current
    }

    /// Has a request ended since the last [`Proposer::take_done`]?
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
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
            sent_at: now,
            repeats: 0,
            again_at: now + self.time_out.after(0),
            deadline,
        };
        self.sent.insert(request.number, sent);
    }

    /// A packet has arrived.
    pub fn on_packet(&mut self, now: u64, packet: &[u8]) {
        let Some((header, _)) = intact(packet) else {
            return;
        };
        if header.kind != Type::Reply {
            return;
        }
        match self.session {
            None if header.client == self.nonce && header.request == OPENING => {
                self.session = Some(header.instance);
                self.answered(now, OPENING);
            }
            Some(session) if header.client == session => self.on_reply(now, &header),
            _ => {}
        }
    }

    fn on_reply(&mut self, now: u64, header: &Header) {
        if !self.sent.contains_key(&header.request) {
            return;
        }
        self.answered(now, header.request);
        let outcome = if header.has(flag::REFUSED) {
            Outcome::Unknown
        } else {
            Outcome::Delivered(header.instance)
        };
        self.done.push((header.request, outcome));
    }

    fn answered(&mut self, now: u64, number: u64) {
        let Some(sent) = self.sent.remove(&number) else {
            return;
        };
        if sent.serializer == self.current {
            self.answered_at = now;
        }
        // The answer to a request that was sent again may be to either.
        if sent.repeats == 0 {
            self.time_out.measured(now.saturating_sub(sent.sent_at));
            self.window.answered();
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
            // Nothing has been answered since it was sent: the serializer does not work. Otherwise the packet was lost, and
            // one serializer for all requests keeps them in one order.
            if sent.serializer == self.current && self.answered_at <= sent.sent_at {
                self.current = (self.current + 1) % self.serializers;
                self.answered_at = now;
            }
            self.window.lost(now, sent.sent_at);
            sent.serializer = (sent.serializer + 1) % self.serializers;
            sent.sent_at = now;
            sent.repeats += 1;
            sent.again_at = now + self.time_out.after(sent.repeats);
            out.push((sent.serializer, sent.packet.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::emit;

    const MS: u64 = 1_000_000;

    fn reply(client: u64, request: u64, instance: u64) -> Vec<u8> {
        let header = Header {
            client,
            request,
            instance,
            ..Header::of(Type::Reply)
        };
        emit(&header, &[])
    }

    /// One whose session is open, at this time.
    fn ready(now: u64) -> Proposer {
        let mut proposer = Proposer::new(3, 1, 7);
        proposer.tick(now, &mut Out::new());
        proposer.on_packet(now + MS, &reply(7, OPENING, 1));
        assert!(proposer.is_ready());
        proposer
    }

    fn goes_to(proposer: &mut Proposer, now: u64) -> usize {
        let mut out = Out::new();
        proposer.submit(now, b"value", u64::MAX, &mut out);
        out[0].0
    }

    #[test]
    fn a_serializer_that_answers_nothing_is_left() {
        let mut proposer = ready(MS);
        assert_eq!(goes_to(&mut proposer, 3 * MS), 0);
        let mut out = Out::new();
        let due = proposer.due();
        assert!(due <= 3 * MS + FIRST_NS);
        proposer.tick(due, &mut out);
        let again: Vec<usize> = out.iter().map(|(serializer, _)| *serializer).collect();
        assert_eq!(again, [1]);
        // A new request does not wait for the same time-out.
        assert_eq!(goes_to(&mut proposer, due), 1);
    }

    #[test]
    fn a_lost_request_moves_no_other() {
        let mut proposer = ready(MS);
        goes_to(&mut proposer, 3 * MS);
        goes_to(&mut proposer, 3 * MS);
        proposer.on_packet(4 * MS, &reply(1, 2, 2));
        let mut out = Out::new();
        proposer.tick(proposer.due(), &mut out);
        assert_eq!((out.len(), out[0].0), (1, 1));
        assert_eq!(goes_to(&mut proposer, 30 * MS), 0);
    }

    #[test]
    fn it_waits_for_an_old_request_before_learners_forget() {
        let mut proposer = ready(MS);
        let mut submitted = 0;
        while proposer.is_ready() && submitted <= SEQUENCES_ABOVE_LOW_MAX as u64 {
            goes_to(&mut proposer, 3 * MS);
            submitted += 1;
            // All but the first are answered.
            if submitted > 1 {
                proposer.on_packet(4 * MS, &reply(1, submitted, submitted));
            }
        }
        assert!(submitted < SEQUENCES_ABOVE_LOW_MAX as u64, "{submitted}");
        proposer.on_packet(4 * MS, &reply(1, 1, 9));
        assert!(proposer.is_ready());
    }

    #[test]
    fn repeats_become_rare() {
        let mut proposer = ready(MS);
        goes_to(&mut proposer, 3 * MS);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let due = proposer.due();
            proposer.tick(due, &mut Out::new());
            waits.push(proposer.due() - due);
        }
        assert!(waits.windows(2).all(|w| w[1] == (2 * w[0]).min(MAX_NS)));
        assert_eq!(waits.last(), Some(&MAX_NS));
    }
}
