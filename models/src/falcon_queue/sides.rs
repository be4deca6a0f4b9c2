//! Client and executors: how they handle packets and timeouts.

use super::scheduler::{OfPull, OfSubmit};
use super::state::{Doing, Fate, Message, Said, State};
use super::{Action, FalconQueue, Mutant, Work};

impl FalconQueue {
    pub(super) fn deliver(&self, state: &mut State, message: Message, cpu: usize) {
        match message {
            Message::Submit { task, attempt } => self.arrives(state, cpu, Some((task, attempt))),
            Message::Wake => self.arrives(state, cpu, None),
            Message::Pull {
                executor,
                incarnation,
                pull,
            } if incarnation == state.incarnation => {
                state.cpus[cpu] = Some(Work::Pull {
                    executor,
                    pull,
                    at: OfPull::Take,
                    round: 0,
                });
            }
            Message::Pull { executor, .. } => {
                let incarnation = state.incarnation;
                state.messages.insert(Message::Nack {
                    executor,
                    incarnation,
                });
            }
            Message::Reply(said) => self.on_reply(state, said),
            Message::Task {
                executor,
                pull,
                item,
                said,
            } => {
                if let Some(said) = said {
                    self.on_reply(state, said);
                }
                let of = &mut state.executors[usize::from(executor)];
                if of.pull == pull {
                    of.result = Some((item.task, item.attempt));
                    of.pull += 1;
                    state.tell_result(executor);
                    state.pull(executor);
                }
            }
            Message::NoTask { executor, pull } => {
                if state.executors[usize::from(executor)].pull == pull {
                    state.pull(executor);
                }
            }
            Message::Nack {
                executor,
                incarnation,
            } => {
                let of = &mut state.executors[usize::from(executor)];
                if of.incarnation < incarnation {
                    of.incarnation = incarnation;
                    of.pull += 1;
                    state.pull(executor);
                }
            }
            Message::Result { task, .. } => state.tasks[usize::from(task)].fate = Fate::Done,
        }
    }

    fn arrives(&self, state: &mut State, cpu: usize, task: Option<(u8, u8)>) {
        let said = Said {
            incarnation: state.incarnation,
            task,
            is_taken: false,
            parked: false,
        };
        state.cpus[cpu] = Some(Work::Submit {
            said,
            at: OfSubmit::Push,
            tries: 0,
            woken: None,
        });
    }

    fn on_reply(&self, state: &mut State, said: Said) {
        if said.incarnation < state.known {
            return; // late, from an ended scheduler
        }
        if said.incarnation > state.known && !self.lacks(Mutant::IncarnationNotNoticed) {
            for task in 0..state.tasks.len() as u8 {
                if state.tasks[usize::from(task)].fate == Fate::Queued {
                    state.submit_next_try(task);
                }
            }
        }
        state.known = said.incarnation;
        if said.parked {
            state.messages.insert(Message::Wake);
        }
        let Some((task, attempt)) = said.task else {
            return;
        };
        let of = &mut state.tasks[usize::from(task)];
        if of.fate == Fate::Submitted && of.attempt == attempt {
            of.fate = match said.is_taken {
                true => Fate::Queued,
                false => Fate::Refused,
            };
        }
    }

    /// The timeouts that may fire. Those that would change nothing are left out.
    pub(super) fn timeouts(&self, state: &State, actions: &mut Vec<Action>) {
        for (task, of) in (0..).zip(&state.tasks) {
            let is_there = state.queue.iter().any(|item| item.task == task);
            match of.fate {
                Fate::Submitted | Fate::Refused => actions.push(Action::SubmitAgain(task)),
                Fate::Queued if state.known < state.incarnation => actions.push(Action::Ask),
                Fate::Queued if !is_there && !self.lacks(Mutant::LeaseNotWatched) => {
                    // A client that asks learns of a new scheduler before a lease ends.
                    if !self.lacks(Mutant::IncarnationNotNoticed) {
                        actions.push(Action::LeaseEnds(task));
                    }
                }
                Fate::Queued | Fate::Done => {}
            }
        }
        let pairs = state.executors.iter().zip(&state.records);
        for (number, (of, record)) in pairs.enumerate() {
            let is_behind = of.incarnation < state.incarnation || of.pull > record.pull;
            let was_given = matches!(record.doing, Doing::Has(_)) && of.pull == record.pull;
            let may_have = !state.queue.is_empty() || !state.is_parked(number);
            if is_behind || was_given || may_have {
                actions.push(Action::PullAgain(number as u8));
            }
            let is_open = |(task, _): (u8, u8)| state.tasks[usize::from(task)].fate != Fate::Done;
            if of.result.is_some_and(is_open) {
                actions.push(Action::ResultAgain(number as u8));
            }
        }
    }
}
