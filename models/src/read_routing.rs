//! FLAIR's read routing across sessions: two switches, two leaders one after the other, one group of keys.
//! Packets and control messages come in any order, or never; a switch forgets everything; a leader is deposed
//! without knowing it, and a write of its may survive.
//!
//! Speaks of:
//! - `dataplane/roles/flair.h`: `ib_flair_write` `ib_flair_write_reply` `ib_flair_read` `ib_flair_read_reply`
//!   `ib_flair_renew` `ib_flair_install`
//! - `crates/inband-flair/src/lflair.rs`: `begin` `install` `activate` `beat` `confirmed`
//! - `crates/inband-flair/src/groups.rs`: `take` `on_read`
//!
//! Raft is trusted: there is one log of what is committed. Replica 0 leads until replica 1 is elected; a third one
//! makes majorities and answers nothing. Time is in *eras*: one begins with each election and each session, and
//! a lease that rests on a time told in an era ends, at any moment, with all those of that era and before.
//! One client writes 1, 2, ... one after the other, and may send one of them again; so a read is right if it sees
//! no less than what was acknowledged, or read, before it began.

use std::collections::BTreeSet;

use stateright::{Model, Property};

const SWITCHES: usize = 2;
/// The leader that is elected later.
const NEXT: usize = 1;

/// How far a check goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Another leader is elected.
    pub election: bool,
    /// Switch 0 restarts.
    pub restart: bool,
    /// Sessions after the first.
    pub sessions: u64,
    /// Writes of the client.
    pub writes: u64,
    /// The client may send one write again.
    pub again: bool,
    /// Reads.
    pub reads: usize,
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            (self.election, "an election"),
            (self.restart, "a restart"),
            (self.again, "a write sent again"),
        ];
        for (_, part) in parts.iter().filter(|(is_in, _)| *is_in) {
            write!(f, "{part}, ")?;
        }
        let Bounds {
            sessions,
            writes,
            reads,
            ..
        } = self;
        write!(f, "{sessions} new sessions, {writes} writes, {reads} reads")
    }
}

/// Another leader on either switch.
pub const ELECTION: Bounds = Bounds {
    election: true,
    restart: false,
    sessions: 1,
    writes: 1,
    again: false,
    reads: 2,
};
/// The same, in seconds.
pub const ELECTION_ONE_READ: Bounds = Bounds {
    reads: 1,
    ..ELECTION
};
/// The switch forgets, and the same leader begins again.
pub const RESTART: Bounds = Bounds {
    election: false,
    restart: true,
    sessions: 1,
    writes: 2,
    again: false,
    reads: 1,
};
/// The same, in seconds.
pub const RESTART_ONE_WRITE: Bounds = Bounds {
    writes: 1,
    ..RESTART
};
/// A write is lost and sent again.
pub const AGAIN: Bounds = Bounds {
    election: false,
    restart: false,
    sessions: 0,
    writes: 2,
    again: true,
    reads: 2,
};

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    ReplyNotChecked,
    SeqNotCompared,
    SessionReused,
    OldSwitchForgotten,
    NotConfirmed,
    LateInstallTaken,
    LogIndexIgnored,
    OrderIgnored,
    RefreshedTooEarly,
}

impl Mutant {
    /// All of them, and where each is refuted.
    pub const ALL: [(Mutant, Bounds); 9] = [
        (Mutant::ReplyNotChecked, ELECTION),
        (Mutant::SeqNotCompared, AGAIN),
        (Mutant::SessionReused, RESTART),
        (Mutant::OldSwitchForgotten, ELECTION_ONE_READ),
        (Mutant::NotConfirmed, ELECTION_ONE_READ),
        (Mutant::LateInstallTaken, RESTART_ONE_WRITE),
        (Mutant::LogIndexIgnored, AGAIN),
        (Mutant::OrderIgnored, AGAIN),
        (Mutant::RefreshedTooEarly, AGAIN),
    ];
}

