//! NetPaxos: one instance, four storage servers that vote in the fast round, and rounds of recovery. One storage server
//! may lose its memory.
//!
//! Speaks of:
//! - `crates/inband-netpaxos/src/storage.rs`: `on_prepare` `on_accept`
//! - `crates/inband-netpaxos/src/storage/numbers.rs`: `on_numbered` `instance_of`
//! - `crates/inband-netpaxos/src/storage/fencing.rs`: `on_fence` `on_fenced`
//! - `crates/inband-netpaxos/src/learner/votes.rs`: `vote` `learn_generations`
//! - `crates/inband-netpaxos/src/learner/recovery.rs`: `on_promise` `on_accepted`
//! - `crates/inband-netpaxos/src/quorum.rs`: `choose`
//!
//! Sent messages never disappear, and learners may count any of them: an instance has decided a value as soon as some
//! learner could conclude so. Minions do not appear: a storage server votes for an arbitrary request.

use std::collections::BTreeSet;

use stateright::{Model, Property};

const STORAGES: usize = 4;
const QUORUM: usize = 3;
/// Votes that any classic quorum contains for a value that was chosen fast.
const OF_A_QUORUM: usize = 2;
/// Answers that a storage server without memory needs.
const FENCED: usize = 2;
/// The storage server that may lose its memory.
const FORGETFUL: usize = 0;
const REQUESTS: [u8; 2] = [1, 2];
const NO_OP: u8 = 0;

/// Bounds of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Rounds of recovery.
    pub rounds: u8,
    /// Whether a storage server loses its memory.
    pub loses_memory: bool,
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let losses = u8::from(self.loses_memory);
        write!(
            f,
            "{} rounds of recovery, {losses} losses of memory",
            self.rounds
        )
    }
}

/// Two learners recover.
pub const RECOVERIES: Bounds = Bounds {
    rounds: 2,
    loses_memory: false,
};
/// A storage server loses its memory, and a learner recovers.
pub const LOSS: Bounds = Bounds {
    rounds: 1,
    loses_memory: true,
};

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    TwoOfFour,
    ForwardedCounted,
    VoteAfterPromise,
    LikelyValuePassedOver,
    ClassicVotePassedOver,
    VotesWithoutMemory,
    FencedByOne,
    OldGenerationCounted,
}

impl Mutant {
    pub const ALL: [(Mutant, Bounds); 8] = [
        (Mutant::TwoOfFour, RECOVERIES),
        (Mutant::ForwardedCounted, RECOVERIES),
        (Mutant::VoteAfterPromise, RECOVERIES),
        (Mutant::LikelyValuePassedOver, RECOVERIES),
        (Mutant::ClassicVotePassedOver, RECOVERIES),
        (Mutant::VotesWithoutMemory, LOSS),
        (Mutant::FencedByOne, LOSS),
        (Mutant::OldGenerationCounted, LOSS),
    ];
}

/// Round, 0 for the fast one, and value.
type Vote = Option<(u8, u8)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Said {
    Stored(u8),
    Promise(u8, Vote),
    Accepted(u8),
}

/// A message of a storage server, the generation of the sender, and whether it knew of the forgetful server's second
/// generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Message {
    said: Said,
    is_second: bool,
    knows: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Storage {
    promised: u8,
    vote: Vote,
    /// For the forgetful server: it has lost its memory.
    is_second: bool,
    /// It has lost its memory, and either has not yet fenced the others, or may have voted in this instance.
    is_silent: bool,
    /// The answer to the forgetful server's fence: whether this one had voted or promised here.
    fenced: Option<bool>,
    sent: BTreeSet<Message>,
}

impl Storage {
    fn send(&mut self, said: Said) {
        self.sent.insert(Message {
            said,
            is_second: self.is_second,
            knows: self.is_second || self.fenced.is_some(),
        });
    }

