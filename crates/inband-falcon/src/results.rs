//! Results of a worker's executors, kept until their clients have acknowledged them.

use std::collections::BTreeMap;

use crate::limits::RESULTS_MAX;
use crate::message::{Outcome, Payload, ToClient};
use crate::task::Attempt;
use crate::timing::{ExecutorTiming, Nanos};

#[derive(Debug)]
struct Kept {
    outcome: Outcome,
    due: Nanos,
    wait_ns: Nanos,
    /// When its client was last heard from, or the result was made.
    heard_at: Nanos,
}

/// `A` identifies a client and the executor that reports to it.
#[derive(Debug)]
pub struct Results<A> {
    timing: ExecutorTiming,
    /// Maximum total length of results that are fetched.
    len_bytes_max: usize,
    len_bytes: usize,
    /// An attempt that was submitted twice may run twice, and its client may acknowledge either.
    kept: BTreeMap<(Attempt, A), Kept>,
    /// No result is due earlier.
    due: Nanos,
    thrown_away: u64,
    gone: Vec<Outcome>,
}

/// Returns the space that it takes of that for long results.
fn long_len_bytes(outcome: &Outcome) -> usize {
    match outcome.payload() {
        Payload::Inline(_) => 0,
        Payload::At(place) => place.len_bytes as usize,
    }
}

impl<A: Clone + Ord> Results<A> {
    /// Creates an empty store. Results that are fetched may take `len_bytes_max` together.
    pub fn new(timing: ExecutorTiming, len_bytes_max: usize) -> Results<A> {
        Results {
            timing,
            len_bytes_max,
            len_bytes: 0,
            kept: BTreeMap::new(),
            due: Nanos::MAX,
            thrown_away: 0,
            gone: Vec::new(),
        }
    }

    /// Results that were discarded because their clients were silent.
    pub fn thrown_away(&self) -> u64 {
        self.thrown_away
    }

    /// Makes room for another result, which takes `len_bytes` of the space for long ones, by discarding results of
    /// silent clients. Returns false if the rest must be kept because their clients are alive.
    pub fn make_room(&mut self, now: Nanos, len_bytes: usize) -> bool {
        loop {
            let fits = self.len_bytes + len_bytes <= self.len_bytes_max;
            if fits && self.kept.len() < RESULTS_MAX {
                return true;
            }
            if !self.throw_silent_away(now) {
                return false;
            }
        }
    }

