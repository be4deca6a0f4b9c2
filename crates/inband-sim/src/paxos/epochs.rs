//! Reconfiguration by a trusted coordinator that cannot fail, in place of the control plane: for tests that need each
//! step at a certain moment, and for some seeds. Other seeds run the real control plane, in [`crate::paxos::plane`].
//!
//! The rules (protocol.md, 4 and 5): the acceptors of an epoch are sealed for the next one. Once a majority of them is
//! sealed, not counting recovering ones, their state is merged as phase 1 would. Each acceptor of the next epoch gets
//! that state and votes from then on. Each host enters the epoch at its own time: before that, during it, or long
//! after.

use std::collections::{BTreeMap, BTreeSet};

use inband_paxos::dataplane::registers::SlotView;
use inband_paxos::dataplane::soft::Registers;
use inband_paxos::host::{spread_leaders, EpochConfig};
use inband_paxos::timing::Micros;

use crate::paxos::event::Event;
use crate::paxos::fault_kind::FaultKind;
use crate::paxos::limits::{COORDINATOR_MAX_US, ENTER_MAX_US};
use crate::paxos::mutation::Mutation;
use crate::paxos::trace::Happened;
use crate::paxos::{counts, World};

/// The members of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// Nodes whose acceptors vote.
    pub acceptors: Vec<u8>,
    /// Nodes with a replica.
    pub replicas: Vec<u8>,
    /// Nodes that may lead, in take-over order.
    pub leaders: Vec<u8>,
}

/// The state of one acceptor in one log, or of several acceptors merged.
#[derive(Debug, Clone, Default)]
struct Held {
    promise: u64,
    floor: u64,
    highest: u64,
    votes: BTreeMap<u64, SlotView>,
}

/// A reconfiguration that the coordinator has begun.
#[derive(Debug)]
pub(crate) struct Change {
    epoch: u32,
    /// The state, by log, of each sealed acceptor of the previous epoch.
    sealed: BTreeMap<u8, Vec<Held>>,
    /// The merged state of a majority of them.
    merged: Option<Vec<Held>>,
    installed: BTreeSet<u8>,
}

impl Change {
    /// Returns whether this acceptor has not yet received the previous epoch's state.
    fn awaits(&self, node: u8) -> bool {
        !self.installed.contains(&node)
    }
}

impl Held {
    fn of(registers: &Registers, partition: usize, ring_slots: usize) -> Held {
        let view = registers.acceptor.acceptor(partition);
        let slots = (0..ring_slots).filter_map(|slot| {
            let slot = registers.ring.slot(partition * ring_slots + slot)?;
            let is_vote = slot.vround != 0 && slot.instance >= view.floor;
            is_vote.then_some((slot.instance, slot))
        });
        Held {
            promise: view.promise,
            floor: view.floor,
            highest: view.highest,
            votes: slots.collect(),
        }
    }

    fn add(&mut self, other: &Held) {
        self.promise = self.promise.max(other.promise);
        self.floor = self.floor.max(other.floor);
        self.highest = self.highest.max(other.highest);
        for (instance, vote) in &other.votes {
            let held = self.votes.get(instance);
            if held.is_none_or(|held| held.vround < vote.vround) {
                self.votes.insert(*instance, vote.clone());
            }
        }
        self.votes = self.votes.split_off(&self.floor);
    }

    fn install(&self, registers: &Registers, partition: usize, ring_slots: usize, epoch: u64) {
        let acceptor = &registers.acceptor;
        acceptor.seal(partition, epoch);
        acceptor.adopt(partition, self.promise, self.floor, self.highest);
        let nothing = SlotView::default();
        for instance in self.floor..self.floor + ring_slots as u64 {
            let vote = self.votes.get(&instance).unwrap_or(&nothing);
            let slot = instance as usize & (ring_slots - 1);
            let replaced = registers.ring.replace(partition * ring_slots + slot, vote);
            assert!(replaced, "nobody else is at it");
        }
        acceptor.adopted(partition, self.highest);
        acceptor.open(partition);
    }
}

/// Returns whether the good acceptors are a majority only with `node`.
fn needs(acceptors: &[u8], is_good: impl Fn(u8) -> bool, node: u8) -> bool {
    let good = acceptors.iter().filter(|n| is_good(**n)).count();
    acceptors.contains(&node) && is_good(node) && good <= acceptors.len() / 2 + 1
}

