//! A host in the world: the sans-I/O composition of inband-paxos, an application, a disk.

use inband_paxos::host::Host;
use inband_paxos::leadership::LeaderEvent;
use inband_paxos::log::ValueKind;
use inband_paxos::outbox::{Dest, Outbox};
use inband_paxos::session::Verdict;
use inband_paxos::timing::Micros;

use crate::app::{decided_key, App};
use crate::limits::{
    CHECKPOINT_COPY_MAX_US, COMMAND_LEN_BYTES, DEADLINE_SLACK_US, FLUSH_MAX_US, TICK_LATE_MAX_US,
};
use crate::mutation::Mutation;
use crate::queue::Event;
use crate::trace::Happened;
use crate::world::World;

/// A packet that waits: from, to, bytes.
pub(crate) type Waiting = (u8, u8, Vec<u8>);

/// See the module.
pub struct SimHost {
    /// Its node id.
    pub node: u8,
    /// The process; `None` while it is down.
    pub host: Option<Host>,
    /// The application of a replica.
    pub app: App,
    /// Of the process; never used again, unless a mutation says so.
    pub incarnation: u64,
    /// Faults that hold the packets of its links.
    pub links_held: u32,
    /// Faults that stop its process without losing anything.
    pub frozen: u32,
    /// An acceptor here has lost what it knew and may not vote.
    pub memory_lost: bool,
    pub(crate) waiting: Vec<Waiting>,
    tick_at: Micros,
    responsive_since: Micros,
    flush_is_due: bool,
    copies_checkpoint: bool,
}

impl SimHost {
    pub(crate) fn new(node: u8) -> SimHost {
        SimHost {
            node,
            host: None,
            app: App::default(),
            incarnation: 0,
            links_held: 0,
            frozen: 0,
            memory_lost: false,
            waiting: Vec::new(),
            tick_at: Micros::MAX,
            responsive_since: 0,
            flush_is_due: false,
            copies_checkpoint: false,
        }
    }

    /// Is it up, and neither stopped nor cut off by held links?
    pub fn is_well(&self) -> bool {
        self.host.is_some() && self.frozen == 0 && self.links_held == 0
    }
}

impl World {
    /// Start a host, for the first time or after a crash. Does nothing if it is up.
    pub fn start(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        if self.hosts[at].host.is_some() {
            return;
        }
        let reused = self.mutation == Some(Mutation::IncarnationReused);
        let sim = &mut self.hosts[at];
        if !reused || sim.incarnation == 0 {
            sim.incarnation += 1;
        }
        let voting = !sim.memory_lost || self.mutation == Some(Mutation::Amnesia);
        let applied = sim.app.live.applied;
        let config = self.layout.host(node, sim.incarnation, applied, voting);
        sim.host = Some(Host::new(self.now, config));
        sim.responsive_since = self.now;
        sim.flush_is_due = false;
        sim.copies_checkpoint = false;
        let happened = Happened::Started(node, sim.incarnation);
        self.trace.note(self.now, happened);
        self.arm(at);
    }

    /// A host loses power: its memory is gone, its disk stays.
    pub fn crash(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        let Some(host) = sim.host.take() else { return };
        self.stats.crashes += 1;
        self.stats.recoveries += host.learner().map_or(0, |l| l.stats().recoveries);
        sim.app.crash();
        sim.tick_at = Micros::MAX;
        if self.layout.acceptors.contains(&node) {
            sim.memory_lost = true;
            self.observer.forgot(node);
        }
        self.ledger.crashed(node);
        self.trace.note(self.now, Happened::Crashed(node));
    }

    /// Stop a host's process (as SIGSTOP does) until [`World::thaw`]; packets wait for it.
    pub fn freeze(&mut self, node: u8) {
        if let Some(at) = self.index(node) {
            self.hosts[at].frozen += 1;
        }
    }

    /// Let a stopped process go on.
    pub fn thaw(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        sim.frozen = sim.frozen.saturating_sub(1);
        if sim.frozen > 0 {
            return;
        }
        sim.responsive_since = self.now;
        sim.tick_at = Micros::MAX;
        self.arm(at);
        self.flush_later(at);
        self.let_go(at);
    }

    /// Hold all packets from and to a host until [`World::release_links`]; its process goes on.
    pub fn hold_links(&mut self, node: u8) {
        if let Some(at) = self.index(node) {
            self.hosts[at].links_held += 1;
        }
    }

    /// Let the held packets go.
    pub fn release_links(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        sim.links_held = sim.links_held.saturating_sub(1);
        if sim.links_held == 0 {
            self.let_go(at);
        }
    }

    fn let_go(&mut self, at: usize) {
        if self.hosts[at].frozen > 0 || self.hosts[at].links_held > 0 {
            return;
        }
        for (from, to, bytes) in std::mem::take(&mut self.hosts[at].waiting) {
            self.transmit(from, to, &bytes);
        }
    }