/// On its way to a switch or a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Message {
    Install {
        to: usize,
        session: u64,
        incarnation: u8,
        leader: usize,
        log_index: usize,
    },
    Heartbeat {
        to: usize,
        session: u64,
        incarnation: u8,
        era: u8,
    },
    Write {
        by: usize,
        session: u64,
        seq: u64,
        value: u64,
    },
    WriteReply {
        to: usize,
        session: u64,
        seq: u64,
        log_index: usize,
        value: u64,
    },
    Read {
        by: usize,
        to: usize,
        read: usize,
        session: u64,
        seq: u64,
        log_index: usize,
        stable: bool,
    },
    ReadReply {
        to: usize,
        read: usize,
        session: u64,
        seq: u64,
        stable: bool,
        value: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Switch {
    incarnation: u8,
    session: u64,
    leader: usize,
    /// Where groups that nobody writes stand.
    log_index: usize,
    /// The era of the time that its lease rests on.
    lease: Option<u8>,
    seq: u64,
    group: Option<Group>,
}

/// As written in a session; without it, as the session found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Group {
    session: u64,
    seq: u64,
    stable: bool,
    log_index: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Installing {
        began: u8,
        installed: Option<u8>,
        mute: bool,
    },
    Serving {
        incarnation: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Leader {
    phase: Phase,
    session: u64,
    switch: usize,
    log_index: usize,
    last_seq: u64,
    /// Taken and not yet committed: session, seq, value, switch.
    proposed: Option<(u64, u64, u64, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Read {
    NotBegun,
    /// It must see no less than this.
    UnderWay(u64),
    Ended,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Values written, 0 for the beginning of a session.
    log: Vec<u64>,
    applied: [usize; 2],
    /// Up to where replica 1 has the log.
    held: usize,
    /// The era in which replica 1 was elected.
    elected: Option<u8>,
    era: u8,
    /// Leases of eras before this one have ended.
    expired: u8,
    sessions: u64,
    leaders: [Leader; 2],
    switches: [Switch; SWITCHES],
    messages: BTreeSet<Message>,
    begun: u64,
    acknowledged: u64,
    /// The highest value that a read has returned.
    seen: u64,
    was_sent_again: bool,
    has_restarted: bool,
    reads: Vec<Read>,
    is_stale: bool,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Action {
    Write {
        switch: usize,
        value: u64,
    },
    BeginRead {
        read: usize,
        switch: usize,
        replica: usize,
    },
    Deliver(Message),
    /// The leader answers a read, and gives up the write that it has not seen.
    DeliverAndRefresh(Message),
    Commit {
        leader: usize,
    },
    Replicate,
    Apply,
    Elect {
        survives: bool,
    },
    BeginSession {
        leader: usize,
        switch: usize,
    },
    Install {
        leader: usize,
    },
    Beat {
        leader: usize,
        era: u8,
    },
    Expire,
    Restart,
}

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct ReadRouting {
    /// How far to go.
    pub bounds: Bounds,
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

impl State {
    fn leads(&self, replica: usize) -> bool {
        self.elected.is_some() == (replica == NEXT)
    }

    fn value_at(&self, index: usize) -> u64 {
        self.log[..index].iter().copied().max().unwrap_or(0)
    }

    fn is_active(&self, switch: usize) -> bool {
        let lease = self.switches[switch].lease;
        lease.is_some_and(|era| era >= self.expired)
    }

    fn group(&self, switch: usize) -> Group {
        let switch = &self.switches[switch];
        let written = switch.group.filter(|g| g.session == switch.session);
        written.unwrap_or(Group {
            session: switch.session,
            seq: 0,
            stable: true,
            log_index: switch.log_index,
        })
    }

    fn serves(&self, leader: usize, session: u64, switch: usize) -> bool {
        let leader = &self.leaders[leader];
        let is_serving = matches!(leader.phase, Phase::Serving { .. });
        is_serving && leader.session == session && leader.switch == switch
    }

    fn floor(&self) -> u64 {
        self.acknowledged.max(self.seen)
    }

    /// What its leader has proposed is committed, applied there, and answered.
    fn commit(&mut self, leader: usize) {
        let Some((session, seq, value, to)) = self.leaders[leader].proposed.take() else {
            return;
        };
        self.log.push(value);
        let log_index = self.log.len();
        self.applied[leader] = log_index;
        self.messages.insert(Message::WriteReply {
            to,
            session,
            seq,
            log_index,
            value,
        });
    }

    fn write(&mut self, switch: usize, value: u64) {
        self.was_sent_again |= value == self.begun;
        self.begun = value;
        let at = &mut self.switches[switch];
        at.seq += 1;
        let log_index = 0;
        let (session, seq) = (at.session, at.seq);
        at.group = Some(Group {
            session,
            seq,
            stable: false,
            log_index,
        });
        let by = at.leader;
        self.messages.insert(Message::Write {
            by,
            session,
            seq,
            value,
        });
    }

    fn begin_read(&mut self, read: usize, switch: usize, by: usize) {
        self.reads[read] = Read::UnderWay(self.floor());
        let group = self.group(switch);
        let stable = by != self.switches[switch].leader;
        self.messages.insert(Message::Read {
            by,
            to: switch,
            read,
            session: group.session,
            seq: group.seq,
            log_index: group.log_index,
            stable,
        });
    }
}

impl State {
    /// Messages that nothing can come of any more: without them there are fewer states.
    fn forget_what_does_nothing(&mut self) {
        let (expired, reads) = (self.expired, &self.reads);
        let has_ended = |read: usize| reads[read] == Read::Ended;
        self.messages.retain(|message| match message {
            Message::Heartbeat { era, .. } => *era >= expired,
            Message::ReadReply { read, .. } => !has_ended(*read),
            Message::Read { read, stable, .. } => !(*stable && has_ended(*read)),
            _ => true,
        });
    }
}

impl ReadRouting {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn clients(&self, state: &State, actions: &mut Vec<Action>) {
        for switch in (0..SWITCHES).filter(|s| state.is_active(*s)) {
            if state.begun == state.acknowledged && state.begun < self.bounds.writes {
                let value = state.begun + 1;
                actions.push(Action::Write { switch, value });
            }
            if state.begun > state.acknowledged && self.bounds.again && !state.was_sent_again {
                let value = state.begun;
                actions.push(Action::Write { switch, value });
            }
            let next = state.reads.iter().position(|read| *read == Read::NotBegun);
            if let Some(read) = next {
                let leader = state.switches[switch].leader;
                let is_stable = state.group(switch).stable;
                for replica in (0..2).filter(|r| *r == leader || is_stable) {
                    actions.push(Action::BeginRead {
                        read,
                        switch,
                        replica,
                    });
                }
            }
        }
    }

    fn replicas(&self, state: &State, actions: &mut Vec<Action>) {
        for leader in (0..2).filter(|l| state.leads(*l)) {
            if state.leaders[leader].proposed.is_some() {
                actions.push(Action::Commit { leader });
            }
            if state.sessions <= self.bounds.sessions {
                for switch in 0..SWITCHES {
                    actions.push(Action::BeginSession { leader, switch });
                }
            }
        }
        if state.held < state.log.len() {
            actions.push(Action::Replicate);
        }
        if state.applied[NEXT] < state.held {
            actions.push(Action::Apply);
        }
        if self.bounds.election && state.elected.is_none() {
            actions.push(Action::Elect { survives: false });
            if state.leaders[0].proposed.is_some() {
                actions.push(Action::Elect { survives: true });
            }
        }
    }

    fn sessions(&self, state: &State, actions: &mut Vec<Action>) {
        for leader in 0..2 {
            if matches!(state.leaders[leader].phase, Phase::Installing { .. }) {
                actions.push(Action::Install { leader });
            }
            if self.may_serve(state, leader) {
                let eras = state.expired..=state.era;
                let confirmed = eras.filter(|era| self.is_confirmed(state, leader, *era));
                actions.extend(confirmed.map(|era| Action::Beat { leader, era }));
            }
        }
        if state.expired < state.era {
            actions.push(Action::Expire);
        }
        if self.bounds.restart && !state.has_restarted {
            actions.push(Action::Restart);
        }
    }

    /// A majority has said, after a time of this era was told, that this leader leads.
    fn is_confirmed(&self, state: &State, leader: usize, era: u8) -> bool {
        let until = state.elected.unwrap_or(u8::MAX);
        leader == NEXT || era < until || self.lacks(Mutant::NotConfirmed)
    }

    fn may_serve(&self, state: &State, leader: usize) -> bool {
        match state.leaders[leader].phase {
            Phase::Idle => false,
            Phase::Serving { .. } => true,
            Phase::Installing {
                began,
                installed,
                mute,
            } => {
                let is_safe = mute || state.expired >= began;
                installed.is_some() && (is_safe || self.lacks(Mutant::OldSwitchForgotten))
            }
        }
    }

    fn begin_session(&self, state: &mut State, leader: usize, switch: usize) {
        state.commit(leader);
        state.log.push(0);
        state.applied[leader] = state.log.len();
        state.sessions += 1;
        state.era += 1;
        let reused = self.lacks(Mutant::SessionReused);
        state.leaders[leader] = Leader {
            phase: Phase::Installing {
                began: state.era,
                installed: None,
                mute: false,
            },
            session: if reused { 1 } else { state.sessions },
            switch,
            log_index: state.log.len(),
            last_seq: 0,
            proposed: None,
        };
    }

    fn send_installs(&self, state: &mut State, leader: usize) {
        let Leader {
            session, log_index, ..
        } = state.leaders[leader];
        for to in 0..SWITCHES {
            let incarnation = state.switches[to].incarnation;
            let message = Message::Install {
                to,
                session,
                incarnation,
                leader,
                log_index,
            };
            state.messages.insert(message);
        }
    }

    fn install(&self, state: &mut State, to: usize, session: u64, incarnation: u8, new: Switch) {
        let late = self.lacks(Mutant::LateInstallTaken);
        let at = &mut state.switches[to];
        let is_known = incarnation == at.incarnation || late;
        if is_known && session > at.session {
            *at = Switch {
                incarnation: at.incarnation,
                seq: at.seq,
                group: at.group,
                ..new
            };
        }
        let (has, now) = (at.session, at.incarnation);
        // Its answer: what it has.
        let leader = &mut state.leaders[new.leader];
        if let Phase::Installing {
            installed, mute, ..
        } = &mut leader.phase
        {
            if leader.session == session && has == session {
                match leader.switch == to {
                    true => *installed = Some(now),
                    false => *mute = true,
                }
            }
        }
    }

    fn beat(&self, state: &mut State, number: usize, era: u8) {
        let leader = &mut state.leaders[number];
        if let Phase::Installing {
            installed: Some(incarnation),
            ..
        } = leader.phase
        {
            leader.phase = Phase::Serving { incarnation };
        }
        let Phase::Serving { incarnation } = leader.phase else {
            return;
        };
        let (to, session) = (leader.switch, leader.session);
        state.messages.insert(Message::Heartbeat {
            to,
            session,
            incarnation,
            era,
        });
    }

    fn deliver(&self, state: &mut State, message: Message, refreshes: bool) {
        state.messages.remove(&message);
        match message {
            Message::Install {
                to,
                session,
                incarnation,
                leader,
                log_index,
            } => {
                let new = Switch {
                    session,
                    leader,
                    log_index,
                    ..Switch::default()
                };
                self.install(state, to, session, incarnation, new);
            }
            Message::Heartbeat {
                to,
                session,
                incarnation,
                era,
            } => {
                let at = &mut state.switches[to];
                let late = self.lacks(Mutant::LateInstallTaken);
                if at.session == session && (at.incarnation == incarnation || late) {
                    at.lease = at.lease.max(Some(era));
                }
            }
            Message::Write {
                by,
                session,
                seq,
                value,
            } => {
                let switch = state.leaders[by].switch;
                let serves = state.serves(by, session, switch);
                let leader = &mut state.leaders[by];
                let in_order = seq > leader.last_seq || self.lacks(Mutant::OrderIgnored);
                if serves && in_order && leader.proposed.is_none() {
                    leader.last_seq = leader.last_seq.max(seq);
                    leader.proposed = Some((session, seq, value, switch));
                }
            }
            Message::WriteReply {
                to,
                session,
                seq,
                log_index,
                value,
            } => {
                self.write_reply(state, to, (session, seq), log_index, value);
            }
            Message::Read { .. } => self.read(state, message, refreshes),
            Message::ReadReply {
                to,
                read,
                session,
                seq,
                stable,
                value,
            } => {
                self.read_reply(state, to, read, (session, seq), stable, value);
            }
        }
    }

    fn write_reply(
        &self,
        state: &mut State,
        to: usize,
        (session, seq): (u64, u64),
        log_index: usize,
        value: u64,
    ) {
        if !state.is_active(to) || state.switches[to].session != session {
            return;
        }
        let compares = !self.lacks(Mutant::SeqNotCompared);
        if let Some(group) = &mut state.switches[to].group {
            if group.session == session && (group.seq == seq || !compares) {
                (group.stable, group.log_index) = (true, log_index);
            }
        }
        state.acknowledged = state.acknowledged.max(value);
    }

    fn read(&self, state: &mut State, message: Message, refreshes: bool) {
        let Message::Read {
            by,
            to,
            read,
            session,
            seq,
            log_index,
            stable,
        } = message
        else {
            return;
        };
        if !stable && !state.serves(by, session, to) {
            return;
        }
        if stable && !self.lacks(Mutant::LogIndexIgnored) {
            let has = if by == NEXT {
                state.held
            } else {
                state.applied[by]
            };
            if has < log_index {
                return; // it refuses; that the leader is asked then adds nothing here
            }
            state.applied[by] = state.applied[by].max(log_index);
        }
        let value = state.value_at(state.applied[by]);
        state.messages.insert(Message::ReadReply {
            to,
            read,
            session,
            seq,
            stable,
            value,
        });
        if refreshes {
            state.leaders[by].last_seq = seq;
            let log_index = state.applied[by];
            let value = 0;
            state.messages.insert(Message::WriteReply {
                to,
                session,
                seq,
                log_index,
                value,
            });
        }
    }

    fn may_refresh(&self, state: &State, message: &Message) -> bool {
        let Message::Read {
            by,
            to,
            session,
            seq,
            stable: false,
            ..
        } = *message
        else {
            return false;
        };
        let leader = &state.leaders[by];
        let all_applied = leader.proposed.is_none() || self.lacks(Mutant::RefreshedTooEarly);
        state.serves(by, session, to) && seq > leader.last_seq && all_applied
    }

    fn read_reply(
        &self,
        state: &mut State,
        to: usize,
        read: usize,
        (session, seq): (u64, u64),
        stable: bool,
        value: u64,
    ) {
        if !state.is_active(to) || state.switches[to].session != session {
            return;
        }
        let group = state.group(to);
        if stable && group.seq != seq && !self.lacks(Mutant::ReplyNotChecked) {
            let by = state.switches[to].leader;
            let Group { seq, log_index, .. } = group;
            let again = Message::Read {
                by,
                to,
                read,
                session,
                seq,
                log_index,
                stable: false,
            };
            state.messages.insert(again);
            return;
        }
        if let Read::UnderWay(floor) = state.reads[read] {
            state.is_stale |= value < floor;
            state.seen = state.seen.max(value);
            state.reads[read] = Read::Ended;
        }
    }
}

impl Model for ReadRouting {
    type State = State;
    type Action = Action;

    /// Replica 0 serves session 1 on switch 0.
    fn init_states(&self) -> Vec<State> {
        let idle = Leader {
            phase: Phase::Idle,
            session: 0,
            switch: 0,
            log_index: 0,
            last_seq: 0,
            proposed: None,
        };
        let serving = Leader {
            phase: Phase::Serving { incarnation: 0 },
            session: 1,
            log_index: 1,
            ..idle
        };
        let served = Switch {
            session: 1,
            log_index: 1,
            lease: Some(0),
            ..Switch::default()
        };
        vec![State {
            log: vec![0],
            applied: [1, 1],
            held: 1,
            elected: None,
            era: 0,
            expired: 0,
            sessions: 1,
            leaders: [serving, idle],
            switches: [served, Switch::default()],
            messages: BTreeSet::new(),
            begun: 0,
            acknowledged: 0,
            seen: 0,
            was_sent_again: false,
            has_restarted: false,
            reads: vec![Read::NotBegun; self.bounds.reads],
            is_stale: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.clients(state, actions);
        self.replicas(state, actions);
        self.sessions(state, actions);
        for message in &state.messages {
            actions.push(Action::Deliver(*message));
            if self.may_refresh(state, message) {
                actions.push(Action::DeliverAndRefresh(*message));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Write { switch, value } => state.write(switch, value),
            Action::BeginRead {
                read,
                switch,
                replica,
            } => state.begin_read(read, switch, replica),
            Action::Deliver(message) => self.deliver(&mut state, message, false),
            Action::DeliverAndRefresh(message) => self.deliver(&mut state, message, true),
            Action::Commit { leader } => state.commit(leader),
            Action::Replicate => state.held += 1,
            Action::Apply => state.applied[NEXT] = state.held,
            Action::Elect { survives } => {
                let proposed = state.leaders[0].proposed.take().filter(|_| survives);
                state.log.extend(proposed.map(|(_, _, value, _)| value));
                state.held = state.log.len();
                state.applied[NEXT] = state.held;
                state.era += 1;
                state.elected = Some(state.era);
            }
            Action::BeginSession { leader, switch } => {
                self.begin_session(&mut state, leader, switch);
                if leader == NEXT {
                    state.held = state.log.len();
                }
            }
            Action::Install { leader } => self.send_installs(&mut state, leader),
            Action::Beat { leader, era } => self.beat(&mut state, leader, era),
            Action::Expire => state.expired += 1,
            Action::Restart => {
                state.has_restarted = true;
                state.switches[0] = Switch {
                    incarnation: 1,
                    ..Switch::default()
                };
            }
        }
        state.forget_what_does_nothing();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn is_linearizable(_: &ReadRouting, state: &State) -> bool {
            !state.is_stale
        }
        fn one_serves(_: &ReadRouting, state: &State) -> bool {
            (0..SWITCHES).filter(|s| state.is_active(*s)).count() <= 1
        }
        if self.mutant.is_some() {
            // One property: the search ends with the first state that violates either.
            return vec![Property::always("Safe", |model, state| {
                is_linearizable(model, state) && one_serves(model, state)
            })];
        }
        vec![
            Property::always("ReadsLinearizable", is_linearizable),
            Property::always("OneSwitchServes", one_serves),
        ]
    }
}
