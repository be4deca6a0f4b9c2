//! A client, sans-I/O: it finds the active switch, keeps requests under way, sends them again, and looks for another switch
//! when this one falls silent.

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

/// So many later requests that are answered before it say that a request is lost.
const OVERTAKEN: u32 = 3;
/// Silence of a switch that has never answered is borne for longer each time, up to this.
const SUSPECT_MAX_NS: Nanos = 1_000 * MS;
/// Shorter absences of the caller are ignored.
const AWAY_MIN_NS: Nanos = MS;
/// A session that was not used for so long is not used again: a switch that is short of room may have closed it, or does so
/// before the next request arrives.
const SESSION_STALE_NS: Nanos = SESSION_IDLE_MIN_NS / 4 * 3;

/// How a client behaves.
#[derive(Debug, Clone, Copy)]
pub struct ClientConfig {
    /// How many switches it knows.
    pub switches: usize,
    /// Requests under way, at most: rounded down to a power of two.
    pub window: u32,
    /// Without an answer for so long it looks for another switch.
    pub suspect_after_ns: Nanos,
    /// Where answers take long, it bears up to so much before another switch is made active.
    pub suspect_after_max_ns: Nanos,
    /// A request that is not done by then fails.
    pub deadline_ns: Nanos,
    /// Only from this switch on it may make one active; all are asked in the end.
    pub first_switch: usize,
}

impl ClientConfig {
    /// The defaults, for so many switches.
    pub fn new(switches: usize) -> ClientConfig {
        ClientConfig {
            switches,
            window: 256,
            suspect_after_ns: 10 * MS,
            suspect_after_max_ns: 100 * MS,
            deadline_ns: 10_000 * MS,
            first_switch: 0,
        }
    }
}

/// What a client is to do. `lines` is a bitmap and not 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Read lines of a chunk.
    Read {
        /// Which chunk.
        chunk: u64,
        /// Which of its lines.
        lines: u16,
    },
    /// Write lines of a chunk.
    Write {
        /// Which chunk.
        chunk: u64,
        /// Which of its lines.
        lines: u16,
        /// Their content, in their places.
        from: Box<Chunk>,
        /// Nobody else writes these lines: a write whose outcome is not known is repeated.
        sole_writer: bool,
    },
}

/// Names a request of [`Client::submit`].
pub type Ticket = u64;

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// What was read; lines that were not asked for are zeros.
    Read(Box<Chunk>, Box<[u64; CHUNK_LINES]>),
    /// It is written.
    Written,
    /// It was sent, and the session is gone: it may have happened, or may still happen.
    Unknown,
    /// Not answered by the deadline. A write may have happened, or may still happen.
    TimedOut,
    /// The memory ends before this chunk, and has so many.
    OutOfRange(u64),
}

/// What a client sends, by the number of the switch.
pub type Out = Outbox<usize>;

/// In numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were sent for the first time in a session.
    pub sent: u64,
    /// Requests that were sent again.
    pub resent: u64,
    /// Sessions that were begun.
    pub sessions: u64,
    /// Writes whose outcome is unknown.
    pub unknown: u64,
    /// Requests that were done.
    pub done: u64,
}

/// See the module.
pub struct Client {
    config: ClientConfig,
    joined: Option<Joined>,
    looking: Option<Looking>,
    /// Since when it has looked for a switch without getting a session.
    looks_since: Option<Nanos>,
    /// A switch that has not answered HELLO since then.
    gave_no_session: Option<usize>,
    /// A switch that is active, and had no room for a session.
    full: Option<usize>,
    joining: Option<Joining>,
    /// Requests that have not been sent in this session, or at all.
    waiting: VecDeque<Pending>,
    /// The last session at each switch, which is closed before there is another.
    last_session: Vec<u64>,
    /// By switch: the nonce of HELLOs to which no session was taken yet. It stays, so that the answer to each is the same session.
    unanswered: Vec<Option<u64>>,
    /// The highest epoch of a switch that was heard of.
    epoch: u64,
    chunks: Option<u64>,
    round_trip: RoundTrip,
    congestion: Window,
    /// The last interval in which the caller took no packets.
    away: Range<Nanos>,
    /// The switch that another was made active for.
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
    /// A client that knows no switch yet. `random`: drawn at its start.
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
            suspect_after_ns: config.suspect_after_ns,
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

    /// How many chunks the memory has, once a switch has said so.
    pub fn chunks(&self) -> Option<u64> {
        self.chunks
    }

    /// The switch that it uses, and its epoch.
    pub fn switch(&self) -> Option<(usize, u64)> {
        self.joined
            .as_ref()
            .map(|joined| (joined.switch, joined.epoch))
    }

    /// In numbers.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The smoothed round trip.
    pub fn srtt_ns(&self) -> Nanos {
        self.round_trip.srtt_ns()
    }

    /// The active switch, if it has no room for a session of this client.
    pub fn full_switch(&self) -> Option<usize> {
        self.full
    }

    /// Requests that have not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The next request that has ended.
    pub fn take_done(&mut self) -> Option<(Ticket, Outcome)> {
        self.done.pop_front()
    }

    /// Begin a request.
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

    /// Send what waits, as far as the window allows.
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

    /// No more requests: close the sessions, whose slots others need.
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

    /// The session is over. Reads are asked again in the next one, and writes that may be.
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

    /// The caller has taken no packets for so long, though some may have arrived: it did something else, or was stopped. Answers
    /// that waited for it say nothing about the switch. To be called before those packets are handed over.
    pub fn was_away(&mut self, away: Range<Nanos>) {
        if away.end.saturating_sub(away.start) < AWAY_MIN_NS {
            return;
        }
        // A session that is idle becomes stale while the caller is away.
        if let Some(joined) = self.joined.as_mut().filter(|joined| !joined.is_idle()) {
            let heard_until = away.start.max(joined.answered_at);
            joined.answered_at += away.end.saturating_sub(heard_until);
        }
        self.away = away;
    }

    /// Has the answer of a request that was sent then waited for the caller?
    fn has_waited_here(&self, sent: Nanos) -> bool {
        self.away.end.saturating_sub(self.away.start.max(sent)) >= AWAY_MIN_NS
    }

    /// A packet of a switch that is whole, and whose tag is right.
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

    /// A switch has given a session.
    fn joins(&mut self, now: Nanos, switch: usize, header: &Header, out: &mut Out) {
        self.abandon();
        self.last_session[switch] = header.session;
        self.unanswered[switch] = None;
        // A switch that has not heard that the memory has grown says less.
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
        self.suspect_after_ns = self.config.suspect_after_ns;
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
            return; // what was refused once may be over
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

    /// Time goes on. Call it again at [`Client::due`] at the latest.
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
                // To leave the switch before was of no use.
                let longer = (2 * suspect_after_ns).min(SUSPECT_MAX_NS);
                self.suspect_after_ns = longer.max(self.config.suspect_after_ns);
            }
            self.look(now);
        }
        self.ask(now, out);
        self.probe(now, out);
    }

    fn time_out(&mut self, now: Nanos) {
        // Those that came first end first, but for those that are asked again in another session.
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
            // The switch may do it at any time, as long as the session lives.
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

    /// When [`Client::tick`] is due.
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