impl World {
    /// Returns the latest epoch that the coordinator has begun.
    pub fn epoch(&self) -> u32 {
        self.system.members.len() as u32
    }

    fn members_of(&self, epoch: u32) -> &Members {
        &self.system.members[epoch as usize - 1]
    }

    /// Returns the configuration for a host that enters this epoch.
    pub(crate) fn epoch_config(&self, epoch: u32) -> EpochConfig {
        let members = self.members_of(epoch);
        EpochConfig {
            epoch,
            acceptors: members.acceptors.clone(),
            replicas: members.replicas.clone(),
            leaders: spread_leaders(&members.leaders, self.system.layout.partitions),
        }
    }

    /// Changes the order of the nodes that may lead. Hosts learn it after random delays.
    pub fn reorder_leaders(&mut self, leaders: Vec<u8>) {
        if self.system.plane.is_some() {
            return self.prefer_leader(leaders[0]);
        }
        self.system.layout.leaders.clone_from(&leaders);
        let members = self.system.members.last_mut().expect("an epoch has begun");
        members.leaders = leaders;
        for node in self.system.layout.nodes() {
            let late_us = self.system.rng.epochs.below(ENTER_MAX_US);
            let reorder = Event::ReorderLeaders(node);
            self.after(late_us, reorder);
        }
    }

    pub(crate) fn reorder_at(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let sim = &self.system.hosts[at];
        // A host that is down, or enters the epoch later, is told then.
        if sim.frozen > 0 || sim.host.is_none() || sim.epoch < self.epoch() {
            return;
        }
        let leaders = self.epoch_config(sim.epoch).leaders;
        self.with_host(node, None, None, |host, now, out| {
            host.reorder_leaders(now, &leaders, out);
        });
    }

    /// Returns whether a majority of the latest epoch's acceptors vote in it. If another epoch began before that, there
    /// might never be a majority to seal.
    pub fn is_open(&self) -> bool {
        let acceptors = &self.system.layout.acceptors;
        let voting = acceptors.iter().filter(|n| self.knows(**n, self.epoch()));
        voting.count() > acceptors.len() / 2
    }

    /// Begins the next epoch with these members. The previous one must be open.
    pub fn reconfigure(&mut self, members: Members) {
        let majority = self.system.layout.acceptors.len() / 2 + 1;
        let was_opened = |change: &Change| change.installed.len() >= majority;
        assert!(
            self.system.change.as_ref().is_none_or(was_opened),
            "it never will"
        );
        let before = self.system.layout.acceptors.clone();
        let epoch = self.epoch() + 1;
        self.system.layout.acceptors.clone_from(&members.acceptors);
        self.system.layout.replicas.clone_from(&members.replicas);
        self.system.layout.leaders.clone_from(&members.leaders);
        for observer in &mut self.system.observers {
            observer.epoch_begins(epoch, &members.acceptors);
        }
        self.system.members.push(members);
        self.system.change = Some(Change {
            epoch,
            sealed: BTreeMap::new(),
            merged: None,
            installed: BTreeSet::new(),
        });
        self.stats.count(counts::EPOCHS, 1);
        self.stats.faults.add(FaultKind::Reconfiguration.name(), 1);
        for node in before {
            self.coordinator_turns_to(Event::Seal(node, epoch));
        }
        for node in self.system.layout.nodes() {
            let late_us = self.system.rng.epochs.below(ENTER_MAX_US);
            let enter = Event::EnterEpoch(node, epoch);
            self.after(late_us, enter);
        }
    }

    fn coordinator_turns_to(&mut self, event: Event) {
        let wait_us = self.system.rng.epochs.between(1, COORDINATOR_MAX_US);
        self.after(wait_us, event);
    }

    fn is_reached(&self, node: u8) -> bool {
        self.host(node).is_well() && !self.system.hidden.contains(&node)
    }

    /// Seals an acceptor of the previous epoch.
    pub(crate) fn seal(&mut self, node: u8, epoch: u32) {
        let Some(mut change) = self.system.change.take_if(|change| change.epoch == epoch) else {
            return;
        };
        if self.is_reached(node) {
            self.seal_now(node, &mut change);
        } else {
            self.coordinator_turns_to(Event::Seal(node, epoch));
        }
        self.system.change = Some(change);
    }

