//! A memory client, sans-I/O: it finds the active switch, keeps requests in flight, retransmits them, and looks for
//! another switch when this one stops answering.

mod search;
mod session;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;

use crate::congestion::Window;
use crate::epoch::{Nanos, Outbox, MS};
use crate::lines::{Chunk, CHUNK_LINES, LINE_LEN_BYTES};
use crate::round_trip::RoundTrip;
use crate::switch_host::SESSION_IDLE_MIN_NS;
use crate::wire::{
    emit, take_read, Header, F_NOT_ACTIVE, HELLO, READ_REPLY, REFUSED, WELCOME, WRITE_REPLY,
};

use search::{Joining, Left, Looking, USELESS_MIN_NS};
use session::{Joined, Pending};

/// A request is considered lost once this many later requests have been answered.
const OVERTAKEN: u32 = 3;
/// The suspicion timeout doubles for each switch that never answered, up to this.
const SUSPECT_MAX_NS: Nanos = 1_000 * MS;
const AWAY_MIN_NS: Nanos = MS;
/// A session that has been idle for this long is not used again: a switch that is short of room may have closed it, or
/// may close it before the next request arrives.
const SESSION_STALE_NS: Nanos = SESSION_IDLE_MIN_NS / 4 * 3;

/// Configuration of a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientConfig {
    pub switches: usize,
    /// Maximum number of requests in flight, rounded down to a power of two.
    pub window: u32,
    /// Without an answer for this long, the client looks for another switch.
    pub suspect_after_min_ns: Nanos,
    /// Where answers are slow, the client waits up to this long before it has another switch activated.
    pub suspect_after_max_ns: Nanos,
    /// A request that has not completed within this time fails.
    pub deadline_ns: Nanos,
    /// The switch that this client asks first to become active; it goes on to the others if that one does not.
    pub first_switch: usize,
}

impl ClientConfig {
    /// Returns the defaults for a given number of switches.
    pub fn new(switches: usize) -> ClientConfig {
        ClientConfig {
            switches,
            window: 256,
            suspect_after_min_ns: 10 * MS,
            suspect_after_max_ns: 100 * MS,
            deadline_ns: 10_000 * MS,
            first_switch: 0,
        }
    }
}

/// An operation of a client. `lines` is a bitmap and must not be 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Reads lines of a chunk.
    Read {
        chunk: u64,
        /// Bitmap of the chunk's lines.
        lines: u16,
    },
    /// Writes lines of a chunk.
    Write {
        chunk: u64,
        /// Bitmap of the chunk's lines.
        lines: u16,
        /// The new content, each line at its own index.
        from: Box<Chunk>,
        /// No other client writes these lines, so a write whose outcome is unknown may be repeated.
        sole_writer: bool,
    },
}

/// Identifies a request made with [`Client::submit`].
pub type Ticket = u64;

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The lines read, with their timestamps; lines that were not asked for are zero.
    Read(Box<Chunk>, Box<[u64; CHUNK_LINES]>),
    /// The lines have been written.
    Written,
    /// The write was sent, but its session is gone: it may have been applied, or may still be.
    Unknown,
    /// Not answered by the deadline. A write may have been applied, or may still be.
    TimedOut,
    /// The chunk does not exist; the memory has this many chunks.
    OutOfRange(u64),
}

/// Packets to send, addressed by the index of the switch.
pub type Out = Outbox<usize>;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests sent for the first time in a session.
    pub sent: u64,
    /// Retransmissions.
    pub resent: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Writes whose outcome is unknown.
    pub unknown: u64,
    /// Requests completed.
    pub done: u64,
}

