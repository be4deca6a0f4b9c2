//! FLAIR's read routing across sessions: two switches, two successive leaders, one key group. Packets and control
//! messages arrive in any order, or never; a switch loses its state; a leader is deposed without knowing it, and one of
//! its writes may survive.
//!
//! Speaks of:
//! - `dataplane/flair/role.h`: `ib_flair_write` `ib_flair_write_reply` `ib_flair_read` `ib_flair_read_reply`
//!   `ib_flair_renew` `ib_flair_install`
//! - `crates/inband-flair/src/lflair.rs`: `begin` `install` `activate` `beat` `confirmed`
//! - `crates/inband-flair/src/groups.rs`: `take` `on_read`
//!
//! Raft is trusted: there is one log of what is committed. Replica 0 leads until replica 1 is elected; a third one
//! makes majorities and answers nothing. Time is divided into *eras*: one begins with each election and each session. A
//! lease based on a time read in an era may expire at any moment, together with all those of that era and earlier ones.
//! One client writes 1, 2, ... in sequence, and may resend one of them; so a read is correct if it returns no less than
//! what was acknowledged, or read, before it began.

mod choices;
mod delivery;
mod session;
mod state;

use std::collections::BTreeSet;

use stateright::{Model, Property};

use state::{Leader, Phase, Read, Switch};
pub use state::{Message, State};

const SWITCHES: usize = 2;
/// The leader that is elected later.
const NEXT: usize = 1;

/// Bounds of a check.
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
    /// Whether the client may resend one write.
    pub again: bool,
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
/// The switch loses its state, and the same leader starts a new session.
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
/// A write is lost and resent.
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
    /// All mutants, and the bounds within which each is refuted.
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

#[derive(Debug, Clone, Copy)]
pub struct ReadRouting {
    pub bounds: Bounds,
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
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
            // A single property, because the search ends with the first state that violates either.
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
