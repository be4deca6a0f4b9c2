//! Falcon's queue: clients submit, executors pull and are parked, packets are lost, the scheduler restarts.
//!
//! Speaks of:
//! - `dataplane/falcon/shell.h`: `ib_falcon_serve` `ib_falcon_pull` `ib_falcon_push_all` `ib_falcon_submit`
//! - `dataplane/falcon/parking.h`: `ib_falcon_park` `ib_falcon_wake` `ib_falcon_set_bit` `ib_falcon_clear_bit`
//! - `crates/inband-falcon/src/client.rs`: `on_reply` `is_of_scheduler` `lose`
//! - `crates/inband-falcon/src/executor.rs`: `on_task` `pull_next`
//!
//! Packets are handled by two CPUs at once, step by step: between two steps of one, any steps of the other may happen.
//! A push and a pop are one step each, because they are a compare-and-swap (`falcon_race` checks that). An executor
//! runs a task in no time. Timeouts fire only when nothing else can happen; the timeout of a lease may fire at any
//! time.

mod scheduler;
mod sides;
mod state;

use stateright::{Model, Property};

use scheduler::Work;
pub use state::{Message, State};

/// CPUs of the scheduler.
const CPUS: usize = 2;

/// Bounds of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Tasks of the client.
    pub tasks: usize,
    /// Slots of the queue.
    pub slots: usize,
    pub executors: usize,
    pub losses: u8,
    pub repeats: u8,
    /// Restarts of the scheduler.
    pub restarts: u8,
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Bounds {
            tasks,
            slots,
            executors,
            losses,
            repeats,
            restarts,
        } = self;
        write!(
            f,
            "{tasks} tasks, {slots} slots, {executors} executors, {losses} packets lost, {repeats} twice, {restarts} restarts"
        )
    }
}

/// Only reordering.
pub const CALM: Bounds = Bounds {
    tasks: 2,
    slots: 2,
    executors: 1,
    losses: 0,
    repeats: 0,
    restarts: 0,
};
/// The same with two executors; takes minutes.
pub const CALM_PAIR: Bounds = Bounds {
    executors: 2,
    ..CALM
};
/// One task for two executors.
pub const ONE_FOR_TWO: Bounds = Bounds {
    tasks: 1,
    executors: 2,
    ..CALM
};
/// The queue gets full.
pub const FULL: Bounds = Bounds { slots: 1, ..CALM };
/// A packet is duplicated; takes minutes.
pub const REPEATED: Bounds = Bounds { repeats: 1, ..CALM };
/// The same with one task.
pub const REPEATED_ONE: Bounds = Bounds {
    tasks: 1,
    ..REPEATED
};
/// A packet is lost.
pub const LOST: Bounds = Bounds {
    slots: 1,
    losses: 1,
    ..CALM
};
/// The scheduler loses its state; takes minutes.
pub const RESTARTED: Bounds = Bounds {
    restarts: 1,
    ..CALM
};
/// The same with one task.
pub const RESTARTED_ONE: Bounds = Bounds {
    tasks: 1,
    ..RESTARTED
};

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    ParkedWithoutLook,
    LookedBeforeBit,
    RepeatedPopsAgain,
    BitNotTaken,
    FullSaysTaken,
    IncarnationNotNoticed,
    LeaseNotWatched,
}

impl Mutant {
    /// All mutants, and the bounds within which each is refuted.
    pub const ALL: [(Mutant, Bounds); 7] = [
        (Mutant::ParkedWithoutLook, CALM),
        (Mutant::LookedBeforeBit, CALM),
        (Mutant::RepeatedPopsAgain, REPEATED),
        (Mutant::BitNotTaken, CALM),
        (Mutant::FullSaysTaken, FULL),
        (Mutant::IncarnationNotNoticed, RESTARTED_ONE),
        (Mutant::LeaseNotWatched, LOST),
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Action {
    /// A packet reaches a host, or a CPU of the scheduler.
    Deliver(Message, usize),
    DeliverAndKeep(Message, usize),
    Lose(Message),
    /// The next step of a CPU.
    Cpu(usize),
    Restart,
    /// Timeouts.
    SubmitAgain(u8),
    Ask,
    LeaseEnds(u8),
    PullAgain(u8),
    ResultAgain(u8),
}

#[derive(Debug, Clone, Copy)]
pub struct FalconQueue {
    pub bounds: Bounds,
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

impl FalconQueue {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

impl Model for FalconQueue {
    type State = State;
    type Action = Action;

    /// All tasks have been submitted, and all executors have sent their first PULL.
    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.bounds.tasks, self.bounds.executors)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for message in &state.messages {
            let cpus = if message.is_for_scheduler() { CPUS } else { 1 };
            let free = |cpu: &usize| !message.is_for_scheduler() || state.cpus[*cpu].is_none();
            // The CPUs are interchangeable.
            if let Some(cpu) = (0..cpus).find(free) {
                actions.push(Action::Deliver(*message, cpu));
                if state.repeats < self.bounds.repeats {
                    actions.push(Action::DeliverAndKeep(*message, cpu));
                }
            }
            if state.losses < self.bounds.losses {
                actions.push(Action::Lose(*message));
            }
        }
        let may_go_on = |cpu: &usize| state.cpus[*cpu].is_some_and(|work| state.may_go_on(&work));
        actions.extend((0..CPUS).filter(may_go_on).map(Action::Cpu));
        if state.restarts < self.bounds.restarts {
            actions.push(Action::Restart);
        }
        if state.is_quiet() {
            self.timeouts(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(message, cpu) => {
                state.messages.remove(&message);
                self.deliver(&mut state, message, cpu);
            }
            Action::DeliverAndKeep(message, cpu) => {
                state.repeats += 1;
                self.deliver(&mut state, message, cpu);
            }
            Action::Lose(message) => {
                state.losses += 1;
                state.messages.remove(&message);
            }
            Action::Cpu(cpu) => self.step(&mut state, cpu),
            Action::Restart => state.restart(),
            Action::SubmitAgain(task) => state.submit(task),
            Action::Ask => {
                state.messages.insert(Message::Wake);
            }
            Action::LeaseEnds(task) => state.submit_next_try(task),
            Action::PullAgain(executor) => state.pull(executor),
            Action::ResultAgain(executor) => state.tell_result(executor),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn is_safe(_: &FalconQueue, state: &State) -> bool {
            !state.is_given_twice
        }
        fn nobody_sleeps(_: &FalconQueue, state: &State) -> bool {
            let is_hurt = state.losses > 0 || state.restarts > 0;
            is_hurt || !state.is_quiet() || !state.does_anybody_sleep()
        }
        // No task is given up that was only slow.
        fn nobody_missed(_: &FalconQueue, state: &State) -> bool {
            let is_hurt = state.losses > 0 || state.restarts > 0;
            is_hurt || state.tasks.iter().all(|task| task.attempt == 1)
        }
        fn all_done(_: &FalconQueue, state: &State) -> bool {
            state.is_done()
        }
        if self.mutant.is_some() {
            // A single property, because the search ends with the first state that violates any.
            return vec![
                Property::always("Safe", |model, state| {
                    is_safe(model, state)
                        && nobody_sleeps(model, state)
                        && nobody_missed(model, state)
                }),
                Property::eventually("NothingLost", all_done),
            ];
        }
        vec![
            Property::always("GivenOnce", is_safe),
            Property::always("NobodySleeps", nobody_sleeps),
            Property::always("NobodyMissed", nobody_missed),
            Property::eventually("NothingLost", all_done),
        ]
    }
}