    fn seal_now(&mut self, node: u8, change: &mut Change) {
        let (partitions, ring_slots) =
            (self.system.layout.partitions, self.system.layout.ring_slots);
        let Some(registers) = self.registers(node) else {
            return;
        };
        let before = registers.acceptor.acceptor(0);
        if before.epoch >= u64::from(change.epoch) {
            return; // it has its state by now, and votes
        }
        let voted = before.voting && before.epoch == u64::from(change.epoch - 1);
        let held: Vec<Held> = (0..partitions)
            .map(|partition| {
                let epoch = u64::from(change.epoch);
                registers.acceptor.seal(partition, epoch);
                Held::of(registers, partition, ring_slots)
            })
            .collect();
        let happened = Happened::Epoch(node, "sealed for", change.epoch);
        self.trace.note(self.now, happened);
        self.look_at_all(node);
        let counts = voted || self.system.mutation == Some(Mutation::RecoveringSealed);
        if change.merged.is_some() || !counts {
            return;
        }
        change.sealed.insert(node, held);
        let acceptors = &self.members_of(change.epoch - 1).acceptors;
        let needed = match self.system.mutation {
            Some(Mutation::OpenedEarly) => 1,
            _ => acceptors.len() / 2 + 1,
        };
        if change.sealed.len() < needed {
            return;
        }
        let mut merged = vec![Held::default(); partitions];
        for held in change.sealed.values() {
            for (merged, held) in merged.iter_mut().zip(held) {
                merged.add(held);
            }
        }
        change.merged = Some(merged);
        for node in self.system.layout.acceptors.clone() {
            self.coordinator_turns_to(Event::Install(node, change.epoch));
        }
    }

    /// Gives an acceptor of the new epoch the state of the previous one.
    pub(crate) fn install(&mut self, node: u8, epoch: u32) {
        let Some(mut change) = self.system.change.take_if(|change| change.epoch == epoch) else {
            return;
        };
        if self.is_reached(node) {
            self.install_now(node, &mut change);
        } else {
            self.coordinator_turns_to(Event::Install(node, epoch));
        }
        self.system.change = Some(change);
    }

    fn install_now(&mut self, node: u8, change: &mut Change) {
        let ring_slots = self.system.layout.ring_slots;
        let (Some(registers), Some(merged)) = (self.registers(node), &change.merged) else {
            return;
        };
        for (partition, held) in merged.iter().enumerate() {
            let epoch = u64::from(change.epoch);
            held.install(registers, partition, ring_slots, epoch);
        }
        change.installed.insert(node);
        let at = self.index(node).expect("it has registers");
        self.system.hosts[at].memory_lost = false;
        self.system.hosts[at].votes_in = change.epoch;
        let happened = Happened::Epoch(node, "votes in", change.epoch);
        self.trace.note(self.now, happened);
        let host = self.system.hosts[at].host.as_ref();
        let registers = host.and_then(|h| h.switch()).map(|s| s.registers());
        let registers = registers.expect("they were there just now");
        let mut observers = self.system.observers.iter_mut();
        let seen = observers.try_for_each(|observer| observer.installed(node, registers));
        self.check(seen);
    }

    fn registers(&self, node: u8) -> Option<&Registers> {
        let host = self.host(node).host.as_ref()?;
        Some(host.switch()?.registers())
    }

