//! How far the scheduler's queues are, as far as a client has heard.

use crate::limits::QUEUES_MAX;
use crate::timing::Nanos;

/// Of one queue.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    head: Option<u32>,
    asked_at: Option<Nanos>,
}

/// See the module.
#[derive(Debug)]
pub struct Queues([Queue; QUEUES_MAX]);

impl Default for Queues {
    fn default() -> Queues {
        Queues([Queue::default(); QUEUES_MAX])
    }
}

/// Is position `a` at `b` or after it? They count on past 2^32.
fn is_at(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) < 1 << 31
}

impl Queues {
    /// All before `head` have left this queue.
    pub fn heard(&mut self, queue: u8, head: u32) {
        let Some(queue) = self.0.get_mut(usize::from(queue)) else {
            return;
        };
        // Replies may overtake each other.
        if queue.head.is_none_or(|known| is_at(head, known)) {
            queue.head = Some(head);
        }
    }

    /// Have all before `tail` left?
    pub fn is_past(&self, queue: u8, tail: u32) -> bool {
        let head = self.0.get(usize::from(queue)).and_then(|q| q.head);
        head.is_some_and(|head| is_at(head, tail))
    }

    /// May it be asked for? Then that counts as done.
    pub fn may_ask(&mut self, queue: u8, now: Nanos, interval_ns: Nanos) -> bool {
        let Some(queue) = self.0.get_mut(usize::from(queue)) else {
            return false;
        };
        let may = queue.asked_at.is_none_or(|at| now >= at + interval_ns);
        if may {
            queue.asked_at = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_on_past_their_end() {
        let mut queues = Queues::default();
        assert!(!queues.is_past(3, 0), "nothing was heard");
        queues.heard(3, u32::MAX - 1);
        assert!(queues.is_past(3, u32::MAX - 1));
        assert!(!queues.is_past(3, 2));
        queues.heard(3, 2);
        queues.heard(3, u32::MAX); // late
        assert!(queues.is_past(3, 2));
        assert!(queues.is_past(3, u32::MAX));
        assert!(!queues.is_past(3, 3));
        assert!(!queues.is_past(200, 0), "there is no such queue");
    }

    #[test]
    fn a_queue_is_asked_for_now_and_then() {
        let mut queues = Queues::default();
        let asked: Vec<bool> = [5, 6, 14, 15, 16]
            .map(|now| queues.may_ask(0, now, 10))
            .into();
        assert_eq!(asked, [true, false, false, true, false]);
        assert!(queues.may_ask(1, 6, 10), "another one");
    }
}
