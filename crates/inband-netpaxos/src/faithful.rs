//! The chapter's learner, which goes by order and equality alone: what would happen to requests if nothing were
//! numbered. It serves to measure the chapter's two assumptions (`inband bench netpaxos ordering`); no log is built on
//! it.

use std::collections::{HashSet, VecDeque};

use crate::quorum::Sizes;

/// How far behind the head of a queue a decided message is searched for.
const BEHIND_MAX: usize = 256;

/// How two learners compare on the same messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Iterations: messages that at least one learner has at the head of a queue.
    pub iterations: u64,
    /// Iterations in which both learners decided different messages.
    pub disagreements: u64,
    /// Iterations in which at least one learner had no quorum of equal heads.
    pub indecisions: u64,
}

/// A learner's queues, one per minion, in the order of arrival.
#[derive(Debug, Clone)]
struct Queues {
    queues: Vec<VecDeque<u32>>,
    /// By queue: decided messages that have not reached its head yet.
    over: Vec<HashSet<u32>>,
}

impl Queues {
    fn of(arrived: &[Vec<u32>]) -> Queues {
        Queues {
            queues: arrived
                .iter()
                .map(|of| of.iter().copied().collect())
                .collect(),
            over: vec![HashSet::new(); arrived.len()],
        }
    }

    /// Returns the message at most heads and their number; of several such messages, the lowest.
    fn most(&self) -> Option<(u32, usize)> {
        let heads: Vec<u32> = self
            .queues
            .iter()
            .filter_map(|q| q.front().copied())
            .collect();
        let count = |of: &u32| heads.iter().filter(|head| *head == of).count();
        let most = heads
            .iter()
            .max_by_key(|head| (count(head), u32::MAX - **head))?;
        Some((*most, count(most)))
    }

    /// Removes a decided message from all queues.
    fn remove(&mut self, message: u32) {
        for (queue, over) in self.queues.iter_mut().zip(&mut self.over) {
            match queue.iter().take(BEHIND_MAX).position(|m| *m == message) {
                Some(at) => {
                    queue.remove(at);
                }
                None => {
                    over.insert(message);
                }
            }
            while queue.front().is_some_and(|head| over.remove(head)) {
                queue.pop_front();
            }
        }
    }
}

/// Compares what arrived at two learners, by minion. In each iteration what the learners decide leaves all queues of both;
/// if neither decides, the message at most heads does, as recovery would decide it. So neither a message that is lost on
/// the way nor a disagreement shifts a queue permanently: each counts once.
pub fn compare(sizes: Sizes, learners: [&[Vec<u32>]; 2]) -> Outcome {
    let mut queues = learners.map(Queues::of);
    let mut outcome = Outcome::default();
    loop {
        let most = [queues[0].most(), queues[1].most()];
        let decided = most.map(|most| most.filter(|(_, count)| *count >= sizes.quorum()));
        let Some((next, _)) = decided[0].or(decided[1]).or(most[0]).or(most[1]) else {
            return outcome;
        };
        let other = decided[1]
            .map(|(other, _)| other)
            .filter(|other| *other != next);
        outcome.iterations += 1;
        match decided {
            [Some((one, _)), Some((other, _))] => {
                outcome.disagreements += u64::from(one != other);
            }
            _ => outcome.indecisions += 1,
        }
        for message in [Some(next), other].into_iter().flatten() {
            queues.iter_mut().for_each(|of| of.remove(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(one: [&[u32]; 4], other: [&[u32]; 4]) -> (u64, u64, u64) {
        let [one, other] = [one, other].map(|of| of.map(<[u32]>::to_vec));
        let outcome = compare(Sizes { failures: 1 }, [&one, &other]);
        (
            outcome.iterations,
            outcome.disagreements,
            outcome.indecisions,
        )
    }

    #[test]
    fn three_of_four_equal_heads_decide() {
        let same: &[u32] = &[1, 2, 3];
        assert_eq!(outcome([same; 4], [same; 4]), (3, 0, 0));
        // One minion with a different order is outvoted.
        assert_eq!(
            outcome([same, same, same, &[2, 1, 3]], [same; 4]),
            (3, 0, 0)
        );
        // Two of them are not.
        let swapped: &[u32] = &[2, 1, 3];
        assert_eq!(
            outcome([same, same, swapped, swapped], [same; 4]),
            (3, 0, 1)
        );
    }

    #[test]
    fn a_lost_message_shifts_no_queue() {
        let all: &[u32] = &[1, 2, 3, 4];
        let lost: &[u32] = &[1, 3, 4];
        assert_eq!(outcome([all, all, all, lost], [all; 4]), (4, 0, 0));
        assert_eq!(outcome([all, all, lost, lost], [all; 4]), (4, 0, 1));
        // A message that arrives long after it was decided does not count again.
        let late: &[u32] = &[1, 3, 4, 2];
        assert_eq!(outcome([all, all, late, late], [all; 4]), (4, 0, 1));
    }

    #[test]
    fn learners_that_see_different_orders_disagree() {
        let one: &[u32] = &[1, 2];
        let other: &[u32] = &[2, 1];
        let (iterations, disagreements, indecisions) = outcome([one; 4], [other; 4]);
        assert_eq!((iterations, disagreements, indecisions), (1, 1, 0));
    }

    #[test]
    fn a_message_that_one_learner_lost_is_one_disagreement_whichever_lost_it() {
        let all: Vec<u32> = (1..=1000).collect();
        let lost: Vec<u32> = (1..=1000).filter(|message| *message != 10).collect();
        let (all, lost) = ([&all[..]; 4], [&lost[..]; 4]);
        assert_eq!(outcome(all, lost), (999, 1, 0));
        assert_eq!(outcome(lost, all), (999, 1, 0));
        // One learner has it at the wrong place.
        let mut late: Vec<u32> = (1..=1000).collect();
        late[9..20].rotate_left(1);
        let late = [&late[..]; 4];
        assert_eq!(outcome(all, late), (999, 1, 0));
        assert_eq!(outcome(late, all), (999, 1, 0));
    }
}
