//! A simulated host: the sans-I/O host of inband-paxos, an application, a disk.

use inband_paxos::host::Host;
use inband_paxos::leadership::LeaderEvent;
use inband_paxos::outbox::{Dest, Outbox};
use inband_paxos::timing::Micros;

use crate::paxos::app::{App, State};
use crate::paxos::clock::Clock;
use crate::paxos::event::Event;
use crate::paxos::invariant::{Broken, Invariant};
use crate::paxos::layout::{Layout, EPOCH};
use crate::paxos::limits::{DEADLINE_SLACK_US, TICK_LATE_MAX_US};
use crate::paxos::liveness::recoveries;
use crate::paxos::mutation::Mutation;
use crate::paxos::power::{has_lost, Power};
use crate::paxos::store::StoreReplica;
use crate::paxos::trace::Happened;
use crate::paxos::{counts, World};

/// A packet that waits: from, to, bytes.
pub(crate) type Waiting = (u8, u8, Vec<u8>);

pub struct SimHost {
    /// Its node id.
    pub node: u8,
    /// The process; `None` while it is down.
    pub host: Option<Host>,
    /// A replica's application, by log.
    pub apps: Vec<App>,
    /// The epoch that the host has entered.
    pub epoch: u32,
    /// The last epoch in which its acceptor began to vote.
    pub votes_in: u32,
    /// Of the process; never reused, except by a mutation.
    pub incarnation: u64,
    /// Number of active faults that hold the packets of its links.
    pub links_held: u32,
    /// Number of active faults that stop its process without loss.
    pub frozen: u32,
    pub(crate) clock: Clock,
    /// Time that it takes per packet; 0: none.
    pub(crate) packet_us: Micros,
    /// The host handles no further packet before this time.
    pub(crate) busy_until: Micros,
    /// Its acceptor has lost its memory and must not vote.
    pub memory_lost: bool,
    pub(crate) power: Power,
    /// The application of a replica of the real store. Only the positions in `apps` count then.
    pub(crate) store: Option<StoreReplica>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) tick_at: Micros,
    pub(crate) responsive_since: Micros,
    pub(crate) flush_is_due: bool,
    /// By log.
    pub(crate) copies_checkpoint: Vec<bool>,
    /// The states that are being copied, by log, as they were when that began.
    pub(crate) copied: Vec<Option<State>>,
}

impl SimHost {
    pub(crate) fn new(node: u8, layout: &Layout) -> SimHost {
        let partitions = layout.partitions;
        let has_store = layout.store && layout.replica_hosts.contains(&node);
        let store =
            || StoreReplica::new(partitions, layout.sync).expect("a directory for temporary files");
        SimHost {
            store: has_store.then(store),
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
            copied: vec![None; partitions],
        }
    }

    /// Returns whether its acceptor has, or may have, lost its memory.
    pub(crate) fn has_forgotten(&self) -> bool {
        self.memory_lost || self.power.is_damaged
    }

    /// Returns whether its process and its clock are running.
    fn has_timers(&self) -> bool {
        self.host.is_some() && self.frozen == 0 && !self.clock.stands()
    }

    /// Returns whether it is up, with its process running and its links not held.
    pub fn is_well(&self) -> bool {
        self.host.is_some() && self.frozen == 0 && self.links_held == 0
    }
}

