//! A switch's process, sans-I/O: it opens sessions, and makes its role active in an epoch that a majority of servers
//! has granted.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use crate::epoch::{
    is_ahead, is_switch, majority, next, owner, question, step, Nanos, Nodes, Outbox, Promise,
    ASK_AGAIN_NS, MS, SERVERS_MAX,
};
use crate::registers::{SwitchRegisters, COUNT_MAX, SESSION_MASK};
use crate::wire::{emit, Header, EPOCH, F_ACTIVATE, F_NOT_ACTIVE, F_TO_GRANT, HELLO, WELCOME};

/// How often the process looks at its role's registers.
pub const POLL_NS: Nanos = MS;
/// Retransmission interval of GRANT.
const GRANT_AGAIN_NS: Nanos = 2 * MS;
/// Minimum time between two activations. It doubles up to the maximum while switches depose each other within the quiet
/// time, so that clients that each reach only one of the switches do not use up the epochs. It does not double when a
/// server's epoch is the reason, since then no other switch competes.
const ACTIVATION_GAP_NS: Nanos = 20 * MS;
const ACTIVATION_GAP_MAX_NS: Nanos = 2_000 * MS;
const ACTIVATION_QUIET_NS: Nanos = 10_000 * MS;
/// The process asks for grants for this long after a client has asked it to become active.
const WISH_LASTS_NS: Nanos = 200 * MS;
/// Upper limit of the random delay before a refused proposal is made again, so that two proposers do not refuse each
/// other forever.
const PROPOSE_AGAIN_NS: Nanos = 3 * MS;
/// A session that has been idle for this long is closed.
const SESSION_IDLE_NS: Nanos = 60_000 * MS;
/// If there is no room for a new session, one that has been idle for at least this long is closed.
pub const SESSION_IDLE_MIN_NS: Nanos = 2_000 * MS;
/// Slots reserved for each session that may still be opened, provided that half of all slots suffice for that.
const WINDOW_MIN: u64 = 16;
/// A session gets at most this fraction (1/n) of the unreserved slots, so that later ones get some, too.
const WINDOW_PART: u64 = 8;
/// How often idle sessions and write counts are checked.
const SURVEY_NS: Nanos = 1_000 * MS;
/// A new epoch is needed once a block's write count reaches this.
const COUNT_HIGH: u64 = COUNT_MAX / 8 * 7;
const SESSION_BITS: u32 = SESSION_MASK.count_ones();
/// Maximum number of slots of a session.
pub const WINDOW_MAX: u32 = 16_384;

/// Configuration of a switch.
#[derive(Debug, Clone, Copy)]
pub struct SwitchConfig {
    /// Its node id, 16 to 31.
    pub node: u8,
    pub servers: u8,
    /// Chunks of the memory, as reported to clients.
    pub chunks: u64,
}

/// Recipient of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToWhom {
    /// A server, by its node id.
    Server(u8),
    Client(SocketAddrV4),
}

pub type Out = Outbox<ToWhom>;

struct Session {
    session: u64,
    /// The nonce of the HELLO that asked for it.
    asked: u64,
    slot_first: u64,
    window: u64,
    requests: u64,
    used_at: Nanos,
}

struct Proposal {
    epoch: u64,
    granted: Nodes,
    /// Whether no other switch was granted an epoch since this one was last active.
    nobody_between: bool,
    send_at: Nanos,
}

/// The state machine of a switch's process. See the [module](self).
pub struct SwitchHost {
    config: SwitchConfig,
    /// Identifies this start: an epoch is granted to it, and to no other start of the node.
    incarnation: u64,
    /// What it has proposed; stored durably.
    promised: Promise,
    /// The highest epoch heard of, from any node and from other switches.
    heard: u64,
    heard_of_switch: u64,
    /// The epoch in which it was last active, and to which its sessions belong; 0: none.
    own: u64,
    /// By server: the epoch of an abandoned proposal that the server granted, having granted no other switch an epoch
    /// since `own`.
    given_up: [u64; SERVERS_MAX as usize + 1],
    proposal: Option<Proposal>,
    wished_at: Option<Nanos>,
    propose_at: Nanos,
    /// When it may ask the servers for their epochs again.
    ask_at: Nanos,
    epochs_refused: u64,
    counts_used_up: bool,
    sessions: BTreeMap<u64, Session>,
    random: u64,
    survey_at: Nanos,
    activations: u64,
    /// When it last became active after another switch, or for the first time.
    took_over_at: Option<Nanos>,
    gap_ns: Nanos,
}

