//! Results of a worker's executors, kept until their clients have acknowledged them.

use std::collections::BTreeMap;

use crate::limits::RESULTS_MAX;
use crate::message::{Outcome, ToClient};
use crate::task::Attempt;
use crate::timing::{ExecutorTiming, Nanos};

#[derive(Debug)]
struct Kept<A> {
    client: A,
    outcome: Outcome,
    due: Nanos,
    wait_ns: Nanos,
    until: Nanos,
}

/// See the module. `A` is where a client can be reached.
#[derive(Debug)]
pub struct Results<A> {
    timing: ExecutorTiming,
    kept: BTreeMap<Attempt, Kept<A>>,
    thrown_away: u64,
    gone: Vec<Outcome>,
}

impl<A: Clone + PartialEq> Results<A> {
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

    /// Keep this one. Returns what is to be sent.
    pub fn keep(&mut self, now: Nanos, client: A, attempt: Attempt, outcome: Outcome) -> ToClient {
        let kept = Kept {
            client,
            outcome: outcome.clone(),
            due: now + self.timing.result_ns,
            wait_ns: self.timing.result_ns,
            until: now + self.timing.result_keep_ns,
        };
        if self.kept.len() >= RESULTS_MAX {
            self.throw_oldest_away();
        }
        self.kept.insert(attempt, kept);
        ToClient::Result(attempt, outcome)
    }

    /// Its client misses it, and has it made once more.
    fn throw_oldest_away(&mut self) {
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.until);
        if let Some(attempt) = oldest.map(|(attempt, _)| *attempt) {
            self.throw_away(attempt);
        }
    }

    fn throw_away(&mut self, attempt: Attempt) {
        if let Some(kept) = self.kept.remove(&attempt) {
            self.thrown_away += 1;
            self.gone.push(kept.outcome);
        }
    }

    /// Has every client what it is to have?
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// What was thrown away since this was asked the last time, for who keeps a long one somewhere.
    pub fn take_gone(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.gone)
    }

    /// The client has it. Returns it, for who keeps a long one somewhere.
    pub fn on_acknowledged(&mut self, from: &A, attempt: Attempt) -> Option<Outcome> {
        let is_theirs = self.kept.get(&attempt).is_some_and(|k| k.client == *from);
        let kept = is_theirs.then(|| self.kept.remove(&attempt))?;
        kept.map(|kept| kept.outcome)
    }

    /// When [`Results::tick`] has something to do.
    pub fn due(&self) -> Nanos {
        let due = self.kept.values().map(|kept| kept.due).min();
        due.unwrap_or(Nanos::MAX)
    }

    /// What is to be sent again.
    pub fn tick(&mut self, now: Nanos) -> Vec<(A, ToClient)> {
        let late = self.kept.iter().filter(|(_, kept)| now >= kept.until);
        let late: Vec<Attempt> = late.map(|(attempt, _)| *attempt).collect();
        late.into_iter()
            .for_each(|attempt| self.throw_away(attempt));
        let mut again = Vec::new();
        for (attempt, kept) in self.kept.iter_mut().filter(|(_, kept)| now >= kept.due) {
            kept.wait_ns *= 2;
            kept.due = now + kept.wait_ns;
            let result = ToClient::Result(*attempt, kept.outcome.clone());
            again.push((kept.client.clone(), result));
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
