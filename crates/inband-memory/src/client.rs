//! A client, sans-I/O: it finds the active switch, keeps requests under way, sends them again, and looks for another switch
//! when this one falls silent.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::epoch::{is_switch, Nanos, Outbox, MS};
use crate::lines::{Chunk, CHUNK_LINES, LINE_LEN_BYTES};
use crate::switch_host::WINDOW_MAX;
use crate::wire::{
    emit, emit_lines, take_read, Header, F_ACTIVATE, F_NOT_ACTIVE, HELLO, READ_REPLY, READ_REQUEST,
    REFUSED, WELCOME, WRITE_REPLY, WRITE_REQUEST,
};

/// A request is sent again after the round trip's time-out, which is within these.
const RESEND_MIN_NS: Nanos = 200_000;
const RESEND_MAX_NS: Nanos = 200 * MS;
/// The time-out is doubled at most so often.
const RESEND_DOUBLED_MAX: u32 = 10;
/// The time-out before the first round trip.
const RESEND_FIRST_NS: Nanos = 2 * MS;
/// So many later requests that are answered before it say that a request is lost.
const OVERTAKEN: u32 = 3;
/// Probes and HELLO are sent again after so long.
const HELLO_AGAIN_NS: Nanos = 2 * MS;
/// HELLO to one switch is given up after so many.
const HELLOS_MAX: u32 = 10;
/// A switch may take so long to become active before the next one is asked.
const ACTIVATE_AGAIN_NS: Nanos = 30 * MS;
/// A switch that is active, but answers no request, is asked for so long before another is made active; doubled each time.
const USELESS_MIN_NS: Nanos = 50 * MS;
const USELESS_MAX_NS: Nanos = 1_000 * MS;
/// Silence of a switch that has never answered is borne for longer each time, up to this.
const SUSPECT_MAX_NS: Nanos = 1_000 * MS;
/// A session that was not used for so long is not used again: the switch may have closed it.
const SESSION_STALE_NS: Nanos = 20_000 * MS;

/// How a client behaves.
#[derive(Debug, Clone, Copy)]
pub struct ClientConfig {
    /// How many switches it knows.
    pub switches: usize,
    /// Requests under way, at most: rounded down to a power of two.
    pub window: u32,
    /// Without an answer for so long it looks for another switch.
    pub suspect_after_ns: Nanos,
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

struct Pending {
    ticket: Ticket,
    op: Op,
    deadline: Nanos,
    first_sent: Nanos,
    sends: u32,
    /// When it is sent again.
    due: Nanos,
    overtaken: u32,
}

/// A session at a switch.
struct Joined {
    switch: usize,
    session: u64,
    epoch: u64,
    window: u64,
    /// Request r is at r % window.
    pending: Vec<Option<Pending>>,
    next_request: u64,
    /// No request below is under way.
    oldest: u64,
    /// By when which request may have to be sent again; those that are over are skipped.
    timers: BinaryHeap<Reverse<(Nanos, u64)>>,
    /// When the switch last answered a request, or had nothing to answer.
    answered_at: Nanos,
    /// It has answered a request in this session.
    has_answered: bool,
}

/// It looks for a switch that is active.
struct Looking {
    /// Answers to questions of an earlier time count no more.
    nonce: u64,
    since: Nanos,
    probe_at: Nanos,
    /// What each switch said last since then: whether it is active, and its epoch.
    heard: Vec<Option<(bool, u64)>>,
    activate_at: Nanos,
    /// How many were asked to become active.
    asked: usize,
}

/// It asks a switch for a session.
struct Joining {
    switch: usize,
    nonce: u64,
    send_at: Nanos,
    sends: u32,
}

/// In numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
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
    srtt_ns: Nanos,
    rttvar_ns: Nanos,
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
            joining: None,
            waiting: VecDeque::new(),
            last_session: vec![0; config.switches],
            unanswered: vec![None; config.switches],
            epoch: 0,
            chunks: None,
            srtt_ns: 0,
            rttvar_ns: 0,
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
        self.srtt_ns
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

    fn resend_after(&self, sends: u32) -> Nanos {
        let once = match self.srtt_ns {
            0 => RESEND_FIRST_NS,
            srtt => (srtt + 4 * self.rttvar_ns).clamp(RESEND_MIN_NS, RESEND_MAX_NS),
        };
        (once << sends.saturating_sub(1).min(RESEND_DOUBLED_MAX)).min(RESEND_MAX_NS)
    }