    fn has_sent(&self, said: impl Fn(&Said) -> bool) -> bool {
        self.sent.iter().any(|message| said(&message.said))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Servers that keep their memory are interchangeable, so they are sorted.
    storages: [Storage; STORAGES],
    /// By round, from 1.
    proposed: Vec<Option<u8>>,
    has_served_again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    Number { storage: usize, request: u8 },
    Forward { storage: usize, request: u8 },
    Promise { storage: usize, round: u8 },
    Propose { round: u8, value: u8 },
    Accept { storage: usize, round: u8 },
    Lose,
    Fence { storage: usize },
    Serve { is_silent: bool },
}

#[derive(Debug, Clone, Copy)]
pub struct NetPaxos {
    pub bounds: Bounds,
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

impl NetPaxos {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether these may be counted together. They may not if one knows that another is superseded.
    fn agree(&self, messages: &[(usize, Message)]) -> bool {
        let is_old = |(from, m): &(usize, Message)| *from == FORGETFUL && !m.is_second;
        self.lacks(Mutant::OldGenerationCounted)
            || !messages.iter().any(is_old)
            || !messages.iter().any(|(_, m)| m.knows)
    }

    /// All sets of this many messages, each from a different storage server, that may be counted together.
    fn quorums(
        &self,
        state: &State,
        count: usize,
        is_counted: &dyn Fn(&Said) -> bool,
    ) -> Vec<Vec<(usize, Message)>> {
        let mut sets: Vec<Vec<(usize, Message)>> = vec![Vec::new()];
        for (from, storage) in state.storages.iter().enumerate() {
            let counted = storage.sent.iter().filter(|m| is_counted(&m.said));
            for message in counted {
                let with: Vec<_> = sets
                    .iter()
                    .filter(|set| set.len() < count && set.iter().all(|(other, _)| *other != from))
                    .map(|set| [set.as_slice(), &[(from, *message)]].concat())
                    .collect();
                sets.extend(with);
            }
        }
        sets.retain(|set| set.len() == count && self.agree(set));
        sets
    }

    /// What a learner could have decided.
    fn decided(&self, state: &State) -> BTreeSet<u8> {
        let fast_quorum = if self.lacks(Mutant::TwoOfFour) {
            2
        } else {
            QUORUM
        };
        let is_fast = |request: &u8| {
            let stored = |said: &Said| *said == Said::Stored(*request);
            !self.quorums(state, fast_quorum, &stored).is_empty()
        };
        let mut decided: BTreeSet<u8> = REQUESTS.into_iter().filter(is_fast).collect();
        for (round, value) in (1..).zip(&state.proposed) {
            let accepted = |said: &Said| *said == Said::Accepted(round);
            let Some(value) = value else { continue };
            if !self.quorums(state, QUORUM, &accepted).is_empty() {
                decided.insert(*value);
            }
        }
        decided
    }

    /// What a round may propose.
    fn choices(&self, state: &State, round: u8) -> BTreeSet<u8> {
        let is_promise = |said: &Said| matches!(said, Said::Promise(of, _) if *of == round);
        let quorums = self.quorums(state, QUORUM, &is_promise);
        let votes = |set: Vec<(usize, Message)>| -> Vec<(u8, u8)> {
            let vote = |(_, message): (usize, Message)| match message.said {
                Said::Promise(_, vote) => vote,
                _ => None,
            };
            set.into_iter().filter_map(vote).collect()
        };
        quorums
            .into_iter()
            .map(votes)
            .flat_map(|votes| self.choose(&votes))
            .collect()
    }

    /// Where any value is allowed, the program takes the most frequent request; the model takes all of them.
    fn choose(&self, votes: &[(u8, u8)]) -> Vec<u8> {
        let classic = votes.iter().filter(|(round, _)| *round > 0).max();
        if let Some((_, value)) = classic.filter(|_| !self.lacks(Mutant::ClassicVotePassedOver)) {
            return vec![*value];
        }
        let count = |of: u8| votes.iter().filter(|vote| **vote == (0, of)).count();
        let likely = REQUESTS
            .into_iter()
            .find(|request| count(*request) >= OF_A_QUORUM);
        if let Some(request) = likely.filter(|_| !self.lacks(Mutant::LikelyValuePassedOver)) {
            return vec![request];
        }
        let mut any: Vec<u8> = votes.iter().map(|(_, value)| *value).collect();
        any.push(NO_OP);
        any
    }