    /// Keeps this result. If one is already kept for the attempt, that one stays, because its client may be fetching
    /// it. Returns the message to send.
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
            heard_at: now,
        };
        self.due = self.due.min(kept.due);
        self.len_bytes += long_len_bytes(&outcome);
        self.kept.insert(key, kept);
        ToClient::Result(attempt, outcome)
    }

    /// Discards the result whose client has been silent for longest; that client will notice the loss and have the task
    /// run again. Returns false if no client is silent.
    fn throw_silent_away(&mut self, now: Nanos) -> bool {
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.heard_at);
        let is_silent = |kept: &Kept| now >= kept.heard_at + self.timing.result_silent_ns;
        let Some((key, _)) = oldest.filter(|(_, kept)| is_silent(kept)) else {
            return false;
        };
        let key = key.clone();
        self.throw_away(&key);
        true
    }

    fn throw_away(&mut self, key: &(Attempt, A)) {
        if let Some(outcome) = self.remove(key) {
            self.thrown_away += 1;
            self.gone.push(outcome);
        }
    }

    fn remove(&mut self, key: &(Attempt, A)) -> Option<Outcome> {
        let kept = self.kept.remove(key)?;
        self.len_bytes -= long_len_bytes(&kept.outcome);
        if self.kept.is_empty() {
            self.due = Nanos::MAX;
        }
        Some(kept.outcome)
    }

    /// Returns whether a client that is not silent still has to get its result.
    pub fn are_awaited(&self, now: Nanos) -> bool {
        let silent_ns = self.timing.result_silent_ns;
        self.kept
            .values()
            .any(|kept| now < kept.heard_at + silent_ns)
    }

    pub fn len(&self) -> usize {
        self.kept.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Takes the results that were dropped since the last call, so that stored long ones can be deleted.
    pub fn take_gone(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.gone)
    }

    /// The client has the result. Returns it, so that a stored long one can be deleted.
    pub fn on_acknowledged(&mut self, from: &A, attempt: Attempt) -> Option<Outcome> {
        self.remove(&(attempt, from.clone()))
    }

    /// The client is alive and will fetch the result.
    pub fn on_not_yet(&mut self, now: Nanos, from: &A, attempt: Attempt) {
        if let Some(kept) = self.kept.get_mut(&(attempt, from.clone())) {
            kept.heard_at = now;
            kept.wait_ns = kept.wait_ns.min(self.timing.result_max_ns);
            kept.due = kept.due.min(now + self.timing.result_max_ns);
            self.due = self.due.min(kept.due);
        }
    }

    /// Returns when to call [`Results::tick`] next.
    pub fn due(&self) -> Nanos {
        self.due
    }

    /// Returns when the first client that does not answer will count as silent.
    pub fn silent_at(&self) -> Nanos {
        let heard = self.kept.values().map(|kept| kept.heard_at).min();
        heard.map_or(Nanos::MAX, |at| at + self.timing.result_silent_ns)
    }

    /// Returns the messages to resend.
    pub fn tick(&mut self, now: Nanos) -> Vec<(A, ToClient)> {
        let timing = self.timing;
        // A shortcut: there may be thousands of results.
        if now < self.due {
            return Vec::new();
        }
        let is_late = |kept: &Kept| now >= kept.heard_at + timing.result_keep_ns;
        let late = self.kept.iter().filter(|(_, kept)| is_late(kept));
        let late: Vec<(Attempt, A)> = late.map(|(key, _)| key.clone()).collect();
        late.iter().for_each(|key| self.throw_away(key));
        let mut again = Vec::new();
        for ((attempt, client), kept) in self.kept.iter_mut().filter(|(_, kept)| now >= kept.due) {
            let is_silent = now >= kept.heard_at + timing.result_silent_ns;
            let wait_max_ns = match is_silent {
                true => timing.result_silent_ns,
                false => timing.result_max_ns,
            };
            kept.wait_ns = (2 * kept.wait_ns).min(wait_max_ns);
            let keep_until = kept.heard_at + timing.result_keep_ns;
            kept.due = keep_until.min(now + kept.wait_ns);
            let result = ToClient::Result(*attempt, kept.outcome.clone());
            again.push((client.clone(), result));
        }
        let due = self.kept.values().map(|kept| kept.due).min();
        self.due = due.unwrap_or(Nanos::MAX);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Place;
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

    /// A result that is fetched.
    fn long(len_bytes: u64) -> Outcome {
        Outcome::Output(Payload::At(Place {
            address: ([10, 0, 0, 1], 1).into(),
            token: len_bytes,
            len_bytes,
            digest: 0,
        }))
    }

    fn results() -> Results<&'static str> {
        Results::new(ExecutorTiming::default(), 1000)
    }

    #[test]
    fn a_result_is_sent_again_until_its_client_has_it() {
        let mut results = results();
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
        let mut results = results();
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
        let mut results = results();
        results.keep(0, "dead", attempt(0), output(1));
        let keep_ns = ExecutorTiming::default().result_keep_ns;
        results.tick(keep_ns - 1);
        assert_eq!(results.take_gone(), []);
        assert_eq!(results.tick(keep_ns), []);
        assert_eq!(
            (results.take_gone(), results.thrown_away()),
            (vec![output(1)], 1)
        );
    }

    #[test]
    fn a_client_that_takes_its_time_gets_its_result() {
        let mut results = results();
        results.keep(0, "slow", attempt(0), long(700));
        let timing = ExecutorTiming::default();
        let mut now = 0;
        let mut said = 0;
        while now < 2 * timing.result_keep_ns {
            now = results.due();
            assert_eq!(results.tick(now).len(), 1);
            results.on_not_yet(now, &"slow", attempt(0));
            assert!(results.are_awaited(now) && !results.make_room(now, 400));
            said += 1;
        }
        assert!(results.due() - now <= timing.result_max_ns);
        assert!(said >= 2 * timing.result_keep_ns / timing.result_max_ns);
        // A client that was stopped gets the result soon after it has announced itself again.
        let later = now + 5 * timing.result_silent_ns;
        assert_eq!(results.tick(later).len(), 1);
        results.on_not_yet(later, &"slow", attempt(0));
        assert_eq!(results.due(), later + timing.result_max_ns);
        assert!(results.on_acknowledged(&"slow", attempt(0)).is_some());
        assert!(results.make_room(later, 1000));
    }

    #[test]
    fn those_of_silent_clients_make_room_for_others() {
        let silent_ns = ExecutorTiming::default().result_silent_ns;
        let mut results = results();
        results.keep(0, "dead", attempt(0), long(500));
        results.keep(1, "alive", attempt(1), long(500));
        assert!(results.make_room(silent_ns - 1, 0) && !results.make_room(silent_ns - 1, 1));
        results.on_not_yet(silent_ns - 1, &"alive", attempt(1));
        assert_eq!(results.silent_at(), silent_ns);
        assert!(!results.make_room(silent_ns, 501) && results.make_room(silent_ns, 500));
        assert_eq!(results.take_gone(), [long(500)]);
        let mut results = self::results();
        for task in 0..RESULTS_MAX as u32 {
            assert!(results.make_room(1, 0));
            results.keep(u64::from(task), "dead", attempt(task), output(2));
        }
        assert!(!results.make_room(silent_ns - 1, 0), "there are too many");
        assert!(results.make_room(silent_ns, 0));
        assert_eq!(results.take_gone().len(), 1, "the oldest");
        assert!(results.on_acknowledged(&"dead", attempt(0)).is_none());
        assert!(results.on_acknowledged(&"dead", attempt(1)).is_some());
    }
}
