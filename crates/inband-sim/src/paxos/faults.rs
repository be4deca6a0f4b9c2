//! What goes wrong, when, and for how long.

use std::collections::BTreeMap;

use inband_dataplane::wire::{flag, Header, Type};
use inband_paxos::timing::Micros;

use crate::paxos::event::Event;
use crate::paxos::fault_kind::FaultKind;
use crate::paxos::forge;
use crate::paxos::limits::{
    CLOCK_JUMP_MAX_US, FAULT_MAX_US, SLOW_PACKET_MAX_US, SLOW_PACKET_MIN_US, STRAY_RECOVERY_MAX,
};
use crate::paxos::network::{DropRule, Rates};
use crate::paxos::trace::Happened;
use crate::paxos::world::World;

/// A fault under way and what its end must undo.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    Cut(Vec<(u8, u8)>),
    Rates,
    Rule,
    LinksHeld(u8),
    Frozen(u8),
    Slow(u8),
    ClockStands(u8),
    Down(u8),
    HandOff(u8),
    PowerCut(Vec<u8>),
    DiskFull(u8),
}

/// The faults under way.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Mean time between two faults; 0: none.
    pub every_us: Micros,
    next_id: u64,
    active: BTreeMap<u64, Fault>,
}

/// What becomes of the wish for a fault.
enum Begun {
    /// It cannot strike now, or not there.
    NotHere,
    /// It struck, and is over.
    AtOnce,
    Lasts(Fault),
}

/// How unkind a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unkindness {
    /// Damage that packets suffer all the time.
    pub rates: Rates,
    /// Mean time between two faults; 0: none.
    pub every_us: Micros,
}

impl World {
    /// Begin to be unkind, for as long as nothing else is said.
    pub fn be_unkind(&mut self, how: Unkindness) {
        self.network.base = how.rates;
        self.faults.every_us = how.every_us;
        if how.every_us > 0 {
            let wait_us = self.rng.faults.wait(how.every_us);
            self.queue.push(self.now + wait_us, Event::Fault);
        }
    }

    /// May this host crash, now and for good as far as its acceptor is concerned?
    pub fn may_crash(&self, node: u8) -> bool {
        let sim = self.host(node);
        sim.host.is_some() && (self.keeps_journal(node) || self.may_forget(node))
    }

    /// The next fault strikes.
    pub(crate) fn strike(&mut self) {
        let every_us = self.faults.every_us;
        if every_us == 0 {
            return;
        }
        let wait_us = self.rng.faults.wait(every_us);
        self.queue.push(self.now + wait_us, Event::Fault);
        let mut kind = self.any_kind_of_fault();
        let nodes = self.layout.nodes();
        let rng = &mut self.rng.faults;
        let node = *rng.pick(&nodes).expect("a cluster has nodes");
        let other = *rng.pick(&nodes).expect("a cluster has nodes");
        let lasts_us = rng.between(500, FAULT_MAX_US);
        if kind == FaultKind::Crash && self.keeps_journal(node) {
            kind = FaultKind::CrashWithJournal;
        }
        let id = self.faults.next_id;
        let lasting = match self.begin(kind, id, node, other) {
            Begun::NotHere => return,
            Begun::AtOnce => None,
            Begun::Lasts(fault) => Some(fault),
        };
        self.faults.next_id += 1;
        self.stats.faults.note(kind);
        self.trace
            .note(self.now, Happened::Fault(kind.name(), node, other));
        if let Some(fault) = lasting {
            self.faults.active.insert(id, fault);
            self.queue.push(self.now + lasts_us, Event::FaultEnds(id));
        }
    }

    fn any_kind_of_fault(&mut self) -> FaultKind {
        let weight = |kind: FaultKind| kind.weight(self.layout.sync);
        let total = FaultKind::ALL.into_iter().map(weight).sum();
        let mut drawn = self.rng.faults.below(total);
        let mut kinds = FaultKind::ALL.into_iter();
        let is_drawn = |kind: &FaultKind| {
            let weight = kind.weight(self.layout.sync);
            let is_it = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            is_it
        };
        kinds.find(is_drawn).expect("the weights add up")
    }

