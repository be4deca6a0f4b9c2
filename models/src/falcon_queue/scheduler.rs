//! The scheduler: how a CPU handles a packet, step by step.

use super::state::{Doing, Item, Message, Said, State};
use super::{FalconQueue, Mutant};

/// Attempts of a PULL, like `IB_FALCON_PARK_TRIES_MAX`; and executors that a SUBMIT tries.
const TRIES: u8 = 2;

/// The next step of a PULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OfPull {
    Take,
    Pop,
    Release,
    SetBit,
    Look,
    ClearBit,
    TakeAgain,
}

/// The next step of a SUBMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OfSubmit {
    Push,
    Find,
    ClearBit(u8),
    Take(u8),
    SetBit(u8),
    Answer,
}

/// A packet that is being handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Pull {
        executor: u8,
        pull: u8,
        at: OfPull,
        round: u8,
    },
    Submit {
        said: Said,
        at: OfSubmit,
        tries: u8,
        /// The executor that was found, its PULL, and the task for it.
        woken: Option<(u8, u8, Item)>,
    },
}

impl State {
    /// Whether the next step can be taken; if not, another CPU holds what it needs.
    pub fn may_go_on(&self, work: &Work) -> bool {
        let needs = match *work {
            Work::Pull {
                executor,
                at: OfPull::Take | OfPull::TakeAgain,
                ..
            } => executor,
            Work::Submit {
                at: OfSubmit::Take(executor),
                ..
            } => executor,
            _ => return true,
        };
        !self.records[usize::from(needs)].is_locked
    }

    fn pop(&mut self, executor: u8, pull: u8) -> Option<Item> {
        if self.queue.is_empty() {
            return None;
        }
        let item = self.queue.remove(0);
        let to = |given: &(u8, u8, u8)| (given.1, given.2) == (executor, pull);
        self.is_given_twice |= self.given.iter().any(to);
        self.given.insert((item.push, executor, pull));
        Some(item)
    }

    fn find(&self) -> Option<u8> {
        let parked = self.records.iter().position(|record| record.bit);
        parked
            .filter(|_| !self.queue.is_empty())
            .map(|executor| executor as u8)
    }
}

impl FalconQueue {
    pub(super) fn step(&self, state: &mut State, cpu: usize) {
        let next = match state.cpus[cpu] {
            Some(Work::Pull {
                executor,
                pull,
                at,
                round,
            }) => {
                let next = self.step_of_pull(state, executor, pull, at, round);
                next.map(|(pull, at, round)| Work::Pull {
                    executor,
                    pull,
                    at,
                    round,
                })
            }
            Some(Work::Submit {
                said,
                at,
                tries,
                woken,
            }) => self.step_of_submit(state, said, at, tries, woken),
            None => None,
        };
        state.cpus[cpu] = next;
    }

