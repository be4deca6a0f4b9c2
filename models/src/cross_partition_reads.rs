//! A read over several partitions: two replicas have the logs of two partitions, and one entry of log M that reads both. A
//! client of one replica waits for the read. A client of the other writes in one partition, and once that is
//! acknowledged in the other one. Replicas write what they have applied partition by partition, and one of them
//! crashes.
//!
//! Speaks of:
//! - `crates/inband-kv/src/machine/entries.rs`: `execute_at` `next_entry_at` `execute` `pass_read` `forget` `load_queue`
//! - `crates/inband-kv/src/machine/queue.rs`: `may_pass` `next` `done`
//! - `crates/inband-kv/src/store/local.rs`: `all_written`

use stateright::{Model, Property};

const PARTITIONS: usize = 2;
const REPLICAS: usize = 2;
/// The replica whose client waits for the read.
const READER: usize = 0;
/// The replica that acknowledges the writes.
const WRITER: usize = 1;

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    /// If nobody waits for the read, its marker is passed at once.
    PassedWhereNobodyWaits,
    /// After a crash a partition waits for one that has already passed the marker.
    PassedNotCounted,
    /// The entry is removed from the queue before its effects are written.
    RemovedBeforeWritten,
}

impl Mutant {
    pub const ALL: [Mutant; 3] = [
        Mutant::PassedWhereNobodyWaits,
        Mutant::PassedNotCounted,
        Mutant::RemovedBeforeWritten,
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Value {
    Marker,
    Write,
}

/// How far a replica is in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Place {
    applied: usize,
    /// The read moved this partition's time.
    is_timed: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Replica {
    has_entry: bool,
    /// The entry is no longer in the queue, not even after a crash.
    is_removed: bool,
    places: [Place; PARTITIONS],
    written: [Place; PARTITIONS],
    /// It executed the read while a client waited for it.
    has_answered: bool,
    has_crashed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    logs: [Vec<Value>; PARTITIONS],
    /// Where the client writes first.
    first: usize,
    is_acknowledged: bool,
    replicas: [Replica; REPLICAS],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Action {
    Deliver { replica: usize },
    Mark { partition: usize },
    WriteFirst,
    WriteThen,
    Apply { replica: usize, partition: usize },
    Execute { replica: usize },
    PassMarker { replica: usize, partition: usize },
    Flush { replica: usize, partition: usize },
    Remove { replica: usize },
    Crash { replica: usize },
}

impl State {
    fn has(&self, partition: usize, value: Value) -> bool {
        self.logs[partition].contains(&value)
    }

    fn place_of(&self, partition: usize, value: Value) -> Option<usize> {
        self.logs[partition].iter().position(|v| *v == value)
    }

    fn next(&self, replica: usize, partition: usize) -> Option<Value> {
        let applied = self.replicas[replica].places[partition].applied;
        self.logs[partition].get(applied).copied()
    }

    fn has_passed(&self, replica: usize, partition: usize) -> bool {
        let applied = self.replicas[replica].places[partition].applied;
        let marker = self.place_of(partition, Value::Marker);
        marker.is_some_and(|marker| marker < applied)
    }

    /// In this partition the read comes after the client's write.
    fn is_seen(&self, partition: usize) -> bool {
        let write = self.place_of(partition, Value::Write);
        let marker = self.place_of(partition, Value::Marker);
        write.is_some_and(|write| marker.is_some_and(|marker| write < marker))
    }
}

#[derive(Debug, Clone, Copy)]
pub struct CrossPartitionReads {
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

impl CrossPartitionReads {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn pass(&self, replica: &mut Replica, partition: usize, is_timed: bool) {
        let place = &mut replica.places[partition];
        place.applied += 1;
        place.is_timed |= is_timed;
    }

    /// What a replica may do at the markers that its partitions have reached.
    fn at_markers(&self, state: &State, replica: usize, actions: &mut Vec<Action>) {
        let own = &state.replicas[replica];
        let stands = |partition: usize| state.next(replica, partition) == Some(Value::Marker);
        let has_passed = |partition: usize| state.has_passed(replica, partition);
        if !own.has_entry {
            return;
        }
        let nobody_waits = replica != READER || own.has_crashed;
        let at_once = self.lacks(Mutant::PassedWhereNobodyWaits) && nobody_waits;
        let counts = !self.lacks(Mutant::PassedNotCounted);
        for partition in (0..PARTITIONS).filter(|p| stands(*p)) {
            let other_has_passed = has_passed(1 - partition) && counts;
            if own.is_removed || other_has_passed || at_once {
                actions.push(Action::PassMarker { replica, partition });
            }
        }
        if (0..PARTITIONS).all(stands) {
            actions.push(Action::Execute { replica });
        }
    }

    fn progress(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for partition in 0..PARTITIONS {
            if !state.has(partition, Value::Marker) {
                actions.push(Action::Mark { partition });
            }
        }
        if !state.has(state.first, Value::Write) {
            actions.push(Action::WriteFirst);
        }
        if state.is_acknowledged && !state.has(1 - state.first, Value::Write) {
            actions.push(Action::WriteThen);
        }
        for (replica, own) in state.replicas.iter().enumerate() {
            if !own.has_entry {
                actions.push(Action::Deliver { replica });
            }
            for partition in 0..PARTITIONS {
                if state.next(replica, partition) == Some(Value::Write) {
                    actions.push(Action::Apply { replica, partition });
                }
                if own.places[partition] != own.written[partition] {
                    actions.push(Action::Flush { replica, partition });
                }
            }
            self.at_markers(state, replica, &mut actions);
            let places = match self.lacks(Mutant::RemovedBeforeWritten) {
                true => &own.places,
                false => &own.written,
            };
            if own.has_entry && !own.is_removed && places.iter().all(|place| place.is_timed) {
                actions.push(Action::Remove { replica });
            }
        }
        actions
    }

    fn is_finished(&self, state: &State) -> bool {
        let is_whole = |replica: &Replica| {
            let places = replica.places.iter().zip(&state.logs);
            places
                .clone()
                .all(|(place, log)| place.applied == log.len())
        };
        state.logs.iter().all(|log| log.len() == 2) && state.replicas.iter().all(is_whole)
    }
}

impl Model for CrossPartitionReads {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |first| State {
            logs: Default::default(),
            first,
            is_acknowledged: false,
            replicas: Default::default(),
        };
        (0..PARTITIONS).map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.progress(state));
        if state.replicas.iter().all(|replica| !replica.has_crashed) {
            actions.extend((0..REPLICAS).map(|replica| Action::Crash { replica }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver { replica } => state.replicas[replica].has_entry = true,
            Action::Mark { partition } => state.logs[partition].push(Value::Marker),
            Action::WriteFirst => state.logs[last.first].push(Value::Write),
            Action::WriteThen => state.logs[1 - last.first].push(Value::Write),
            Action::Apply { replica, partition } => {
                state.replicas[replica].places[partition].applied += 1;
                state.is_acknowledged |= replica == WRITER && partition == last.first;
            }
            Action::Execute { replica } => {
                let own = &mut state.replicas[replica];
                own.has_answered |= replica == READER && !own.has_crashed;
                for partition in 0..PARTITIONS {
                    self.pass(own, partition, true);
                }
            }
            Action::PassMarker { replica, partition } => {
                let own = &mut state.replicas[replica];
                let is_timed = !own.is_removed;
                self.pass(own, partition, is_timed);
            }
            Action::Flush { replica, partition } => {
                let own = &mut state.replicas[replica];
                own.written[partition] = own.places[partition];
            }
            Action::Remove { replica } => state.replicas[replica].is_removed = true,
            Action::Crash { replica } => {
                let own = &mut state.replicas[replica];
                own.has_crashed = true;
                own.places = own.written;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("ReadsLinearizable", |_: &Self, state: &State| {
                let is_torn = state.is_seen(1 - state.first) && !state.is_seen(state.first);
                !(is_torn && state.replicas[READER].has_answered)
            }),
            Property::always("ReplicasEqual", |_: &Self, state: &State| {
                let is_timed = |replica: usize, partition: usize| {
                    let place = state.replicas[replica].places[partition];
                    place.is_timed == state.has_passed(replica, partition)
                };
                (0..REPLICAS).all(|r| (0..PARTITIONS).all(|p| is_timed(r, p)))
            }),
            Property::always("Liveness", |model: &Self, state: &State| {
                !model.progress(state).is_empty() || model.is_finished(state)
            }),
        ]
    }
}