    /// Let a host do something and act on what it wants.
    pub(crate) fn with_host(
        &mut self,
        node: u8,
        sender: Option<u8>,
        look_at: Option<u64>,
        act: impl FnOnce(&mut Host, Micros, &mut Outbox),
    ) {
        let Some(at) = self.index(node) else { return };
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let Some(host) = &mut self.hosts[at].host else {
            return;
        };
        act(host, self.now, &mut out);
        // On a host of several roles one packet may cause votes in any slot.
        let several = self.layout.leaders.contains(&node) || self.layout.replicas.contains(&node);
        let look_at = if several { None } else { look_at };
        self.look(at, look_at);
        while self.apply(at, &mut out) {
            self.look(at, look_at);
        }
        self.report_leader(at);
        for (dest, packet) in out.iter() {
            let to = match dest {
                Dest::Node(to) => Some(to),
                Dest::Sender => sender,
                // Host spells groups out.
                Dest::Acceptors | Dest::Learners | Dest::Leaders => None,
            };
            match to {
                Some(to) => self.transmit(node, to, packet),
                None => self.check(Err(format!("node {node} sends to nobody: {dest:?}"))),
            }
        }
        self.out = out;
        self.arm(at);
    }

    fn look(&mut self, at: usize, look_at: Option<u64>) {
        let sim = &self.hosts[at];
        if !self.layout.acceptors.contains(&sim.node) {
            return;
        }
        if let Some(switch) = sim.host.as_ref().and_then(Host::switch) {
            let seen = self.observer.look(sim.node, switch.registers(), look_at);
            self.check(seen);
        }
    }

    /// The application takes what its log has for it. True if there was something.
    fn apply(&mut self, at: usize, out: &mut Outbox) -> bool {
        let mut burst = std::mem::take(&mut self.burst);
        burst.clear();
        let now = self.now;
        let sim = &mut self.hosts[at];
        let node = sim.node;
        let Some(host) = &mut sim.host else {
            return false;
        };
        host.take_burst(&mut burst);
        let mut result = Ok(());
        for decided in burst.decided() {
            if decided.instance != sim.app.live.applied + 1 {
                result = Err(format!(
                    "replica {node} was handed {} after {}",
                    decided.instance, sim.app.live.applied
                ));
                break;
            }
            result = self
                .observer
                .learned(node, decided.instance, decided_key(&decided));
            if result.is_err() {
                break;
            }
            let verdict = sim.app.apply(&decided, self.mutation);
            let state = sim.app.live.hash;
            self.trace
                .note(now, Happened::Applied(node, decided.instance, state));
            result = self.ledger.applied(node, &decided, verdict, state);
            match decided.ticket {
                _ if result.is_err() => break,
                None => {}
                Some(_) if verdict == Verdict::Refused => host.session_refused(now, out),
                // Not new, yet not answered: applied in a part of the log that a checkpoint skipped.
                Some(ticket) => {
                    host.answered(ticket);
                    let ended = self.ledger.succeeded(node, ticket, decided.instance);
                    result = ended.map(|command| {
                        self.trace.note(now, Happened::Ended(node, command, 0));
                    });
                }
            }
            debug_assert!(decided.origin.kind == ValueKind::Command || decided.ticket.is_none());
            if result.is_err() {
                break;
            }
            if self.mutation == Some(Mutation::NotDurable) {
                host.applied(decided.instance);
            }
        }
        for (ticket, why) in burst.failed.drain(..) {
            let how = match why {
                inband_paxos::log::SubmitFailure::OutcomeUnknown(_) => 1,
                inband_paxos::log::SubmitFailure::NotApplied(_) => 2,
            };
            match self.ledger.failed(node, ticket, why) {
                Ok(command) => self.trace.note(now, Happened::Ended(node, command, how)),
                Err(what) => result = result.and(Err(what)),
            }
        }
        let had_some = burst.decided().len() > 0;
        if burst.checkpoint_needed && !self.hosts[at].copies_checkpoint {
            self.hosts[at].copies_checkpoint = true;
            let copied = Event::CheckpointCopied(node, self.hosts[at].incarnation);
            let delay_us = self.rng.hosts.between(1, CHECKPOINT_COPY_MAX_US);
            self.queue.push(now + delay_us, copied);
        }
        if had_some {
            self.flush_later(at);
        }
        self.burst = burst;
        self.check(result);
        had_some && self.violation.is_none()
    }

    fn flush_later(&mut self, at: usize) {
        let sim = &mut self.hosts[at];
        if sim.flush_is_due || sim.app.live.applied == sim.app.durable.applied {
            return;
        }
        sim.flush_is_due = true;
        let delay_us = self.rng.hosts.between(1, FLUSH_MAX_US);
        self.queue
            .push(self.now + delay_us, Event::Flush(sim.node, sim.incarnation));
    }