    fn step_of_pull(
        &self,
        state: &mut State,
        executor: u8,
        pull: u8,
        at: OfPull,
        round: u8,
    ) -> Option<(u8, OfPull, u8)> {
        let number = usize::from(executor);
        match at {
            OfPull::Take => {
                let record = &mut state.records[number];
                if pull < record.pull {
                    return None;
                }
                if let (Doing::Has(item), true) = (record.doing, pull == record.pull) {
                    if !self.lacks(Mutant::RepeatedPopsAgain) {
                        state.messages.insert(Message::Task {
                            executor,
                            pull,
                            item,
                            said: None,
                        });
                        return None;
                    }
                }
                record.is_locked = true;
                record.pull = pull;
                record.doing = Doing::Idle;
                record.bit = false;
                Some((pull, OfPull::Pop, round))
            }
            OfPull::Pop => {
                let Some(item) = state.pop(executor, pull) else {
                    return Some((pull, OfPull::Release, round));
                };
                let record = &mut state.records[number];
                record.doing = Doing::Has(item);
                record.is_locked = false;
                state.messages.insert(Message::Task {
                    executor,
                    pull,
                    item,
                    said: None,
                });
                None
            }
            OfPull::Release => {
                let record = &mut state.records[number];
                record.is_locked = false;
                if round == TRIES {
                    record.doing = Doing::Idle;
                    state.messages.insert(Message::NoTask { executor, pull });
                    return None;
                }
                record.doing = Doing::Waits;
                let next = match self.lacks(Mutant::LookedBeforeBit) {
                    true => OfPull::Look,
                    false => OfPull::SetBit,
                };
                Some((pull, next, round))
            }
            OfPull::SetBit => {
                state.records[number].bit = true;
                let is_over =
                    self.lacks(Mutant::ParkedWithoutLook) || self.lacks(Mutant::LookedBeforeBit);
                (!is_over).then_some((pull, OfPull::Look, round))
            }
            OfPull::Look if self.lacks(Mutant::LookedBeforeBit) => match state.queue.is_empty() {
                true => Some((pull, OfPull::SetBit, round)),
                false => Some((pull, OfPull::TakeAgain, round)),
            },
            OfPull::Look => (!state.queue.is_empty()).then_some((pull, OfPull::ClearBit, round)),
            OfPull::ClearBit => {
                // The CPU that has cleared the bit wakes the executor.
                let was_set = std::mem::take(&mut state.records[number].bit);
                was_set.then_some((pull, OfPull::TakeAgain, round))
            }
            OfPull::TakeAgain => {
                let record = &mut state.records[number];
                if record.doing != Doing::Waits {
                    return None; // a later PULL was handled in between
                }
                record.is_locked = true;
                Some((record.pull, OfPull::Pop, round + 1))
            }
        }
    }

    fn step_of_submit(
        &self,
        state: &mut State,
        mut said: Said,
        at: OfSubmit,
        tries: u8,
        mut woken: Option<(u8, u8, Item)>,
    ) -> Option<Work> {
        let mut tried = tries;
        let next = match at {
            OfSubmit::Push => {
                if let Some((task, attempt)) = said.task {
                    let has_room = state.queue.len() < self.bounds.slots;
                    if has_room {
                        let push = state.pushes;
                        state.pushes += 1;
                        state.queue.push(Item {
                            task,
                            attempt,
                            push,
                        });
                    }
                    said.is_taken = has_room || self.lacks(Mutant::FullSaysTaken);
                }
                OfSubmit::Find
            }
            OfSubmit::Find => match state.find().filter(|_| tries < TRIES) {
                Some(executor) => OfSubmit::ClearBit(executor),
                None => OfSubmit::Answer,
            },
            OfSubmit::ClearBit(executor) => {
                tried += 1;
                let record = &mut state.records[usize::from(executor)];
                let was_set = std::mem::take(&mut record.bit);
                match was_set || self.lacks(Mutant::BitNotTaken) {
                    true => OfSubmit::Take(executor),
                    false => OfSubmit::Find,
                }
            }
            OfSubmit::Take(executor) => {
                let record = state.records[usize::from(executor)];
                let waits = record.doing == Doing::Waits || self.lacks(Mutant::BitNotTaken);
                match waits.then(|| state.pop(executor, record.pull)) {
                    None => OfSubmit::Find,
                    Some(None) => OfSubmit::SetBit(executor),
                    Some(Some(item)) => {
                        state.records[usize::from(executor)].doing = Doing::Has(item);
                        woken = Some((executor, record.pull, item));
                        OfSubmit::Answer
                    }
                }
            }
            OfSubmit::SetBit(executor) => {
                state.records[usize::from(executor)].bit = true;
                OfSubmit::Find
            }
            OfSubmit::Answer => {
                said.parked = state.find().is_some();
                state.messages.insert(match woken {
                    None => Message::Reply(said),
                    Some((executor, pull, item)) => Message::Task {
                        executor,
                        pull,
                        item,
                        said: Some(said),
                    },
                });
                return None;
            }
        };
        Some(Work::Submit {
            said,
            at: next,
            tries: tried,
            woken,
        })
    }
}
