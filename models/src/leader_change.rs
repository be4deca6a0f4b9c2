//! Leader change, restarts of leaders, and trim: two leaders, three acceptors, three replicas, one instance.
//!
//! Speaks of:
//! - `crates/inband-paxos/src/leadership/phases.rs`: `restart_phase_1` `on_promise` `propose` `on_nack` `go_on`
//! - `crates/inband-paxos/src/rounds.rs`: `make` `saw`
//! - `crates/inband-paxos/src/quorum.rs`: `add` `best`
//! - `crates/inband-paxos/src/trim.rs`: `majority_holds`
//! - `crates/inband-paxos/src/durable.rs`: `next_incarnation`
//! - `dataplane/paxos/role_acceptor.h`: `ib_acceptor_promise` `ib_acceptor_slot` `ib_acceptor_trim`
//!
//! The network is a set: a PHASE2A may arrive at any time, repeatedly, or never. An answer to phase 1 is lost or
//! received at once: a proposer only collects answers, so a later arrival makes no difference.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::majority;

const LEADERS: usize = 2;
const ACCEPTORS: usize = 3;
const REPLICAS: usize = 3;
/// The only instance. A floor is this, or one more once it is trimmed.
const INSTANCE: u8 = 1;

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    FloorNotInPhase1B,
    IncarnationReused,
    SilenceIsNoVote,
    NotAdopted,
    TrimmedByMinority,
    TrimmedBeforeSynced,
}

impl Mutant {
    pub const ALL: [(Mutant, With); 6] = [
        (Mutant::FloorNotInPhase1B, With::Trim),
        (Mutant::IncarnationReused, With::Restart),
        (Mutant::SilenceIsNoVote, With::Trim),
        (Mutant::NotAdopted, With::Trim),
        (Mutant::TrimmedByMinority, With::Trim),
        (Mutant::TrimmedBeforeSynced, With::Trim),
    ];
}

/// Counter, incarnation, node: compared in this order.
type Round = (u8, u8, u8);
const NO_ROUND: Round = (0, 0, 0);

/// A no-op, or a value that a leader process stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Value {
    Noop,
    Of {
        node: u8,
        incarnation: u8,
        is_later: bool,
    },
}

