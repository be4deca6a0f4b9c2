//! The positions of the scheduler's queues, as last heard, and which of the client's tasks wait there. The client asks
//! about queues rather than tasks, of which there may be a hundred thousand.

use std::collections::BTreeSet;

use crate::limits::QUEUES_MAX;
use crate::timing::Nanos;

/// A task: its job, and its number in the job.
type Key = (u32, u32);

/// One queue. Positions in packets wrap at 2^32; here they do not.
#[derive(Debug, Clone)]
struct Queue {
    head: Option<u64>,
    /// The last position heard of; others are less than 2^31 away from it.
    last: u64,
    /// Queued tasks, by the position that the head must reach.
    waiting: BTreeSet<(u64, Key)>,
    /// When to ask for the position, if tasks wait.
    ask_at: Nanos,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            head: None,
            // No earlier position is further away than this.
            last: 1 << 32,
            waiting: BTreeSet::new(),
            ask_at: 0,
        }
    }
}

impl Queue {
    fn position(&mut self, of_packet: u32) -> u64 {
        let ahead = of_packet.wrapping_sub(self.last as u32) as i32;
        self.last = self.last.wrapping_add_signed(i64::from(ahead));
        self.last
    }
}

#[derive(Debug)]
pub struct Queues(Vec<Queue>);

impl Default for Queues {
    fn default() -> Queues {
        Queues(vec![Queue::default(); QUEUES_MAX])
    }
}

impl Queues {
    fn queue(&mut self, queue: u8) -> Option<&mut Queue> {
        self.0.get_mut(usize::from(queue))
    }

    /// All tasks before `head` have left this queue. Returns those that were waiting.
    pub fn heard(&mut self, queue: u8, head: u32) -> Vec<Key> {
        let mut left = Vec::new();
        let Some(queue) = self.queue(queue) else {
            return left;
        };
        let head = queue.position(head);
        // Replies may overtake each other.
        if queue.head.is_some_and(|known| known >= head) {
            return left;
        }
        queue.head = Some(head);
        while let Some((tail, key)) = queue.waiting.first().copied() {
            if tail > head {
                break;
            }
            queue.waiting.pop_first();
            left.push(key);
        }
        left
    }

    /// Adds a task that is in this queue, before `tail`. Returns its position; `None` if it has already left. The
    /// queue's position is asked for after `ask_ns`, unless it is due earlier.
    pub fn wait(
        &mut self,
        now: Nanos,
        queue: u8,
        tail: u32,
        key: Key,
        ask_ns: Nanos,
    ) -> Option<u64> {
        let queue = self.queue(queue)?;
        let tail = queue.position(tail);
        if queue.head.is_some_and(|head| head >= tail) {
            return None;
        }
        if queue.waiting.is_empty() {
            queue.ask_at = now + ask_ns;
        }
        queue.waiting.insert((tail, key));
        Some(tail)
    }

    /// Removes a task at this position.
    pub fn forget(&mut self, queue: u8, place: u64, key: Key) {
        if let Some(queue) = self.queue(queue) {
            queue.waiting.remove(&(place, key));
        }
    }

    /// Returns when to call [`Queues::take_due`] next.
    pub fn due(&self) -> Nanos {
        let awaited = self.0.iter().filter(|queue| !queue.waiting.is_empty());
        let due = awaited.map(|queue| queue.ask_at).min();
        due.unwrap_or(Nanos::MAX)
    }

    /// Takes the queues to ask about now; they are due again after `ask_ns`.
    pub fn take_due(&mut self, now: Nanos, ask_ns: Nanos) -> Vec<u8> {
        let mut due = Vec::new();
        for (number, queue) in (0..).zip(&mut self.0) {
            if !queue.waiting.is_empty() && now >= queue.ask_at {
                queue.ask_at = now + ask_ns;
                due.push(number);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds task number `task`.
    fn wait(queues: &mut Queues, queue: u8, tail: u32, task: u32) -> Option<u64> {
        queues.wait(100, queue, tail, (1, task), 50)
    }

    #[test]
    fn positions_count_on_past_their_end() {
        let mut queues = Queues::default();
        assert_eq!(queues.heard(3, u32::MAX - 2), []);
        for (task, tail) in (0..).zip([u32::MAX - 1, u32::MAX, 0, 3]) {
            assert!(wait(&mut queues, 3, tail, task).is_some());
        }
        assert_eq!(queues.heard(3, u32::MAX - 1), [(1, 0)]);
        assert_eq!(queues.heard(3, 2), [(1, 1), (1, 2)]);
        assert_eq!(queues.heard(3, u32::MAX), [], "late");
        assert_eq!(wait(&mut queues, 3, 2, 5), None, "it has left");
        assert_eq!(queues.heard(3, 3), [(1, 3)]);
        assert_eq!(wait(&mut queues, 200, 9, 6), None, "there is no such queue");
        assert_eq!(queues.due(), Nanos::MAX);
    }

    #[test]
    fn a_queue_is_asked_for_while_tasks_wait_there_however_many() {
        let mut queues = Queues::default();
        let places: Vec<u64> = (0..3)
            .map(|task| wait(&mut queues, 2, task + 1, task).expect("it waits"))
            .collect();
        assert_eq!((queues.due(), queues.take_due(149, 50)), (150, vec![]));
        assert_eq!(queues.take_due(150, 50), [2]);
        assert_eq!((queues.due(), queues.take_due(151, 50)), (200, vec![]));
        for (task, place) in (0..).zip(places) {
            assert_eq!(queues.due(), 200);
            queues.forget(2, place, (1, task));
        }
        assert_eq!(
            (queues.due(), queues.take_due(900, 50)),
            (Nanos::MAX, vec![])
        );
    }
}
