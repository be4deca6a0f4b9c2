//! A host in the world: the sans-I/O composition of inband-paxos, an application, a disk.

use inband_paxos::host::Host;
use inband_paxos::leadership::LeaderEvent;
use inband_paxos::log::{Burst, ValueKind};
use inband_paxos::outbox::{Dest, Outbox};
use inband_paxos::session::Verdict;
use inband_paxos::timing::Micros;

use crate::app::{decided_key, App};
use crate::clock::Clock;
use crate::invariant::{Broken, Invariant};
use crate::layout::EPOCH;
use crate::limits::{
    CHECKPOINT_COPY_MAX_US, COMMAND_LEN_BYTES, DEADLINE_SLACK_US, FLUSH_MAX_US, SLOW_QUEUE_MAX_US,
    TICK_LATE_MAX_US,
};
use crate::liveness::recoveries;
use crate::mutation::Mutation;
use crate::power::Power;
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
    /// The application of a replica, of each log.
    pub apps: Vec<App>,
    /// The epoch that it has entered.
    pub epoch: u32,
    /// The epoch that its acceptor began last.
    pub votes_in: u32,
    /// Of the process; never used again, unless a mutation says so.
    pub incarnation: u64,
    /// Faults that hold the packets of its links.
    pub links_held: u32,
    /// Faults that stop its process without losing anything.
    pub frozen: u32,
    pub(crate) clock: Clock,
    /// Time it takes for a packet; 0: none.
    pub(crate) packet_us: Micros,
    /// It comes to no further packet before.
    pub(crate) busy_until: Micros,
    /// An acceptor here has lost what it knew and may not vote.
    pub memory_lost: bool,
    pub(crate) power: Power,
    pub(crate) waiting: Vec<Waiting>,
    tick_at: Micros,
    responsive_since: Micros,
    flush_is_due: bool,
    /// Of each log.
    copies_checkpoint: Vec<bool>,
}

impl SimHost {
    pub(crate) fn new(node: u8, partitions: usize) -> SimHost {
        SimHost {
            node,
            host: None,
            apps: (0..partitions).map(|_| App::default()).collect(),
            epoch: EPOCH,
            votes_in: EPOCH,
            incarnation: 0,
            links_held: 0,
            frozen: 0,
            clock: Clock::default(),
            packet_us: 0,
            busy_until: 0,
            memory_lost: false,
            power: Power::default(),
            waiting: Vec::new(),
            tick_at: Micros::MAX,
            responsive_since: 0,
            flush_is_due: false,
            copies_checkpoint: vec![false; partitions],
        }
    }

    /// Has its acceptor lost what it knew, or may it have?
    pub(crate) fn has_forgotten(&self) -> bool {
        self.memory_lost || self.power.is_damaged
    }

    /// Does its process run, and its clock?
    fn has_timers(&self) -> bool {
        self.host.is_some() && self.frozen == 0 && !self.clock.stands()
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
        let keeps_journal = self.keeps_journal(node);
        let journal = match keeps_journal.then(|| self.open_journal(at)).transpose() {
            Ok(journal) => journal,
            Err(why) => {
                let what = format!("node {node} does not start: {why}");
                return self.check(Err(Invariant::DiskKept.broken(what)));
            }
        };
        let reused = self.mutation == Some(Mutation::IncarnationReused);
        let sim = &mut self.hosts[at];
        if !reused || sim.incarnation == 0 {
            sim.incarnation += 1;
        }
        sim.memory_lost |= journal.as_ref().is_some_and(|start| !start.voting);
        let voting = !sim.memory_lost || self.mutation == Some(Mutation::Amnesia);
        let entered = self.epoch_config(self.hosts[at].epoch);
        let sim = &mut self.hosts[at];
        let applied = sim.apps.iter().map(|app| app.live.applied);
        let config = self
            .layout
            .host(node, entered, sim.incarnation, applied, voting);
        sim.host = Some(Host::new(sim.clock.shows(self.now), config));
        sim.responsive_since = self.now;
        sim.flush_is_due = false;
        sim.copies_checkpoint.fill(false);
        let happened = Happened::Started(node, sim.incarnation);
        self.trace.note(self.now, happened);
        if let Some(start) = journal {
            self.restore(at, &start);
        }
        self.ask_for_epoch(node);
        self.arm(at);
    }