impl SwitchHost {
    /// Creates the state of a process that has just started, with an empty role. `promised`: the last stored value, 0
    /// if there is none; `random` must be drawn afresh at each start.
    pub fn new(config: SwitchConfig, promised: u64, random: u64) -> SwitchHost {
        SwitchHost {
            config,
            incarnation: random | 1,
            promised: Promise::new(promised),
            heard: 0,
            heard_of_switch: 0,
            own: 0,
            given_up: [0; SERVERS_MAX as usize + 1],
            proposal: None,
            wished_at: None,
            propose_at: 0,
            ask_at: 0,
            epochs_refused: 0,
            counts_used_up: false,
            sessions: BTreeMap::new(),
            random: random | 1,
            survey_at: 0,
            activations: 0,
            took_over_at: None,
            gap_ns: ACTIVATION_GAP_NS,
        }
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns how often the switch became active.
    pub fn activations(&self) -> u64 {
        self.activations
    }

    /// Returns the epoch that the switch is asking servers for.
    pub fn proposes(&self) -> Option<u64> {
        self.proposal.as_ref().map(|proposal| proposal.epoch)
    }

    /// Returns how many epochs of clients were too far ahead to be believed.
    pub fn epochs_refused(&self) -> u64 {
        self.epochs_refused
    }

    /// Returns whether the switch serves clients. Its role may not have noticed yet that another switch is active.
    pub fn is_active(&self, registers: &SwitchRegisters) -> bool {
        let epoch = registers.epoch();
        epoch != 0 && epoch >= registers.deposed().max(self.heard_of_switch)
    }

    fn hear(&mut self, epoch: u64) {
        self.heard = self.heard.max(epoch);
        if is_switch(epoch) && owner(epoch) != self.config.node {
            self.heard_of_switch = self.heard_of_switch.max(epoch);
        }
    }

    /// Handles a packet that the role passes on.
    pub fn on_packet(
        &mut self,
        now: Nanos,
        from: SocketAddrV4,
        header: &Header,
        registers: &SwitchRegisters,
        out: &mut Out,
    ) {
        match header.kind {
            HELLO => self.on_hello(now, from, header, registers, out),
            EPOCH if header.flags & F_TO_GRANT != 0 => self.on_grant(now, header, registers, out),
            // The role passes it on because it is too far ahead.
            EPOCH => self.ask_for_epochs(now, out),
            _ => {}
        }
        self.tick(now, registers, out);
    }

    fn on_hello(
        &mut self,
        now: Nanos,
        from: SocketAddrV4,
        header: &Header,
        registers: &SwitchRegisters,
        out: &mut Out,
    ) {
        let knows_later = self.heard_of_switch.max(registers.epoch()) > header.epoch;
        let is_ahead = is_ahead(header.epoch, self.known());
        if is_ahead {
            self.epochs_refused += 1;
        } else {
            self.hear(header.epoch);
        }
        let is_active = self.is_active(registers);
        if header.flags & F_ACTIVATE != 0 && !is_active && !knows_later {
            self.wished_at = Some(now);
        }
        if is_ahead && !self.is_wished(now) {
            self.ask_for_epochs(now, out);
        }
        let mut answer = Header {
            kind: WELCOME,
            flags: F_NOT_ACTIVE,
            node: self.config.node.into(),
            epoch: self.heard_of_switch.max(registers.epoch()),
            request: header.request,
            chunk: self.config.chunks,
            ..Header::default()
        };
        // Without a window the client wants no session in its stead.
        if header.session != 0 {
            self.close(header.session, registers);
        }
        if is_active {
            answer.flags = 0;
            answer.epoch = registers.epoch();
            if header.slot > 0 {
                let opened = self.open(now, header, registers);
                (answer.session, answer.slot) = opened.unwrap_or_default();
            }
        }
        emit(&answer, &[], out.packet(ToWhom::Client(from)));
    }

    /// Returns the session for a HELLO and its window; the same ones if the HELLO is repeated. Returns `None` if there
    /// is no room.
    fn open(
        &mut self,
        now: Nanos,
        hello: &Header,
        registers: &SwitchRegisters,
    ) -> Option<(u64, u32)> {
        let mut sessions = self.sessions.values();
        if let Some(open) = sessions.find(|session| session.asked == hello.request) {
            return Some((open.session, open.window as u32));
        }
        let wanted = 1 << hello.slot.min(WINDOW_MAX).ilog2();
        let mut room = self.room(wanted, registers);
        if room.is_none() {
            self.survey(now, registers);
            let idle = self.sessions.values().min_by_key(|session| session.used_at);
            let idle = idle.filter(|session| now >= session.used_at + SESSION_IDLE_MIN_NS);
            if let Some(session) = idle.map(|session| session.session) {
                self.close(session, registers);
                room = self.room(wanted, registers);
            }
        }
        let (at, slot_first, window) = room?;
        let session = self.draw() << SESSION_BITS | at;
        registers.open_session(at as usize, session, slot_first, window);
        let open = Session {
            session,
            asked: hello.request,
            slot_first,
            window,
            requests: 0,
            used_at: now,
        };
        self.sessions.insert(at, open);
        Some((session, window as u32))
    }

    /// Finds a free index and free slots: as many as wanted, as long as enough are left for all sessions that may still
    /// be opened.
    fn room(&self, wanted: u64, registers: &SwitchRegisters) -> Option<(u64, u64, u64)> {
        let (places, slots) = (registers.sessions() as u64, registers.slots() as u64);
        let at = (0..places).find(|at| !self.sessions.contains_key(at))?;
        let least = 1 << (slots / 2 / places).clamp(1, WINDOW_MIN).ilog2();
        let taken: u64 = self.sessions.values().map(|session| session.window).sum();
        let kept = (places - self.sessions.len() as u64 - 1) * least;
        let part = (slots - taken).saturating_sub(kept) / WINDOW_PART;
        let most = (1 << part.max(1).ilog2()).max(least);
        let free = self.free_slots(wanted.min(most), slots);
        let (first, window) = free.filter(|(_, window)| *window >= wanted.min(least))?;
        Some((at, first, window))
    }

    /// Draws 48 random bits that are not all 0 (splitmix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) >> 16 | 1
    }

