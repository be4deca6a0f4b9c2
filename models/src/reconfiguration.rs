//! Reconfiguration after amnesia: three acceptors lose their memory and take over, for the next epoch, the votes of
//! exactly those that were sealed. One instance.
//!
//! Speaks of:
//! - `crates/inband-control/src/state.rs`: `begin` `install` `open` `abandon`
//! - `crates/inband-control/src/coordinator.rs`: `sealed` `end_sealing` `end_installing` `next_step`
//! - `crates/inband-control/src/member.rs`: `align` `open` `seal` `install` `sealed_state` `plan`
//! - `crates/inband-control/src/acceptor.rs`: `serves` `replaces` `add`
//! - `dataplane/paxos/role_acceptor.h`: `ib_acceptor_may_vote` `ib_acceptor_learn`
//!
//! The control plane's own state is one value: Raft is trusted. A coordinator may learn the state of an acceptor at any
//! time and act on it later. Proposers have one round each and belong to an epoch that was open when they began. An
//! answer to phase 1 is received at once: one that is lost leaves a promise behind, which only restricts. The same goes
//! for a pull: sealed state does not change before it is given up or lost.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use crate::majority;

const ACCEPTORS: usize = 3;

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    OpenedBeforeSealed,
    ForgetfulCounted,
    FenceNotNoted,
    VotesAfterRestart,
    SealedNotFixed,
    SurvivorsKeepTheirVotes,
    LearnAnsweredFromCopy,
    Phase1Skipped,
}

impl Mutant {
    pub const ALL: [(Mutant, Bounds); 8] = [
        (Mutant::OpenedBeforeSealed, ONE_CRASH),
        (Mutant::ForgetfulCounted, ONE_CRASH),
        (Mutant::FenceNotNoted, ONE_CRASH),
        (Mutant::VotesAfterRestart, ONE_CRASH),
        (Mutant::SealedNotFixed, THREE_PROPOSERS),
        (Mutant::SurvivorsKeepTheirVotes, ONE_CRASH),
        (Mutant::LearnAnsweredFromCopy, THREE_EPOCHS),
        (Mutant::Phase1Skipped, ONE_CRASH),
    ];
}

/// Bounds of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Epochs begun, opened or not; the first is open.
    pub epochs: u8,
    /// Proposers, each with one round.
    pub proposers: usize,
    /// How often acceptors lose their memory.
    pub crashes: u8,
}

/// A change of the epoch, and an acceptor that loses its memory.
pub const ONE_CRASH: Bounds = Bounds {
    epochs: 2,
    proposers: 2,
    crashes: 1,
};
/// An abandoned reconfiguration, or two in sequence.
pub const THREE_EPOCHS: Bounds = Bounds {
    epochs: 3,
    proposers: 2,
    crashes: 0,
};
/// Votes of two rounds in the previous epoch.
pub const THREE_PROPOSERS: Bounds = Bounds {
    epochs: 2,
    proposers: 3,
    crashes: 0,
};

type Epoch = u8;
type Round = u8;
/// Round, and the proposer of the value.
type Vote = Option<(Round, u8)>;

/// What a crash loses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Memory {
    epoch: Epoch,
    voting: bool,
    promise: Round,
    vote: Vote,
    /// The epoch for which the vote is complete, and the previous epoch.
    holds: Option<(Epoch, Epoch)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Acceptor {
    memory: Memory,
    /// On stable storage.
    entered: Epoch,
    fenced: Epoch,
}

