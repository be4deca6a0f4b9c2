//! An ideal scheduler with zero overhead: a lower bound for real ones.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A task: when it was submitted, and how long it ran, in nanoseconds.
pub type IdealTask = (u64, u64);

/// Returns how long each task waits, in nanoseconds, if every free executor immediately takes the oldest task. In order
/// of submission.
pub fn delays_ns(tasks: &[IdealTask], executors: usize) -> Vec<u64> {
    let mut tasks = tasks.to_vec();
    tasks.sort_by_key(|(submitted_ns, _)| *submitted_ns);
    let mut free_at: BinaryHeap<Reverse<u64>> = (0..executors).map(|_| Reverse(0)).collect();
    let mut delay_ns = |(submitted_ns, run_ns): (u64, u64)| {
        let Some(Reverse(free_ns)) = free_at.pop() else {
            return u64::MAX;
        };
        let begun_ns = submitted_ns.max(free_ns);
        free_at.push(Reverse(begun_ns + run_ns));
        begun_ns - submitted_ns
    };
    tasks.into_iter().map(&mut delay_ns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_when_all_are_busy_waits_for_the_first_to_be_free() {
        let tasks = [(0, 10), (0, 20), (5, 10), (5, 1), (100, 1)];
        assert_eq!(delays_ns(&tasks, 2), [0, 0, 5, 15, 0]);
        assert_eq!(delays_ns(&tasks, 5), [0; 5]);
    }
}