/// A client of replicated memory. See the [module](self).
pub struct Client {
    config: ClientConfig,
    joined: Option<Joined>,
    looking: Option<Looking>,
    /// Since when the client has been looking for a switch without getting a session.
    looks_since: Option<Nanos>,
    /// A switch that left all HELLOs since then unanswered.
    gave_no_session: Option<usize>,
    /// An active switch that had no room for a session.
    full: Option<usize>,
    joining: Option<Joining>,
    /// Requests not yet sent in this session, or not sent at all.
    waiting: VecDeque<Pending>,
    /// The last session at each switch; it is closed before a new one is opened there.
    last_session: Vec<u64>,
    /// By switch: the nonce of HELLOs that have not yet led to a session. It does not change, so every answer names the
    /// same session.
    unanswered: Vec<Option<u64>>,
    /// The highest epoch of a switch heard of so far.
    epoch: u64,
    chunks: Option<u64>,
    round_trip: RoundTrip,
    congestion: Window,
    /// The last interval in which the caller received no packets.
    away: Range<Nanos>,
    /// The switch that was left when another was asked to become active.
    left: Option<Left>,
    useless_after_ns: Nanos,
    suspect_after_ns: Nanos,
    nonce: u64,
    tickets: Ticket,
    outstanding: usize,
    done: VecDeque<(Ticket, Outcome)>,
    counts: Counts,
}

impl Client {
    /// Creates a client that has not found a switch yet. `random` must be drawn afresh at each start.
    pub fn new(config: ClientConfig, now: Nanos, random: u64, out: &mut Out) -> Client {
        let mut client = Client {
            config,
            joined: None,
            looking: None,
            looks_since: None,
            gave_no_session: None,
            full: None,
            joining: None,
            waiting: VecDeque::new(),
            last_session: vec![0; config.switches],
            unanswered: vec![None; config.switches],
            epoch: 0,
            chunks: None,
            round_trip: RoundTrip::default(),
            congestion: Window::new(config.window),
            away: 0..0,
            left: None,
            useless_after_ns: USELESS_MIN_NS,
            suspect_after_ns: config.suspect_after_min_ns,
            nonce: random,
            tickets: 0,
            outstanding: 0,
            done: VecDeque::new(),
            counts: Counts::default(),
        };
        client.look(now);
        client.tick(now, out);
        client
    }

    /// Returns the number of chunks of the memory, once a switch has reported it.
    pub fn chunks(&self) -> Option<u64> {
        self.chunks
    }