    /// Tells a host of an epoch.
    pub(crate) fn enter_epoch(&mut self, node: u8, epoch: u32) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.system.hosts[at];
        if sim.frozen > 0 {
            return self.coordinator_turns_to(Event::EnterEpoch(node, epoch));
        }
        // A host that is down is told when it starts.
        if sim.host.is_none() || sim.epoch >= epoch {
            return;
        }
        sim.epoch = epoch;
        let config = self.epoch_config(epoch);
        let happened = Happened::Epoch(node, "enters", epoch);
        self.trace.note(self.now, happened);
        self.with_host(node, None, None, |host, now, out| {
            host.enter_epoch(now, &config, out);
        });
    }

    /// A host that has heard of a later epoch, or has just started, asks for the latest.
    pub(crate) fn ask_for_epoch(&mut self, node: u8) {
        let latest = self.epoch();
        // The real control plane tells hosts without being asked.
        if self.system.plane.is_none() && self.host(node).epoch < latest {
            self.coordinator_turns_to(Event::EnterEpoch(node, latest));
        }
    }

    /// Returns whether the acceptor of this host may lose its memory now without stopping the cluster.
    pub(crate) fn may_forget(&self, node: u8) -> bool {
        if let Some(plane) = &self.system.plane {
            return !plane.is_changing(node) && !self.is_needed(node, &[]);
        }
        let awaits = |change: &Change| change.awaits(node);
        // An acceptor that has not yet received the previous epoch's state will still get it, whatever it forgets until
        // then.
        let awaits = self.system.change.as_ref().is_some_and(awaits);
        (awaits || !self.is_needed(node, &[])) && !self.is_needed_before(node, &[])
    }

    /// Returns whether this host may be down for good, together with those in `gone`.
    pub(crate) fn may_die(&self, node: u8, gone: &[u8]) -> bool {
        // The controllers may open the next epoch with this acceptor, since it has reported that it is ready.
        let plane = self.system.plane.as_ref();
        if plane.is_some_and(|plane| plane.is_changing(node)) {
            return false;
        }
        !self.is_needed(node, gone) && !self.is_needed_before(node, gone)
    }

    /// Returns whether the acceptor of this host has kept the state with which it began the epoch.
    fn knows(&self, node: u8, epoch: u32) -> bool {
        let sim = self.host(node);
        sim.votes_in == epoch && !sim.has_forgotten()
    }

    /// Returns whether the latest epoch depends on this acceptor for a majority of voters, now or later.
    fn is_needed(&self, node: u8, gone: &[u8]) -> bool {
        let awaits = |n| {
            self.system
                .change
                .as_ref()
                .is_some_and(|change| change.awaits(n))
        };
        let holds = |n| match &self.system.plane {
            Some(plane) => plane.holds(n),
            None => awaits(n) || self.knows(n, self.epoch()),
        };
        let votes = |n| !gone.contains(&n) && holds(n);
        needs(&self.system.layout.acceptors, votes, node)
    }

    /// Returns whether sealing the previous epoch depends on this acceptor.
    fn is_needed_before(&self, node: u8, gone: &[u8]) -> bool {
        let change = self.system.change.as_ref().filter(|c| c.merged.is_none());
        change.is_some_and(|change| {
            let knows = |n| !gone.contains(&n) && self.knows(n, change.epoch - 1);
            let acceptors = &self.members_of(change.epoch - 1).acceptors;
            needs(acceptors, knows, node)
        })
    }

    /// Begins another epoch with randomly changed members.
    pub(crate) fn reconfigure_at_random(&mut self) {
        if self.system.reconfigure_us == 0 {
            return;
        }
        let wait_us = self.system.rng.epochs.wait(self.system.reconfigure_us);
        self.after(wait_us, Event::Reconfigure);
        if self.system.plane.is_some() {
            return self.change_at_random();
        }
        if !self.is_open() {
            return;
        }
        let mut members = self.members_of(self.epoch()).clone();
        let hosts = self.system.layout.acceptor_hosts.clone();
        let others: Vec<u8> = hosts
            .into_iter()
            .filter(|node| !members.acceptors.contains(node))
            .collect();
        let rng = &mut self.system.rng.epochs;
        let place = rng.below(members.acceptors.len() as u64) as usize;
        if rng.below(5) == 0 {
            members.leaders.rotate_left(1);
            self.stats.faults.add(FaultKind::LeaderMove.name(), 1);
            return self.reorder_leaders(members.leaders);
        }
        match (rng.below(4), rng.pick(&others)) {
            (0, Some(other)) => members.acceptors[place] = *other,
            (1, Some(other)) => members.acceptors.push(*other),
            (1, None) if members.acceptors.len() > 3 => {
                members.acceptors.remove(place);
            }
            (2, _) => members.leaders.rotate_left(1),
            _ => {}
        }
        self.reconfigure(members);
    }

    /// Begins another epoch at this mean interval; 0: no more.
    pub fn reconfigure_every(&mut self, mean_us: Micros) {
        self.system.reconfigure_us = mean_us;
        if mean_us > 0 {
            let wait_us = self.system.rng.epochs.wait(mean_us);
            self.after(wait_us, Event::Reconfigure);
        }
    }
}