    /// A host loses power: its memory is gone, its disk stays.
    pub fn crash(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        let Some(host) = sim.host.take() else { return };
        self.stats.crashes += 1;
        self.stats.recoveries += recoveries(&host);
        sim.apps.iter_mut().for_each(App::crash);
        sim.tick_at = Micros::MAX;
        if self.keeps_journal(node) {
            self.close_journal(at);
        } else if self.layout.acceptor_hosts.contains(&node) {
            self.hosts[at].memory_lost = true;
            self.observers.iter_mut().for_each(|o| o.forgot(node));
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
        self.sync_later(at);
        self.let_go(at);
    }

    /// From now on a host takes this long for every packet; 0: no time.
    pub fn slow_down(&mut self, node: u8, packet_us: Micros) {
        if let Some(at) = self.index(node) {
            self.hosts[at].packet_us = packet_us;
        }
    }

    /// When a host comes to a packet that has just arrived: at once, later, or never.
    pub(crate) fn time_for_packet(&mut self, node: u8) -> Option<Micros> {
        let at = self.index(node)?;
        let sim = &mut self.hosts[at];
        let begins_at = sim.busy_until.max(self.now);
        if begins_at > self.now + SLOW_QUEUE_MAX_US {
            return None;
        }
        if sim.packet_us > 0 {
            sim.busy_until = begins_at + sim.packet_us;
        }
        Some(begins_at + sim.packet_us)
    }

    /// The clock of a host jumps forward.
    pub fn jump_clock(&mut self, node: u8, by_us: Micros) {
        let Some(at) = self.index(node) else { return };
        self.hosts[at].clock.jump(by_us);
        // Its timers go by the clock.
        self.hosts[at].tick_at = Micros::MAX;
        self.arm(at);
    }

    /// The clock of a host stands still until [`World::start_clock`].
    pub fn stop_clock(&mut self, node: u8) {
        if let Some(at) = self.index(node) {
            self.hosts[at].clock.stand(self.now);
        }
    }

    /// It goes on from where it stood.
    pub fn start_clock(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let stood_us = self.hosts[at].clock.go_on(self.now);
        self.ledger.delay(node, stood_us);
        self.hosts[at].tick_at = Micros::MAX;
        self.arm(at);
        self.sync_later(at);
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
        look_at: Option<(usize, u64)>,
        act: impl FnOnce(&mut Host, Micros, &mut Outbox),
    ) {
        let Some(at) = self.index(node) else { return };
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let sim = &mut self.hosts[at];
        let shows = sim.clock.shows(self.now);
        let Some(host) = &mut sim.host else {
            return;
        };
        act(host, shows, &mut out);
        // On a host of several roles one packet may cause votes in any slot.
        let layout = &self.layout;
        let several = layout.leader_hosts.contains(&node) || layout.replica_hosts.contains(&node);
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
                Dest::Acceptors | Dest::Learners | Dest::Leaders | Dest::Peers => None,
            };
            match to {
                Some(to) => self.transmit(node, to, packet),
                None => {
                    let what = format!("node {node} sends to nobody: {dest:?}");
                    self.check(Err(Invariant::NoPanic.broken(what)));
                }
            }
        }
        self.out = out;
        self.sync_later(at);
        self.arm(at);
    }

    /// Look at an acceptor that something other than a packet was done to.
    pub(crate) fn look_at_all(&mut self, node: u8) {
        if let Some(at) = self.index(node) {
            self.look(at, None);
        }
    }

    /// At one instance of one log, or at everything.
    fn look(&mut self, at: usize, look_at: Option<(usize, u64)>) {
        let sim = &self.hosts[at];
        if !self.layout.acceptor_hosts.contains(&sim.node) {
            return;
        }
        if let Some(switch) = sim.host.as_ref().and_then(Host::switch) {
            let (node, registers) = (sim.node, switch.registers());
            let seen = match look_at {
                Some((partition, instance)) if partition < self.observers.len() => {
                    self.observers[partition].look(node, registers, Some(instance))
                }
                Some(_) => Ok(()),
                None => {
                    let mut logs = self.observers.iter_mut();
                    logs.try_for_each(|log| log.look(node, registers, None))
                }
            };
            let floors = match look_at {
                Some((partition, _)) => partition..(partition + 1).min(self.observers.len()),
                None => 0..self.observers.len(),
            };
            let floors = floors.map(|p| (p, registers.acceptor.acceptor(p).floor));
            let floors = floors.filter(|(p, floor)| *floor > self.floors_held[*p]);
            let raised: Vec<(usize, u64)> = floors.collect();
            self.check(seen);
            for (partition, floor) in raised {
                let held = self.floor_is_held(node, partition, floor);
                self.check(held);
            }
        }
    }

    /// An acceptor's floor was never seen this high: does a majority of replicas hold all below it?
    fn floor_is_held(&mut self, node: u8, partition: usize, floor: u64) -> Result<(), Broken> {
        let holds =
            |replica: &&u8| self.host(**replica).apps[partition].durable.applied + 1 >= floor;
        // Hosts that have not entered the latest epoch count by the one before.
        let is_held = self.members.iter().rev().take(2).any(|members| {
            members.replicas.iter().filter(holds).count() > members.replicas.len() / 2
        });
        self.floors_held[partition] = floor;
        is_held.then_some(()).ok_or_else(|| {
            let what = format!(
                "acceptor {node} was told floor {floor} of {partition}, which no majority holds"
            );
            Invariant::TrimKept.broken(what)
        })
    }

    /// The application takes what its logs have for it. True if there was something.
    fn apply(&mut self, at: usize, out: &mut Outbox) -> bool {
        let mut bursts = std::mem::take(&mut self.bursts);
        bursts.iter_mut().for_each(Burst::clear);
        if let Some(host) = &mut self.hosts[at].host {
            host.take_bursts(&mut bursts);
        }
        let mut had_some = false;
        for (partition, burst) in bursts.iter_mut().enumerate() {
            had_some |= self.apply_burst(at, partition, burst, out);
        }
        if had_some {
            self.flush_later(at);
        }
        self.bursts = bursts;
        had_some && self.violation.is_none()
    }

    fn apply_burst(
        &mut self,
        at: usize,
        partition: usize,
        burst: &mut Burst,
        out: &mut Outbox,
    ) -> bool {
        let (now, digest) = (self.now, self.layout.digest());
        let sim = &mut self.hosts[at];
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
            result = self.observers[partition].learned(node, decided.instance, key);
            if result.is_err() {
                break;
            }
            let verdict = app.apply(&decided, self.mutation);
            let state = app.live.hash;
            let happened = Happened::Applied(node, partition, decided.instance, state);
            self.trace.note(now, happened);
            result = self
                .ledger
                .applied(node, partition, &decided, verdict, state);
            match decided.ticket {
                _ if result.is_err() => break,
                None => {}
                Some(ticket) if verdict == Verdict::Refused => {
                    host.session_refused(shows, ticket, out);
                }
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
                host.applied(partition, decided.instance);
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
        if burst.checkpoint_needed && !self.hosts[at].copies_checkpoint[partition] {
            self.hosts[at].copies_checkpoint[partition] = true;
            let copied = Event::CheckpointCopied(node, self.hosts[at].incarnation, partition);
            let delay_us = self.rng.hosts.between(1, CHECKPOINT_COPY_MAX_US);
            self.queue.push(now + delay_us, copied);
        }
        let applied = self.hosts[at].apps[partition].live.applied;
        for (ticket, index) in burst.confirmed.drain(..) {
            let answered = self.ledger.read_answered(node, ticket, index, applied);
            result = result.and(answered);
            let happened = Happened::Read(node, partition, index);
            self.trace.note(now, happened);
        }
        for (ticket, _) in burst.reads_failed.drain(..) {
            result = result.and(self.ledger.read_failed(node, ticket));
        }
        self.check(result);
        had_some
    }

    fn flush_later(&mut self, at: usize) {
        let sim = &mut self.hosts[at];
        let is_durable = |app: &App| app.live.applied == app.durable.applied;
        if sim.flush_is_due || sim.apps.iter().all(is_durable) {
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
        sim.apps.iter_mut().for_each(App::flush);
        let applied: Vec<u64> = sim.apps.iter().map(|app| app.durable.applied).collect();
        self.with_host(node, None, None, |host, _, _| {
            for (partition, applied) in applied.iter().enumerate() {
                host.applied(partition, *applied);
            }
        });
    }

    /// Install the state of the most advanced peer that can be reached, if it helps.
    pub(crate) fn checkpoint(&mut self, node: u8, incarnation: u64, partition: usize) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        if sim.incarnation != incarnation || sim.host.is_none() {
            return;
        }
        sim.copies_checkpoint[partition] = false;
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
            .map(|p| &p.apps[partition].live)
            .max_by_key(|state| state.applied)
            .cloned();
        let app = &mut self.hosts[at].apps[partition];
        let Some(state) = best.filter(|s| s.applied > app.live.applied) else {
            return;
        };
        app.install(&state);
        self.stats.checkpoints += 1;
        let happened = Happened::Checkpoint(node, partition, state.applied);
        self.trace.note(self.now, happened);
        self.with_host(node, None, None, |host, _, _| {
            host.reset(partition, state.applied);
        });
    }

    fn report_leader(&mut self, at: usize) {
        let sim = &mut self.hosts[at];
        let Some(host) = &mut sim.host else { return };
        for (_, partition, event) in host.take_leader_events() {
            let (what, round) = match event {
                LeaderEvent::Suspected => (0, 0),
                LeaderEvent::Activate(view) => (1, view.round),
                LeaderEvent::Deactivate => (2, 0),
            };
            self.stats.activations += u64::from(what == 1);
            let happened = Happened::Leader(sim.node, partition, what, round);
            self.trace.note(self.now, happened);
        }
    }

    /// Set the timer of a host: it is late by a little, as processes are.
    fn arm(&mut self, at: usize) {
        let sim = &mut self.hosts[at];
        let Some(host) = &sim.host else { return };
        let due = host.due(sim.clock.shows(self.now));
        if due == Micros::MAX || sim.frozen > 0 || sim.clock.stands() {
            return;
        }
        let wake_at = sim.clock.when(due).max(self.now + 1);
        if wake_at < sim.tick_at {
            sim.tick_at = wake_at + self.rng.hosts.below(TICK_LATE_MAX_US);
            self.queue.push(sim.tick_at, Event::Tick(sim.node));
        }
    }

    pub(crate) fn tick(&mut self, node: u8, at_us: Micros) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.hosts[at];
        if sim.tick_at != at_us || !sim.has_timers() {
            return; // an earlier timer took its place
        }
        sim.tick_at = Micros::MAX;
        self.trace.note(self.now, Happened::Ticked(node));
        self.with_host(node, None, None, |host, now, out| host.on_tick(now, out));
        let heard_of = |host: &Host| host.highest_epoch_seen() > host.config().epoch;
        if self.host(node).host.as_ref().is_some_and(heard_of) {
            self.ask_for_epoch(node);
        }
        let sim = &self.hosts[at];
        let slack_us = DEADLINE_SLACK_US;
        if self.now > sim.responsive_since + slack_us {
            let overdue = self.ledger.overdue(node, self.now - slack_us);
            self.check(overdue.map_or(Ok(()), |what| Err(Invariant::DeadlinesKept.broken(what))));
        }
    }

    /// The application of replica `node` wants `instance` of log 0 recovered, or decided as `noop`.
    pub fn recover(&mut self, node: u8, instance: u64, noop: &[u8]) {
        self.recover_in(node, 0, instance, noop);
    }

    /// The same in any log.
    pub fn recover_in(&mut self, node: u8, partition: usize, instance: u64, noop: &[u8]) {
        self.with_host(node, None, None, |host, now, out| {
            let known = &mut |_: inband_paxos::log::Origin, _: &[u8]| {};
            // Delivered before or too far ahead: then there is nothing to do.
            let _ = host.recover(now, partition, instance, noop, out, known);
        });
    }

    fn any_partition(&mut self) -> usize {
        match self.layout.partitions {
            1 => 0,
            several => self.rng.load.below(several as u64) as usize,
        }
    }

    /// A client of replica `node` reads from any log. False if the replica takes no reads.
    pub fn read(&mut self, node: u8) -> bool {
        let partition = self.any_partition();
        self.read_from(node, partition)
    }

    /// A client of replica `node` reads from this log. False if the replica takes no reads.
    pub fn read_from(&mut self, node: u8, partition: usize) -> bool {
        if !self.host(node).is_well() {
            return false;
        }
        let deadline = self.now + self.layout.submit_deadline_us();
        let Some(at) = self.index(node) else {
            return false;
        };
        let sim = &mut self.hosts[at];
        let Some(host) = &mut sim.host else {
            return false;
        };
        let ticket = host.confirm_read(sim.clock.shows(self.now), partition);
        self.ledger.read_begun(node, ticket, deadline);
        self.arm(at);
        true
    }

    /// A client of replica `node` submits a command to any log. False if the replica takes none.
    pub fn submit(&mut self, node: u8) -> bool {
        let partition = self.any_partition();
        self.submit_to(node, partition)
    }

    /// A client of replica `node` submits a command to this log. False if the replica takes none.
    pub fn submit_to(&mut self, node: u8, partition: usize) -> bool {
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
        let sim = &mut self.hosts[at];
        let shows = sim.clock.shows(self.now);
        let host = sim.host.as_mut();
        let submitted = host.map(|h| h.submit(shows, partition, &value, &mut early));
        let Some(Ok(ticket)) = submitted else {
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
