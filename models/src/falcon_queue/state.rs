//! What there is: the scheduler's registers, executors, the client's tasks, packets on their way.

use std::collections::BTreeSet;

use super::{Work, CPUS};

/// A task in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    pub task: u8,
    pub attempt: u8,
    /// Number of the push that brought it.
    pub push: u8,
}

/// What became of a SUBMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Said {
    pub incarnation: u8,
    pub task: Option<(u8, u8)>,
    pub is_taken: bool,
    pub parked: bool,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Message {
    Submit {
        task: u8,
        attempt: u8,
    },
    /// A SUBMIT of no tasks.
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
    /// Of an executor to the client: what was said of a SUBMIT, too.
    Result {
        task: u8,
        attempt: u8,
    },
}

impl Message {
    /// Does the scheduler handle it?
    pub fn is_for_scheduler(&self) -> bool {
        matches!(
            self,
            Message::Submit { .. } | Message::Wake | Message::Pull { .. }
        )
    }
}

/// What the scheduler knows of an executor to be doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Doing {
    #[default]
    Idle,
    Waits,
    Has(Item),
}

/// An executor's record with the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Record {
    pub pull: u8,
    pub doing: Doing,
    pub is_locked: bool,
    /// Its bit of the parked ones.
    pub bit: bool,
}

/// An executor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Executor {
    /// Of its PULL.
    pub pull: u8,
    /// The scheduler that it knows.
    pub incarnation: u8,
    /// What it did last, until the client has it.
    pub result: Option<(u8, u8)>,
}

/// What the client knows of a task to be.
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

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct State {
    pub incarnation: u8,
    pub queue: Vec<Item>,
    pub records: Vec<Record>,
    pub cpus: [Option<Work>; CPUS],
    pub executors: Vec<Executor>,
    /// The scheduler that the client knows; it began with this one.
    pub known: u8,
    pub tasks: Vec<Task>,
    pub messages: BTreeSet<Message>,
    pub pushes: u8,
    /// To which PULL of whom each push was given.
    pub given: BTreeSet<(u8, u8, u8)>,
    pub is_given_twice: bool,
    pub losses: u8,
    pub repeats: u8,
    pub restarts: u8,
}

impl State {
    /// How it begins.
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

    /// A SUBMIT of this task leaves.
    pub fn submit(&mut self, task: u8) {
        let of = &mut self.tasks[usize::from(task)];
        of.fate = Fate::Submitted;
        let attempt = of.attempt;
        self.messages.insert(Message::Submit { task, attempt });
    }

    /// Its executor is given up.
    pub fn submit_next_try(&mut self, task: u8) {
        self.tasks[usize::from(task)].attempt += 1;
        self.submit(task);
    }

    /// An executor's PULL leaves.
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

    /// What an executor did last, to the client.
    pub fn tell_result(&mut self, executor: u8) {
        if let Some((task, attempt)) = self.executors[usize::from(executor)].result {
            self.messages.insert(Message::Result { task, attempt });
        }
    }

    /// The scheduler has lost everything.
    pub fn restart(&mut self) {
        self.restarts += 1;
        self.incarnation += 1;
        self.queue.clear();
        self.records.fill(Record::default());
        self.cpus = [None; CPUS];
        self.given.clear();
    }

    /// Nothing happens any more unless a timeout comes.
    pub fn is_quiet(&self) -> bool {
        self.messages.is_empty() && self.cpus.iter().all(Option::is_none)
    }

    /// Has the client every result?
    pub fn is_done(&self) -> bool {
        self.tasks.iter().all(|task| task.fate == Fate::Done)
    }

    /// Does an executor wait, as both sides see it?
    pub fn waits(&self, executor: usize) -> bool {
        let record = &self.records[executor];
        record.doing == Doing::Waits && record.pull == self.executors[executor].pull
    }

    /// And can it be woken?
    pub fn is_parked(&self, executor: usize) -> bool {
        self.waits(executor) && self.records[executor].bit
    }

    /// Does an executor wait beside a task?
    pub fn does_anybody_sleep(&self) -> bool {
        !self.queue.is_empty() && (0..self.records.len()).any(|executor| self.waits(executor))
    }
}