    /// Finds a free range of slots: of the size wanted, or else of the largest power of two that is free.
    fn free_slots(&self, wanted: u64, slots: u64) -> Option<(u64, u64)> {
        let mut taken: Vec<(u64, u64)> = self
            .sessions
            .values()
            .map(|s| (s.slot_first, s.window))
            .collect();
        taken.sort_unstable();
        taken.push((slots, 0));
        let mut best: Option<(u64, u64)> = None;
        let mut free_from = 0;
        for (first, window) in taken {
            let free = first - free_from;
            if free > 0 {
                let fits = wanted.min(1 << free.ilog2());
                if best.is_none_or(|(_, size)| fits > size) {
                    best = Some((free_from, fits));
                }
            }
            free_from = first + window;
        }
        best
    }

    fn close(&mut self, session: u64, registers: &SwitchRegisters) {
        let at = session & SESSION_MASK;
        if self
            .sessions
            .get(&at)
            .is_some_and(|open| open.session == session)
        {
            registers.close_session(at as usize);
            self.sessions.remove(&at);
        }
    }

    /// Handles a server's answer to this start of the process: it has granted an epoch, or has promised a higher one, or
    /// refuses one that is too far ahead.
    fn on_grant(
        &mut self,
        now: Nanos,
        header: &Header,
        registers: &SwitchRegisters,
        out: &mut Out,
    ) {
        let (epoch, before) = (header.epoch, header.timestamp);
        let Some(given_up) = self.given_up.get_mut(usize::from(header.node)) else {
            return;
        };
        let is_server = (1..=u16::from(self.config.servers)).contains(&header.node);
        if !is_server || header.session != self.incarnation {
            return;
        }
        let nobody_before = before <= self.own || before == *given_up;
        if owner(epoch) == self.config.node && nobody_before && epoch > *given_up {
            *given_up = epoch;
        }
        self.hear(epoch);
        if owner(epoch) != self.config.node && is_ahead(epoch, registers.epoch()) {
            registers.raise_deposed(epoch); // its role does not
        }
        let Some(proposal) = &mut self.proposal else {
            return;
        };
        if epoch == proposal.epoch {
            if !proposal.granted.has(header.node as u8) {
                proposal.granted.add(header.node);
                proposal.nobody_between &= nobody_before;
            }
            if proposal.granted.count() >= majority(self.config.servers) {
                self.activate(now, registers);
            }
        } else if epoch > proposal.epoch {
            self.proposal = None;
            self.propose_at = now + self.draw() % PROPOSE_AGAIN_NS;
            if is_switch(epoch) && owner(epoch) != self.config.node {
                self.wished_at = None; // another switch is taking over
            }
        } else if !proposal.granted.has(header.node as u8) {
            if let Some(step) = step(proposal.epoch, epoch) {
                self.ask_for(step, header.node as u8, out);
            }
        }
    }

