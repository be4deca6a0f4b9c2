//! Results of a worker's executors, kept until their clients have acknowledged them.

use std::collections::BTreeMap;

use crate::limits::RESULTS_MAX;
use crate::message::{Outcome, ToClient};
use crate::task::Attempt;
use crate::timing::{ExecutorTiming, Nanos};

#[derive(Debug)]
struct Kept {
    outcome: Outcome,
    due: Nanos,
    wait_ns: Nanos,
    until: Nanos,
}

/// See the module. `A` is where a client can be reached, and by whom.
#[derive(Debug)]
pub struct Results<A> {
    timing: ExecutorTiming,
    /// An attempt that was submitted twice may run twice, and its client acknowledge either.
    kept: BTreeMap<(Attempt, A), Kept>,
    thrown_away: u64,
    gone: Vec<Outcome>,
}

impl<A: Clone + Ord> Results<A> {
    /// Without any.
    pub fn new(timing: ExecutorTiming) -> Results<A> {
        Results {
            timing,
            kept: BTreeMap::new(),
            thrown_away: 0,
            gone: Vec::new(),
        }
    }

    /// Results that were thrown away, because nobody had acknowledged them for too long or there were too many.
    pub fn thrown_away(&self) -> u64 {
        self.thrown_away
    }

    /// Keep this one, or the one that is kept already: its client may be fetching that. Returns what is to be sent.
    pub fn keep(&mut self, now: Nanos, client: A, attempt: Attempt, outcome: Outcome) -> ToClient {
        let key = (attempt, client);
        if let Some(kept) = self.kept.get(&key) {
            self.gone.push(outcome);
            return ToClient::Result(attempt, kept.outcome.clone());
        }
        let kept = Kept {
            outcome: outcome.clone(),
            due: now + self.timing.result_ns,
            wait_ns: self.timing.result_ns,
            until: now + self.timing.result_keep_ns,
        };
        if self.kept.len() >= RESULTS_MAX {
            self.throw_oldest_away();
        }
        self.kept.insert(key, kept);
        ToClient::Result(attempt, outcome)
    }

    /// Its client misses it, and has it made once more.
    fn throw_oldest_away(&mut self) {
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.until);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.throw_away(&key);
        }
    }

    fn throw_away(&mut self, key: &(Attempt, A)) {
        if let Some(kept) = self.kept.remove(key) {
            self.thrown_away += 1;
            self.gone.push(kept.outcome);
        }
    }

    /// Has every client what it is to have?
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// What is not kept, or not any more, since this was asked the last time, for who keeps a long one somewhere.
    pub fn take_gone(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.gone)
    }

    /// The client has it. Returns it, for who keeps a long one somewhere.
    pub fn on_acknowledged(&mut self, from: &A, attempt: Attempt) -> Option<Outcome> {
        let kept = self.kept.remove(&(attempt, from.clone()))?;
        Some(kept.outcome)
    }

    /// When [`Results::tick`] has something to do.
    pub fn due(&self) -> Nanos {
        let due = self.kept.values().map(|kept| kept.due).min();
        due.unwrap_or(Nanos::MAX)
    }

    /// What is to be sent again.
    pub fn tick(&mut self, now: Nanos) -> Vec<(A, ToClient)> {
        let late = self.kept.iter().filter(|(_, kept)| now >= kept.until);
        let late: Vec<(Attempt, A)> = late.map(|(key, _)| key.clone()).collect();
        late.iter().for_each(|key| self.throw_away(key));
        let mut again = Vec::new();
        for ((attempt, client), kept) in self.kept.iter_mut().filter(|(_, kept)| now >= kept.due) {
            kept.wait_ns *= 2;
            kept.due = now + kept.wait_ns;
            let result = ToClient::Result(*attempt, kept.outcome.clone());
            again.push((client.clone(), result));
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Payload;
    use crate::task::TaskId;
    use crate::timing::MS;

    fn attempt(task: u32) -> Attempt {
        let (user, job) = (1, 1);
        let id = TaskId { user, job, task };
        Attempt { id, attempt: 1 }
    }

    fn output(n: u8) -> Outcome {
        Outcome::Output(Payload::Inline(vec![n]))
    }

    #[test]
    fn a_result_is_sent_again_until_its_client_has_it() {
        let mut results = Results::new(ExecutorTiming::default());
        let message = results.keep(0, "client", attempt(0), output(1));
        assert_eq!(message, ToClient::Result(attempt(0), output(1)));
        assert_eq!(results.tick(9 * MS), []);
        assert_eq!(results.tick(10 * MS), [("client", message.clone())]);
        assert_eq!(results.due(), 30 * MS);
        assert_eq!(results.on_acknowledged(&"stranger", attempt(0)), None);
        assert_eq!(results.tick(30 * MS).len(), 1);
        assert_eq!(
            results.on_acknowledged(&"client", attempt(0)),
            Some(output(1))
        );
        assert_eq!(results.on_acknowledged(&"client", attempt(0)), None);
        assert_eq!(results.due(), Nanos::MAX);
    }

    #[test]
    fn an_attempt_that_ran_twice_leaves_nothing_behind() {
        let mut results = Results::new(ExecutorTiming::default());
        results.keep(0, "by one", attempt(0), output(1));
        results.keep(1, "by another", attempt(0), output(2));
        let same = results.keep(2, "by one", attempt(0), output(3));
        assert_eq!(same, ToClient::Result(attempt(0), output(1)));
        assert_eq!(results.take_gone(), [output(3)]);
        let first = results.on_acknowledged(&"by one", attempt(0));
        let second = results.on_acknowledged(&"by another", attempt(0));
        assert_eq!((first, second), (Some(output(1)), Some(output(2))));
        assert!(results.is_empty());
    }

    #[test]
    fn nobody_waits_for_a_dead_client_for_ever() {
        let mut results = Results::new(ExecutorTiming::default());
        results.keep(0, "dead", attempt(0), output(1));
        results.tick(9_999 * MS);
        assert_eq!(results.take_gone(), []);
        assert_eq!(results.tick(10_000 * MS), []);
        assert_eq!(
            (results.take_gone(), results.thrown_away()),
            (vec![output(1)], 1)
        );
        for task in 0..RESULTS_MAX as u32 + 1 {
            results.keep(u64::from(task), "dead", attempt(task), output(2));
        }
        assert_eq!(results.take_gone().len(), 1, "the oldest");
        assert!(results.on_acknowledged(&"dead", attempt(0)).is_none());
        assert!(results.on_acknowledged(&"dead", attempt(1)).is_some());
    }
}
