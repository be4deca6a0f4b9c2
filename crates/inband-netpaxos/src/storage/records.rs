//! What a storage server keeps on disk, and how it continues from that.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fencing::Fencing;
use super::{Config, Storage};
use crate::quorum::{Generations, Vote};
use crate::request::{Request, Value};

/// What must survive a restart, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A vote in the fast round.
    Fast {
        instance: u64,
        /// Incarnation of the minion.
        incarnation: u64,
        /// The minion's number; 0 in a snapshot if it is no longer needed.
        number: u64,
        /// The request voted for.
        request: Arc<Request>,
    },
    /// A promise to vote in no lower round.
    Promised { instance: u64, round: u64 },
    /// A vote in a round of recovery, which implies a promise for the same round.
    Classic {
        instance: u64,
        round: u64,
        /// The value voted for.
        value: Value,
    },
    /// A decision that it was told, in an instance in which it must stay silent.
    Decided { instance: u64, value: Value },
    /// It has started without memory, and has not fenced the others yet.
    Lost,
    /// It has fenced the others, and has no memory of instances up to `silent`.
    Serves {
        /// The last such instance; 0: there is none.
        silent: u64,
        /// All instances up to this one are decided, and forgotten here.
        floor: u64,
    },
    /// The generations that it knows, including its own.
    Generations(Generations),
    /// How its minion's numbers map to instances, in a [`Storage::snapshot`].
    Numbers {
        /// Incarnation of the minion.
        incarnation: u64,
        /// The highest number that has arrived.
        top: u64,
        /// What to add to a number to get its instance.
        base: u64,
        /// The highest instance with a fast vote.
        voted: u64,
    },
    /// All instances up to this one are decided, and forgotten here.
    Floor(u64),
    /// It has granted this learner an incarnation.
    Enrolled {
        /// The learner's number.
        learner: u8,
        incarnation: u32,
        /// The start that has it; 0: unknown.
        nonce: u64,
    },
}

impl Storage {
    /// Creates a storage server that continues from its records. `nonce` must be drawn afresh at each start.
    pub fn restored(
        config: Config,
        records: impl IntoIterator<Item = Record>,
        nonce: u64,
    ) -> Storage {
        let mut storage = Storage::new(config);
        let mut is_lost = false;
        for record in records {
            match record {
                Record::Lost => is_lost = true,
                Record::Serves { .. } => is_lost = false,
                _ => {}
            }
            storage.replay(record);
        }
        storage.fencing = is_lost.then(|| Fencing::new(nonce));
        storage
    }

    pub(super) fn replay(&mut self, record: Record) {
        match record {
            Record::Fast {
                instance,
                incarnation,
                number,
                request,
            } => {
                self.enter(incarnation);
                if number > self.top {
                    self.top = number;
                    self.base = instance.wrapping_sub(number);
                }
                self.voted = self.voted.max(instance);
                self.store(instance, number, request);
            }
            Record::Numbers {
                incarnation,
                top,
                base,
                voted,
            } => {
                self.enter(incarnation);
                (self.top, self.base, self.voted) = (top, base, voted);
            }
            Record::Promised { instance, round } => {
                // A snapshot that was interrupted repeats some of what is known.
                let slot = self.slot(instance);
                slot.promised = slot.promised.max(round);
            }
            Record::Classic {
                instance,
                round,
                value,
            } => {
                let slot = self.slot(instance);
                slot.promised = slot.promised.max(round);
                slot.vote = Vote::Classic(round, value);
            }
            Record::Decided { instance, value } => {
                self.slot(instance).vote = Vote::Decided(value);
            }
            Record::Serves { silent, floor } => {
                self.silent = silent;
                self.highest = self.highest.max(silent);
                self.in_use = self.in_use.max(silent);
                self.forget_to(floor);
            }
            Record::Generations(generations) => {
                self.generations.merge(&generations);
            }
            Record::Floor(floor) => self.forget_to(floor),
            Record::Enrolled {
                learner,
                incarnation,
                nonce,
            } => {
                let last = self.enrolled.entry(learner).or_default();
                *last = (incarnation, nonce).max(*last);
            }
            Record::Lost => {}
        }
    }

    /// Returns records to start a new journal with, from which [`Storage::restored`] recreates the same state.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records = vec![Record::Generations(self.generations)];
        records.extend(self.enrolments());
        if self.fencing.is_some() {
            records.push(Record::Lost);
            return records;
        }
        records.push(Record::Serves {
            silent: self.silent,
            floor: self.floor,
        });
        let incarnation = self.incarnation;
        records.push(Record::Numbers {
            incarnation,
            top: self.top,
            base: self.base,
            voted: self.voted,
        });
        let numbers: BTreeMap<u64, u64> = self.numbers.iter().map(|(n, i)| (*i, *n)).collect();
        for (instance, slot) in &self.slots {
            let instance = *instance;
            if let Vote::Fast(request) = &slot.vote {
                records.push(Record::Fast {
                    instance,
                    incarnation,
                    number: numbers.get(&instance).copied().unwrap_or(0),
                    request: Arc::clone(request),
                });
            }
            if slot.promised > 0 {
                let round = slot.promised;
                records.push(Record::Promised { instance, round });
            }
            match slot.vote.clone() {
                Vote::Classic(round, value) => records.push(Record::Classic {
                    instance,
                    round,
                    value,
                }),
                Vote::Decided(value) => records.push(Record::Decided { instance, value }),
                Vote::None | Vote::Fast(_) => {}
            }
        }
        records
    }

    pub(super) fn enrolments(&self) -> impl Iterator<Item = Record> + '_ {
        let all = self.enrolled.iter();
        all.map(|(learner, (incarnation, nonce))| Record::Enrolled {
            learner: *learner,
            incarnation: *incarnation,
            nonce: *nonce,
        })
    }
}
