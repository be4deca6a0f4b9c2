//! The workers that a scheduler knows. Sans-I/O.

use serde::{Deserialize, Serialize};

use crate::limits::{EXECUTORS_MAX, WORKER_NAME_LEN_BYTES_MAX};
use crate::timing::Nanos;

/// A worker's registration, which it repeats periodically.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Drawn at its start; unique.
    pub token: u64,
    /// A name for people.
    pub name: String,
    pub executors: u8,
    /// Bitmap of its resources; bit 0 means none.
    pub resources: u64,
    /// The worker is leaving: its number becomes free.
    pub leaves: bool,
}

/// The scheduler's answer to a [`Register`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Registered {
    /// The worker is registered.
    As {
        /// Its number.
        worker: u16,
        /// Distinguishes successive registrations of this number.
        worker_incarnation: u32,
        /// The registration expires unless it is repeated within this time, in ms.
        lease_ms: u32,
        /// Maximum interval between PULLs of an idle executor, in ms; 0: no limit.
        pull_ms: u32,
    },
    /// The worker is refused.
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// All numbers are in use.
    #[error(
        "the scheduler has {0} workers already, which is its limit; start it with more `--workers`"
    )]
    TooManyWorkers(usize),
    /// Invalid number of executors.
    #[error("a worker has 1 to {EXECUTORS_MAX} executors, not {0}; start several workers")]
    Executors(u8),
    /// The name is too long.
    #[error("a name of {0} bytes is over the limit of {WORKER_NAME_LEN_BYTES_MAX}")]
    Name(usize),
}

/// A registered worker. `A` is its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker<A> {
    pub said: Register,
    /// Distinguishes successive registrations of its number.
    pub incarnation: u32,
    pub address: A,
    heard_at: Nanos,
}

/// A change to the scheduler's registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// This worker may pull.
    Add {
        worker: u16,
        /// Distinguishes successive registrations of this number.
        incarnation: u32,
        /// Bitmap of its resources.
        resources: u64,
    },
    /// This worker may no longer pull.
    Remove { worker: u16 },
}

#[derive(Debug)]
pub struct Registry<A> {
    workers: Vec<Option<Worker<A>>>,
    lease_ns: Nanos,
    pull_ms: u32,
    incarnations: u32,
}

impl<A> Registry<A> {
    /// Creates an empty registry for at most `workers_max` workers. A worker that is silent for `lease_ns` is removed.
    /// `pull_ms`: see [`Registered`].
    pub fn new(workers_max: usize, lease_ns: Nanos, pull_ms: u32) -> Registry<A> {
        Registry {
            workers: std::iter::repeat_with(|| None).take(workers_max).collect(),
            lease_ns,
            pull_ms,
            incarnations: 0,
        }
    }

    /// Returns the workers and their numbers.
    pub fn workers(&self) -> impl Iterator<Item = (u16, &Worker<A>)> {
        let known = (0..).zip(&self.workers);
        known.filter_map(|(number, worker)| Some((number, worker.as_ref()?)))
    }

    /// Handles a worker's registration. Returns the answer and the changes.
    pub fn on_register(
        &mut self,
        now: Nanos,
        from: A,
        said: Register,
    ) -> (Registered, Option<Change>) {
        if let Err(refusal) = check(&said) {
            return (Registered::Refused(refusal), None);
        }
        let is_it = |known: &Option<Worker<A>>| {
            known
                .as_ref()
                .is_some_and(|known| known.said.token == said.token)
        };
        let known = self.workers.iter().position(is_it);
        let free = || self.workers.iter().position(Option::is_none);
        let Some(at) = known.or_else(free) else {
            let refusal = Refusal::TooManyWorkers(self.workers.len());
            return (Registered::Refused(refusal), None);
        };
        let before = self.workers[at].take();
        let is_same = before.as_ref().is_some_and(|before| before.said == said);
        let incarnation = match before {
            Some(before) if is_same => before.incarnation,
            _ => {
                self.incarnations += 1;
                self.incarnations
            }
        };
        let (worker, resources, leaves) = (at as u16, said.resources, said.leaves);
        let change = if leaves {
            Some(Change::Remove { worker })
        } else {
            self.workers[at] = Some(Worker {
                said,
                incarnation,
                address: from,
                heard_at: now,
            });
            (!is_same).then_some(Change::Add {
                worker,
                incarnation,
                resources,
            })
        };
        let answer = Registered::As {
            worker,
            worker_incarnation: incarnation,
            lease_ms: (self.lease_ns / crate::timing::MS) as u32,
            pull_ms: self.pull_ms,
        };
        (answer, change)
    }

