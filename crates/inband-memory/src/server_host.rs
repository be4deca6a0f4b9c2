//! A memory server's process, sans-I/O: it grants epochs, and recovers the memory of a server that has lost it.

use std::collections::BTreeMap;

use crate::c;
use crate::congestion::Window;
use crate::epoch::{
    is_ahead, is_switch, majority, next, owner, question, step, Nanos, Nodes, Outbox, Promise,
    ASK_AGAIN_NS, EPOCHS, MS, REPLACE_SKIPS, SERVERS_MAX,
};
use crate::lines::{Chunk, CHUNK_LINES, LINE_LEN_BYTES};
use crate::registers::{ServerRegisters, COUNT_BITS};
use crate::round_trip::RoundTrip;
use crate::wire::{
    emit, take_read, Header, EPOCH, F_TO_GRANT, GRANT, READ, READ_ANSWER, WRITE, WRITE_BACK,
};

/// Retransmission interval of GRANT.
const GRANT_AGAIN_NS: Nanos = 2 * MS;
/// Upper limit of the random delay before a refused proposal is made again.
const PROPOSE_AGAIN_NS: Nanos = 3 * MS;
/// Maximum number of chunks being read at a time; fewer where answers are lost or slow.
const READS_MAX: u32 = 128;
/// Rate limit of a recovering server, in chunks per millisecond: the rest of the network, and of the other servers'
/// CPUs, is left to clients.
const COPY_CHUNKS_PER_MS: u64 = 32;
/// The same limit in bytes per second, from each of the servers that it copies from.
pub const COPY_BYTES_PER_S: u64 =
    COPY_CHUNKS_PER_MS * 1_000 * (CHUNK_LINES * LINE_LEN_BYTES) as u64;
const LINES_ALL: u16 = c::IB_MEMORY_LINES_ALL as u16;

/// Configuration of a server.
#[derive(Debug, Clone, Copy)]
pub struct ServerConfig {
    /// Its node id, from 1.
    pub node: u8,
    /// Number of servers in the cluster.
    pub servers: u8,
}

/// How a server starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The memory is new, and so are all its servers.
    New,
    /// The server has lost its memory, and copies it from a majority.
    Recover,
}

/// Recipient of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToWhom<From> {
    /// A server, by its node id.
    Server(u8),
    /// The sender of the packet being answered.
    Asker(From),
}

/// Packets to send.
pub type Out<From> = Outbox<ToWhom<From>>;

/// A chunk that is being read.
struct Reading {
    answered: Nodes,
    timestamps: [u64; CHUNK_LINES],
    lines: Box<Chunk>,
    first_sent: Nanos,
    sends: u32,
    send_at: Nanos,
}

/// Pacing of the copy.
struct Pace {
    window: Window,
    round_trip: RoundTrip,
    /// Chunks that may be read now, as of `at`.
    budget: u64,
    at: Nanos,
}

impl Pace {
    fn new(now: Nanos) -> Pace {
        Pace {
            window: Window::new(READS_MAX),
            round_trip: RoundTrip::default(),
            budget: COPY_CHUNKS_PER_MS,
            at: now,
        }
    }

    /// Adds the budget for the time that has passed. Budget not used within a millisecond expires.
    fn refill(&mut self, now: Nanos) {
        let elapsed_ns = now.saturating_sub(self.at);
        let more = elapsed_ns * COPY_CHUNKS_PER_MS / MS;
        if more > 0 {
            self.budget = (self.budget + more).min(COPY_CHUNKS_PER_MS);
            self.at = now;
        }
    }
}

enum State {
    Serving,
    /// Asking the other servers to grant `epoch`.
    Fencing {
        epoch: u64,
        granted: Nodes,
        send_at: Nanos,
    },
    /// The others refuse anything older than `fence`; chunks below `next` have been requested.
    Copying {
        fence: u64,
        /// The servers that granted the fence.
        granted: Nodes,
        reads: BTreeMap<u64, Reading>,
        next: u64,
        copied: u64,
        pace: Pace,
    },
}

/// The state machine of a server's process. See the [module](self).
pub struct ServerHost {
    config: ServerConfig,
    /// What it has proposed or granted; stored durably.
    promised: Promise,
    /// The last grant, the switch epoch granted before it, and the start (incarnation) of the node that asked.
    last_grant: (u64, u64, u64),
    /// The highest epoch heard of.
    heard: u64,
    /// How far above `heard` the next proposal must be.
    skips: u64,
    /// A replacement does not know the cluster's epochs yet: it learns them from the answers to its first proposal,
    /// which do not count as grants.
    asks: bool,
    /// The highest switch epoch reported in a grant to this server.
    switch_epoch: u64,
    state: State,
    propose_at: Nanos,
    /// When it may ask the others for their epochs again.
    ask_at: Nanos,
    epochs_refused: u64,
    /// By server: its number of chunks when it granted the fence.
    chunks_of: [u64; SERVERS_MAX as usize + 1],
    /// Distinguishes answers to this start's packets from answers to earlier ones.
    nonce: u64,
    random: u64,
}

