//! The event queue: simulated time advances from one event to the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

struct Entry<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        self.order == other.order
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Entry<E>) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Simulated time, in the unit of the system ([`crate::System::TICKS_PER_US`]).
pub type Time = u64;

/// Events ordered by time; those at the same time in the order of insertion.
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    order: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue {
            heap: BinaryHeap::new(),
            order: 0,
        }
    }
}

impl<E> Queue<E> {
    pub fn push(&mut self, at: Time, event: E) {
        self.order += 1;
        let order = self.order;
        self.heap.push(Reverse(Entry { at, order, event }));
    }

    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|e| e.0.at)
    }

    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|e| (e.0.at, e.0.event))
    }
}