    fn begin(&mut self, kind: FaultKind, id: u64, node: u8, other: u8) -> Begun {
        match kind {
            FaultKind::OneWayCut | FaultKind::PairCut if node == other => Begun::NotHere,
            FaultKind::OneWayCut => self.cut_pairs(vec![(node, other)]),
            FaultKind::PairCut => self.cut_pairs(vec![(node, other), (other, node)]),
            FaultKind::OneWayIsolation | FaultKind::Isolation | FaultKind::Split => {
                let pairs = self.pairs_between_parts(kind, node);
                self.cut_pairs(pairs)
            }
            FaultKind::LossOfType => {
                let rng = &mut self.rng.faults;
                let kind = *rng.pick(&Type::ALL).expect("there are types");
                let all = rng.chance_ppm(500_000);
                let ppm = if all { 1_000_000 } else { 700_000 };
                self.network.rules.insert(id, DropRule { kind, ppm });
                Begun::Lasts(Fault::Rule)
            }
            FaultKind::BadWeather => {
                let rng = &mut self.rng.faults;
                let rates = Rates {
                    loss_ppm: rng.below(500_000),
                    duplicate_ppm: rng.below(200_000),
                    hold_up_ppm: rng.below(300_000),
                    bit_flip_ppm: rng.below(50_000),
                };
                self.network.extra.insert(id, rates);
                Begun::Lasts(Fault::Rates)
            }
            FaultKind::LinksHeld => {
                self.hold_links(node);
                Begun::Lasts(Fault::LinksHeld(node))
            }
            FaultKind::ProcessStopped => {
                self.freeze(node);
                Begun::Lasts(Fault::Frozen(node))
            }
            FaultKind::SlowNode => {
                let rng = &mut self.rng.faults;
                let packet_us = rng.between(SLOW_PACKET_MIN_US, SLOW_PACKET_MAX_US);
                self.slow_down(node, packet_us);
                Begun::Lasts(Fault::Slow(node))
            }
            FaultKind::ClockJump => {
                let by_us = self.rng.faults.below(CLOCK_JUMP_MAX_US);
                self.jump_clock(node, by_us);
                Begun::AtOnce
            }
            FaultKind::ClockStall => {
                self.stop_clock(node);
                Begun::Lasts(Fault::ClockStands(node))
            }
            FaultKind::EarlyTrim => self.trim_early(node),
            FaultKind::StrayRecovery => self.recover_stray(node),
            FaultKind::LeaderMove => self.move_leader(),
            FaultKind::HandOffFails if self.hand_off(node, true) => {
                Begun::Lasts(Fault::HandOff(node))
            }
            FaultKind::Crash | FaultKind::CrashWithJournal if self.may_crash(node) => {
                self.crash(node);
                Begun::Lasts(Fault::Down(node))
            }
            FaultKind::PowerCut => {
                let nodes = self.layout.nodes();
                let up = nodes.into_iter().filter(|n| self.host(*n).host.is_some());
                let up: Vec<u8> = up.collect();
                self.power_cut();
                Begun::Lasts(Fault::PowerCut(up))
            }
            FaultKind::DiskFull if self.keeps_journal(node) => {
                self.fill_disk(node, true);
                Begun::Lasts(Fault::DiskFull(node))
            }
            FaultKind::DiskFails if self.keeps_journal(node) => {
                self.fail_disk(node);
                Begun::AtOnce
            }
            FaultKind::JournalDamaged if self.keeps_journal(node) && self.may_forget(node) => {
                self.crash(node);
                self.damage_journal(node);
                Begun::Lasts(Fault::Down(node))
            }
            _ => Begun::NotHere,
        }
    }

    /// Links between a host and all others, or between two parts of the cluster.
    fn pairs_between_parts(&mut self, kind: FaultKind, node: u8) -> Vec<(u8, u8)> {
        let nodes = self.layout.nodes();
        let rng = &mut self.rng.faults;
        let is_split = kind == FaultKind::Split;
        let mut in_part = |n: u8| {
            if is_split {
                rng.chance_ppm(500_000)
            } else {
                n == node
            }
        };
        let part: Vec<bool> = nodes.iter().map(|n| in_part(*n)).collect();
        let one_way = kind == FaultKind::OneWayIsolation;
        let outward = self.rng.faults.chance_ppm(500_000);
        let mut pairs = Vec::new();
        for (a_in, a) in part.iter().zip(&nodes) {
            for (b_in, b) in part.iter().zip(&nodes) {
                if a_in != b_in && (!one_way || *a_in == outward) {
                    pairs.push((*a, *b));
                }
            }
        }
        pairs
    }