    fn measured(&mut self, rtt_ns: Nanos) {
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.rttvar_ns) = (rtt_ns.max(1), rtt_ns / 2);
        } else {
            let off = self.srtt_ns.abs_diff(rtt_ns);
            self.rttvar_ns = (3 * self.rttvar_ns + off) / 4;
            self.srtt_ns = ((7 * self.srtt_ns + rtt_ns) / 8).max(1);
        }
    }

    /// Send what waits, as far as the window allows.
    fn flush(&mut self, now: Nanos, out: &mut Out) {
        let resend_after = self.resend_after(1);
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
            if joined.pending[slot].is_some() {
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
        }
    }

    /// Look for an active switch, beside going on with the one that there is.
    fn look(&mut self, now: Nanos) {
        if self.looking.is_none() {
            self.looking = Some(Looking {
                nonce: self.draw(),
                since: now,
                probe_at: now,
                heard: vec![None; self.config.switches],
                activate_at: now + self.config.suspect_after_ns,
                asked: 0,
            });
        }
    }

    fn join(&mut self, now: Nanos, switch: usize, out: &mut Out) {
        self.looking = None;
        let nonce = self.unanswered[switch].unwrap_or_else(|| self.draw());
        self.unanswered[switch] = Some(nonce);
        self.joining = Some(Joining {
            switch,
            nonce,
            send_at: now,
            sends: 0,
        });
        self.ask(now, out);
    }

    fn draw(&mut self) -> u64 {
        self.nonce = self.nonce.wrapping_add(1);
        self.nonce
    }

    /// Servers' epochs, with which they fence a switch off, say nothing about which switch is the latest.
    fn hear(&mut self, epoch: u64) {
        if is_switch(epoch) {
            self.epoch = self.epoch.max(epoch);
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

    /// HELLO for a session.
    fn ask(&mut self, now: Nanos, out: &mut Out) {
        let Some(joining) = self
            .joining
            .as_mut()
            .filter(|joining| now >= joining.send_at)
        else {
            return;
        };
        if joining.sends == HELLOS_MAX {
            self.joining = None;
            self.look(now);
            return;
        }
        joining.sends += 1;
        joining.send_at = now + HELLO_AGAIN_NS;
        let hello = Header {
            kind: HELLO,
            epoch: self.epoch,
            session: self.last_session[joining.switch],
            request: joining.nonce,
            slot: self.config.window.clamp(1, WINDOW_MAX),
            ..Header::default()
        };
        emit(&hello, &[], out.packet(joining.switch));
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

    /// A packet of a switch that is whole, and whose tag is right.
    pub fn on_packet(
        &mut self,
        now: Nanos,
        switch: usize,
        header: &Header,
        value: &[u8],
        out: &mut Out,
    ) {
        match header.kind {
            WELCOME => self.on_welcome(now, switch, header, out),
            READ_REPLY | WRITE_REPLY => self.on_reply(now, header, value, out),
            REFUSED => self.on_refused(now, header, out),
            _ => {}
        }
    }

    fn on_welcome(&mut self, now: Nanos, switch: usize, header: &Header, out: &mut Out) {
        let is_active = header.flags & F_NOT_ACTIVE == 0;
        self.hear(header.epoch);
        let is_room = header.slot.is_power_of_two() && header.slot <= WINDOW_MAX;
        let is_session = is_active && header.session != 0 && is_room;
        let answers_hello = self.unanswered.get(switch) == Some(&Some(header.request));
        let joining = self.joining.as_ref();
        if answers_hello && joining.is_some_and(|joining| joining.switch == switch) {
            if is_session {
                self.joining = None;
                self.joins(now, switch, header, out);
            } else if !is_active {
                self.joining = None;
                self.look(now);
                self.tick(now, out);
            } // else it has no room: ask again
            return;
        }
        let Some(looking) = &mut self.looking else {
            return;
        };
        let answers_probe = header.request == looking.nonce;
        if let Some(heard) = looking.heard.get_mut(switch).filter(|_| answers_probe) {
            *heard = Some((is_active, header.epoch));
        }
        let is_latest = header.epoch >= self.epoch;
        if !is_active || !is_latest || !(answers_probe || answers_hello) {
            return;
        }
        match &self.joined {
            Some(joined) if joined.switch == switch && joined.is_idle() => self.looking = None,
            // Its answers may come again. If they do not, another switch is made active.
            Some(joined) if joined.switch == switch || header.epoch <= joined.epoch => {}
            // It took longer than HELLOs are sent.
            _ if answers_hello && is_session => self.joins(now, switch, header, out),
            _ if answers_hello => {}
            _ => self.join(now, switch, out),
        }
    }

    /// A switch has given a session.
    fn joins(&mut self, now: Nanos, switch: usize, header: &Header, out: &mut Out) {
        self.abandon();
        self.last_session[switch] = header.session;
        self.unanswered[switch] = None;
        self.chunks = Some(header.chunk);
        (self.looking, self.joining) = (None, None);
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
            timers: BinaryHeap::new(),
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
        if self.looking.take().is_some() {
            self.useless_after_ns = USELESS_MIN_NS;
        }
        self.suspect_after_ns = self.config.suspect_after_ns;
        self.hear(header.epoch);
        if pending.sends == 1 {
            self.measured(now - pending.first_sent);
        }
        self.end(pending, outcome);
        if again {
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
        let due = now + self.resend_after(sends + 1);
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
                self.resend(now, request, out);
            }
        }
    }

    /// Ask all switches whether they are active, and one to become so if none is.
    fn probe(&mut self, now: Nanos, out: &mut Out) {
        let useless_after_ns = self.useless_after_ns;
        let used = self.joined.as_ref().map(|joined| joined.switch);
        let Some(looking) = &mut self.looking else {
            return;
        };
        let mut hello = Header {
            kind: HELLO,
            epoch: self.epoch,
            request: looking.nonce,
            ..Header::default()
        };
        if now >= looking.probe_at {
            looking.probe_at = now + HELLO_AGAIN_NS;
            for switch in 0..self.config.switches {
                emit(&hello, &[], out.packet(switch));
            }
        }
        if now < looking.activate_at {
            return;
        }
        let heard = &looking.heard;
        let latest = self.epoch;
        let is_active = |switch: usize| {
            heard[switch].is_some_and(|(is_active, epoch)| is_active && epoch >= latest)
        };
        let is_useless = now > looking.since + useless_after_ns;
        if !is_useless && (0..heard.len()).any(is_active) {
            return;
        }
        // First the one that it has a session at, then the others in turn.
        let first = used.unwrap_or(self.config.first_switch);
        let order = (0..heard.len()).map(|n| (first + n) % heard.len());
        let candidates: Vec<usize> = order
            .filter(|s| heard[*s].is_some() && !is_active(*s))
            .collect();
        if candidates.is_empty() {
            return;
        }
        hello.flags = F_ACTIVATE;
        emit(
            &hello,
            &[],
            out.packet(candidates[looking.asked % candidates.len()]),
        );
        looking.asked += 1;
        looking.activate_at = now + ACTIVATE_AGAIN_NS;
        if is_useless {
            looking.since = now;
            self.useless_after_ns = (2 * useless_after_ns).min(USELESS_MAX_NS);
        }
        // What they said before counts no more.
        looking.heard.fill(None);
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

impl Joined {
    fn is_idle(&self) -> bool {
        self.oldest == self.next_request
    }

    fn is_under_way(&self, request: u64) -> bool {
        let is_of_it = request >= self.oldest && request < self.next_request;
        is_of_it && self.pending[(request % self.window) as usize].is_some()
    }

    fn emit(&self, request: u64, op: &Op, out: &mut Out) {
        let mut header = Header {
            kind: READ_REQUEST,
            epoch: self.epoch,
            session: self.session,
            request,
            ..Header::default()
        };
        let packet = out.packet(self.switch);
        match op {
            Op::Read { chunk, lines } => {
                (header.chunk, header.lines) = (*chunk, (*lines).into());
                emit(&header, &[], packet);
            }
            Op::Write {
                chunk, lines, from, ..
            } => {
                header.kind = WRITE_REQUEST;
                (header.chunk, header.lines) = (*chunk, (*lines).into());
                emit_lines(&header, from, packet);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::parse;

    struct Desk {
        client: Client,
        out: Out,
    }

    fn desk(switches: usize) -> Desk {
        let mut out = Out::default();
        let config = ClientConfig {
            window: 4,
            ..ClientConfig::new(switches)
        };
        Desk {
            client: Client::new(config, MS, 5, &mut out),
            out,
        }
    }

    impl Desk {
        fn sent(&mut self) -> Vec<(usize, Header)> {
            let mut sent = Vec::new();
            self.out
                .drain(|to, packet| sent.push((*to, parse(packet).unwrap().0)));
            sent
        }

        fn gets(
            &mut self,
            now: Nanos,
            switch: usize,
            header: Header,
            value: &[u8],
        ) -> Vec<(usize, Header)> {
            let mut packet = Vec::new();
            emit(&header, value, &mut packet);
            let (header, value) = parse(&packet).unwrap();
            self.client
                .on_packet(now, switch, &header, value, &mut self.out);
            self.sent()
        }

        fn tick(&mut self, now: Nanos) -> Vec<(usize, Header)> {
            self.client.tick(now, &mut self.out);
            self.sent()
        }

        /// Of what it asks while it looks.
        fn nonce(&self) -> u64 {
            self.client.looking.as_ref().expect("it looks").nonce
        }

        /// Join a switch; the HELLO that asked for a session.
        fn join(&mut self, now: Nanos, switch: usize, epoch: u64, session: u64) -> Header {
            self.sent();
            let active = Header {
                request: self.nonce(),
                ..active(epoch)
            };
            let hello = self.gets(now, switch, active, &[]);
            let (to, hello) = *hello
                .iter()
                .find(|(_, h)| h.kind == HELLO && h.slot > 0)
                .expect("a HELLO");
            assert_eq!(to, switch);
            let welcome = Header {
                request: hello.request,
                session,
                slot: 4,
                chunk: 8,
                ..active
            };
            self.gets(now, switch, welcome, &[]);
            hello
        }

        fn write(&mut self, now: Nanos, sole_writer: bool) -> Ticket {
            let op = Op::Write {
                chunk: 1,
                lines: 1,
                from: Box::new([[3; LINE_LEN_BYTES]; CHUNK_LINES]),
                sole_writer,
            };
            self.client.submit(now, op, &mut self.out)
        }
    }

    fn active(epoch: u64) -> Header {
        Header {
            kind: WELCOME,
            epoch,
            ..Header::default()
        }
    }

    fn refused(session: u64, request: u64, epoch: u64) -> Header {
        Header {
            kind: REFUSED,
            flags: F_NOT_ACTIVE,
            session,
            request,
            epoch,
            ..Header::default()
        }
    }

    fn written(request: &Header) -> Header {
        Header {
            kind: WRITE_REPLY,
            ..*request
        }
    }

    #[test]
    fn the_window_bounds_what_is_under_way_and_a_lost_request_is_sent_again() {
        let mut desk = desk(1);
        desk.join(MS, 0, 48, 100);
        for _ in 0..6 {
            desk.write(MS, false);
        }
        let sent: Vec<Header> = desk.sent().into_iter().map(|(_, h)| h).collect();
        let numbers: Vec<u64> = sent.iter().map(|h| h.request).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        // Three later ones are answered: the first is lost.
        assert!(desk.gets(2 * MS, 0, written(&sent[1]), &[]).is_empty());
        assert!(desk.gets(2 * MS, 0, written(&sent[2]), &[]).is_empty());
        let again = desk.gets(2 * MS, 0, written(&sent[3]), &[]);
        assert_eq!(
            again.iter().map(|(_, h)| h.request).collect::<Vec<_>>(),
            [1]
        );
        let next = desk.gets(2 * MS, 0, written(&sent[0]), &[]);
        assert_eq!(
            next.iter().map(|(_, h)| h.request).collect::<Vec<_>>(),
            [5, 6]
        );
        let again = desk.tick(9 * MS);
        assert!(again.iter().any(|(_, h)| h.request == 5), "{again:?}");
        let other = Header {
            chunk: 2,
            ..written(&next[0].1)
        };
        desk.gets(9 * MS, 0, other, &[]);
        assert_eq!(desk.client.outstanding(), 2, "an answer to something else");
    }

    #[test]
    fn a_lost_session_repeats_what_may_be_repeated_and_closes_the_old_one() {
        let mut desk = desk(1);
        desk.join(MS, 0, 48, 100);
        let (plain, own) = (desk.write(MS, false), desk.write(MS, true));
        let op = Op::Read { chunk: 0, lines: 3 };
        desk.client.submit(MS, op, &mut desk.out);
        desk.sent();
        let refused = Header {
            flags: 0,
            ..refused(100, 2, 0)
        };
        let hello = desk.gets(2 * MS, 0, refused, &[]);
        assert_eq!(desk.client.take_done(), Some((plain, Outcome::Unknown)));
        let hello = hello.iter().find(|(_, h)| h.slot > 0).unwrap().1;
        assert_eq!(hello.session, 100, "it is to be closed first");
        let welcome = Header {
            kind: WELCOME,
            epoch: 80,
            request: hello.request,
            session: 200,
            slot: 4,
            chunk: 8,
            ..Header::default()
        };
        let again = desk.gets(3 * MS, 0, welcome, &[]);
        let kinds: Vec<_> = again
            .iter()
            .map(|(_, h)| (h.kind, h.session, h.request))
            .collect();
        assert_eq!(kinds, [(WRITE_REQUEST, 200, 1), (READ_REQUEST, 200, 2)]);
        // An answer of the old session is none.
        desk.gets(
            3 * MS,
            0,
            Header {
                session: 100,
                ..written(&again[0].1)
            },
            &[],
        );
        assert_eq!(desk.client.take_done(), None);
        desk.gets(3 * MS, 0, written(&again[0].1), &[]);
        assert_eq!(desk.client.take_done(), Some((own, Outcome::Written)));
    }

    #[test]
    fn a_silent_switch_is_replaced_by_one_that_a_client_activates() {
        let mut desk = desk(2);
        desk.join(MS, 0, 48, 100);
        desk.write(MS, true);
        desk.sent();
        let probes = desk.tick(12 * MS);
        let asked: Vec<usize> = probes
            .iter()
            .filter(|(_, h)| h.kind == HELLO)
            .map(|(to, _)| *to)
            .collect();
        assert_eq!(asked, [0, 1]);
        let passive = Header {
            flags: F_NOT_ACTIVE,
            request: desk.nonce(),
            ..active(48)
        };
        desk.gets(13 * MS, 1, passive, &[]);
        let activate = desk.tick(23 * MS);
        let activate: Vec<_> = activate
            .iter()
            .filter(|(_, h)| h.flags == F_ACTIVATE)
            .collect();
        assert_eq!(activate.len(), 1, "{activate:?}");
        assert_eq!((activate[0].0, activate[0].1.epoch), (1, 48));
        desk.join(24 * MS, 1, 81, 300);
        let again = desk.tick(24 * MS);
        assert_eq!(desk.client.switch(), Some((1, 81)));
        drop(again);
        // Back at the first one, it closes the session that it had there.
        desk.gets(25 * MS, 1, refused(300, 1, 112), &[]);
        let hello = desk.join(26 * MS, 0, 112, 400);
        assert_eq!(hello.session, 100);
    }

    #[test]
    fn a_request_ends_by_its_deadline_and_a_chunk_behind_the_end_is_refused() {
        let mut desk = desk(1);
        let ticket = desk.write(MS, false);
        desk.tick(11_000 * MS);
        assert_eq!(desk.client.take_done(), Some((ticket, Outcome::TimedOut)));
        desk.join(11_000 * MS, 0, 48, 100);
        let op = Op::Read { chunk: 8, lines: 1 };
        let ticket = desk.client.submit(11_000 * MS, op, &mut desk.out);
        assert_eq!(
            desk.client.take_done(),
            Some((ticket, Outcome::OutOfRange(8)))
        );
        assert_eq!(desk.client.outstanding(), 0);
    }

    #[test]
    fn what_was_refused_and_is_over_deposes_no_switch() {
        let mut desk = desk(2);
        desk.join(MS, 0, 48, 100);
        desk.write(MS, false);
        let request = desk.sent()[0].1;
        desk.gets(2 * MS, 0, written(&request), &[]);
        let late = refused(100, request.request, 48);
        assert!(desk.gets(3 * MS, 0, late, &[]).is_empty());
        assert!(desk.client.looking.is_none());
        // It looks because of one that is not over, which is then answered in time.
        desk.write(3 * MS, false);
        let request = desk.sent()[0].1;
        desk.gets(4 * MS, 0, refused(100, request.request, 48), &[]);
        let nonce = desk.nonce();
        desk.client
            .joined
            .as_mut()
            .unwrap()
            .pending
            .fill_with(|| None);
        desk.client.joined.as_mut().unwrap().oldest += 1;
        let answer = Header {
            request: nonce,
            ..active(48)
        };
        desk.gets(5 * MS, 0, answer, &[]);
        assert!(
            desk.client.looking.is_none(),
            "it is idle, and the switch active"
        );
    }

    #[test]
    fn an_epoch_of_a_server_says_nothing_about_switches() {
        let mut desk = desk(1);
        desk.join(MS, 0, 48, 100);
        desk.write(MS, true);
        desk.sent();
        let fence = 64 + 3;
        desk.gets(2 * MS, 0, refused(100, 1, fence), &[]);
        assert_eq!(desk.client.epoch, 48);
        // The switch has lost its sessions, and its epoch is below that of the server.
        desk.client.abandon();
        desk.join(3 * MS, 0, 48, 200);
        assert_eq!(desk.client.switch(), Some((0, 48)));
    }

    #[test]
    fn a_slow_switch_gives_one_session() {
        let mut desk = desk(1);
        desk.sent();
        let probed = Header {
            request: desk.nonce(),
            ..active(48)
        };
        let first = desk.gets(MS, 0, probed, &[])[0].1;
        for ms in 2..60 {
            desk.tick(ms * MS);
        }
        let probed = Header {
            request: desk.nonce(),
            ..probed
        };
        let second = desk.gets(60 * MS, 0, probed, &[])[0].1;
        assert_eq!((first.slot, second.slot), (4, 4));
        assert_eq!(first.request, second.request, "the same session");
        for ms in 60..90 {
            desk.tick(ms * MS);
        }
        // The answer to the first HELLO, while it looks again.
        let welcome = Header {
            request: first.request,
            session: 100,
            slot: 4,
            chunk: 8,
            ..active(48)
        };
        let too_much = Header {
            slot: 2 * WINDOW_MAX,
            ..welcome
        };
        desk.gets(90 * MS, 0, too_much, &[]);
        assert_eq!(desk.client.switch(), None);
        desk.gets(90 * MS, 0, welcome, &[]);
        assert_eq!(desk.client.switch(), Some((0, 48)));
        desk.client.abandon();
        desk.tick(91 * MS);
        let hello = desk.join(92 * MS, 0, 48, 200);
        assert_ne!(hello.request, first.request, "that one was used");
    }

    #[test]
    fn an_answer_to_what_was_asked_before_counts_no_more() {
        let mut desk = desk(1);
        let old = Header {
            request: desk.nonce(),
            ..active(48)
        };
        desk.join(MS, 0, 48, 100);
        desk.client.abandon();
        desk.tick(2 * MS);
        let sent = desk.gets(3 * MS, 0, old, &[]);
        assert!(sent.is_empty(), "{sent:?}");
        desk.join(4 * MS, 0, 48, 200);
    }

    #[test]
    fn a_switch_that_never_answers_is_left_later_each_time() {
        let mut desk = desk(1);
        desk.join(MS, 0, 48, 100);
        desk.write(MS, true);
        for (ms, doubled) in [(12, 1), (50, 2), (200, 3), (500, 4)] {
            desk.tick(ms * MS);
            assert_eq!(desk.client.suspect_after_ns, (10 << doubled) * MS);
            let session = 100 + doubled;
            desk.client.abandon();
            desk.join(ms * MS, 0, 48, session);
        }
        let request = Header {
            kind: WRITE_REQUEST,
            session: desk.client.joined.as_ref().unwrap().session,
            request: 1,
            chunk: 1,
            lines: 1,
            ..Header::default()
        };
        desk.gets(500 * MS, 0, written(&request), &[]);
        assert_eq!(desk.client.suspect_after_ns, 10 * MS);
    }

    #[test]
    fn goodbye_closes_the_session() {
        let mut desk = desk(2);
        desk.join(MS, 1, 48, 100);
        desk.sent();
        desk.client.goodbye(&mut desk.out);
        let sent = desk.sent();
        let sent: Vec<_> = sent
            .iter()
            .map(|(to, h)| (*to, h.kind, h.session, h.slot))
            .collect();
        assert_eq!(sent, [(1, HELLO, 100, 0)]);
    }
}
