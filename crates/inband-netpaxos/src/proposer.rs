//! A proposer, sans-I/O: it opens a session, and retransmits each request until a learner answers or its deadline has
//! passed.

mod time_out;
mod window;

use std::collections::BTreeMap;

use inband_host::session::SEQUENCES_ABOVE_LOW_MAX;

use crate::request::Request;
use crate::wire::{flag, intact, Header, Type};

use time_out::TimeOut;
pub use time_out::{FIRST_NS, MAX_NS, MIN_NS};
use window::Window;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request is in the log, once. This is the instance that decided it, or one of the two if it was decided
    /// twice.
    Delivered(u64),
    /// The deadline has passed, or the session has expired: the request may be in the log, now or later.
    Unknown,
}

/// The way back to the first serializer: if each proposer stayed with the one that it had changed to, they would use
/// different ones for good, and requests would reach the minions in different orders.
#[derive(Default)]
struct Back {
    /// The request that tries the first serializer.
    trial: Option<u64>,
    try_at: u64,
    /// Trials that have failed in a row.
    failed: u32,
}

impl Back {
    fn later(&mut self, now: u64) {
        self.trial = None;
        self.try_at = now + (BACK_AFTER_NS << self.failed.min(BACK_DOUBLINGS_MAX));
    }
}

struct Sent {
    /// The request's session, or the nonce of the opening.
    client: u64,
    packet: Vec<u8>,
    /// The serializer it was last sent to.
    serializer: usize,
    sent_at: u64,
    repeats: u32,
    again_at: u64,
    deadline: u64,
}

/// Packets to sign and send, each with the number of its serializer, from 0.
pub type Out = Vec<(usize, Vec<u8>)>;

/// A proposer of requests. See the [module](self).
pub struct Proposer {
    serializers: usize,
    /// The serializer that new requests go to.
    current: usize,
    /// When it last answered a request.
    answered_at: u64,
    back: Back,
    time_out: TimeOut,
    window: Window,
    reply_to: u64,
    /// Identifies the session's opening; drawn at random.
    nonce: u64,
    session: Option<u64>,
    has_expired: bool,
    next: u64,
    sent: BTreeMap<u64, Sent>,
    done: Vec<(u64, Outcome)>,
}

/// Maximum number of requests in flight.
pub const OUTSTANDING_MAX: usize = 1024;
/// Maximum distance from the oldest request in flight to the next one: fewer than a session remembers.
const SPAN_MAX: u64 = SEQUENCES_ABOVE_LOW_MAX as u64 / 2;

/// How long after a change it tries the first serializer again, with one request; doubled at each failure.
pub const BACK_AFTER_NS: u64 = 1_000_000_000;
const BACK_DOUBLINGS_MAX: u32 = 6;

/// The number of the request that opens the session.
const OPENING: u64 = 0;

