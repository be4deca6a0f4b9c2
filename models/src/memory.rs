//! Replicated memory: one line, three servers, two switches. Packets arrive in any order, repeatedly or never; a switch
//! is deposed without knowing it, or loses everything but the epochs it has proposed; a server loses its memory and
//! copies that of a majority.
//!
//! Speaks of:
//! - `dataplane/memory/role_switch.h`: `ib_memory_request` `ib_memory_does_not_count` `ib_memory_have_read`
//!   `ib_memory_ack`
//! - `dataplane/memory/shell.h`: `ib_memory_number` `ib_shell_memory_server`
//!
//! Every write has a unique timestamp, so linearizability reduces to timestamps: a read returns one that is not lower,
//! and a write gets one that is higher, than every timestamp written or read before it began; and no write gets two.

mod state;

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

pub use state::{Packet, State};
use state::{Phase, Server, Slot, Switch, Version, NONE};

const SERVERS: usize = 3;
const SWITCHES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Writes its own number.
    Write,
    Read,
}

/// Bounds of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The operations. Each may begin at any time.
    pub ops: &'static [Op],
    /// One writer: operation 1 repeats operation 0, whose outcome is unknown, on the other switch; then 2 overwrites
    /// it; then 3 reads.
    pub sole_writer: bool,
    /// Epochs after the first that switches request.
    pub activations: u8,
    /// Switches that lose their state.
    pub switch_crashes: u8,
    /// Servers that lose their memory.
    pub server_crashes: u8,
    /// Requests that are resent.
    pub resends: u8,
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let writes = self.ops.iter().filter(|op| **op == Op::Write).count();
        let Bounds {
            sole_writer,
            activations,
            switch_crashes,
            server_crashes,
            resends,
            ops,
        } = self;
        let reads = ops.len() - writes;
        let sole = if *sole_writer { " of one writer" } else { "" };
        write!(
            f,
            "{writes} writes{sole}, {reads} reads, {activations} activations, {switch_crashes} switch and {server_crashes} \
             server crashes, {resends} resends"
        )
    }
}

/// Reads concurrent with an unfinished write.
pub const CALM: Bounds = Bounds {
    ops: &[Op::Write, Op::Read, Op::Read],
    sole_writer: false,
    activations: 0,
    switch_crashes: 0,
    server_crashes: 0,
    resends: 0,
};
/// Two writes, one of them resent.
pub const RESENT: Bounds = Bounds {
    ops: &[Op::Write, Op::Write, Op::Read],
    resends: 1,
    ..CALM
};
/// The other switch takes over.
pub const TAKEOVER: Bounds = Bounds {
    ops: &[Op::Write, Op::Write, Op::Read],
    activations: 1,
    ..CALM
};
/// A switch restarts without its state.
pub const RESTART: Bounds = Bounds {
    ops: &[Op::Write, Op::Write, Op::Read],
    activations: 1,
    switch_crashes: 1,
    ..CALM
};
/// A server loses its memory.
pub const AMNESIA: Bounds = Bounds {
    ops: &[Op::Write, Op::Read],
    server_crashes: 1,
    ..CALM
};
/// The same, and the switch continues the write that was in flight.
pub const AMNESIA_RESENT: Bounds = Bounds {
    activations: 1,
    resends: 1,
    ..AMNESIA
};
/// The only writer repeats a write of unknown outcome on the other switch.
pub const REPEATED: Bounds = Bounds {
    ops: &[Op::Write, Op::Write, Op::Write, Op::Read],
    sole_writer: true,
    activations: 1,
    ..CALM
};
/// The same, and the first switch takes over again.
pub const REPEATED_AND_BACK: Bounds = Bounds {
    activations: 2,
    ..REPEATED
};

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    NoWriteBack,
    CountedByPackets,
    NewTimestampOnResend,
    SharedQuorum,
    InventedEpoch,
    EpochIgnored,
    EmptyServerAnswers,
    NoFence,
    AnswersKept,
    SessionsKept,
    CountFirst,
}