    /// Returns the switch in use and its epoch.
    pub fn switch(&self) -> Option<(usize, u64)> {
        self.joined
            .as_ref()
            .map(|joined| (joined.switch, joined.epoch))
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the smoothed round-trip time.
    pub fn srtt_ns(&self) -> Nanos {
        self.round_trip.srtt_ns()
    }

    /// Returns the active switch if it has no room for a session of this client.
    pub fn full_switch(&self) -> Option<usize> {
        self.full
    }

    /// Returns the number of requests that have not completed.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes the outcome of the next completed request.
    pub fn take_done(&mut self) -> Option<(Ticket, Outcome)> {
        self.done.pop_front()
    }

    /// Queues a request. It is sent once the client has joined a switch and the window has room.
    pub fn submit(&mut self, now: Nanos, op: Op, out: &mut Out) -> Ticket {
        self.tickets += 1;
        self.outstanding += 1;
        let ticket = self.tickets;
        self.waiting.push_back(Pending {
            ticket,
            op,
            deadline: now + self.config.deadline_ns,
            first_sent: 0,
            sends: 0,
            due: 0,
            overtaken: 0,
        });
        self.flush(now, out);
        ticket
    }

    fn end(&mut self, pending: Pending, outcome: Outcome) {
        self.outstanding -= 1;
        match &outcome {
            Outcome::Unknown => self.counts.unknown += 1,
            Outcome::Read(..) | Outcome::Written => self.counts.done += 1,
            Outcome::TimedOut | Outcome::OutOfRange(_) => {}
        }
        self.done.push_back((pending.ticket, outcome));
    }

    /// Sends queued requests, as far as the window allows.
    fn flush(&mut self, now: Nanos, out: &mut Out) {
        let resend_after = self.round_trip.resend_after(1);
        let Some(joined) = &mut self.joined else {
            return;
        };
        if joined.is_idle() {
            if now > joined.answered_at + SESSION_STALE_NS && !self.waiting.is_empty() {
                let switch = joined.switch;
                self.joined = None;
                self.join(now, switch, out);
                return;
            }
            joined.answered_at = now.max(joined.answered_at);
        }
        while let Some(mut pending) = self.waiting.pop_front() {
            let chunk = match pending.op {
                Op::Read { chunk, .. } | Op::Write { chunk, .. } => chunk,
            };
            if let Some(chunks) = self.chunks.filter(|chunks| chunk >= *chunks) {
                self.outstanding -= 1;
                self.done
                    .push_back((pending.ticket, Outcome::OutOfRange(chunks)));
                continue;
            }
            let request = joined.next_request;
            let slot = (request % joined.window) as usize;
            if joined.pending[slot].is_some() || joined.under_way >= self.congestion.size() {
                self.waiting.push_front(pending);
                return;
            }
            joined.next_request += 1;
            pending.first_sent = now;
            pending.sends = 1;
            pending.overtaken = 0;
            pending.due = now + resend_after;
            joined.timers.push(Reverse((pending.due, request)));
            joined.emit(request, &pending.op, out);
            joined.pending[slot] = Some(pending);
            joined.under_way += 1;
            self.counts.sent += 1;
        }
    }

    /// Closes all sessions, so that their slots become available to other clients. No requests may follow.
    pub fn goodbye(&mut self, out: &mut Out) {
        self.abandon();
        (self.looking, self.joining) = (None, None);
        for (switch, session) in self.last_session.iter_mut().enumerate() {
            if *session != 0 {
                let hello = Header {
                    kind: HELLO,
                    epoch: self.epoch,
                    session: std::mem::take(session),
                    ..Header::default()
                };
                emit(&hello, &[], out.packet(switch));
            }
        }
    }

    /// Ends the session. Reads, and writes that may be repeated, are queued for the next one.
    fn abandon(&mut self) {
        let Some(joined) = self.joined.take() else {
            return;
        };
        let first = joined.oldest;
        let mut pending = joined.pending;
        for request in (first..joined.next_request).rev() {
            let Some(pending) = pending[(request % joined.window) as usize].take() else {
                continue;
            };
            match &pending.op {
                Op::Write {
                    sole_writer: false, ..
                } => self.end(pending, Outcome::Unknown),
                _ => self.waiting.push_front(pending),
            }
        }
    }

    /// Tells the client that the caller received no packets in this interval, though some may have arrived, because it
    /// was busy or was stopped. Answers that had to wait for the caller say nothing about the switch. Call this before
    /// passing on those packets.
    pub fn was_away(&mut self, away: Range<Nanos>) {
        if away.end.saturating_sub(away.start) < AWAY_MIN_NS {
            return;
        }
        // An idle session goes stale even while the caller is away.
        if let Some(joined) = self.joined.as_mut().filter(|joined| !joined.is_idle()) {
            let heard_until = away.start.max(joined.answered_at);
            joined.answered_at += away.end.saturating_sub(heard_until);
        }
        self.away = away;
    }

    /// Returns whether the answer to a request sent at `sent` had to wait for the caller.
    fn has_waited_here(&self, sent: Nanos) -> bool {
        self.away.end.saturating_sub(self.away.start.max(sent)) >= AWAY_MIN_NS
    }

    /// Handles a packet from a switch. The caller has checked its digest and tag.
    pub fn on_packet(
        &mut self,
        now: Nanos,
        switch: usize,
        header: &Header,
        value: &[u8],
        out: &mut Out,
    ) {
        self.hear_of_left(now, switch);
        match header.kind {
            WELCOME => self.on_welcome(now, switch, header, out),
            READ_REPLY | WRITE_REPLY => self.on_reply(now, header, value, out),
            REFUSED if header.session == 0 => self.on_probed(now, switch, header, out),
            REFUSED => self.on_refused(now, header, out),
            _ => {}
        }
    }

    /// Enters the session that a switch has opened.
    fn joins(&mut self, now: Nanos, switch: usize, header: &Header, out: &mut Out) {
        self.abandon();
        self.last_session[switch] = header.session;
        self.unanswered[switch] = None;
        // A switch that does not know yet that the memory has grown reports fewer.
        self.chunks = self.chunks.max(Some(header.chunk));
        (self.looking, self.joining) = (None, None);
        (self.looks_since, self.gave_no_session, self.full) = (None, None, None);
        self.round_trip.other_way();
        self.congestion = Window::new(self.config.window);
        self.counts.sessions += 1;
        let window = u64::from(header.slot);
        self.joined = Some(Joined {
            switch,
            session: header.session,
            epoch: header.epoch,
            window,
            pending: (0..window).map(|_| None).collect(),
            next_request: 1,
            oldest: 1,
            timers: Default::default(),
            under_way: 0,
            answered_at: now,
            has_answered: false,
        });
        self.flush(now, out);
    }

    fn on_reply(&mut self, now: Nanos, header: &Header, value: &[u8], out: &mut Out) {
        let Some(joined) = self.joined.as_mut().filter(|j| j.session == header.session) else {
            return;
        };
        let request = header.request;
        if request < joined.oldest || request >= joined.next_request {
            return;
        }
        let slot = (request % joined.window) as usize;
        let Some(pending) = &joined.pending[slot] else {
            return;
        };
        let outcome = match (&pending.op, header.kind) {
            (Op::Read { chunk, lines }, READ_REPLY) => {
                if *chunk != header.chunk || u32::from(*lines) != header.lines {
                    return;
                }
                let mut timestamps = Box::new([0; CHUNK_LINES]);
                let mut into = Box::new([[0; LINE_LEN_BYTES]; CHUNK_LINES]);
                if !take_read(header, value, &mut timestamps, &mut into) {
                    return;
                }
                Outcome::Read(into, timestamps)
            }
            (Op::Write { chunk, lines, .. }, WRITE_REPLY) => {
                if *chunk != header.chunk || u32::from(*lines) != header.lines {
                    return;
                }
                Outcome::Written
            }
            _ => return,
        };
        let pending = joined.pending[slot].take().expect("it was there");
        let under_way = joined.under_way;
        joined.under_way -= 1;
        self.round_trip.was_silent(now, now - joined.answered_at);
        joined.answered_at = now;
        joined.has_answered = true;
        joined.epoch = joined.epoch.max(header.epoch);
        while joined.oldest < joined.next_request
            && joined.pending[(joined.oldest % joined.window) as usize].is_none()
        {
            joined.oldest += 1;
        }
        let (oldest, at) = (joined.oldest, (joined.oldest % joined.window) as usize);
        let mut again = false;
        if let Some(oldest) = joined.pending[at].as_mut().filter(|_| request > oldest) {
            oldest.overtaken += 1;
            again = oldest.overtaken == OVERTAKEN && oldest.sends == 1;
        }
        self.looks_since = None;
        if self.looking.take().is_some() {
            self.useless_after_ns = USELESS_MIN_NS;
        }
        self.suspect_after_ns = self.config.suspect_after_min_ns;
        self.hear(header.epoch);
        self.congestion.answered(under_way);
        if pending.sends == 1 && !self.has_waited_here(pending.first_sent) {
            let rtt_ns = now - pending.first_sent;
            self.round_trip.measured(rtt_ns);
            self.congestion
                .measured(now, rtt_ns, self.round_trip.srtt_ns());
        }
        self.end(pending, outcome);
        if again {
            self.congestion.lost(now, self.round_trip.srtt_ns());
            self.resend(now, oldest, out);
        }
        self.flush(now, out);
    }

    fn on_refused(&mut self, now: Nanos, header: &Header, out: &mut Out) {
        let of_it = |joined: &&Joined| {
            joined.session == header.session && joined.is_under_way(header.request)
        };
        let Some(switch) = self.joined.as_ref().filter(of_it).map(|j| j.switch) else {
            return; // a stale refusal of a request that has completed
        };
        self.hear(header.epoch);
        if header.flags & F_NOT_ACTIVE != 0 {
            if self.joining.is_none() {
                self.look(now);
            }
        } else {
            self.abandon();
            self.join(now, switch, out);
        }
        self.tick(now, out);
    }

    fn resend(&mut self, now: Nanos, request: u64, out: &mut Out) {
        let Some(joined) = &mut self.joined else {
            return;
        };
        let slot = (request % joined.window) as usize;
        let Some(sends) = joined.pending[slot].as_ref().map(|pending| pending.sends) else {
            return;
        };
        let due = now + self.round_trip.resend_after(sends + 1);
        let joined = self.joined.as_mut().expect("as above");
        let pending = joined.pending[slot].as_mut().expect("as above");
        pending.sends += 1;
        pending.due = due;
        joined.timers.push(Reverse((due, request)));
        let pending = joined.pending[slot].as_ref().expect("as above");
        joined.emit(request, &pending.op, out);
        self.counts.resent += 1;
    }

    /// Advances time. Must be called again at [`Client::due`] at the latest.
    pub fn tick(&mut self, now: Nanos, out: &mut Out) {
        self.time_out(now);
        self.resend_due(now, out);
        let suspect_after_ns = self.suspect_after_ns;
        let is_silent = self
            .joined
            .as_ref()
            .is_none_or(|joined| !joined.is_idle() && now > joined.answered_at + suspect_after_ns);
        if is_silent && self.joining.is_none() && self.looking.is_none() {
            if self.joined.as_ref().is_some_and(|j| !j.has_answered) {
                // Leaving the previous switch did not help.
                let longer = (2 * suspect_after_ns).min(SUSPECT_MAX_NS);
                self.suspect_after_ns = longer.max(self.config.suspect_after_min_ns);
            }
            self.look(now);
        }
        self.ask(now, out);
        self.probe(now, out);
    }

    fn time_out(&mut self, now: Nanos) {
        // Requests complete in the order they were submitted, except for those that are repeated in another session.
        while self
            .waiting
            .front()
            .is_some_and(|pending| now >= pending.deadline)
        {
            let pending = self.waiting.pop_front().expect("there is one");
            self.end(pending, Outcome::TimedOut);
        }
        let Some(joined) = &mut self.joined else {
            return;
        };
        let at = (joined.oldest % joined.window) as usize;
        if joined.pending[at]
            .as_ref()
            .is_some_and(|pending| now >= pending.deadline)
        {
            // The switch may still carry it out at any time while the session lives.
            let pending = joined.pending[at].take().expect("there is one");
            joined.under_way -= 1;
            self.end(pending, Outcome::TimedOut);
            self.abandon();
            self.look(now);
        }
    }

    fn resend_due(&mut self, now: Nanos, out: &mut Out) {
        while let Some(joined) = &mut self.joined {
            let Some(Reverse((due, request))) = joined.timers.peek().copied() else {
                return;
            };
            if due > now {
                return;
            }
            joined.timers.pop();
            let slot = (request % joined.window) as usize;
            let is_of_it = request >= joined.oldest && request < joined.next_request;
            let pending = joined.pending[slot].as_ref();
            if is_of_it && pending.is_some_and(|pending| pending.due == due) {
                self.round_trip.timed_out(now);
                self.congestion.lost(now, self.round_trip.srtt_ns());
                self.resend(now, request, out);
            }
        }
    }

    /// Returns when [`Client::tick`] is due.
    pub fn due(&self) -> Nanos {
        let mut due = Nanos::MAX;
        if let Some(joined) = self.joined.as_ref().filter(|joined| !joined.is_idle()) {
            if let Some(Reverse((at, _))) = joined.timers.peek() {
                due = due.min(*at);
            }
            if self.looking.is_none() && self.joining.is_none() {
                due = due.min(joined.answered_at + self.suspect_after_ns + 1);
            }
        }
        if let Some(looking) = &self.looking {
            due = due.min(looking.probe_at);
        }
        if let Some(joining) = &self.joining {
            due = due.min(joining.send_at);
        }
        if let Some(waiting) = self.waiting.front() {
            due = due.min(waiting.deadline);
        }
        due
    }
}
