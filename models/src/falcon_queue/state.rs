//! The state: the scheduler's registers, executors, the client's tasks, packets in flight.

use std::collections::BTreeSet;

use super::{Work, CPUS};

/// A task in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    pub task: u8,
    pub attempt: u8,
    /// Number of the push that added it.
    pub push: u8,
}

/// The reply to a SUBMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Said {
    pub incarnation: u8,
    pub task: Option<(u8, u8)>,
    pub is_taken: bool,
    pub parked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Message {
    Submit {
        task: u8,
        attempt: u8,
    },
    /// A SUBMIT without tasks.
    Wake,
    Pull {
        executor: u8,
        incarnation: u8,
        pull: u8,
    },
    Reply(Said),
    Task {
        executor: u8,
        pull: u8,
        item: Item,
        said: Option<Said>,
    },
    NoTask {
        executor: u8,
        pull: u8,
    },
    Nack {
        executor: u8,
        incarnation: u8,
    },
    /// From an executor to the client; may relay the reply to a SUBMIT.
    Result {
        task: u8,
        attempt: u8,
    },
}

impl Message {
    /// Whether the scheduler handles it.
    pub fn is_for_scheduler(&self) -> bool {
        matches!(
            self,
            Message::Submit { .. } | Message::Wake | Message::Pull { .. }
        )
    }
}

/// The scheduler's view of an executor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Doing {
    #[default]
    Idle,
    Waits,
    Has(Item),
}

/// The scheduler's record of an executor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Record {
    pub pull: u8,
    pub doing: Doing,
    pub is_locked: bool,
    /// Its bit in the bitmap of parked executors.
    pub bit: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Executor {
    /// The number of its PULL.
    pub pull: u8,
    /// The scheduler incarnation that it knows.
    pub incarnation: u8,
    /// Its last task and attempt, until the client has the result.
    pub result: Option<(u8, u8)>,
}

/// The client's view of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    Submitted,
    Refused,
    Queued,
    Done,
}

/// A task of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task {
    pub fate: Fate,
    pub attempt: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct State {
    pub incarnation: u8,
    pub queue: Vec<Item>,
    pub records: Vec<Record>,
    pub cpus: [Option<Work>; CPUS],
    pub executors: Vec<Executor>,
    /// The scheduler incarnation that the client knows.
    pub known: u8,
    pub tasks: Vec<Task>,
    pub messages: BTreeSet<Message>,
    pub pushes: u8,
    /// Every task given: push, executor, PULL.
    pub given: BTreeSet<(u8, u8, u8)>,
    pub is_given_twice: bool,
    pub losses: u8,
    pub repeats: u8,
    pub restarts: u8,
}

impl State {
    pub fn new(tasks: usize, executors: usize) -> State {
        let task = Task {
            fate: Fate::Submitted,
            attempt: 1,
        };
        let mut state = State {
            incarnation: 0,
            queue: Vec::new(),
            records: vec![Record::default(); executors],
            cpus: [None; CPUS],
            executors: vec![Executor::default(); executors],
            known: 0,
            tasks: vec![task; tasks],
            messages: BTreeSet::new(),
            pushes: 0,
            given: BTreeSet::new(),
            is_given_twice: false,
            losses: 0,
            repeats: 0,
            restarts: 0,
        };
        (0..tasks as u8).for_each(|task| state.submit(task));
        for executor in 0..executors as u8 {
            state.executors[usize::from(executor)].pull = 1;
            state.pull(executor);
        }
        state
    }

    /// Sends a SUBMIT for this task.
    pub fn submit(&mut self, task: u8) {
        let of = &mut self.tasks[usize::from(task)];
        of.fate = Fate::Submitted;
        let attempt = of.attempt;
        self.messages.insert(Message::Submit { task, attempt });
    }

    /// Gives up the task's executor and submits it again.
    pub fn submit_next_try(&mut self, task: u8) {
        self.tasks[usize::from(task)].attempt += 1;
        self.submit(task);
    }

    /// Sends an executor's PULL.
    pub fn pull(&mut self, executor: u8) {
        let Executor {
            pull, incarnation, ..
        } = self.executors[usize::from(executor)];
        self.messages.insert(Message::Pull {
            executor,
            incarnation,
            pull,
        });
    }

    /// Sends an executor's last result to the client.
    pub fn tell_result(&mut self, executor: u8) {
        if let Some((task, attempt)) = self.executors[usize::from(executor)].result {
            self.messages.insert(Message::Result { task, attempt });
        }
    }

    /// The scheduler loses its state.
    pub fn restart(&mut self) {
        self.restarts += 1;
        self.incarnation += 1;
        self.queue.clear();
        self.records.fill(Record::default());
        self.cpus = [None; CPUS];
        self.given.clear();
    }

    /// Nothing can happen except a timeout.
    pub fn is_quiet(&self) -> bool {
        self.messages.is_empty() && self.cpus.iter().all(Option::is_none)
    }

    /// Whether the client has every result.
    pub fn is_done(&self) -> bool {
        self.tasks.iter().all(|task| task.fate == Fate::Done)
    }

    /// Whether an executor waits, as both sides see it.
    pub fn waits(&self, executor: usize) -> bool {
        let record = &self.records[executor];
        record.doing == Doing::Waits && record.pull == self.executors[executor].pull
    }

    /// Whether it waits and can be woken.
    pub fn is_parked(&self, executor: usize) -> bool {
        self.waits(executor) && self.records[executor].bit
    }

    /// Whether an executor waits although there is a task.
    pub fn does_anybody_sleep(&self) -> bool {
        !self.queue.is_empty() && (0..self.records.len()).any(|executor| self.waits(executor))
    }
}