    /// Returns when to call [`Registry::tick`] next.
    pub fn due(&self) -> Nanos {
        let due = self
            .workers()
            .map(|(_, w)| w.heard_at + self.lease_ns)
            .min();
        due.unwrap_or(Nanos::MAX)
    }

    /// Removes workers whose leases have expired.
    pub fn tick(&mut self, now: Nanos) -> Vec<Change> {
        let mut changes = Vec::new();
        for (worker, known) in (0..).zip(&mut self.workers) {
            let is_silent = |w: &Worker<A>| now >= w.heard_at + self.lease_ns;
            if known.as_ref().is_some_and(is_silent) {
                *known = None;
                changes.push(Change::Remove { worker });
            }
        }
        changes
    }
}

fn check(said: &Register) -> Result<(), Refusal> {
    if !(1..=EXECUTORS_MAX).contains(&said.executors) {
        return Err(Refusal::Executors(said.executors));
    }
    if said.name.len() > WORKER_NAME_LEN_BYTES_MAX {
        return Err(Refusal::Name(said.name.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(token: u64) -> Register {
        Register {
            token,
            name: format!("worker-{token}"),
            executors: 4,
            resources: 0b11,
            leaves: false,
        }
    }

    fn number(answer: &Registered) -> (u16, u32) {
        match answer {
            Registered::As {
                worker,
                worker_incarnation,
                ..
            } => (*worker, *worker_incarnation),
            Registered::Refused(refusal) => panic!("{refusal}"),
        }
    }

    #[test]
    fn a_worker_keeps_its_number_as_long_as_it_is_heard_of() {
        let mut registry = Registry::new(2, 100, 0);
        let (answer, change) = registry.on_register(0, "a", register(7));
        assert_eq!(number(&answer), (0, 1));
        let (worker, incarnation, resources) = (0, 1, 0b11);
        assert_eq!(
            change,
            Some(Change::Add {
                worker,
                incarnation,
                resources
            })
        );
        let (answer, change) = registry.on_register(60, "a", register(7));
        assert_eq!((number(&answer), change), ((0, 1), None));
        assert_eq!(
            number(&registry.on_register(70, "b", register(8)).0),
            (1, 2)
        );
        assert_eq!(registry.tick(159), []);
        assert_eq!(registry.due(), 160);
        assert_eq!(registry.tick(160), [Change::Remove { worker: 0 }]);
        // It was only slow: it gets a number with a new incarnation.
        assert_eq!(
            number(&registry.on_register(161, "a", register(7)).0),
            (0, 3)
        );
    }

    #[test]
    fn one_too_many_is_refused_until_another_leaves() {
        let mut registry = Registry::new(1, 100, 0);
        registry.on_register(0, "a", register(1));
        let (answer, change) = registry.on_register(0, "b", register(2));
        let refused = Registered::Refused(Refusal::TooManyWorkers(1));
        assert_eq!((answer, change), (refused, None));
        let leaves = Register {
            leaves: true,
            ..register(1)
        };
        let (_, change) = registry.on_register(1, "a", leaves);
        assert_eq!(change, Some(Change::Remove { worker: 0 }));
        assert_eq!(registry.workers().count(), 0);
        assert_eq!(number(&registry.on_register(2, "b", register(2)).0).0, 0);
    }

    #[test]
    fn what_changes_is_another_turn() {
        let mut registry = Registry::new(1, 100, 0);
        registry.on_register(0, "a", register(1));
        let more = Register {
            resources: 0b111,
            ..register(1)
        };
        let (worker, incarnation, resources) = (0, 3, 0b111);
        registry.on_register(
            0,
            "a",
            Register {
                executors: 5,
                ..register(1)
            },
        );
        let (_, change) = registry.on_register(1, "a", more);
        assert_eq!(
            change,
            Some(Change::Add {
                worker,
                incarnation,
                resources
            })
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let mut registry = Registry::new(1, 100, 0);
        let none = Register {
            executors: 0,
            ..register(1)
        };
        let many = Register {
            executors: 65,
            ..register(1)
        };
        let name = Register {
            name: "x".repeat(65),
            ..register(1)
        };
        let refusals = [none, many, name].map(|said| registry.on_register(0, "a", said).0);
        let expected = [
            Refusal::Executors(0),
            Refusal::Executors(65),
            Refusal::Name(65),
        ];
        assert_eq!(refusals, expected.map(Registered::Refused));
        assert_eq!(registry.workers().count(), 0);
    }
}
