//! The faults of the Paxos world, and where they strike.

use inband_paxos::dataplane::wire::{flag, Header, Type};
use inband_paxos::timing::Micros;

use crate::faults::Strike;
use crate::links::{Rates, TypeRates};
use crate::paxos::fault_kind::FaultKind;
use crate::paxos::forge;
use crate::paxos::limits::{
    CLOCK_JUMP_MAX_US, FAULT_MAX_US, SLOW_PACKET_MAX_US, SLOW_PACKET_MIN_US, STRAY_RECOVERY_MAX,
};
use crate::paxos::{Paxos, World};

impl World {
    /// Returns whether this host may crash now, with its acceptor possibly gone for good.
    pub fn may_crash(&self, node: u8) -> bool {
        let sim = self.host(node);
        sim.host.is_some() && (self.keeps_journal(node) || self.may_forget(node))
    }

    /// Draws the next fault and its duration; [`crate::paxos::Paxos::aim`] decides where it strikes.
    pub(crate) fn draw_fault(&mut self) -> (FaultKind, Micros) {
        let mut kind = self.any_kind_of_fault();
        let nodes = self.system.layout.nodes();
        let rng = &mut self.rng.faults;
        let node = *rng.pick(&nodes).expect("a cluster has nodes");
        let other = *rng.pick(&nodes).expect("a cluster has nodes");
        let lasts_us = rng.between(500, FAULT_MAX_US);
        if kind == FaultKind::Crash && self.keeps_journal(node) {
            kind = FaultKind::CrashWithJournal;
        }
        self.system.aim = (node, other);
        (kind, lasts_us)
    }

    fn any_kind_of_fault(&mut self) -> FaultKind {
        let weight = |kind: FaultKind| kind.weight(self.system.layout.sync);
        let total = FaultKind::ALL.into_iter().map(weight).sum();
        let mut drawn = self.rng.faults.below(total);
        let mut kinds = FaultKind::ALL.into_iter();
        let is_drawn = |kind: &FaultKind| {
            let weight = kind.weight(self.system.layout.sync);
            let is_it = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            is_it
        };
        kinds.find(is_drawn).expect("the weights add up")
    }

    pub(crate) fn begin(&mut self, kind: FaultKind) -> Option<Strike<Paxos>> {
        let (node, other) = self.system.aim;
        match kind {
            FaultKind::OneWayCut | FaultKind::PairCut if node == other => None,
            FaultKind::OneWayCut => self.cut(vec![(node, other)]),
            FaultKind::PairCut => self.cut(vec![(node, other), (other, node)]),
            FaultKind::OneWayIsolation | FaultKind::Isolation | FaultKind::Split => {
                let pairs = self.pairs_between_parts(kind, node);
                self.cut(pairs)
            }
            FaultKind::LossOfType => {
                let rng = &mut self.rng.faults;
                let kind = *rng.pick(&Type::ALL).expect("there are types");
                let all = rng.chance_ppm(500_000);
                let rates = TypeRates {
                    kind: kind as u8,
                    loss_ppm: if all { 1_000_000 } else { 700_000 },
                    hold_up_ppm: 0,
                };
                self.raise_type_rates(self.fault_number(), rates)
            }
            FaultKind::BadWeather => {
                let rng = &mut self.rng.faults;
                let rates = Rates {
                    loss_ppm: rng.below(500_000),
                    duplicate_ppm: rng.below(200_000),
                    hold_up_ppm: rng.below(300_000),
                    bit_flip_ppm: rng.below(50_000),
                };
                self.raise_rates(rates)
            }
            FaultKind::LinksHeld => {
                self.hold_links(node);
                Strike::until(move |world| world.release_links(node))
            }
            FaultKind::ProcessStopped => {
                self.freeze(node);
                Strike::until(move |world| world.thaw(node))
            }
            FaultKind::SlowNode => {
                let rng = &mut self.rng.faults;
                let packet_us = rng.between(SLOW_PACKET_MIN_US, SLOW_PACKET_MAX_US);
                self.slow_down(node, packet_us);
                Strike::until(move |world: &mut World| world.slow_down(node, 0))
            }
            FaultKind::ClockJump => {
                let by_us = self.rng.faults.below(CLOCK_JUMP_MAX_US);
                self.jump_clock(node, by_us);
                Some(Strike::Once)
            }
            FaultKind::ClockStall => {
                self.stop_clock(node);
                Strike::until(move |world| world.start_clock(node))
            }
            FaultKind::EarlyTrim => self.trim_early(node),
            FaultKind::StrayRecovery => self.recover_stray(node),
            FaultKind::LeaderMove => self.move_leader(),
            FaultKind::HandOffFails if self.hand_off(node, true) => Strike::until(move |world| {
                world.hand_off(node, false);
            }),
            FaultKind::Crash | FaultKind::CrashWithJournal if self.may_crash(node) => {
                self.crash(node);
                Strike::down(node, move |world| world.start(node))
            }
            FaultKind::PowerCut => {
                let nodes = self.system.layout.nodes();
                let up = nodes.into_iter().filter(|n| self.host(*n).host.is_some());
                let up: Vec<u8> = up.collect();
                self.power_cut();
                Strike::until(move |world| up.into_iter().for_each(|node| world.start(node)))
            }
            FaultKind::DiskFull if self.keeps_journal(node) => {
                self.fill_disk(node, true);
                Strike::until(move |world| world.fill_disk(node, false))
            }
            FaultKind::DiskFails if self.keeps_journal(node) => {
                self.fail_disk(node);
                Some(Strike::Once)
            }
            FaultKind::JournalDamaged if self.keeps_journal(node) && self.may_forget(node) => {
                self.crash(node);
                self.damage_journal(node);
                Strike::down(node, move |world| world.start(node))
            }
            _ => None,
        }
    }