    /// The ways in which the forgetful server may serve again: silent in this instance or not.
    fn served(&self, state: &State) -> BTreeSet<bool> {
        let needed = if self.lacks(Mutant::FencedByOne) {
            1
        } else {
            FENCED
        };
        let answers: Vec<bool> = state.storages.iter().filter_map(|s| s.fenced).collect();
        let idle = answers.iter().filter(|used| !**used).count();
        let mut ways = BTreeSet::new();
        if answers.len() >= needed {
            if idle >= needed {
                ways.insert(false);
            }
            if idle < answers.len() {
                ways.insert(true);
            }
        }
        ways
    }
}

impl Model for NetPaxos {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            storages: Default::default(),
            proposed: vec![None; self.bounds.rounds.into()],
            has_served_again: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (storage, at) in state.storages.iter().enumerate() {
            if at.is_silent {
                continue;
            }
            for request in REQUESTS {
                if at.vote.is_none() && (at.promised == 0 || self.lacks(Mutant::VoteAfterPromise)) {
                    actions.push(Action::Number { storage, request });
                }
                let forwards = self.lacks(Mutant::ForwardedCounted);
                if forwards && !at.has_sent(|said| matches!(said, Said::Stored(_))) {
                    actions.push(Action::Forward { storage, request });
                }
            }
            for (round, value) in (1..).zip(&state.proposed) {
                if at.promised > round {
                    continue;
                }
                if at.promised < round {
                    actions.push(Action::Promise { storage, round });
                }
                if value.is_some() {
                    actions.push(Action::Accept { storage, round });
                }
            }
        }
        for (round, value) in (1..).zip(&state.proposed) {
            if value.is_none() {
                let choices = self.choices(state, round).into_iter();
                actions.extend(choices.map(|value| Action::Propose { round, value }));
            }
        }
        let forgetful = &state.storages[FORGETFUL];
        if self.bounds.loses_memory && !forgetful.is_second {
            actions.push(Action::Lose);
        }
        if forgetful.is_second && !state.has_served_again {
            let others = (0..STORAGES).filter(|storage| *storage != FORGETFUL);
            let unasked = others.filter(|storage| state.storages[*storage].fenced.is_none());
            actions.extend(unasked.map(|storage| Action::Fence { storage }));
            let served = self.served(state).into_iter();
            actions.extend(served.map(|is_silent| Action::Serve { is_silent }));
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Number { storage, request } => {
                let at = &mut state.storages[storage];
                at.vote = Some((0, request));
                at.send(Said::Stored(request));
            }
            Action::Forward { storage, request } => {
                state.storages[storage].send(Said::Stored(request));
            }
            Action::Promise { storage, round } => {
                let at = &mut state.storages[storage];
                at.promised = round;
                at.send(Said::Promise(round, at.vote));
            }
            Action::Propose { round, value } => {
                state.proposed[usize::from(round) - 1] = Some(value);
            }
            Action::Accept { storage, round } => {
                let value = state.proposed[usize::from(round) - 1]?;
                let at = &mut state.storages[storage];
                at.promised = round;
                at.vote = Some((round, value));
                at.send(Said::Accepted(round));
            }
            Action::Lose => {
                let fences = !self.lacks(Mutant::VotesWithoutMemory);
                state.has_served_again = !fences;
                let at = &mut state.storages[FORGETFUL];
                (at.promised, at.vote) = (0, None);
                (at.is_second, at.is_silent) = (true, fences);
            }
            Action::Fence { storage } => {
                let at = &mut state.storages[storage];
                at.fenced = Some(at.promised > 0 || at.vote.is_some());
            }
            Action::Serve { is_silent } => {
                state.has_served_again = true;
                state.storages[FORGETFUL].is_silent = is_silent;
            }
        }
        state.storages[FORGETFUL + 1..].sort();
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // Whatever learners count, they decide the same.
        vec![Property::always(
            "Agreement",
            |model: &NetPaxos, state: &State| model.decided(state).len() <= 1,
        )]
    }
}