    pub(crate) fn flush(&mut self, node: u8, incarnation: u64) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        if sim.incarnation != incarnation || sim.host.is_none() {
            return;
        }
        sim.flush_is_due = false;
        if sim.frozen > 0 || self.mutation == Some(Mutation::NotDurable) {
            return;
        }
        sim.app.flush();
        let applied = sim.app.durable.applied;
        self.with_host(node, None, None, |host, _, _| host.applied(applied));
    }

    /// Install the state of the most advanced peer that can be reached, if it helps.
    pub(crate) fn checkpoint(&mut self, node: u8, incarnation: u64) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        if sim.incarnation != incarnation || sim.host.is_none() {
            return;
        }
        sim.copies_checkpoint = false;
        if !sim.is_well() {
            return;
        }
        let best = self
            .hosts
            .iter()
            .filter(|p| self.layout.replicas.contains(&p.node) && p.is_well() && p.node != node)
            .filter(|p| {
                self.network.is_linked(node, p.node) && self.network.is_linked(p.node, node)
            })
            .max_by_key(|p| p.app.live.applied)
            .map(|p| p.app.live.clone());
        let Some(state) = best.filter(|s| s.applied > self.hosts[at].app.live.applied) else {
            return;
        };
        self.hosts[at].app.install(&state);
        self.stats.checkpoints += 1;
        self.trace
            .note(self.now, Happened::Checkpoint(node, state.applied));
        self.with_host(node, None, None, |host, _, _| host.reset(state.applied));
    }

    fn report_leader(&mut self, at: usize) {
        let sim = &mut self.hosts[at];
        let Some(host) = &mut sim.host else { return };
        for (now, event) in host.take_leader_events() {
            let (what, round) = match event {
                LeaderEvent::Suspected => (0, 0),
                LeaderEvent::Activate(view) => (1, view.round),
                LeaderEvent::Deactivate => (2, 0),
            };
            self.stats.activations += u64::from(what == 1);
            self.trace
                .note(now, Happened::Leader(sim.node, what, round));
        }
    }

    /// Set the timer of a host: it is late by a little, as processes are.
    fn arm(&mut self, at: usize) {
        let sim = &mut self.hosts[at];
        let Some(host) = &sim.host else { return };
        let due = host.due(self.now);
        if due == Micros::MAX || sim.frozen > 0 {
            return;
        }
        let wake_at = due.max(self.now + 1);
        if wake_at < sim.tick_at {
            sim.tick_at = wake_at + self.rng.hosts.below(TICK_LATE_MAX_US);
            self.queue.push(sim.tick_at, Event::Tick(sim.node));
        }
    }

    pub(crate) fn tick(&mut self, node: u8, at_us: Micros) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        if sim.tick_at != at_us || sim.frozen > 0 || sim.host.is_none() {
            return; // an earlier timer took its place
        }
        sim.tick_at = Micros::MAX;
        self.trace.note(self.now, Happened::Ticked(node));
        self.with_host(node, None, None, |host, now, out| host.on_tick(now, out));
        let sim = &self.hosts[at];
        let slack_us = DEADLINE_SLACK_US;
        if self.now > sim.responsive_since + slack_us {
            let overdue = self.ledger.overdue(node, self.now - slack_us);
            self.check(overdue.map_or(Ok(()), Err));
        }
    }

    /// The application of replica `node` wants `instance` recovered, or decided as `noop`.
    pub fn recover(&mut self, node: u8, instance: u64, noop: &[u8]) {
        self.with_host(node, None, None, |host, now, out| {
            let known = &mut |_: inband_paxos::log::Origin, _: &[u8]| {};
            // Delivered before or too far ahead: then there is nothing to do.
            let _ = host.recover(now, instance, noop, out, known);
        });
    }

    /// A client of replica `node` submits a command. False if the replica takes none.
    pub fn submit(&mut self, node: u8) -> bool {
        if !self.host(node).is_well() {
            return false;
        }
        let command = self.ledger.new_command();
        let mut value = command.to_be_bytes().to_vec();
        let long = self.rng.load.chance_ppm(10_000);
        let longest = inband_dataplane::wire::VALUE_LEN_MAX_BYTES;
        value.resize(if long { longest } else { COMMAND_LEN_BYTES }, 0x5a);
        let deadline = self.now + self.layout.submit_deadline_us();
        self.trace
            .note(self.now, Happened::Submitted(node, command));
        let Some(at) = self.index(node) else {
            return false;
        };
        // The ticket is noted before anything that the submission causes is looked at.
        let mut early = Outbox::new();
        let host = self.hosts[at].host.as_mut();
        let Some(ticket) = host.and_then(|h| h.submit(self.now, &value, &mut early).ok()) else {
            return false;
        };
        self.stats.submitted += 1;
        self.ledger.submitted(node, ticket, command, deadline);
        self.with_host(node, None, None, |_, _, out| {
            for (dest, packet) in early.iter() {
                out.send_raw(dest, packet);
            }
        });
        true
    }
}
