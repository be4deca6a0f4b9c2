//! Commands over several partitions: one replica executes three entries of log M in three partitions, at markers that
//! arrive in any order, twice, or ahead of M, and crashes between two writes.
//!
//! Speaks of:
//! - `crates/inband-kv/src/machine/entries.rs`: `execute_at` `next_entry_at` `execute` `write` `redo`
//! - `crates/inband-kv/src/machine.rs`: `step`
//! - `crates/inband-kv/src/machine/queue.rs`: `may_pass` `next` `done`
//! - `crates/inband-kv/src/replica/markers.rs`: `submit_markers`
//!
//! An effect records what its command saw: how much had been executed in each of its partitions. So two replicas are
//! equal if every entry is executed at the first marker that covers it and saw the same everywhere.

use std::collections::BTreeMap;

use stateright::{Model, Property};

const PARTITIONS: usize = 3;
/// Partitions of each entry of M, ascending. They form a cycle, so that all may wait for each other.
const ENTRIES: [&[usize]; 3] = [&[0, 1], &[1, 2], &[0, 2]];
/// Markers in a partition before the last one, which covers all entries.
const MARKERS_MAX: usize = 1;

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    StampedInEachPartition,
    OthersNotAwaited,
    LogNotAwaited,
    RedoNotWritten,
    LowestWrittenLast,
}

impl Mutant {
    pub const ALL: [Mutant; 5] = [
        Mutant::StampedInEachPartition,
        Mutant::OthersNotAwaited,
        Mutant::LogNotAwaited,
        Mutant::RedoNotWritten,
        Mutant::LowestWrittenLast,
    ];
}

/// What a command saw of its partitions.
type Saw = Vec<usize>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Effect {
    entry: usize,
    /// The marker at which it was executed, by its position in the partition's log.
    at: usize,
    saw: Saw,
}

/// Everything but `writing` is on stable storage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Partition {
    markers: Vec<usize>,
    passed: usize,
    effects: Vec<Effect>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Writing {
    entry: usize,
    saw: Saw,
    left: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Number of delivered entries of M; the first is 1.
    delivered: usize,
    partitions: Vec<Partition>,
    redo: BTreeMap<usize, Saw>,
    writing: Option<Writing>,
    has_crashed: bool,
    is_torn: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Action {
    Deliver,
    Mark { partition: usize, marker: usize },
    Pass { partition: usize },
    Execute { entry: usize },
    Redo { partition: usize, entry: usize },
    Write,
    Crash,
}

fn involved(entry: usize) -> &'static [usize] {
    ENTRIES[entry - 1]
}

impl Partition {
    fn is_done(&self, entry: usize) -> bool {
        self.effects.iter().any(|effect| effect.entry == entry)
    }

    /// The next marker.
    fn standing(&self) -> Option<usize> {
        self.markers.get(self.passed).copied()
    }

    fn execute(&mut self, entry: usize, saw: Saw) {
        let at = self.passed;
        self.effects.push(Effect { entry, at, saw });
    }
}

#[derive(Debug, Clone, Copy)]
pub struct CrossPartition {
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

impl CrossPartition {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether a marker covers an entry.
    fn covers(&self, marker: usize, entry: usize) -> bool {
        match self.lacks(Mutant::StampedInEachPartition) {
            true => entry == marker,
            false => entry <= marker,
        }
    }

    /// The entry that a partition has to execute next at its current marker.
    fn next_at(&self, state: &State, partition: usize) -> Option<usize> {
        let own = &state.partitions[partition];
        let marker = own.standing()?;
        if marker > state.delivered && !self.lacks(Mutant::LogNotAwaited) {
            return None;
        }
        let concerns = |entry: &usize| {
            involved(*entry).contains(&partition)
                && self.covers(marker, *entry)
                && !own.is_done(*entry)
        };
        (1..=state.delivered).find(concerns)
    }

    fn may_pass(&self, state: &State, partition: usize) -> bool {
        let marker = state.partitions[partition].standing();
        let is_known = |marker| marker <= state.delivered || self.lacks(Mutant::LogNotAwaited);
        marker.is_some_and(is_known) && self.next_at(state, partition).is_none()
    }

    /// The step of an entry that is next in a partition.
    fn step(&self, state: &State, partition: usize, entry: usize) -> Option<Action> {
        let lowest = involved(entry)[0];
        if state.partitions[lowest].is_done(entry) {
            return Some(Action::Redo { partition, entry });
        }
        let is_ready = |p: &usize| self.next_at(state, *p) == Some(entry);
        let is_due = involved(entry).iter().all(is_ready) || self.lacks(Mutant::OthersNotAwaited);
        is_due.then_some(Action::Execute { entry })
    }

