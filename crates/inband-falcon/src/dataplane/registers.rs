//! The registers of a Falcon scheduler: registration of workers, and views for status and tests.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU64, Ordering};

use super::c;
use super::wire::{Task, TASK_LEN_BYTES};
use super::{FalconConfig, EXECUTORS};
use inband_ground::registers::{field, Shared};

/// A consistent view of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueView {
    /// Position of the next task that is added.
    pub add: u32,
    /// Position of the next task that is given out.
    pub retrieve: u32,
}

impl QueueView {
    /// Tasks in the queue.
    pub fn tasks(self) -> u32 {
        self.add.wrapping_sub(self.retrieve)
    }
}

/// A view of a queue slot; consistent only if nobody writes to it meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SlotView {
    pub sequence: u64,
    pub came_ns: u64,
    pub task: Task,
}

/// The scheduler's view of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
#[repr(u32)]
pub enum ExecutorState {
    /// It was told that there is no task.
    #[default]
    Idle = c::IB_FALCON_IDLE,
    /// It is parked.
    Waits = c::IB_FALCON_WAITS,
    /// It was given a task.
    Busy = c::IB_FALCON_BUSY,
}

/// A view of an executor's record; consistent only if nobody writes to it meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ExecutorView {
    pub pull_seq: u64,
    pub worker_incarnation: u32,
    pub state: ExecutorState,
    pub address: SocketAddrV4,
    /// The last task given.
    pub task: Task,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerView {
    /// 0: not registered.
    pub incarnation: u32,
    /// Bitmap of its resources; bit 0 has no meaning.
    pub resources: u64,
    /// Bitmap of its parked executors.
    pub parked: u64,
}

/// All registers of a scheduler: a soft switch's own memory, or a view of an XDP program's maps.
pub struct FalconRegisters {
    pub(crate) sets: Shared<c::ib_falcon_set>,
    /// (set * queues + queue) * queue_slots + position mod queue_slots.
    pub(crate) slots: Shared<c::ib_falcon_slot>,
    /// set * groups + group.
    pub(crate) groups: Shared<c::ib_falcon_group>,
    /// set * workers * EXECUTORS + executor.
    pub(crate) executors: Shared<c::ib_falcon_executor>,
    pub(crate) config: FalconConfig,
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::SeqCst)
}

fn store(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::SeqCst);
}