type Vote = Option<(Round, Value)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Acceptor {
    promise: Round,
    slot_promise: Round,
    floor: u8,
    vote: Vote,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Watching,
    Promising { voters: u8, floor: u8, highest: u8 },
    Scanning { voters: u8, best: Vote },
    Active { next: u8 },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Leader {
    incarnation: u8,
    seen: u8,
    rounds: u8,
    round: Round,
    phase: Phase,
    has_restarted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    acceptors: Vec<Acceptor>,
    leaders: Vec<Leader>,
    /// The number of replicas that have applied the instance in memory, and that have synced it; the others are behind.
    applied: usize,
    synced: usize,
    phase2a: BTreeSet<(Round, Value)>,
    cast: BTreeSet<(Round, Value, u8)>,
    is_trim_told: bool,
}

impl State {
    fn chosen(&self) -> BTreeSet<Value> {
        let is_chosen = |(round, _): &&(Round, Value)| {
            let voters = self.cast.iter().filter(|(r, _, _)| r == round);
            majority(voters.fold(0, |mask, (_, _, a)| mask | 1 << a), ACCEPTORS)
        };
        let proposed = self.phase2a.iter().filter(is_chosen);
        let voted = |(round, value): &&(Round, Value)| {
            self.cast.iter().any(|(r, v, _)| r == round && v == value)
        };
        proposed.filter(voted).map(|(_, value)| *value).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Action {
    TakeOver {
        leader: usize,
    },
    Promise {
        acceptor: usize,
        leader: usize,
        heard: bool,
    },
    PromiseSlot {
        acceptor: usize,
        leader: usize,
        heard: bool,
    },
    NoAnswer {
        leader: usize,
    },
    Stamp {
        leader: usize,
    },
    Restart {
        leader: usize,
    },
    Vote {
        acceptor: usize,
        round: Round,
        value: Value,
    },
    Apply,
    Sync,
    Crash,
    TellTrim,
    Trim {
        acceptor: usize,
    },
}

/// What happens besides a leader change. Both together would give too many states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    /// The first leader may restart, and leads twice; nothing is trimmed.
    Restart,
    /// Each leads once; replicas apply, sync, crash, and trim.
    Trim,
}

#[derive(Debug, Clone, Copy)]
pub struct LeaderChange {
    pub with: With,
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

impl LeaderChange {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn rounds_max(&self, leader: usize) -> u8 {
        match self.with {
            With::Restart if leader == 0 => 2,
            _ => 1,
        }
    }

    fn promise(&self, state: &mut State, a: usize, l: usize, heard: bool) -> Option<()> {
        let (acceptor, leader) = (&mut state.acceptors[a], &mut state.leaders[l]);
        if leader.round < acceptor.promise {
            let counter = acceptor.promise.0;
            let news = heard && leader.seen < counter;
            leader.seen = leader.seen.max(counter);
            return news.then_some(());
        }
        acceptor.promise = leader.round;
        let Phase::Promising {
            voters,
            floor,
            highest,
        } = &mut leader.phase
        else {
            return Some(());
        };
        if !heard {
            return Some(());
        }
        *voters |= 1 << a;
        if !self.lacks(Mutant::FloorNotInPhase1B) {
            *floor = (*floor).max(acceptor.floor);
        }
        if acceptor.vote.is_some() {
            *highest = INSTANCE;
        }
        if majority(*voters, ACCEPTORS) {
            leader.phase = if *floor <= *highest {
                Phase::Scanning {
                    voters: 0,
                    best: None,
                }
            } else {
                Phase::Active { next: *floor }
            };
        }
        Some(())
    }

    fn promise_slot(&self, state: &mut State, a: usize, l: usize, heard: bool) -> Option<()> {
        let acceptor = &mut state.acceptors[a];
        let leader = &mut state.leaders[l];
        let Phase::Scanning { voters, best } = &mut leader.phase else {
            return None;
        };
        let mut said = acceptor.vote;
        if acceptor.floor > INSTANCE {
            if !self.lacks(Mutant::FloorNotInPhase1B) {
                leader.phase = Phase::Active {
                    next: acceptor.floor,
                };
                return heard.then_some(());
            }
            said = None;
        } else if leader.round < acceptor.promise.max(acceptor.slot_promise) {
            return None;
        } else {
            acceptor.slot_promise = leader.round;
        }
        if heard {
            *voters |= 1 << a;
            *best = (*best).max(said);
            if majority(*voters, ACCEPTORS) {
                self.propose(state, l);
            }
        }
        Some(())
    }

    /// Phase 2 of the scanned instance: proposes the highest vote, or a no-op.
    fn propose(&self, state: &mut State, l: usize) {
        let leader = &mut state.leaders[l];
        if let Phase::Scanning { best, .. } = &leader.phase {
            let best = best.filter(|_| !self.lacks(Mutant::NotAdopted));
            let value = best.map_or(Value::Noop, |(_, value)| value);
            state.phase2a.insert((leader.round, value));
            leader.phase = Phase::Active { next: INSTANCE + 1 };
        }
    }

    fn vote(&self, state: &mut State, a: usize, round: Round, value: Value) -> Option<()> {
        let acceptor = &mut state.acceptors[a];
        let may = acceptor.floor <= INSTANCE
            && round >= acceptor.promise.max(acceptor.slot_promise)
            && acceptor.vote.is_none_or(|(voted, _)| voted != round);
        if may {
            acceptor.slot_promise = round;
            acceptor.vote = Some((round, value));
            state.cast.insert((round, value, a as u8));
        }
        may.then_some(())
    }

    fn take_over(state: &mut State, l: usize) {
        let leader = &mut state.leaders[l];
        leader.seen += 1;
        leader.rounds += 1;
        leader.round = (leader.seen, leader.incarnation, l as u8);
        leader.phase = Phase::Promising {
            voters: 0,
            floor: INSTANCE,
            highest: 0,
        };
    }

    fn restart(&self, state: &mut State, l: usize) {
        let leader = &mut state.leaders[l];
        leader.has_restarted = true;
        if !self.lacks(Mutant::IncarnationReused) {
            leader.incarnation += 1;
        }
        leader.seen = 0;
        leader.round = NO_ROUND;
        leader.phase = Phase::Watching;
    }

    fn stamp(state: &mut State, l: usize) {
        let leader = &mut state.leaders[l];
        let value = Value::Of {
            node: l as u8,
            incarnation: leader.incarnation,
            is_later: leader.has_restarted,
        };
        state.phase2a.insert((leader.round, value));
        leader.phase = Phase::Active { next: INSTANCE + 1 };
    }

    /// Whether the floor may be announced.
    fn is_held(&self, state: &State) -> bool {
        if self.lacks(Mutant::TrimmedBeforeSynced) {
            (state.applied + state.synced) * 2 > REPLICAS
        } else if self.lacks(Mutant::TrimmedByMinority) {
            state.synced > 0
        } else {
            state.synced * 2 > REPLICAS
        }
    }
}

impl Model for LeaderChange {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let acceptor = Acceptor {
            promise: NO_ROUND,
            slot_promise: NO_ROUND,
            floor: INSTANCE,
            vote: None,
        };
        let leader = Leader {
            incarnation: 1,
            seen: 0,
            rounds: 0,
            round: NO_ROUND,
            phase: Phase::Watching,
            has_restarted: false,
        };
        vec![State {
            acceptors: vec![acceptor; ACCEPTORS],
            leaders: vec![leader; LEADERS],
            applied: 0,
            synced: 0,
            phase2a: BTreeSet::new(),
            cast: BTreeSet::new(),
            is_trim_told: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (l, leader) in state.leaders.iter().enumerate() {
            if leader.rounds < self.rounds_max(l) {
                actions.push(Action::TakeOver { leader: l });
            }
            if self.with == With::Restart && l == 0 && !leader.has_restarted && leader.rounds == 1 {
                actions.push(Action::Restart { leader: l });
            }
            match &leader.phase {
                Phase::Active { next } if *next == INSTANCE => {
                    actions.push(Action::Stamp { leader: l });
                }
                Phase::Scanning { voters, .. }
                    if *voters != 0 && self.lacks(Mutant::SilenceIsNoVote) =>
                {
                    actions.push(Action::NoAnswer { leader: l });
                }
                _ => {}
            }
            for acceptor in 0..ACCEPTORS {
                for heard in [false, true] {
                    match leader.phase {
                        Phase::Promising { .. } => {
                            actions.push(Action::Promise {
                                acceptor,
                                leader: l,
                                heard,
                            });
                        }
                        Phase::Scanning { .. } => {
                            actions.push(Action::PromiseSlot {
                                acceptor,
                                leader: l,
                                heard,
                            });
                        }
                        _ => {}
                    }
                }
            }
        }
        for (acceptor, a) in state.acceptors.iter().enumerate() {
            for (round, value) in &state.phase2a {
                let (round, value) = (*round, *value);
                actions.push(Action::Vote {
                    acceptor,
                    round,
                    value,
                });
            }
            if state.is_trim_told && a.floor == INSTANCE {
                actions.push(Action::Trim { acceptor });
            }
        }
        if self.with == With::Restart {
            return;
        }
        if state.applied + state.synced < REPLICAS && !state.chosen().is_empty() {
            actions.push(Action::Apply);
        }
        if state.applied > 0 {
            actions.extend([Action::Sync, Action::Crash]);
        }
        if !state.is_trim_told && self.is_held(state) {
            actions.push(Action::TellTrim);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::TakeOver { leader } => Self::take_over(&mut state, leader),
            Action::Promise {
                acceptor,
                leader,
                heard,
            } => {
                self.promise(&mut state, acceptor, leader, heard)?;
            }
            Action::PromiseSlot {
                acceptor,
                leader,
                heard,
            } => {
                self.promise_slot(&mut state, acceptor, leader, heard)?;
            }
            Action::NoAnswer { leader } => self.propose(&mut state, leader),
            Action::Stamp { leader } => Self::stamp(&mut state, leader),
            Action::Restart { leader } => self.restart(&mut state, leader),
            Action::Vote {
                acceptor,
                round,
                value,
            } => {
                self.vote(&mut state, acceptor, round, value)?;
            }
            Action::Apply => state.applied += 1,
            Action::Sync => {
                state.applied -= 1;
                state.synced += 1;
            }
            Action::Crash => state.applied -= 1,
            Action::TellTrim => state.is_trim_told = true,
            Action::Trim { acceptor } => state.acceptors[acceptor].floor = INSTANCE + 1,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("Agreement", |_: &Self, state: &State| {
                state.chosen().len() <= 1
            }),
            Property::always("NothingLost", |_: &Self, state: &State| {
                let is_trimmed = state.acceptors.iter().any(|a| a.floor > INSTANCE);
                !is_trimmed || state.synced * 2 > REPLICAS
            }),
        ]
    }
}
