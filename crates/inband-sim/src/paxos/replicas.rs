//! Replicas: what their logs deliver is applied, becomes durable, and is copied from peers.

use inband_paxos::log::{Burst, ValueKind};
use inband_paxos::outbox::Outbox;
use inband_paxos::session::Verdict;

use crate::paxos::app::{decided_key, App};
use crate::paxos::event::Event;
use crate::paxos::invariant::Invariant;
use crate::paxos::mutation::Mutation;
use crate::paxos::trace::Happened;
use crate::paxos::{counts, World};

impl World {
    /// The application takes what its logs have delivered. Returns true if there was something.
    pub(crate) fn apply(&mut self, at: usize, out: &mut Outbox) -> bool {
        if self.system.hosts[at].store.is_some() {
            return self.apply_to_store(at, out);
        }
        let mut bursts = std::mem::take(&mut self.system.bursts);
        bursts.iter_mut().for_each(Burst::clear);
        if let Some(host) = &mut self.system.hosts[at].host {
            host.take_bursts(&mut bursts);
        }
        let mut had_some = false;
        for (partition, burst) in bursts.iter_mut().enumerate() {
            had_some |= self.apply_burst(at, partition, burst, out);
        }
        if had_some {
            self.flush_later(at);
        }
        self.system.bursts = bursts;
        had_some && self.violation.is_none()
    }

    fn apply_burst(
        &mut self,
        at: usize,
        partition: usize,
        burst: &mut Burst,
        out: &mut Outbox,
    ) -> bool {
        let (now, digest) = (self.now, self.system.layout.digest());
        let sim = &mut self.system.hosts[at];
        let node = sim.node;
        let shows = sim.clock.shows(now);
        let Some(host) = &mut sim.host else {
            return false;
        };
        let app = &mut sim.apps[partition];
        let mut result = Ok(());
        for decided in burst.decided() {
            if decided.instance != app.live.applied + 1 {
                let what = format!(
                    "replica {node} was handed {} after {} of {partition}",
                    decided.instance, app.live.applied
                );
                result = Err(Invariant::InOrder.broken(what));
                break;
            }
            let key = decided_key(&decided, digest);
            result = self.system.observers[partition].learned(node, decided.instance, key);
            if result.is_err() {
                break;
            }
            let verdict = app.apply(&decided, self.system.mutation);
            let state = app.live.hash;
            let happened = Happened::Applied(node, partition, decided.instance, state);
            self.trace.note(now, happened);
            result = self
                .system
                .ledger
                .applied(node, partition, &decided, verdict, state);
            match decided.ticket {
                _ if result.is_err() => break,
                None => {}
                Some(ticket) if verdict == Verdict::Refused => {
                    host.session_refused(shows, ticket, out);
                }
                // A duplicate that was not yet answered: it was applied in a part of the log that a checkpoint skipped.
                Some(ticket) => {
                    host.answered(ticket);
                    let ended = self.system.ledger.succeeded(node, ticket, decided.instance);
                    result = ended.map(|command| {
                        self.trace.note(now, Happened::Ended(node, command, 0));
                    });
                }
            }
            debug_assert!(decided.origin.kind == ValueKind::Command || decided.ticket.is_none());
            if result.is_err() {
                break;
            }
            if self.system.mutation == Some(Mutation::NotDurable) {
                host.applied(partition, decided.instance);
            }
        }
        for (ticket, why) in burst.failed.drain(..) {
            let how = match why {
                inband_paxos::log::SubmitFailure::OutcomeUnknown(_) => 1,
                inband_paxos::log::SubmitFailure::NotApplied(_) => 2,
            };
            match self.system.ledger.failed(node, ticket, why) {
                Ok(command) => self.trace.note(now, Happened::Ended(node, command, how)),
                Err(what) => result = result.and(Err(what)),
            }
        }
        let had_some = burst.decided().len() > 0;
        if burst.checkpoint_needed && !self.system.hosts[at].copies_checkpoint[partition] {
            self.system.hosts[at].copies_checkpoint[partition] = true;
            let wanted = (node, self.system.hosts[at].incarnation, partition);
            self.system.checkpoints_wanted.push(wanted);
            self.copy_checkpoints_later();
        }
        let applied = self.system.hosts[at].apps[partition].live.applied;
        for (ticket, index) in burst.confirmed.drain(..) {
            let answered = self
                .system
                .ledger
                .read_answered(node, ticket, index, applied);
            result = result.and(answered);
            let happened = Happened::Read(node, partition, index);
            self.trace.note(now, happened);
        }
        for (ticket, _) in burst.reads_failed.drain(..) {
            result = result.and(self.system.ledger.read_failed(node, ticket));
        }
        self.check(result);
        had_some
    }

