//! A hook for measurements that sees tasks on their way through the drivers.

/// A step of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// It has reached the scheduler's process.
    Came,
    /// The scheduler gives it to an executor.
    Given,
    /// It has reached its worker.
    Received,
}

/// Called at each step, with the numbers of job and task.
pub type Observer = Box<dyn FnMut(Step, u32, u32) + Send>;