impl ServerHost {
    /// Creates the state of a process that has just started, with an empty role. `promised`: the last stored value, 0
    /// if there is none; `random` must be drawn afresh at each start.
    pub fn new(
        config: ServerConfig,
        start: Start,
        promised: u64,
        random: u64,
        registers: &ServerRegisters,
    ) -> ServerHost {
        let state = match start {
            Start::New => {
                // Refuse packets of an earlier memory at this node.
                registers.raise_epoch(promised);
                registers.set_serving(true);
                State::Serving
            }
            Start::Recover => State::Fencing {
                epoch: 0,
                granted: Nodes::default(),
                send_at: 0,
            },
        };
        ServerHost {
            config,
            promised: Promise::new(promised),
            last_grant: (0, 0, 0),
            heard: 0,
            skips: 0,
            asks: false,
            switch_epoch: 0,
            state,
            propose_at: 0,
            ask_at: 0,
            epochs_refused: 0,
            chunks_of: [0; SERVERS_MAX as usize + 1],
            nonce: random,
            random,
        }
    }

    /// Makes this server the replacement of one whose promise is lost: it proposes an epoch so far above everything
    /// known to a majority of the others that the lost server cannot have promised a higher one.
    pub fn replaces(&mut self) {
        self.asks = true;
    }

    /// Returns whether the server serves.
    pub fn is_serving(&self) -> bool {
        matches!(self.state, State::Serving)
    }

    /// Returns the number of chunks copied so far, or `None` if the server serves.
    pub fn copied(&self) -> Option<u64> {
        match &self.state {
            State::Serving => None,
            State::Fencing { .. } => Some(0),
            State::Copying { copied, .. } => Some(*copied),
        }
    }

    /// Returns the highest epoch that the server has proposed or granted.
    pub fn promised(&self) -> u64 {
        self.promised.used()
    }

    /// Returns how many requests for an epoch were refused because it was too far ahead.
    pub fn epochs_refused(&self) -> u64 {
        self.epochs_refused
    }

    /// Handles a packet that the role passes on. `from`: where to send the answer.
    pub fn on_packet<From>(
        &mut self,
        now: Nanos,
        from: From,
        header: &Header,
        value: &[u8],
        registers: &ServerRegisters,
        out: &mut Out<From>,
    ) {
        match header.kind {
            GRANT => self.on_grant(from, header, registers, out),
            EPOCH if header.flags & F_TO_GRANT != 0 => {
                self.on_granted(now, header, registers, out);
            }
            // A READ was refused.
            EPOCH if header.request == self.nonce => self.heard = self.heard.max(header.epoch),
            READ | WRITE | WRITE_BACK => self.ask(now, header, registers, out),
            READ_ANSWER => self.on_read(now, header, value, registers),
            _ => {}
        }
        self.tick(now, registers, out);
    }

    /// Handles a request for an epoch.
    fn on_grant<From>(
        &mut self,
        from: From,
        header: &Header,
        registers: &ServerRegisters,
        out: &mut Out<From>,
    ) {
        let is_valid = u16::from(owner(header.epoch)) == header.node && header.epoch < EPOCHS;
        if !self.is_serving() || !is_valid {
            return;
        }
        let mut answer = Header {
            kind: EPOCH,
            flags: F_TO_GRANT,
            node: self.config.node.into(),
            chunk: registers.chunks() as u64,
            ..*header
        };
        let (last, before, asker) = self.last_grant;
        if header.epoch == last && header.session == asker {
            answer.timestamp = before;
        } else {
            answer.timestamp = registers.switch_epoch();
            let known = registers.epoch().max(self.promised.used());
            let is_ahead = is_ahead(header.epoch, known);
            self.epochs_refused += u64::from(is_ahead);
            if header.epoch > self.promised.used() && header.epoch >= registers.epoch() && !is_ahead
            {
                self.promised.raise(header.epoch, out);
                self.last_grant = (header.epoch, answer.timestamp, header.session);
                registers.raise_epoch(header.epoch);
                if is_switch(header.epoch) {
                    registers.raise_switch_epoch(header.epoch);
                }
            } else {
                answer.epoch = known;
                if u16::from(owner(answer.epoch)) == header.node {
                    // Another start of this node may have been granted it, and this one may propose it later: a refusal
                    // must never look like a grant.
                    answer.epoch = next(answer.epoch, self.config.node).unwrap_or(EPOCHS);
                }
            }
        }
        emit(&answer, &[], out.packet(ToWhom::Asker(from)));
    }