    /// Begins to copy a peer's state, which takes a while.
    pub(crate) fn copy_checkpoints_later(&mut self) {
        for (node, incarnation, partition) in std::mem::take(&mut self.system.checkpoints_wanted) {
            if let (Some(at), Some(from)) = (self.index(node), self.most_advanced(node, partition))
            {
                let state = self.system.hosts[from].apps[partition].live.clone();
                self.system.hosts[at].copied[partition] = Some(state);
                let shows = self.system.hosts[from].clock.shows(self.now);
                if let Some(host) = &mut self.system.hosts[from].host {
                    host.hold_logs(shows);
                }
            }
            let copied = Event::CheckpointCopied(node, incarnation, partition);
            let (low_us, high_us) = self.system.layout.checkpoint_copy_us;
            let delay_us = self.rng.hosts.between(low_us, high_us);
            self.after(delay_us, copied);
        }
    }

    /// The most advanced peer that `node` reaches.
    fn most_advanced(&self, node: u8, partition: usize) -> Option<usize> {
        let peers = self.system.hosts.iter().filter(|p| {
            self.system.layout.replicas.contains(&p.node) && p.is_well() && p.node != node
        });
        let best = peers
            .filter(|p| self.links.is_linked(node, p.node))
            .max_by_key(|p| p.apps[partition].live.applied)?;
        self.index(best.node)
    }

    /// Opens the real store of a host that starts, if it has one.
    pub(crate) fn open_store(&mut self, at: usize) -> Result<(), String> {
        let sim = &mut self.system.hosts[at];
        let Some(store) = &mut sim.store else {
            return Ok(());
        };
        let applied = store.open().map_err(|error| error.to_string())?;
        for (app, applied) in sim.apps.iter_mut().zip(applied) {
            if applied < app.durable.applied {
                let written = app.durable.applied;
                return Err(format!(
                    "the store of node {} is at {applied}, {written} was written",
                    sim.node
                ));
            }
            (app.live.applied, app.durable.applied) = (applied, applied);
        }
        Ok(())
    }

    pub(crate) fn flush_later(&mut self, at: usize) {
        let sim = &mut self.system.hosts[at];
        let is_durable = |app: &App| app.live.applied == app.durable.applied;
        if sim.flush_is_due || sim.apps.iter().all(is_durable) {
            return;
        }
        sim.flush_is_due = true;
        let delay_us = self.rng.hosts.between(1, self.system.layout.flush_max_us);
        let flush = Event::Flush(sim.node, sim.incarnation);
        self.after(delay_us, flush);
    }

    pub(crate) fn flush(&mut self, node: u8, incarnation: u64) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.system.hosts[at];
        if sim.incarnation != incarnation || sim.host.is_none() {
            return;
        }
        sim.flush_is_due = false;
        if sim.frozen > 0 || self.system.mutation == Some(Mutation::NotDurable) {
            return;
        }
        if sim.store.is_some() {
            return self.flush_store(at);
        }
        sim.apps.iter_mut().for_each(App::flush);
        let applied: Vec<u64> = sim.apps.iter().map(|app| app.durable.applied).collect();
        self.with_host(node, None, None, |host, _, _| {
            for (partition, applied) in applied.iter().enumerate() {
                host.applied(partition, *applied);
            }
        });
    }

    /// Installs the state that has been copied, if that is ahead.
    pub(crate) fn checkpoint(&mut self, node: u8, incarnation: u64, partition: usize) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.system.hosts[at];
        if sim.incarnation != incarnation || sim.host.is_none() {
            return;
        }
        sim.copies_checkpoint[partition] = false;
        let copied = sim.copied[partition].take();
        if !sim.is_well() {
            return;
        }
        if self.system.hosts[at].store.is_some() {
            // The files of a real store are copied when they are installed.
            if let Some(from) = self.most_advanced(node, partition) {
                let (theirs, own) = (&self.system.hosts[from], &self.system.hosts[at]);
                if theirs.apps[partition].live.applied > own.apps[partition].live.applied {
                    self.checkpoint_store(at, from, partition);
                }
            }
            return;
        }
        let own = &mut self.system.hosts[at].apps[partition];
        let Some(state) = copied.filter(|state| state.applied > own.live.applied) else {
            return;
        };
        own.install(&state);
        self.stats.count(counts::CHECKPOINTS, 1);
        let happened = Happened::Checkpoint(node, partition, state.applied);
        self.trace.note(self.now, happened);
        self.with_host(node, None, None, |host, _, _| {
            host.reset(partition, state.applied);
        });
    }
}