fn task_of(words: &[u64]) -> Task {
    let mut bytes = [0; TASK_LEN_BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Task::from_bytes(&bytes)
}

fn words_of(task: &Task) -> impl Iterator<Item = u64> {
    let bytes = task.to_bytes();
    (0..TASK_LEN_BYTES)
        .step_by(8)
        .map(move |at| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight")))
}

impl FalconRegisters {
    /// Zeroed registers in this process's memory.
    pub fn zeroed(config: FalconConfig) -> FalconRegisters {
        FalconRegisters {
            sets: Shared::zeroed(config.sets),
            slots: Shared::zeroed(config.sets * config.slots),
            groups: Shared::zeroed(config.sets * config.groups()),
            executors: Shared::zeroed(config.sets * config.workers * EXECUTORS),
            config,
        }
    }

    /// Zeroes everything. For tests; the scheduler must not handle packets meanwhile.
    pub fn clear(&self) {
        self.sets.clear();
        self.slots.clear();
        self.groups.clear();
        self.executors.clear();
    }

    pub fn memory_bytes(&self) -> usize {
        self.sets.memory_bytes()
            + self.slots.memory_bytes()
            + self.groups.memory_bytes()
            + self.executors.memory_bytes()
    }

    pub fn config(&self) -> FalconConfig {
        self.config
    }

    fn queue_word(&self, set: usize, queue: usize) -> &AtomicU64 {
        assert!(queue < self.config.policy.queues());
        let first = std::mem::offset_of!(c::ib_falcon_set, queue);
        self.sets.word(set, first + 8 * queue)
    }

    fn user_word(&self, set: usize, user: u32) -> &AtomicU64 {
        let at = user as usize % c::IB_FALCON_USERS as usize;
        let first = std::mem::offset_of!(c::ib_falcon_set, user_tasks);
        self.sets.word(set, first + 8 * at)
    }

    fn worker_word(&self, set: usize, worker: usize, offset_bytes: usize) -> &AtomicU64 {
        assert!(worker < self.config.workers);
        let group = set * self.config.groups() + worker / super::GROUP_WORKERS;
        let at = worker % super::GROUP_WORKERS * size_of::<c::ib_falcon_worker>();
        self.groups.word(group, at + offset_bytes)
    }

    /// Returns a queue of a set.
    pub fn queue(&self, set: usize, queue: usize) -> QueueView {
        let word = load(self.queue_word(set, queue));
        QueueView {
            add: (word >> 32) as u32,
            retrieve: word as u32,
        }
    }

    /// Tasks in all queues of a set.
    pub fn tasks(&self, set: usize) -> u64 {
        let queues = 0..self.config.policy.queues();
        queues
            .map(|queue| u64::from(self.queue(set, queue).tasks()))
            .sum()
    }

    /// Queued tasks of a user in a set; users with equal numbers mod 1,024 share a counter.
    pub fn user_tasks(&self, set: usize, user: u32) -> u64 {
        load(self.user_word(set, user))
    }

    /// Parked executors of a set.
    pub fn parked(&self, set: usize) -> u32 {
        let workers = 0..self.config.workers;
        workers
            .map(|w| self.worker(set, w).parked.count_ones())
            .sum()
    }

    /// Lets a worker's executors pull. `incarnation` must not be 0, and must not have been used for this worker number
    /// since the scheduler's start.
    pub fn register(&self, set: usize, worker: usize, incarnation: u32, resources: u64) {
        use c::ib_falcon_worker as W;
        let at = |offset_bytes| self.worker_word(set, worker, offset_bytes);
        store(at(std::mem::offset_of!(W, resources)), resources);
        store(at(std::mem::offset_of!(W, incarnation)), incarnation.into());
    }

    /// Stops giving tasks to a worker's executors.
    pub fn unregister(&self, set: usize, worker: usize) {
        use c::ib_falcon_worker as W;
        let offset_bytes = std::mem::offset_of!(W, incarnation);
        store(self.worker_word(set, worker, offset_bytes), 0);
    }

    pub fn worker(&self, set: usize, worker: usize) -> WorkerView {
        use c::ib_falcon_worker as W;
        let read = |offset_bytes| load(self.worker_word(set, worker, offset_bytes));
        WorkerView {
            incarnation: read(std::mem::offset_of!(W, incarnation)) as u32,
            resources: read(std::mem::offset_of!(W, resources)),
            parked: read(std::mem::offset_of!(W, parked)),
        }
    }

    pub fn executor(&self, set: usize, executor: usize) -> ExecutorView {
        let at = self.executor_index(set, executor);
        let read = |word: &AtomicU64| load(word);
        let state = read(field!(self.executors, at, c::ib_falcon_executor, state));
        let address = read(field!(self.executors, at, c::ib_falcon_executor, address));
        let first = std::mem::offset_of!(c::ib_falcon_executor, task) / 8;
        let states = [
            ExecutorState::Idle,
            ExecutorState::Waits,
            ExecutorState::Busy,
        ];
        ExecutorView {
            pull_seq: read(field!(self.executors, at, c::ib_falcon_executor, pull_seq)),
            worker_incarnation: (state >> 32) as u32,
            state: states[state as u32 as usize],
            address: SocketAddrV4::new(Ipv4Addr::from((address >> 16) as u32), address as u16),
            task: task_of(&self.executors.words(at)[first..]),
        }
    }

    fn executor_index(&self, set: usize, executor: usize) -> usize {
        let executors = self.config.workers * EXECUTORS;
        assert!(executor < executors);
        set * executors + executor
    }

    /// Returns the address of an executor's last PULL, for forwarding what the kernel could not.
    pub fn executor_address(&self, set: usize, executor: usize) -> Option<SocketAddrV4> {
        let executors = self.config.workers * EXECUTORS;
        let known = set < self.config.sets && executor < executors;
        known.then(|| self.executor(set, executor).address)
    }

    fn slot_index(&self, set: usize, queue: usize, position: u32) -> usize {
        let slots = self.config.queue_slots();
        let queue = set * self.config.policy.queues() + queue;
        queue * slots + position as usize % slots
    }

    /// Returns the slot of a position.
    pub fn slot(&self, set: usize, queue: usize, position: u32) -> SlotView {
        let words = self.slots.words(self.slot_index(set, queue, position));
        let first = std::mem::offset_of!(c::ib_falcon_slot, task) / 8;
        SlotView {
            sequence: words[0],
            came_ns: words[1],
            task: task_of(&words[first..]),
        }
    }

    /// Moves an empty scheduler's queue to a position, as if that many tasks had passed through it, to test what
    /// happens after the 2^32nd.
    pub fn start_at(&self, set: usize, queue: usize, position: u32) {
        let slots = self.config.queue_slots() as u32;
        store(
            self.queue_word(set, queue),
            u64::from(position) << 32 | u64::from(position),
        );
        for position in (0..slots).map(|n| position.wrapping_add(n)) {
            let index = self.slot_index(set, queue, position);
            let round = u64::from(position >> slots.ilog2());
            let sequence = field!(self.slots, index, c::ib_falcon_slot, sequence);
            store(sequence, round * 2);
        }
    }

    /// Sets a queue's word. For tests; the scheduler must not handle packets meanwhile.
    pub fn restore_queue(&self, set: usize, queue: usize, view: QueueView) {
        let word = u64::from(view.add) << 32 | u64::from(view.retrieve);
        store(self.queue_word(set, queue), word);
    }

    /// Sets a slot, like [`FalconRegisters::restore_queue`].
    pub fn restore_slot(&self, set: usize, queue: usize, position: u32, view: SlotView) {
        let at = self.slot_index(set, queue, position);
        store(
            field!(self.slots, at, c::ib_falcon_slot, sequence),
            view.sequence,
        );
        store(
            field!(self.slots, at, c::ib_falcon_slot, came_ns),
            view.came_ns,
        );
        let first = std::mem::offset_of!(c::ib_falcon_slot, task);
        for (n, word) in words_of(&view.task).enumerate() {
            store(self.slots.word(at, first + 8 * n), word);
        }
    }

    /// Sets a user's task counter, like [`FalconRegisters::restore_queue`].
    pub fn restore_user(&self, set: usize, user: u32, tasks: u64) {
        store(self.user_word(set, user), tasks);
    }

    /// Locks an executor's record as a packet in progress does, or unlocks it if it is locked. For tests of concurrent
    /// packets.
    pub fn take_executor(&self, set: usize, executor: usize) {
        let at = self.executor_index(set, executor);
        field!(self.executors, at, c::ib_falcon_executor, sequence).fetch_xor(1, Ordering::SeqCst);
    }

    /// Returns all words, by array name, for comparisons.
    pub fn words(&self) -> Vec<(&'static str, usize, Vec<u64>)> {
        fn all<T>(name: &'static str, of: &Shared<T>) -> Vec<(&'static str, usize, Vec<u64>)> {
            let count = 0..of.count();
            count.map(|index| (name, index, of.words(index))).collect()
        }
        let mut words = all("set", &self.sets);
        words.extend(all("slot", &self.slots));
        words.extend(all("group", &self.groups));
        words.extend(all("executor", &self.executors));
        words
    }
}