    fn activate(&mut self, now: Nanos, registers: &SwitchRegisters) {
        let Some(proposal) = self.proposal.take() else {
            return;
        };
        let goes_on = self.own != 0 && proposal.nobody_between;
        if !goes_on {
            registers.set_epoch(0);
            registers.clear();
            self.sessions.clear();
        }
        self.counts_used_up = false; // they start over in each epoch
        registers.set_epoch(proposal.epoch);
        self.own = proposal.epoch;
        self.wished_at = None;
        let mut gap_ns = ACTIVATION_GAP_NS;
        if !goes_on {
            let is_contest = |at: Nanos| now < at + ACTIVATION_QUIET_NS;
            if self.took_over_at.is_some_and(is_contest) {
                gap_ns = (2 * self.gap_ns).min(ACTIVATION_GAP_MAX_NS);
            }
            (self.gap_ns, self.took_over_at) = (gap_ns, Some(now));
        }
        self.propose_at = now + gap_ns;
        self.activations += 1;
    }

    /// Advances time. Must be called again at [`SwitchHost::due`] at the latest.
    pub fn tick(&mut self, now: Nanos, registers: &SwitchRegisters, out: &mut Out) {
        let epoch = registers.epoch();
        let deposed = registers.deposed();
        self.hear(deposed);
        if now >= self.survey_at {
            self.survey_at = now + SURVEY_NS;
            self.survey(now, registers);
        }
        let is_deposed_by_server = epoch != 0 && deposed > epoch && !is_switch(deposed);
        if (is_deposed_by_server && self.heard_of_switch <= epoch) || self.counts_used_up {
            self.wished_at = Some(now);
        }
        if !self.is_wished(now) {
            self.promised.prepare(out);
            return;
        }
        if self.proposal.is_none() && now >= self.propose_at {
            self.propose(now, out);
        }
        self.ask(now, out);
    }

    fn is_wished(&self, now: Nanos) -> bool {
        self.wished_at.is_some_and(|at| now < at + WISH_LASTS_NS)
    }

    fn propose(&mut self, now: Nanos, out: &mut Out) {
        let Some(epoch) = next(self.known(), self.config.node) else {
            return;
        };
        self.promised.raise(epoch, out);
        self.proposal = Some(Proposal {
            epoch,
            granted: Nodes::default(),
            nobody_between: true,
            send_at: now,
        });
    }

    /// Returns the highest epoch known.
    fn known(&self) -> u64 {
        self.promised.used().max(self.heard).max(self.own)
    }

    /// Asks the servers for their epochs: a packet has one that is too far ahead, which alone proves nothing. A proposal
    /// asks for them, too.
    fn ask_for_epochs(&mut self, now: Nanos, out: &mut Out) {
        if now < self.ask_at || self.proposal.is_some() {
            return;
        }
        self.ask_at = now + ASK_AGAIN_NS;
        for server in 1..=self.config.servers {
            self.ask_for(question(self.config.node), server, out);
        }
    }

    /// Asks a server to grant an epoch.
    fn ask_for(&self, epoch: u64, server: u8, out: &mut Out) {
        let grant = Header::grant(self.config.node, epoch, self.incarnation);
        emit(&grant, &[], out.packet(ToWhom::Server(server)));
    }

    fn ask(&mut self, now: Nanos, out: &mut Out) {
        let Some(proposal) = self.proposal.as_mut().filter(|p| now >= p.send_at) else {
            return;
        };
        proposal.send_at = now + GRANT_AGAIN_NS;
        let (epoch, granted) = (proposal.epoch, proposal.granted);
        for server in (1..=self.config.servers).filter(|server| !granted.has(*server)) {
            self.ask_for(epoch, server, out);
        }
    }

    fn survey(&mut self, now: Nanos, registers: &SwitchRegisters) {
        for session in self.sessions.values_mut() {
            let requests = registers
                .session((session.session & SESSION_MASK) as usize)
                .requests;
            if requests != session.requests {
                (session.requests, session.used_at) = (requests, now);
            }
        }
        let idle = |session: &&Session| now >= session.used_at + SESSION_IDLE_NS;
        let closing: Vec<u64> = self
            .sessions
            .values()
            .filter(idle)
            .map(|s| s.session)
            .collect();
        closing
            .into_iter()
            .for_each(|session| self.close(session, registers));
        if registers.epoch() != 0 && registers.counts_max() >= COUNT_HIGH {
            self.counts_used_up = true;
        }
    }

    /// Returns when [`SwitchHost::tick`] is due.
    pub fn due(&self, now: Nanos) -> Nanos {
        now + POLL_NS
    }
}

#[cfg(test)]
mod tests;