    /// Asks the others for their epochs: a packet has one that is too far ahead, which alone proves nothing. This
    /// server may have been cut off for long.
    fn ask<From>(
        &mut self,
        now: Nanos,
        header: &Header,
        registers: &ServerRegisters,
        out: &mut Out<From>,
    ) {
        if !is_ahead(header.epoch, registers.epoch()) || !self.is_serving() || now < self.ask_at {
            return;
        }
        self.ask_at = now + ASK_AGAIN_NS;
        for server in self.others() {
            self.ask_for(question(self.config.node), server, out);
        }
    }

    fn others(&self) -> impl Iterator<Item = u8> {
        let node = self.config.node;
        (1..=self.config.servers).filter(move |server| *server != node)
    }

    /// Asks a server to grant this one an epoch.
    fn ask_for<From>(&self, epoch: u64, server: u8, out: &mut Out<From>) {
        let grant = Header::grant(self.config.node, epoch, self.nonce);
        emit(&grant, &[], out.packet(ToWhom::Server(server)));
    }

    fn on_granted<From>(
        &mut self,
        now: Nanos,
        header: &Header,
        registers: &ServerRegisters,
        out: &mut Out<From>,
    ) {
        let is_other = header.node != u16::from(self.config.node)
            && (1..=u16::from(self.config.servers)).contains(&header.node);
        if header.session != self.nonce || !is_other {
            return; // answers an earlier start
        }
        self.heard = self.heard.max(header.epoch);
        if self.is_serving() && is_ahead(header.epoch, registers.epoch()) {
            registers.raise_epoch(header.epoch);
        }
        let State::Fencing { epoch, granted, .. } = &mut self.state else {
            return;
        };
        let server = header.node as u8;
        if self.asks {
            granted.add(header.node);
            if granted.count() >= majority(self.config.servers) {
                (self.asks, self.skips) = (false, REPLACE_SKIPS);
                *epoch = 0;
            }
        } else if header.epoch > *epoch {
            *epoch = 0; // refused
            self.propose_at = now + self.random % PROPOSE_AGAIN_NS;
            self.random = self
                .random
                .rotate_left(7)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        } else if header.epoch == *epoch && *epoch != 0 {
            granted.add(header.node);
            // Earlier versions do not report the number of chunks.
            self.chunks_of[usize::from(header.node)] = match header.chunk {
                0 => u64::MAX,
                chunks => chunks,
            };
            self.switch_epoch = self.switch_epoch.max(header.timestamp);
            if granted.count() >= majority(self.config.servers) {
                self.state = State::Copying {
                    fence: *epoch,
                    granted: *granted,
                    reads: BTreeMap::new(),
                    next: 0,
                    copied: 0,
                    pace: Pace::new(now),
                };
            }
        } else if let Some(step) = step(*epoch, header.epoch).filter(|_| !granted.has(server)) {
            self.ask_for(step, server, out);
        }
    }

    fn on_read(&mut self, now: Nanos, header: &Header, value: &[u8], registers: &ServerRegisters) {
        let State::Copying {
            fence,
            reads,
            copied,
            pace,
            ..
        } = &mut self.state
        else {
            return;
        };
        let is_of_this = header.request == self.nonce && header.epoch >= *fence;
        let epoch_end = (header.epoch + 1) << COUNT_BITS;
        let node = header.node;
        let is_other =
            node != u16::from(self.config.node) && node <= u16::from(SERVERS_MAX) && node > 0;
        if !is_of_this || !is_other || header.lines != u32::from(LINES_ALL) {
            return;
        }
        self.heard = self.heard.max(header.epoch);
        let Some(reading) = reads.get_mut(&header.chunk) else {
            return;
        };
        if reading.answered.has(node as u8) {
            return;
        }
        let (mut timestamps, mut lines) = ([0; CHUNK_LINES], [[0; LINE_LEN_BYTES]; CHUNK_LINES]);
        let is_whole = take_read(header, value, &mut timestamps, &mut lines);
        // No server of this epoch has stored anything of a later one.
        if !is_whole || timestamps.iter().any(|timestamp| *timestamp >= epoch_end) {
            return;
        }
        for n in 0..CHUNK_LINES {
            if timestamps[n] > reading.timestamps[n] {
                reading.timestamps[n] = timestamps[n];
                reading.lines[n] = lines[n];
            }
        }
        reading.answered.add(node);
        if reading.answered.count() >= majority(self.config.servers) {
            let under_way = reads.len();
            let read = reads.remove(&header.chunk).expect("it was there");
            pace.window.answered(under_way);
            if read.sends == 1 {
                let rtt_ns = now - read.first_sent;
                pace.round_trip.measured(rtt_ns);
                let srtt_ns = pace.round_trip.srtt_ns();
                pace.window.measured(now, rtt_ns, srtt_ns);
            }
            registers.store_chunk(header.chunk as usize, &read.timestamps, &read.lines);
            *copied += 1;
        }
    }