impl Mutant {
    /// All mutants, and the bounds within which each is refuted.
    pub const ALL: [(Mutant, Bounds); 11] = [
        (Mutant::NoWriteBack, CALM),
        (Mutant::CountedByPackets, CALM),
        (Mutant::NewTimestampOnResend, RESENT),
        (Mutant::SharedQuorum, RESENT),
        (Mutant::InventedEpoch, RESTART),
        (Mutant::EpochIgnored, TAKEOVER),
        (Mutant::EmptyServerAnswers, AMNESIA),
        (Mutant::NoFence, AMNESIA),
        (Mutant::AnswersKept, AMNESIA_RESENT),
        (Mutant::SessionsKept, REPEATED_AND_BACK),
        (Mutant::CountFirst, REPEATED),
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Action {
    Request {
        op: usize,
        switch: usize,
    },
    /// The server handles the packet and the switch counts its answer. (An answer counted later makes no difference: it
    /// is of the same phase, or it is not counted.)
    Serve {
        server: usize,
        packet: Packet,
    },
    Ask {
        switch: usize,
    },
    Grant {
        switch: usize,
        server: usize,
    },
    Activate {
        switch: usize,
    },
    CrashSwitch {
        switch: usize,
    },
    CrashServer {
        server: usize,
    },
    Fence {
        server: usize,
        member: usize,
    },
    Copy {
        server: usize,
        member: usize,
    },
    Recover {
        server: usize,
    },
}

#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub bounds: Bounds,
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

impl Memory {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Timestamps that begin with the epoch are higher than all of earlier epochs; the mutant's begin with the count.
    fn order(&self, version: Version) -> (u8, u8) {
        let Version { epoch, count, .. } = version;
        if self.lacks(Mutant::CountFirst) {
            (count, epoch)
        } else {
            (epoch, count)
        }
    }

    fn may_request(&self, state: &State, op: usize, switch: usize) -> bool {
        let begun = state.begun[op];
        let is_write = self.bounds.ops[op] == Op::Write;
        let is_over = state.finished[op].is_some() && !is_write; // a write's reply may be lost
        if !state.switches[switch].is_active() || is_over {
            return false;
        }
        if begun.is_some() && state.resends >= self.bounds.resends {
            return false;
        }
        if is_write && begun.is_some_and(|(on, _)| on != switch) {
            return false; // on another switch it counts as a different operation
        }
        if !self.bounds.sole_writer {
            return true;
        }
        let first_is_over = state.finished[0].is_some() || state.finished[1].is_some();
        match op {
            // The request may arrive at any time, as long as the session exists.
            0 => {
                switch == 0 && (state.switches[0].sessions == 0 || self.lacks(Mutant::SessionsKept))
            }
            1 => switch == 1 && state.finished[0].is_none(),
            2 => first_is_over,
            _ => state.finished[2].is_some(),
        }
    }

    fn request(&self, state: &mut State, op: usize, switch: usize) {
        if state.begun[op].is_some() {
            state.resends += 1;
        } else {
            state.begun[op] = Some((switch, state.floor));
        }
        let highest = state.switches[switch].count;
        let at = &mut state.switches[switch];
        let epoch = at.epoch;
        let known = at.slots.get(&op).copied();
        let slot = match (self.bounds.ops[op], known) {
            (Op::Read, known) => Slot {
                phase: Phase::Reading,
                number: known.map_or(0, |slot| slot.number + 1),
                epoch,
                version: NONE,
                answered: 0,
                packets: 0,
                holders: 0,
            },
            (Op::Write, Some(slot)) if !self.lacks(Mutant::NewTimestampOnResend) => {
                let is_same = slot.epoch == epoch;
                Slot {
                    answered: if is_same || self.lacks(Mutant::AnswersKept) {
                        slot.answered
                    } else {
                        0
                    },
                    packets: if is_same { slot.packets } else { 0 },
                    number: slot.number + u8::from(!is_same),
                    epoch,
                    ..slot
                }
            }
            (Op::Write, known) => {
                at.count = highest + 1;
                Slot {
                    phase: Phase::Writing,
                    number: known.map_or(0, |slot| slot.number + 1),
                    epoch,
                    version: Version {
                        epoch,
                        count: highest + 1,
                        op: op as u8,
                    },
                    answered: 0,
                    packets: 0,
                    holders: 0,
                }
            }
        };
        at.slots.insert(op, slot);
        state.packets.insert(slot.packet(switch, op));
    }

    fn serve(&self, state: &mut State, server: usize, packet: Packet) {
        let at = &mut state.servers[server];
        let may_answer = at.is_serving || self.lacks(Mutant::EmptyServerAnswers);
        if !may_answer || (packet.epoch < at.epoch && !self.lacks(Mutant::EpochIgnored)) {
            return;
        }
        at.epoch = at.epoch.max(packet.epoch);
        let read = at.version;
        if packet.phase != Phase::Reading && self.order(packet.version) > self.order(at.version) {
            at.version = packet.version;
        }
        self.count(state, server, packet, read);
    }

    fn count(&self, state: &mut State, server: usize, packet: Packet, read: Version) {
        let (switch, at) = (packet.switch, &mut state.switches[packet.switch]);
        let slots = at.slots.iter_mut();
        let is_for = |op: usize, slot: &Slot| {
            let is_op = op == packet.op || self.lacks(Mutant::SharedQuorum);
            is_op && slot.number == packet.number && slot.phase == packet.phase
        };
        let mut found = slots.filter(|(op, slot)| is_for(**op, slot));
        let Some((op, slot)) = found.next().map(|(op, slot)| (*op, slot)) else {
            return;
        };
        if at.epoch != packet.epoch || slot.epoch != packet.epoch {
            return;
        }
        if slot.phase == Phase::Reading {
            let bit = 1 << server;
            if self.order(read) > self.order(slot.version) {
                (slot.version, slot.holders) = (read, bit);
            } else if read == slot.version {
                slot.holders |= bit;
            }
        }
        slot.answered |= 1 << server;
        slot.packets = (slot.packets + 1).min(SERVERS as u8);
        let is_majority = if self.lacks(Mutant::CountedByPackets) {
            usize::from(slot.packets) * 2 > SERVERS
        } else {
            crate::majority(slot.answered, SERVERS)
        };
        if !is_majority {
            return;
        }
        let agree = crate::majority(slot.holders, SERVERS) || self.lacks(Mutant::NoWriteBack);
        if slot.phase == Phase::Reading && !agree {
            *slot = Slot {
                phase: Phase::WritingBack,
                number: slot.number + 1,
                answered: 0,
                packets: 0,
                ..*slot
            };
            let packet = slot.packet(switch, op);
            state.packets.insert(packet);
            return;
        }
        let version = slot.version;
        if slot.phase != Phase::Writing {
            at.slots.remove(&op);
        }
        self.finish(state, op, version);
    }

    fn finish(&self, state: &mut State, op: usize, version: Version) {
        let Some((_, floor)) = state.begun[op] else {
            return;
        };
        if state.finished[op].is_some() {
            return;
        }
        state.finished[op] = Some(version.op);
        let first = state.written.entry(version.op).or_insert(version);
        state.is_broken |= *first != version;
        let (order, floor) = (self.order(version), self.order(floor));
        let is_read = self.bounds.ops[op] == Op::Read;
        state.is_broken |= if is_read {
            order < floor
        } else {
            order <= floor
        };
        state.is_broken |= is_read && self.bounds.sole_writer && version.op != 2;
        if order > self.order(state.floor) {
            state.floor = version;
        }
    }

    fn highest_epoch(state: &State) -> u8 {
        state.servers.iter().map(|s| s.epoch).max().unwrap_or(0)
    }

    fn ask(&self, state: &mut State, switch: usize) {
        state.activations += 1;
        let p = Self::highest_epoch(state) / 8 + 1;
        let at = &mut state.switches[switch];
        at.proposed = at.proposed.max(p - 1) + 1;
        at.asking = Some((at.proposed * 8 + 4 + switch as u8, 0, 0));
    }

    fn grant(state: &mut State, switch: usize, server: usize) {
        let (at, by) = (&mut state.switches[switch], &mut state.servers[server]);
        let Some((epoch, granted, before)) = &mut at.asking else {
            return;
        };
        if !by.is_serving || *epoch <= by.epoch {
            return;
        }
        *granted |= 1 << server;
        *before = (*before).max(by.switch_epoch);
        (by.epoch, by.switch_epoch) = (*epoch, *epoch);
    }

    fn activate(&self, state: &mut State, switch: usize) {
        let at = &mut state.switches[switch];
        let Some((epoch, _, before)) = at.asking.take() else {
            return;
        };
        let is_continuous = at.epoch != 0 && before == at.epoch;
        if !is_continuous {
            at.slots.clear();
            at.sessions += 1;
        }
        at.epoch = epoch;
        if !self.lacks(Mutant::CountFirst) && !is_continuous {
            at.count = 0;
        }
    }

    fn crash_switch(&self, state: &mut State, switch: usize) {
        state.switch_crashes += 1;
        let at = &mut state.switches[switch];
        *at = Switch {
            proposed: at.proposed,
            sessions: at.sessions + 1,
            ..Switch::default()
        };
        if self.lacks(Mutant::InventedEpoch) {
            at.epoch = at.proposed * 8 + 4 + switch as u8;
        }
    }

    fn fence(&self, state: &mut State, server: usize, member: usize) {
        let epoch = state.servers[server].fencing;
        let by = &mut state.servers[member];
        if self.lacks(Mutant::NoFence) {
            state.servers[server].fenced |= 1 << member;
        } else if by.is_serving && epoch > by.epoch {
            by.epoch = epoch;
            state.servers[server].fenced |= 1 << member;
        }
    }
}

impl Model for Memory {
    type State = State;
    type Action = Action;

    /// Switch 0 is active.
    fn init_states(&self) -> Vec<State> {
        let first = 8 + 4;
        let server = Server {
            epoch: first,
            switch_epoch: first,
            is_serving: true,
            ..Server::default()
        };
        let active = Switch {
            epoch: first,
            proposed: 1,
            count: 2,
            ..Switch::default()
        };
        vec![State {
            servers: [server; SERVERS],
            switches: [active, Switch::default()],
            packets: BTreeSet::new(),
            begun: vec![None; self.bounds.ops.len()],
            finished: vec![None; self.bounds.ops.len()],
            written: BTreeMap::new(),
            floor: NONE,
            is_broken: false,
            activations: 0,
            switch_crashes: 0,
            server_crashes: 0,
            resends: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for switch in 0..SWITCHES {
            let ops = 0..self.bounds.ops.len();
            let may = ops.filter(|op| self.may_request(state, *op, switch));
            actions.extend(may.map(|op| Action::Request { op, switch }));
            let at = &state.switches[switch];
            let may_ask = Self::highest_epoch(state) > at.epoch || at.epoch == 0;
            if state.activations < self.bounds.activations && at.asking.is_none() && may_ask {
                actions.push(Action::Ask { switch });
            }
            if let Some((_, granted, _)) = at.asking {
                let servers = (0..SERVERS).filter(|server| granted >> server & 1 == 0);
                actions.extend(servers.map(|server| Action::Grant { switch, server }));
                if crate::majority(granted, SERVERS) {
                    actions.push(Action::Activate { switch });
                }
            }
            if state.switch_crashes < self.bounds.switch_crashes {
                actions.push(Action::CrashSwitch { switch });
            }
        }
        for server in 0..SERVERS {
            let packets = state.packets.iter();
            actions.extend(packets.map(|packet| Action::Serve {
                server,
                packet: *packet,
            }));
            if state.server_crashes < self.bounds.server_crashes {
                actions.push(Action::CrashServer { server });
            }
            let at = &state.servers[server];
            if at.is_serving {
                continue;
            }
            for member in (0..SERVERS).filter(|member| *member != server) {
                if at.fenced >> member & 1 == 0 {
                    actions.push(Action::Fence { server, member });
                } else if at.copied >> member & 1 == 0 {
                    actions.push(Action::Copy { server, member });
                }
            }
            if crate::majority(at.copied, SERVERS) {
                actions.push(Action::Recover { server });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Request { op, switch } => self.request(&mut state, op, switch),
            Action::Serve { server, packet } => self.serve(&mut state, server, packet),
            Action::Ask { switch } => self.ask(&mut state, switch),
            Action::Grant { switch, server } => Self::grant(&mut state, switch, server),
            Action::Activate { switch } => self.activate(&mut state, switch),
            Action::CrashSwitch { switch } => self.crash_switch(&mut state, switch),
            Action::CrashServer { server } => {
                state.server_crashes += 1;
                let p = Self::highest_epoch(&state) / 8 + 1;
                state.servers[server] = Server {
                    fencing: p * 8 + server as u8,
                    ..Server::default()
                };
            }
            Action::Fence { server, member } => self.fence(&mut state, server, member),
            Action::Copy { server, member } => {
                let from = state.servers[member];
                let to = &mut state.servers[server];
                to.copied |= 1 << member;
                to.epoch = to.epoch.max(from.epoch);
                to.switch_epoch = to.switch_epoch.max(from.switch_epoch);
                if self.order(from.version) > self.order(to.version) {
                    to.version = from.version;
                }
            }
            Action::Recover { server } => {
                let to = &mut state.servers[server];
                to.is_serving = true;
                (to.fencing, to.fenced, to.copied) = (0, 0, 0);
            }
        }
        state.forget_what_does_nothing();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("LinesLinearizable", |_, state: &State| {
            !state.is_broken
        })]
    }
}

/// Slots of a switch, by operation.
pub type Slots = BTreeMap<usize, Slot>;