impl Proposer {
    /// Creates a proposer for this many serializers. `nonce` must be drawn afresh at each start. The session is opened
    /// by [`Proposer::tick`].
    pub fn new(serializers: usize, reply_to: u64, nonce: u64) -> Proposer {
        Proposer {
            serializers,
            current: 0,
            answered_at: 0,
            back: Back::default(),
            time_out: TimeOut::default(),
            window: Window::default(),
            reply_to,
            nonce,
            session: None,
            has_expired: false,
            next: 1,
            sent: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// Returns whether a value may be submitted: the session is open, the window has room, and the oldest request is
    /// not too far behind, since learners remember only so many applied requests above it.
    pub fn is_ready(&self) -> bool {
        let oldest = self.sent.keys().next().copied().unwrap_or(self.next);
        self.session.is_some()
            && !self.has_expired
            && self.sent.len() < self.window.size()
            && self.next - oldest < SPAN_MAX
    }

    /// Returns the session's id.
    pub fn session(&self) -> Option<u64> {
        self.session
    }

    /// Returns the serializer that new requests go to, from 0.
    pub fn serializer(&self) -> usize {
        self.current
    }

    /// Returns whether a request has completed since the last [`Proposer::take_done`].
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns the number of requests in flight.
    pub fn outstanding(&self) -> usize {
        self.sent
            .keys()
            .filter(|number| **number != OPENING)
            .count()
    }

    /// Submits a value. Returns its number, for which [`Proposer::take_done`] reports the outcome.
    ///
    /// # Panics
    /// If it is not [`Proposer::is_ready`].
    pub fn submit(&mut self, now: u64, value: &[u8], deadline: u64, out: &mut Out) -> u64 {
        assert!(self.is_ready(), "it may submit");
        let number = self.next;
        self.next += 1;
        let client = self.session.expect("the session is open");
        let mut own = self.sent.iter().filter(|(_, sent)| sent.client == client);
        let low = own.next().map_or(number, |(number, _)| *number);
        let request = Request {
            client,
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
        let is_trial = self.current != 0 && self.back.trial.is_none() && now >= self.back.try_at;
        let serializer = if is_trial { 0 } else { self.current };
        if is_trial {
            self.back.trial = Some(request.number);
        }
        out.push((serializer, packet.clone()));
        let sent = Sent {
            client: request.client,
            packet,
            serializer,
            sent_at: now,
            repeats: 0,
            again_at: now + self.time_out.after(0),
            deadline,
        };
        self.sent.insert(request.number, sent);
    }

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
            _ => self.on_reply(now, &header),
        }
    }

    fn on_reply(&mut self, now: u64, header: &Header) {
        let sent = self.sent.get(&header.request);
        if header.request == OPENING || sent.is_none_or(|sent| sent.client != header.client) {
            return;
        }
        self.answered(now, header.request);
        let outcome = if header.has(flag::REFUSED) {
            self.has_expired |= self.session == Some(header.client);
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
        if self.back.trial == Some(number) {
            if sent.repeats == 0 {
                (self.current, self.answered_at) = (0, now);
                self.back.failed = 0;
            }
            self.back.later(now);
        }
        // After a retransmission the answer may be to either packet, so it gives no sample (Karn).
        if sent.repeats == 0 {
            self.time_out.measured(now.saturating_sub(sent.sent_at));
            self.window.answered();
        }
    }

    /// Returns the requests that have completed since the last call.
    pub fn take_done(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.done)
    }

    fn is_to_open(&self) -> bool {
        self.session.is_none() && !self.sent.contains_key(&OPENING)
    }

    /// Completes a request that a learner in the same process has delivered. [`Proposer::take_done`] does not return
    /// such requests.
    pub fn on_decided(&mut self, now: u64, instance: u64, request: &Request) {
        if request.opens && request.client == self.nonce && self.session.is_none() {
            self.session = Some(instance);
            return self.answered(now, OPENING);
        }
        let sent = self.sent.get(&request.number);
        if sent.is_some_and(|sent| sent.client == request.client) {
            self.answered(now, request.number);
        }
    }

    /// Opens a new session after the current one has expired. Requests in flight in the old one continue. `nonce` must
    /// be drawn afresh.
    pub fn renew(&mut self, nonce: u64) {
        self.session = None;
        self.has_expired = false;
        self.nonce = nonce;
    }

    /// Returns whether a request was refused because the session has expired: then all are, until [`Proposer::renew`].
    pub fn has_expired(&self) -> bool {
        self.has_expired
    }

    /// Returns how many more requests may be submitted.
    pub fn room(&self) -> usize {
        match self.is_ready() {
            true => self.window.size() - self.sent.len(),
            false => 0,
        }
    }

    /// Returns when [`Proposer::tick`] is due.
    pub fn due(&self) -> u64 {
        if self.is_to_open() {
            return 0;
        }
        let due = self
            .sent
            .values()
            .map(|sent| sent.again_at.min(sent.deadline));
        due.min().unwrap_or(u64::MAX)
    }

    /// Advances time.
    pub fn tick(&mut self, now: u64, out: &mut Out) {
        if self.is_to_open() {
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
            if self.back.trial == Some(number) {
                self.back.later(now);
            }
            self.done.push((number, Outcome::Unknown));
        }
        let late = self.sent.iter_mut();
        for (number, sent) in late.filter(|(_, sent)| now >= sent.again_at) {
            let is_trial = self.back.trial == Some(*number) && sent.repeats == 0;
            if is_trial {
                self.back.failed += 1;
            }
            // If nothing has been answered since the request was sent, the serializer does not work. Otherwise only the
            // packet was lost, and new requests stay with the same serializer, which keeps them in one order.
            if sent.serializer == self.current && self.answered_at <= sent.sent_at {
                self.current = (self.current + 1) % self.serializers;
                self.answered_at = now;
                self.back.later(now);
            }
            self.window.lost(now, sent.sent_at);
            sent.serializer = match is_trial {
                true => self.current,
                false => (sent.serializer + 1) % self.serializers,
            };
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

    /// Returns a proposer whose session is open, at this time.
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
        // A new request does not wait for the same timeout.
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

    /// Leaves the first serializer, and returns when.
    fn left(proposer: &mut Proposer) -> u64 {
        goes_to(proposer, 3 * MS);
        let at = proposer.due();
        proposer.tick(at, &mut Out::new());
        proposer.on_packet(at + MS, &reply(1, 1, 2));
        assert_eq!(goes_to(proposer, at + MS), 1);
        proposer.on_packet(at + 2 * MS, &reply(1, 2, 3));
        at
    }

    #[test]
    fn it_returns_to_the_first_serializer_once_that_works() {
        let mut proposer = ready(MS);
        let at = left(&mut proposer) + BACK_AFTER_NS;
        assert_eq!(goes_to(&mut proposer, at), 0);
        // The others stay where requests are answered.
        assert_eq!(goes_to(&mut proposer, at), 1);
        proposer.on_packet(at + MS, &reply(1, 3, 4));
        assert_eq!(goes_to(&mut proposer, at + MS), 0);
    }

    #[test]
    fn a_first_serializer_that_stays_dead_is_tried_ever_less_often() {
        let mut proposer = ready(MS);
        let mut at = left(&mut proposer) + BACK_AFTER_NS;
        for failed in 1..=BACK_DOUBLINGS_MAX + 2 {
            assert_eq!(goes_to(&mut proposer, at), 0);
            let number = proposer.next - 1;
            let mut out = Out::new();
            at = proposer.due();
            proposer.tick(at, &mut out);
            let again: Vec<usize> = out.iter().map(|(serializer, _)| *serializer).collect();
            assert_eq!(again, [1]);
            proposer.on_packet(at, &reply(1, number, number));
            let wait = BACK_AFTER_NS << failed.min(BACK_DOUBLINGS_MAX);
            assert_eq!(goes_to(&mut proposer, at + wait - 1), 1);
            let number = proposer.next - 1;
            proposer.on_packet(at + wait - 1, &reply(1, number, number));
            at += wait;
        }
    }

    #[test]
    fn a_session_that_has_expired_is_replaced() {
        let mut proposer = ready(MS);
        goes_to(&mut proposer, 3 * MS);
        goes_to(&mut proposer, 3 * MS);
        let refused = Header {
            client: 1,
            request: 2,
            flags: flag::REFUSED,
            ..Header::of(Type::Reply)
        };
        proposer.on_packet(4 * MS, &emit(&refused, &[]));
        assert_eq!(proposer.take_done(), [(2, Outcome::Unknown)]);
        assert!(proposer.has_expired() && !proposer.is_ready());
        proposer.renew(8);
        proposer.tick(4 * MS, &mut Out::new());
        proposer.on_packet(5 * MS, &reply(8, OPENING, 9));
        assert!(!proposer.has_expired() && proposer.is_ready());
        // A request of the former session was decided before that expired.
        proposer.on_packet(5 * MS, &reply(1, 1, 3));
        assert_eq!(proposer.take_done(), [(1, Outcome::Delivered(3))]);
        goes_to(&mut proposer, 6 * MS);
        proposer.on_packet(7 * MS, &reply(9, 3, 10));
        assert_eq!(proposer.take_done(), [(3, Outcome::Delivered(10))]);
    }

    #[test]
    fn it_waits_for_an_old_request_before_learners_forget() {
        let mut proposer = ready(MS);
        let mut submitted = 0;
        while proposer.is_ready() && submitted <= SEQUENCES_ABOVE_LOW_MAX as u64 {
            goes_to(&mut proposer, 3 * MS);
            submitted += 1;
            // All but the first one are answered.
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