impl World {
    /// Starts a host, for the first time or after a crash. Does nothing if it is up.
    pub fn start(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        if self.system.hosts[at].host.is_some() {
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
        let reused = self.system.mutation == Some(Mutation::IncarnationReused);
        let sim = &mut self.system.hosts[at];
        if !reused || sim.incarnation == 0 {
            sim.incarnation += 1;
        }
        let is_managed = self.system.layout.plane;
        sim.memory_lost |= journal
            .as_ref()
            .is_some_and(|start| has_lost(start, is_managed));
        // With the real control plane an acceptor votes only when it is told to.
        let remembers = !sim.memory_lost && self.system.plane.is_none();
        let voting = remembers || self.system.mutation == Some(Mutation::Amnesia);
        let entered = match &self.system.plane {
            Some(plane) => plane.kept(node),
            None => self.epoch_config(self.system.hosts[at].epoch),
        };
        if let Err(why) = self.open_store(at) {
            return self.check(Err(Invariant::DiskKept.broken(why)));
        }
        let sim = &mut self.system.hosts[at];
        let applied = sim.apps.iter().map(|app| app.live.applied);
        let config = self
            .system
            .layout
            .host(node, entered, sim.incarnation, applied, voting);
        sim.host = Some(Host::new(sim.clock.shows(self.now), config));
        sim.responsive_since = self.now;
        sim.flush_is_due = false;
        sim.copies_checkpoint.fill(false);
        sim.copied.fill(None);
        let happened = Happened::Started(node, sim.incarnation);
        self.trace.note(self.now, happened);
        if let Some(start) = journal {
            self.restore(at, &start);
        }
        self.start_member(node);
        self.ask_for_epoch(node);
        self.arm(at);
    }

    /// A host loses power: its memory is lost, its disk survives.
    pub fn crash(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.system.hosts[at];
        let Some(host) = sim.host.take() else { return };
        self.stats.count(counts::CRASHES, 1);
        self.stats.count(counts::RECOVERIES, recoveries(&host));
        sim.apps.iter_mut().for_each(App::crash);
        sim.tick_at = Micros::MAX;
        self.store_crashes(at);
        if self.keeps_journal(node) {
            self.close_journal(at);
        } else if self.system.layout.acceptor_hosts.contains(&node) {
            self.system.hosts[at].memory_lost = true;
            self.system
                .observers
                .iter_mut()
                .for_each(|o| o.forgot(node));
        }
        self.crash_member(node);
        self.system.ledger.crashed(node);
        self.trace.note(self.now, Happened::Crashed(node));
    }

    /// Runs `act` on a host and carries out the resulting actions.
    pub(crate) fn with_host(
        &mut self,
        node: u8,
        sender: Option<u8>,
        look_at: Option<(usize, u64)>,
        act: impl FnOnce(&mut Host, Micros, &mut Outbox),
    ) {
        let Some(at) = self.index(node) else { return };
        let mut out = std::mem::take(&mut self.system.out);
        out.clear();
        let sim = &mut self.system.hosts[at];
        let shows = sim.clock.shows(self.now);
        let Some(host) = &mut sim.host else {
            return;
        };
        act(host, shows, &mut out);
        // On a host with several roles one packet may cause votes in any slot.
        let layout = &self.system.layout;
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
                // Host lists the members of groups instead.
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
        self.system.out = out;
        self.sync_later(at);
        self.arm(at);
    }

    /// Checks an acceptor after a change that was not caused by a packet.
    pub(crate) fn look_at_all(&mut self, node: u8) {
        if let Some(at) = self.index(node) {
            self.look(at, None);
        }
    }

    /// Checks one instance of one log, or everything.
    fn look(&mut self, at: usize, look_at: Option<(usize, u64)>) {
        let sim = &self.system.hosts[at];
        if !self.system.layout.acceptor_hosts.contains(&sim.node) {
            return;
        }
        if let Some(switch) = sim.host.as_ref().and_then(Host::switch) {
            let (node, registers) = (sim.node, switch.registers());
            let seen = match look_at {
                Some((partition, instance)) if partition < self.system.observers.len() => {
                    self.system.observers[partition].look(node, registers, Some(instance))
                }
                Some(_) => Ok(()),
                None => {
                    let mut logs = self.system.observers.iter_mut();
                    logs.try_for_each(|log| log.look(node, registers, None))
                }
            };
            let floors = match look_at {
                Some((partition, _)) => partition..(partition + 1).min(self.system.observers.len()),
                None => 0..self.system.observers.len(),
            };
            let floors = floors.map(|p| (p, registers.acceptor.acceptor(p).floor));
            let floors = floors.filter(|(p, floor)| *floor > self.system.floors_held[*p]);
            let raised: Vec<(usize, u64)> = floors.collect();
            self.check(seen);
            for (partition, floor) in raised {
                let held = self.floor_is_held(node, partition, floor);
                self.check(held);
            }
        }
    }

    /// An acceptor has a floor higher than any seen before: checks that a majority of replicas holds everything below
    /// it.
    fn floor_is_held(&mut self, node: u8, partition: usize, floor: u64) -> Result<(), Broken> {
        let holds =
            |replica: &&u8| self.host(**replica).apps[partition].durable.applied + 1 >= floor;
        // Hosts that have not entered the latest epoch follow the previous one.
        let is_held = self.system.members.iter().rev().take(2).any(|members| {
            members.replicas.iter().filter(holds).count() > members.replicas.len() / 2
        });
        self.system.floors_held[partition] = floor;
        is_held.then_some(()).ok_or_else(|| {
            let what = format!(
                "acceptor {node} was told floor {floor} of {partition}, which no majority holds"
            );
            Invariant::TrimKept.broken(what)
        })
    }

    fn report_leader(&mut self, at: usize) {
        let sim = &mut self.system.hosts[at];
        let Some(host) = &mut sim.host else { return };
        for (_, partition, event) in host.take_leader_events() {
            let (what, round) = match event {
                LeaderEvent::Suspected => (0, 0),
                LeaderEvent::Activate(view) => (1, view.round),
                LeaderEvent::Deactivate => (2, 0),
            };
            self.stats.count(counts::ACTIVATIONS, u64::from(what == 1));
            let happened = Happened::Leader(sim.node, partition, what, round);
            self.trace.note(self.now, happened);
        }
    }

    /// Sets the timer of a host, which fires slightly late, as with real processes.
    pub(crate) fn arm(&mut self, at: usize) {
        let sim = &mut self.system.hosts[at];
        let Some(host) = &sim.host else { return };
        let due = host.due(sim.clock.shows(self.now));
        if due == Micros::MAX || sim.frozen > 0 || sim.clock.stands() {
            return;
        }
        let wake_at = sim.clock.when(due).max(self.now + 1);
        if wake_at < sim.tick_at {
            sim.tick_at = wake_at + self.rng.hosts.below(TICK_LATE_MAX_US);
            let (tick_at, node) = (sim.tick_at, sim.node);
            self.at(tick_at, Event::Tick(node, tick_at));
        }
    }

    pub(crate) fn tick(&mut self, node: u8, at_us: Micros) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.system.hosts[at];
        if sim.tick_at != at_us || !sim.has_timers() {
            return; // replaced by an earlier timer
        }
        sim.tick_at = Micros::MAX;
        self.trace.note(self.now, Happened::Ticked(node));
        self.with_host(node, None, None, |host, now, out| host.on_tick(now, out));
        let heard_of = |host: &Host| host.highest_epoch_seen() > host.config().epoch;
        if self.host(node).host.as_ref().is_some_and(heard_of) {
            self.ask_for_epoch(node);
        }
        let sim = &self.system.hosts[at];
        let slack_us = DEADLINE_SLACK_US;
        if self.now > sim.responsive_since + slack_us {
            let overdue = self.system.ledger.overdue(node, self.now - slack_us);
            self.check(overdue.map_or(Ok(()), |what| Err(Invariant::DeadlinesKept.broken(what))));
        }
    }
}