    /// Markers that may arrive: any, and finally one that covers all that are missing.
    fn markers(&self, state: &State, partition: usize) -> Vec<usize> {
        let markers = &state.partitions[partition].markers;
        let concerns = |marker: &usize| involved(*marker).contains(&partition);
        if self.lacks(Mutant::StampedInEachPartition) {
            let is_new = |marker: &usize| concerns(marker) && !markers.contains(marker);
            return (1..=ENTRIES.len()).filter(is_new).collect();
        }
        match markers.len() {
            len if len < MARKERS_MAX => (1..=ENTRIES.len()).collect(),
            MARKERS_MAX => vec![ENTRIES.len()],
            _ => Vec::new(),
        }
    }

    /// What happens without a crash.
    fn progress(&self, state: &State) -> Vec<Action> {
        if state.is_torn {
            return Vec::new();
        }
        if state.writing.is_some() {
            return vec![Action::Write];
        }
        let mut actions = Vec::new();
        if state.delivered < ENTRIES.len() {
            actions.push(Action::Deliver);
        }
        for partition in 0..PARTITIONS {
            for marker in self.markers(state, partition) {
                actions.push(Action::Mark { partition, marker });
            }
            if self.may_pass(state, partition) {
                actions.push(Action::Pass { partition });
            }
            let next = self.next_at(state, partition);
            actions.extend(next.and_then(|entry| self.step(state, partition, entry)));
        }
        actions
    }

    fn execute(&self, state: &mut State, entry: usize) {
        let done = |p: &usize| state.partitions[*p].effects.len();
        let saw: Saw = involved(entry).iter().map(done).collect();
        let mut left = involved(entry).to_vec();
        if self.lacks(Mutant::LowestWrittenLast) {
            left.reverse();
        }
        state.writing = Some(Writing { entry, saw, left });
        self.write(state);
    }

    /// Writes the next partition's batch; that of the lowest partition contains the redo record.
    fn write(&self, state: &mut State) {
        let Some(mut writing) = state.writing.take() else {
            return;
        };
        let partition = writing.left.remove(0);
        let entry = writing.entry;
        if partition == involved(entry)[0] && !self.lacks(Mutant::RedoNotWritten) {
            state.redo.insert(entry, writing.saw.clone());
        }
        state.partitions[partition].execute(entry, writing.saw.clone());
        if !writing.left.is_empty() {
            state.writing = Some(writing);
        }
    }

    /// The position of an entry in a partition: the first marker that covers it.
    fn place(&self, partition: &Partition, entry: usize) -> Option<usize> {
        let mut markers = partition.markers.iter();
        markers.position(|marker| self.covers(*marker, entry))
    }

    fn is_finished(&self, state: &State) -> bool {
        let is_done = |entry: usize| {
            involved(entry)
                .iter()
                .all(|p| state.partitions[*p].is_done(entry))
        };
        !state.is_torn && (1..=ENTRIES.len()).all(is_done)
    }
}

impl Model for CrossPartition {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            delivered: 0,
            partitions: vec![Partition::default(); PARTITIONS],
            redo: BTreeMap::new(),
            writing: None,
            has_crashed: false,
            is_torn: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.progress(state));
        if !state.has_crashed && state.writing.is_some() {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver => state.delivered += 1,
            Action::Mark { partition, marker } => state.partitions[partition].markers.push(marker),
            Action::Pass { partition } => state.partitions[partition].passed += 1,
            Action::Execute { entry } => self.execute(&mut state, entry),
            Action::Redo { partition, entry } => match last.redo.get(&entry) {
                Some(saw) => state.partitions[partition].execute(entry, saw.clone()),
                None => state.is_torn = true,
            },
            Action::Write => self.write(&mut state),
            Action::Crash => {
                state.has_crashed = true;
                state.writing = None;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("CrossPartitionAtomic", |_: &Self, state: &State| {
                let effects = || state.partitions.iter().flat_map(|p| &p.effects);
                let differs = |a: &Effect, b: &Effect| a.entry == b.entry && a.saw != b.saw;
                let is_equal = !effects().any(|a| effects().any(|b| differs(a, b)));
                is_equal && !state.is_torn
            }),
            Property::always("ReplicasEqual", |model: &Self, state: &State| {
                let in_place = |p: &Partition| {
                    let mut effects = p.effects.iter();
                    effects.all(|e| model.place(p, e.entry) == Some(e.at))
                };
                state.partitions.iter().all(in_place)
            }),
            Property::always("ExactlyOnce", |_: &Self, state: &State| {
                let once = |p: &Partition| {
                    (1..=ENTRIES.len())
                        .all(|e| p.effects.iter().filter(|x| x.entry == e).count() <= 1)
                };
                state.partitions.iter().all(once)
            }),
            Property::always("Liveness", |model: &Self, state: &State| {
                !model.progress(state).is_empty() || model.is_finished(state) || state.is_torn
            }),
        ]
    }
}