impl Acceptor {
    fn contributes(&self, opened: Epoch) -> bool {
        let serves = |(epoch, base)| epoch == opened || (base == opened && epoch > opened);
        self.memory.holds.is_some_and(serves)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Sealing,
    Installing { sealed: u8 },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Proposer {
    Idle,
    Promising {
        epoch: Epoch,
        voters: u8,
        best: Vote,
    },
    Proposed {
        epoch: Epoch,
        value: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    acceptors: Vec<Acceptor>,
    opened: Epoch,
    pending: Option<(Epoch, Phase)>,
    highest_epoch: Epoch,
    proposers: Vec<Proposer>,
    /// Votes shown to learners, by epoch, round and value: a bitmap of the acceptors that have shown them.
    shown: BTreeMap<(Epoch, Round, u8), u8>,
    crashes: u8,
}

impl State {
    /// What learners have learned.
    fn learned(&self) -> BTreeSet<u8> {
        let is_majority = |(_, by): &(&(Epoch, Round, u8), &u8)| majority(**by, ACCEPTORS);
        let learned = self.shown.iter().filter(is_majority);
        learned.map(|((_, _, value), _)| *value).collect()
    }

    fn show(&mut self, a: usize, epoch: Epoch, round: Round, value: u8) {
        *self.shown.entry((epoch, round, value)).or_default() |= 1 << a;
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Action {
    Crash { acceptor: usize },
    Enter { acceptor: usize },
    Begin,
    Seal { acceptor: usize },
    Install { sealed: u8 },
    Pull { acceptor: usize, sources: u8 },
    Open,
    Abandon,
    Prepare { proposer: usize },
    Promise { acceptor: usize, proposer: usize },
    Vote { acceptor: usize, proposer: usize },
    Learn { acceptor: usize },
}

#[derive(Debug, Clone, Copy)]
pub struct Reconfiguration {
    pub bounds: Bounds,
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

impl Reconfiguration {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// From now on the acceptor never votes below `target`, even after a crash.
    fn seal(&self, acceptor: &mut Acceptor, target: Epoch) {
        if acceptor.memory.epoch < target {
            if !self.lacks(Mutant::FenceNotNoted) {
                acceptor.fenced = acceptor.fenced.max(target - 1);
            }
            acceptor.memory.epoch = target;
            acceptor.memory.voting = false;
        }
    }

    /// The host learns which epoch is in force and changes its acceptor accordingly.
    fn enter(&self, acceptor: &mut Acceptor, epoch: Epoch) {
        let memory = &mut acceptor.memory;
        if memory.epoch > epoch || (memory.epoch == epoch && memory.voting) {
            return;
        }
        let never_here = acceptor.entered < epoch && acceptor.fenced < epoch;
        if acceptor.fenced < epoch && memory.holds.is_some_and(|h| h.0 == epoch) {
            acceptor.entered = epoch;
            memory.epoch = epoch;
            memory.voting = true;
        } else if epoch == 1 && (never_here || self.lacks(Mutant::VotesAfterRestart)) {
            acceptor.entered = epoch;
            memory.epoch = epoch;
            memory.holds = Some((epoch, 0));
            memory.voting = true;
        } else {
            self.seal(acceptor, epoch);
        }
    }

    /// Whether these acceptors, whose votes will be merged, may end the sealing. Others abstain.
    fn may_install(&self, state: &State, target: Epoch, sealed: u8) -> bool {
        let mut counted = 0;
        for (a, acceptor) in state.acceptors.iter().enumerate() {
            let is_sealed = acceptor.memory.epoch == target && !acceptor.memory.voting;
            let gives = acceptor.contributes(state.opened);
            let never_voted = acceptor.entered < state.opened;
            let is_fenced = acceptor.fenced >= state.opened || self.lacks(Mutant::FenceNotNoted);
            let abstains = never_voted && is_fenced || self.lacks(Mutant::ForgetfulCounted);
            if sealed & 1 << a != 0 {
                if !is_sealed || !gives {
                    return false;
                }
                counted |= 1 << a;
            } else if is_sealed && !gives && abstains {
                counted |= 1 << a;
            }
        }
        sealed != 0 && (majority(counted, ACCEPTORS) || self.lacks(Mutant::OpenedBeforeSealed))
    }

    /// The acceptors from which one may take over: all that were sealed, or one that already has.
    fn sources(&self, state: &State, target: Epoch, sealed: u8) -> Vec<u8> {
        let mask = |gives: &dyn Fn(&Acceptor) -> bool| {
            let is_sealed = |a: &Acceptor| a.memory.epoch == target && !a.memory.voting;
            let givers = state.acceptors.iter().enumerate();
            let givers = givers.filter(|(_, a)| is_sealed(a) && gives(a));
            givers.fold(0, |mask, (a, _)| mask | 1 << a)
        };
        let whole: u8 = mask(&|a| a.memory.holds.is_some_and(|h| h.0 == target));
        let givers: u8 = mask(&|a| a.contributes(state.opened));
        if self.lacks(Mutant::SealedNotFixed) {
            let of_givers = |m: &u8| m & !givers == 0 && majority(*m, ACCEPTORS);
            return (1..1 << ACCEPTORS).filter(of_givers).collect();
        }
        let single = (0..ACCEPTORS).map(|a| 1 << a);
        let mut sources: Vec<u8> = single.filter(|m: &u8| whole & m != 0).collect();
        let all = mask(&|a| a.contributes(state.opened));
        if sealed & !all == 0 {
            sources.push(sealed);
        }
        sources
    }

    /// Takes over the merged votes of these.
    fn pull(&self, state: &mut State, a: usize, sources: u8) -> Option<()> {
        let (target, Phase::Installing { .. }) = state.pending.clone()? else {
            return None;
        };
        let has = state.acceptors[a]
            .memory
            .holds
            .is_some_and(|h| h.0 == target);
        if has {
            return None;
        }
        let mut merged: (Round, Vote) = (0, None);
        for (from, source) in state.acceptors.iter().enumerate() {
            if sources & 1 << from != 0 {
                let memory = &source.memory;
                let promise = memory.promise.max(memory.vote.map_or(0, |v| v.0));
                merged = (merged.0.max(promise), merged.1.max(memory.vote));
            }
        }
        let opened = state.opened;
        let acceptor = &mut state.acceptors[a];
        let keeps = self.lacks(Mutant::SurvivorsKeepTheirVotes) && acceptor.contributes(opened);
        self.seal(acceptor, target);
        let memory = &mut acceptor.memory;
        if !keeps {
            (memory.promise, memory.vote) = merged;
        }
        memory.holds = Some((target, opened));
        Some(())
    }

    fn may_open(state: &State) -> Option<Epoch> {
        let (target, Phase::Installing { .. }) = state.pending.as_ref()? else {
            return None;
        };
        let has = |a: &&Acceptor| a.memory.holds.is_some_and(|h| h.0 == *target);
        let installed = state.acceptors.iter().filter(has).count();
        (installed * 2 > ACCEPTORS).then_some(*target)
    }

    fn promise(&self, state: &mut State, a: usize, p: usize) -> Option<()> {
        let Proposer::Promising {
            epoch,
            voters,
            best,
        } = &mut state.proposers[p]
        else {
            return None;
        };
        let memory = &mut state.acceptors[a].memory;
        let round = p as Round + 1;
        if !memory.voting || memory.epoch != *epoch || round < memory.promise {
            return None;
        }
        memory.promise = round;
        *voters |= 1 << a;
        *best = (*best).max(memory.vote);
        if majority(*voters, ACCEPTORS) {
            let value = best.map_or(p as u8, |(_, value)| value);
            state.proposers[p] = Proposer::Proposed {
                epoch: *epoch,
                value,
            };
        }
        Some(())
    }

    fn vote(&self, state: &mut State, a: usize, p: usize) -> Option<()> {
        let Proposer::Proposed { epoch, value } = state.proposers[p] else {
            return None;
        };
        let memory = &mut state.acceptors[a].memory;
        let round = p as Round + 1;
        if !memory.voting || memory.epoch != epoch || round < memory.promise {
            return None;
        }
        let value = match memory.vote {
            Some((voted, stored)) if voted == round => stored, // repeated
            _ => value,
        };
        memory.promise = round;
        memory.vote = Some((round, value));
        state.show(a, epoch, round, value);
        Some(())
    }

    fn learn(&self, state: &mut State, a: usize) -> Option<()> {
        let memory = &state.acceptors[a].memory;
        let (round, value) = memory.vote?;
        let may =
            memory.voting || (self.lacks(Mutant::LearnAnsweredFromCopy) && memory.holds.is_some());
        let epoch = match memory.voting {
            true => memory.epoch,
            false => state.opened,
        };
        may.then(|| state.show(a, epoch, round, value))
    }

    fn begin(state: &mut State) {
        state.highest_epoch += 1;
        state.pending = Some((state.highest_epoch, Phase::Sealing));
    }
}

impl Model for Reconfiguration {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut entered = Acceptor::default();
        self.enter(&mut entered, 1);
        vec![State {
            // One has not yet heard of the first epoch.
            acceptors: vec![entered.clone(), entered, Acceptor::default()],
            opened: 1,
            pending: None,
            highest_epoch: 1,
            proposers: vec![Proposer::Idle; self.bounds.proposers],
            shown: BTreeMap::new(),
            crashes: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for acceptor in 0..ACCEPTORS {
            if state.crashes < self.bounds.crashes && state.acceptors[acceptor].memory.epoch > 0 {
                actions.push(Action::Crash { acceptor });
            }
            actions.push(Action::Enter { acceptor });
            actions.push(Action::Learn { acceptor });
            actions.push(Action::Seal { acceptor });
            for proposer in 0..self.bounds.proposers {
                actions.push(Action::Vote { acceptor, proposer });
                actions.push(Action::Promise { acceptor, proposer });
            }
        }
        for proposer in 0..self.bounds.proposers {
            let is_next = proposer == 0 || state.proposers[proposer - 1] != Proposer::Idle;
            if is_next && state.proposers[proposer] == Proposer::Idle {
                actions.push(Action::Prepare { proposer });
            }
        }
        match &state.pending {
            None if state.highest_epoch < self.bounds.epochs => actions.push(Action::Begin),
            Some((target, Phase::Sealing)) => {
                let may = |sealed: &u8| self.may_install(state, *target, *sealed);
                let choices = (1..1 << ACCEPTORS).filter(may);
                actions.extend(choices.map(|sealed| Action::Install { sealed }));
            }
            Some((target, Phase::Installing { sealed })) => {
                for sources in self.sources(state, *target, *sealed) {
                    let pull = |acceptor| Action::Pull { acceptor, sources };
                    actions.extend((0..ACCEPTORS).map(pull));
                }
            }
            _ => {}
        }
        if state.pending.is_some() && state.highest_epoch < self.bounds.epochs {
            actions.push(Action::Abandon);
        }
        if Self::may_open(state).is_some() {
            actions.push(Action::Open);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Crash { acceptor } => {
                state.crashes += 1;
                state.acceptors[acceptor].memory = Memory::default();
            }
            Action::Enter { acceptor } => {
                self.enter(&mut state.acceptors[acceptor], last.opened);
            }
            Action::Begin | Action::Abandon => Self::begin(&mut state),
            Action::Seal { acceptor } => {
                let (target, _) = last.pending.as_ref()?;
                self.seal(&mut state.acceptors[acceptor], *target);
            }
            Action::Install { sealed } => {
                let (_, phase) = state.pending.as_mut()?;
                *phase = Phase::Installing { sealed };
            }
            Action::Pull { acceptor, sources } => self.pull(&mut state, acceptor, sources)?,
            Action::Open => {
                state.opened = Self::may_open(last)?;
                state.pending = None;
            }
            Action::Prepare { proposer } => {
                let epoch = last.opened;
                let skips = self.lacks(Mutant::Phase1Skipped) && epoch > 1;
                state.proposers[proposer] = match skips {
                    true => Proposer::Proposed {
                        epoch,
                        value: proposer as u8,
                    },
                    false => Proposer::Promising {
                        epoch,
                        voters: 0,
                        best: None,
                    },
                };
            }
            Action::Promise { acceptor, proposer } => {
                self.promise(&mut state, acceptor, proposer)?;
            }
            Action::Vote { acceptor, proposer } => self.vote(&mut state, acceptor, proposer)?,
            Action::Learn { acceptor } => self.learn(&mut state, acceptor)?,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("Agreement", |_: &Self, state: &State| {
            state.learned().len() <= 1
        })]
    }
}
