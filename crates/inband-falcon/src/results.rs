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
}

impl<A: Clone + PartialEq> Results<A> {
    /// Without any.
    pub fn new(timing: ExecutorTiming) -> Results<A> {
        Results {
            timing,
            kept: BTreeMap::new(),
            thrown_away: 0,
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
            self.kept.remove(&attempt);
            self.thrown_away += 1;
        }
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
        let before = self.kept.len();
        self.kept.retain(|_, kept| now < kept.until);
        self.thrown_away += (before - self.kept.len()) as u64;
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