    /// A floor that is true reaches an acceptor, and another node's leader role, before any replica
    /// would have told it.
    fn trim_early(&mut self, node: u8) -> Begun {
        let rng = &mut self.rng.faults;
        let partition = rng.below(self.layout.partitions as u64) as usize;
        let replicas = &self.layout.replicas;
        let from = *rng.pick(replicas).expect("a cluster has replicas");
        let Some(leader) = rng.pick(&self.layout.leaders).copied() else {
            return Begun::NotHere;
        };
        let is_acceptor = self.layout.acceptors.contains(&node);
        let held = self.held_by_majority(partition);
        let Some(host) = self
            .host(from)
            .host
            .as_ref()
            .filter(|_| is_acceptor && held > 0)
        else {
            return Begun::NotHere;
        };
        let mut header = Header::new(Type::Trim, u16::from(from), host.config().epoch);
        header.partition = partition as u16;
        header.floor = held + 1;
        self.transmit(from, node, &forge::packet(&header, &[]));
        header.flags = flag::LEADER;
        self.transmit(from, leader, &forge::packet(&header, &[]));
        Begun::AtOnce
    }

    /// The last instance that a majority of replicas holds durably.
    fn held_by_majority(&self, partition: usize) -> u64 {
        let replicas = self.layout.replicas.iter();
        let held = replicas.map(|n| self.host(*n).apps[partition].durable.applied);
        let mut held: Vec<u64> = held.collect();
        held.sort_unstable();
        held[(held.len() - 1) / 2]
    }

    /// A learner recovers an instance that may be decided, under way, or far ahead.
    fn recover_stray(&mut self, node: u8) -> Begun {
        let is_up = self.host(node).is_well() && self.layout.replicas.contains(&node);
        if !is_up {
            return Begun::NotHere;
        }
        let rng = &mut self.rng.faults;
        let partition = rng.below(self.layout.partitions as u64) as usize;
        let ahead = rng.between(1, STRAY_RECOVERY_MAX);
        let instance = self.host(node).apps[partition].live.applied + ahead;
        self.recover_in(node, partition, instance, b"");
        Begun::AtOnce
    }

    fn move_leader(&mut self) -> Begun {
        let mut leaders = self.layout.leaders.clone();
        if leaders.len() < 2 {
            return Begun::NotHere;
        }
        let by = 1 + self.rng.faults.below(leaders.len() as u64 - 1);
        leaders.rotate_left(by as usize);
        self.reorder_leaders(leaders);
        Begun::AtOnce
    }

    fn cut_pairs(&mut self, pairs: Vec<(u8, u8)>) -> Begun {
        for (from, to) in &pairs {
            self.network.cuts.cut(*from, *to);
        }
        Begun::Lasts(Fault::Cut(pairs))
    }

    /// Let every hand-over of a decided value fail on this host, or not. False if it has none.
    pub fn hand_off(&mut self, node: u8, fails: bool) -> bool {
        let Some(at) = self.index(node) else {
            return false;
        };
        let host = self.hosts[at].host.as_mut();
        match host.and_then(|h| h.switch_mut()) {
            Some(switch) if self.layout.replicas.contains(&node) => {
                switch.set_hand_off_fails(fails);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn end_fault(&mut self, id: u64) {
        let Some(fault) = self.faults.active.remove(&id) else {
            return;
        };
        match fault {
            Fault::Cut(pairs) => {
                for (from, to) in pairs {
                    self.network.cuts.mend(from, to);
                }
            }
            Fault::Rates => {
                self.network.extra.remove(&id);
            }
            Fault::Rule => {
                self.network.rules.remove(&id);
            }
            Fault::LinksHeld(node) => self.release_links(node),
            Fault::Frozen(node) => self.thaw(node),
            Fault::Slow(node) => self.slow_down(node, 0),
            Fault::ClockStands(node) => self.start_clock(node),
            Fault::Down(node) => self.start(node),
            Fault::PowerCut(nodes) => nodes.into_iter().for_each(|node| self.start(node)),
            Fault::DiskFull(node) => self.fill_disk(node, false),
            Fault::HandOff(node) => {
                self.hand_off(node, false);
            }
        }
        self.trace
            .note(self.now, Happened::Fault("end of fault", 0, 0));
    }

    /// End all faults, those of the links first. Hosts that `stay_down` says stay down.
    pub fn end_all_faults(&mut self, stay_down: &[u8]) {
        self.faults.every_us = 0;
        self.attack_every(0);
        for id in self.faults.active.keys().copied().collect::<Vec<_>>() {
            match self.faults.active.get(&id) {
                Some(Fault::Down(node)) if stay_down.contains(node) => {
                    self.faults.active.remove(&id);
                }
                _ => self.end_fault(id),
            }
        }
        self.controllers_up();
        self.network.heal();
        for (from, to, bytes) in std::mem::take(&mut self.kept) {
            self.transmit(from, to, &bytes);
        }
        for node in self.layout.nodes() {
            if !stay_down.contains(&node) {
                self.start(node);
            }
        }
    }
}