    /// Links between a host and all others, or between two parts of the cluster.
    fn pairs_between_parts(&mut self, kind: FaultKind, node: u8) -> Vec<(u8, u8)> {
        let nodes = self.system.layout.nodes();
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

    /// A valid floor reaches an acceptor and another node's leader role before any replica would have announced it.
    fn trim_early(&mut self, node: u8) -> Option<Strike<Paxos>> {
        let rng = &mut self.rng.faults;
        let partition = rng.below(self.system.layout.partitions as u64) as usize;
        let replicas = &self.system.layout.replicas;
        let from = *rng.pick(replicas).expect("a cluster has replicas");
        let leader = rng.pick(&self.system.layout.leaders).copied()?;
        let is_acceptor = self.system.layout.acceptors.contains(&node);
        let held = self.held_by_majority(partition);
        let host = self
            .host(from)
            .host
            .as_ref()
            .filter(|_| is_acceptor && held > 0)?;
        let mut header = Header::new(Type::Trim, u16::from(from), host.config().epoch);
        header.partition = partition as u16;
        header.floor = held + 1;
        self.transmit(from, node, &forge::packet(&header, &[]));
        header.flags = flag::LEADER;
        self.transmit(from, leader, &forge::packet(&header, &[]));
        Some(Strike::Once)
    }

    /// Returns the last instance that a majority of replicas holds durably.
    fn held_by_majority(&self, partition: usize) -> u64 {
        let replicas = self.system.layout.replicas.iter();
        let held = replicas.map(|n| self.host(*n).apps[partition].durable.applied);
        let mut held: Vec<u64> = held.collect();
        held.sort_unstable();
        held[(held.len() - 1) / 2]
    }

    /// A learner recovers an instance that may be decided, in flight, or far ahead.
    fn recover_stray(&mut self, node: u8) -> Option<Strike<Paxos>> {
        let is_up = self.host(node).is_well() && self.system.layout.replicas.contains(&node);
        if !is_up {
            return None;
        }
        let rng = &mut self.rng.faults;
        let partition = rng.below(self.system.layout.partitions as u64) as usize;
        let ahead = rng.between(1, STRAY_RECOVERY_MAX);
        let instance = self.host(node).apps[partition].live.applied + ahead;
        self.recover_in(node, partition, instance, b"");
        Some(Strike::Once)
    }

    fn move_leader(&mut self) -> Option<Strike<Paxos>> {
        let mut leaders = self.system.layout.leaders.clone();
        if leaders.len() < 2 {
            return None;
        }
        let by = 1 + self.rng.faults.below(leaders.len() as u64 - 1);
        leaders.rotate_left(by as usize);
        self.reorder_leaders(leaders);
        Some(Strike::Once)
    }

    /// Makes every hand-over of a decided value on this host fail, or no longer fail. Returns false if it has none.
    pub fn hand_off(&mut self, node: u8, fails: bool) -> bool {
        let Some(at) = self.index(node) else {
            return false;
        };
        let host = self.system.hosts[at].host.as_mut();
        match host.and_then(|h| h.switch_mut()) {
            Some(switch) if self.system.layout.replicas.contains(&node) => {
                switch.set_hand_off_fails(fails);
                true
            }
            _ => false,
        }
    }

    /// Ends all faults, those of links first. Hosts in `stay_down` stay down.
    pub fn end_all_faults(&mut self, stay_down: &[u8]) {
        self.attack_every(0);
        self.end_faults_but(stay_down);
        self.controllers_up();
        self.links.heal();
        self.release();
        for node in self.system.layout.nodes() {
            if !stay_down.contains(&node) {
                self.start(node);
            }
        }
    }
}
