//! The chapter's learner, for measurements: it compares the heads of one queue per minion, and 2f + 1 equal heads decide the
//! next instance, before any storage server has confirmed them. That is safe only if a minion's requests reach its
//! storage and all learners in one order and without loss (assumption 2 of docs/netpaxos.md), which nothing ensures:
//! **learners may disagree, and an acknowledged request may be lost**.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Learner, Out};
use crate::request::Request;

/// How far behind the head of a queue a decided request is searched for.
const BEHIND_MAX: usize = 256;
/// Requests of a minion that were decided before they arrived, and that may still arrive.
const AHEAD_MAX: usize = 4096;
/// Requests of a minion that wait at a learner that is behind.
const QUEUED_MAX: usize = 1 << 16;

/// A minion's requests in the order of their arrival.
#[derive(Debug, Default)]
struct Arrivals {
    queue: VecDeque<Arc<Request>>,
    /// Decided without this minion.
    ahead: BTreeSet<Arc<Request>>,
}

impl Arrivals {
    fn push(&mut self, request: Arc<Request>) {
        if !self.ahead.remove(&request) && self.queue.len() < QUEUED_MAX {
            self.queue.push_back(request);
        }
    }

    fn remove(&mut self, decided: &Arc<Request>) {
        let mut first = self.queue.iter().take(BEHIND_MAX);
        match first.position(|request| request == decided) {
            Some(at) => drop(self.queue.remove(at)),
            None => {
                self.ahead.insert(Arc::clone(decided));
                if self.ahead.len() > AHEAD_MAX {
                    self.ahead.pop_first();
                }
            }
        }
    }
}

/// The queues, by minion.
#[derive(Debug, Default)]
pub(super) struct ByOrder(BTreeMap<u8, Arrivals>);

impl ByOrder {
    pub fn push(&mut self, minion: u8, request: Arc<Request>) {
        self.0.entry(minion).or_default().push(request);
    }

    /// Removes a decided request, so that one that a minion did not get does not shift its queue.
    pub fn remove(&mut self, decided: &Arc<Request>) {
        self.0.values_mut().for_each(|of| of.remove(decided));
    }

    pub fn len(&self) -> usize {
        self.0.values().map(|of| of.queue.len()).sum()
    }

    /// Returns the most frequent head, how many queues have it, and how many have any.
    fn heads(&self) -> Option<(Arc<Request>, usize, usize)> {
        let mut heads: Vec<&Arc<Request>> =
            self.0.values().filter_map(|of| of.queue.front()).collect();
        heads.sort();
        let most = heads
            .chunk_by(|a, b| a == b)
            .max_by_key(|same| same.len())?;
        Some((Arc::clone(most[0]), most.len(), heads.len()))
    }
}

impl Learner {
    /// Makes the learner decide by order and equality alone.
    pub fn by_order(mut self) -> Learner {
        let minions = 1..=self.config.sizes.minions();
        self.by_order = Some(ByOrder(
            minions
                .map(|minion| (minion, Arrivals::default()))
                .collect(),
        ));
        self
    }

    /// Returns whether it decides by order and equality alone.
    pub fn is_by_order(&self) -> bool {
        self.by_order.is_some()
    }

    /// Decides the next instances as far as the heads of the queues do.
    pub(super) fn decide_by_order(&mut self, now: u64, out: &mut Out) {
        loop {
            let is_decided = |instance: &u64| {
                let at = self.instances.get(instance);
                at.is_some_and(|at| at.decided.is_some())
            };
            let mut all = self.position() + 1..;
            let next = all.find(|instance| !is_decided(instance)).expect("endless");
            let heads = self.by_order.as_ref().and_then(ByOrder::heads);
            let Some((request, most, present)) = heads.filter(|_| self.counts_in(next)) else {
                return;
            };
            let sizes = self.config.sizes;
            let at = self.at(now, next);
            if at.recovery.is_some() {
                return;
            }
            if most >= sizes.quorum() {
                self.counts.fast += 1;
                out.fast.push((next, Arc::clone(&request)));
                self.decide(now, next, Some(request), out);
                continue;
            }
            let absent = usize::from(sizes.minions()) - present;
            if most + absent < sizes.quorum() && !at.in_conflict {
                at.in_conflict = true;
                self.counts.conflicts += 1;
            }
            return;
        }
    }
}