    /// Advances time. Must be called again at [`ServerHost::due`] at the latest.
    pub fn tick<From>(&mut self, now: Nanos, registers: &ServerRegisters, out: &mut Out<From>) {
        match &mut self.state {
            State::Serving => self.promised.prepare(out),
            State::Fencing { .. } => self.fence(now, out),
            State::Copying {
                copied,
                reads,
                fence,
                ..
            } => {
                if *copied == registers.chunks() as u64 && reads.is_empty() {
                    registers.raise_epoch(self.heard.max(*fence));
                    registers.raise_switch_epoch(self.switch_epoch);
                    registers.set_serving(true);
                    self.state = State::Serving;
                } else {
                    self.copy(now, registers, out);
                }
            }
        }
    }

    fn fence<From>(&mut self, now: Nanos, out: &mut Out<From>) {
        let (node, above) = (
            self.config.node,
            self.promised.used().max(self.heard + self.skips),
        );
        let State::Fencing {
            epoch,
            granted,
            send_at,
        } = &mut self.state
        else {
            return;
        };
        if *epoch == 0 {
            let Some(proposed) = next(above, node).filter(|_| now >= self.propose_at) else {
                return;
            };
            (*epoch, *granted, *send_at) = (proposed, Nodes::default(), now);
            self.promised.raise(proposed, out);
        }
        if now < *send_at {
            return;
        }
        *send_at = now + GRANT_AGAIN_NS;
        let (epoch, granted) = (*epoch, *granted);
        for server in self.others().filter(|server| !granted.has(*server)) {
            self.ask_for(epoch, server, out);
        }
    }

    fn copy<From>(&mut self, now: Nanos, registers: &ServerRegisters, out: &mut Out<From>) {
        let (config, heard, nonce, chunks_of) =
            (self.config, self.heard, self.nonce, self.chunks_of);
        let State::Copying {
            fence,
            granted,
            reads,
            next,
            copied,
            pace,
        } = &mut self.state
        else {
            return;
        };
        pace.refill(now);
        while reads.len() < pace.window.size()
            && pace.budget > 0
            && *next < registers.chunks() as u64
        {
            // A server that was smaller when it granted the fence has nothing of this chunk, and has acknowledged no
            // write to it.
            let mut answered = Nodes::default();
            let smaller =
                |server: &u8| granted.has(*server) && chunks_of[usize::from(*server)] <= *next;
            let smaller = (1..=config.servers).filter(smaller);
            smaller.for_each(|server| answered.add(server.into()));
            if answered.count() >= majority(config.servers) {
                *copied += 1; // stays zero
            } else {
                let reading = Reading {
                    answered,
                    timestamps: [0; CHUNK_LINES],
                    lines: Box::new([[0; LINE_LEN_BYTES]; CHUNK_LINES]),
                    first_sent: now,
                    sends: 0,
                    send_at: now,
                };
                reads.insert(*next, reading);
                pace.budget -= 1;
            }
            *next += 1;
        }
        for (chunk, reading) in reads
            .iter_mut()
            .filter(|(_, reading)| now >= reading.send_at)
        {
            if reading.sends > 0 {
                pace.round_trip.timed_out(now);
                pace.window.lost(now, pace.round_trip.srtt_ns());
            }
            reading.sends += 1;
            reading.send_at = now + pace.round_trip.resend_after(reading.sends);
            let read = Header {
                kind: READ,
                node: config.node.into(),
                epoch: heard.max(*fence),
                request: nonce,
                chunk: *chunk,
                lines: LINES_ALL.into(),
                ..Header::default()
            };
            let others = (1..=config.servers).filter(|s| *s != config.node);
            for server in others.filter(|s| !reading.answered.has(*s)) {
                emit(&read, &[], out.packet(ToWhom::Server(server)));
            }
        }
    }

    /// Returns when [`ServerHost::tick`] is due.
    pub fn due(&self, now: Nanos) -> Nanos {
        match &self.state {
            State::Serving => Nanos::MAX,
            State::Fencing { epoch: 0, .. } => self.propose_at.max(now + MS),
            State::Fencing { send_at, .. } => (*send_at).max(now),
            State::Copying { .. } => now + MS,
        }
    }
}

#[cfg(test)]
mod tests;
