//! Votes in the fast round: numbers of minions that their storage servers have confirmed.

use std::sync::Arc;

use super::queue::Said;
use super::{Learner, Out, ALIGN_EVERY_NS, ALIGN_FROM, RECENT_MAX};
use crate::control::{Control, To};
use crate::quorum::Generations;
use crate::request::{Identity, Request};
use crate::wire::node;

impl Learner {
    /// Handles a request that a minion has numbered.
    pub fn on_numbered(
        &mut self,
        now: u64,
        minion: u8,
        (incarnation, number): (u64, u64),
        request: Request,
        out: &mut Out,
    ) {
        let request = Arc::new(request);
        if let Some(by_order) = &mut self.by_order {
            if (1..=self.config.sizes.minions()).contains(&minion) {
                by_order.push(minion, request);
                self.decide_by_order(now, out);
            }
            return;
        }
        self.on_number(now, minion, (incarnation, number), request, out);
    }

    pub(super) fn on_number(
        &mut self,
        now: u64,
        minion: u8,
        (incarnation, number): (u64, u64),
        request: Arc<Request>,
        out: &mut Out,
    ) {
        let Some(queue) = self.queues.get_mut(&minion) else {
            return;
        };
        if !queue.enter(incarnation) {
            return;
        }
        let stored = queue.put(number, Arc::clone(&request));
        if let Some((instance, generation)) = stored {
            self.vote(now, minion, generation, instance, request, out);
        }
    }

    /// Handles a storage's confirmation of numbers, which makes them votes.
    pub(super) fn on_stored(
        &mut self,
        now: u64,
        minion: u8,
        (incarnation, generations): (u64, Generations),
        said: Said,
        out: &mut Out,
    ) {
        self.learn_generations(&generations);
        let generation = said.generation;
        if generation < self.known.of(minion) {
            return;
        }
        let Some(queue) = self.queues.get_mut(&minion) else {
            return;
        };
        if !queue.enter(incarnation) {
            return;
        }
        let fresh = queue.fresh(said);
        if self.by_order.is_some() {
            // Not a vote here, but the instance is in use.
            if let Some(last) = (u64::BITS - 1).checked_sub(said.mask.leading_zeros()) {
                self.see(said.base.wrapping_add(said.first).wrapping_add(last.into()));
            }
            return;
        }
        let mut is_all = true;
        for bit in (0..u64::BITS).filter(|bit| fresh >> bit & 1 == 1) {
            let number = said.first.wrapping_add(bit.into());
            let instance = said.base.wrapping_add(number);
            self.see(instance);
            if !self.counts_in(instance) && instance > self.position() {
                is_all = false;
                continue;
            }
            let queue = self.queues.get_mut(&minion).expect("as above");
            let request = queue.confirm(number, (instance, generation));
            if let Some(request) = request {
                self.vote(now, minion, generation, instance, request, out);
            }
        }
        if is_all {
            let queue = self.queues.get_mut(&minion).expect("as above");
            queue.handled(said);
        }
    }

    pub(super) fn learn_generations(&mut self, generations: &Generations) {
        if !self.known.merge(generations) {
            return;
        }
        // What a storage has done in an earlier generation it may do differently now.
        let known = self.known;
        self.enrolment.retain(&known);
        for instance in self.instances.values_mut() {
            instance
                .fast
                .retain(|minion, (generation, _)| *generation == known.of(*minion));
            if let Some(recovery) = &mut instance.recovery {
                recovery.retain(&known);
            }
        }
    }

    fn vote(
        &mut self,
        now: u64,
        minion: u8,
        generation: u16,
        instance: u64,
        request: Arc<Request>,
        out: &mut Out,
    ) {
        if instance <= self.position() {
            return self.compare(now, minion, instance, &request, out);
        }
        if !self.counts_in(instance) || generation != self.known.of(minion) {
            return;
        }
        let sizes = self.config.sizes;
        let at = self.at(now, instance);
        if at.decided.is_some() {
            return self.compare(now, minion, instance, &request, out);
        }
        at.fast.insert(minion, (generation, Arc::clone(&request)));
        let votes = |of: &Arc<Request>| at.fast.values().filter(|(_, r)| r == of).count();
        if votes(&request) >= sizes.quorum() {
            self.counts.fast += 1;
            out.fast.push((instance, Arc::clone(&request)));
            return self.decide(now, instance, Some(request), out);
        }
        let most = at.fast.values().map(|(_, of)| votes(of)).max().unwrap_or(0);
        let outstanding = usize::from(sizes.minions()) - at.fast.len();
        if most + outstanding < sizes.quorum() && !at.in_conflict {
            at.in_conflict = true;
            self.counts.conflicts += 1;
        }
    }

    /// Compares a storage's vote with the decision in the same instance. If they differ, the minion's numbers do not
    /// line up with the others'.
    pub(super) fn compare(
        &mut self,
        now: u64,
        minion: u8,
        instance: u64,
        request: &Arc<Request>,
        out: &mut Out,
    ) {
        let pending = self.instances.get(&instance);
        let decided = pending.and_then(|at| at.decided.as_ref());
        let Some(decided) = decided.or_else(|| self.decided(instance)) else {
            return;
        };
        if decided.as_ref() == Some(request) {
            self.misplaced.remove(&minion);
            return;
        }
        let identity = request.identity();
        match self.recent.get(&identity).copied() {
            Some(right) => self.misplace(now, (minion, instance), right, identity, out),
            None => {
                let votes = self.elsewhere.entry(identity).or_default();
                if votes.is_empty() {
                    self.elsewhere_order.push_back(identity);
                }
                votes.push((minion, instance));
                if self.elsewhere_order.len() > RECENT_MAX {
                    let oldest = self.elsewhere_order.pop_front().expect("there are many");
                    self.elsewhere.remove(&oldest);
                }
            }
        }
    }

    /// Records that a minion's storage voted for a request in another instance than the one that decided it. This also
    /// happens to a minion that received two requests in another order than the others, but its next votes are right
    /// again; a minion that lost a request, or received one twice, stays off.
    pub(super) fn misplace(
        &mut self,
        now: u64,
        (minion, voted): (u8, u64),
        right: u64,
        request: Identity,
        out: &mut Out,
    ) {
        let off = right.wrapping_sub(voted);
        let (last, count) = self.misplaced.get(&minion).copied().unwrap_or_default();
        let count = if last == off { count + 1 } else { 1 };
        self.misplaced.insert(minion, (off, count));
        if count >= ALIGN_FROM {
            self.align(now, minion, right, request, out);
        }
    }

    fn align(&mut self, now: u64, minion: u8, instance: u64, request: Identity, out: &mut Out) {
        let last = self.aligned_at.get(&minion);
        if last.is_some_and(|at| now < at + ALIGN_EVERY_NS) {
            return;
        }
        self.aligned_at.insert(minion, now);
        self.counts.aligned += 1;
        let align = Control::Align { instance, request };
        self.send(To::Node(node::storage(minion)), &align, out);
    }
}
