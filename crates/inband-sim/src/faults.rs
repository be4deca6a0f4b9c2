//! What goes wrong, when, and for how long.

use std::collections::BTreeMap;

use inband_dataplane::wire::Type;
use inband_paxos::timing::Micros;

use crate::limits::FAULT_MAX_US;
use crate::network::{DropRule, Rates};
use crate::queue::Event;
use crate::trace::Happened;
use crate::world::World;

/// A fault under way and what its end must undo.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    Cut(Vec<(u8, u8)>),
    Rates,
    Rule,
    LinksHeld(u8),
    Frozen(u8),
    Down(u8),
    HandOff(u8),
    PowerCut(Vec<u8>),
    DiskFull(u8),
    DiskFails,
}

/// The faults under way.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Mean time between two faults; 0: none.
    pub every_us: Micros,
    next_id: u64,
    active: BTreeMap<u64, Fault>,
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
        let nodes = self.layout.nodes();
        let rng = &mut self.rng.faults;
        let node = *rng.pick(&nodes).expect("a cluster has nodes");
        let other = *rng.pick(&nodes).expect("a cluster has nodes");
        let kind = rng.below(16);
        let both = rng.chance_ppm(500_000);
        let lasts_us = rng.between(500, FAULT_MAX_US);
        let (name, fault) = match kind {
            0 | 1 if node != other => {
                let mut pairs = vec![(node, other)];
                if both {
                    pairs.push((other, node));
                }
                ("partition of a pair", self.cut_pairs(pairs))
            }
            2 | 3 => {
                let others: Vec<u8> = nodes.iter().copied().filter(|n| *n != node).collect();
                let way = self.rng.faults.below(3);
                let mut pairs = Vec::new();
                for other in others {
                    if way != 0 {
                        pairs.push((node, other));
                    }
                    if way != 1 {
                        pairs.push((other, node));
                    }
                }
                ("isolation", self.cut_pairs(pairs))
            }
            4 => {
                let rng = &mut self.rng.faults;
                let side: Vec<bool> = nodes.iter().map(|_| rng.chance_ppm(500_000)).collect();
                let mut pairs = Vec::new();
                for (i, a) in nodes.iter().enumerate() {
                    for (j, b) in nodes.iter().enumerate() {
                        if side[i] != side[j] {
                            pairs.push((*a, *b));
                        }
                    }
                }
                ("partition in two", self.cut_pairs(pairs))
            }
            5 | 6 => {
                let rng = &mut self.rng.faults;
                let kind = *rng.pick(&Type::ALL).expect("there are types");
                let ppm = if both { 1_000_000 } else { 700_000 };
                self.network
                    .rules
                    .insert(self.faults.next_id, DropRule { kind, ppm });
                ("loss of one type", Fault::Rule)
            }
            7 | 8 => {
                let rng = &mut self.rng.faults;
                let rates = Rates {
                    loss_ppm: rng.below(500_000),
                    duplicate_ppm: rng.below(200_000),
                    hold_up_ppm: rng.below(300_000),
                    bit_flip_ppm: rng.below(50_000),
                };
                self.network.extra.insert(self.faults.next_id, rates);
                ("bad weather", Fault::Rates)
            }
            9 | 10 => {
                self.hold_links(node);
                ("links held", Fault::LinksHeld(node))
            }
            11 => {
                self.freeze(node);
                ("process stopped", Fault::Frozen(node))
            }
            12 if self.hand_off(node, true) => ("hand-off fails", Fault::HandOff(node)),
            13..=15 if self.layout.sync && self.rng.disks.below(2) == 0 => self.strike_disk(node),
            13..=15 if self.may_crash(node) => {
                self.crash(node);
                ("crash", Fault::Down(node))
            }
            _ => return,
        };
        let id = self.faults.next_id;
        self.faults.next_id += 1;
        self.faults.active.insert(id, fault);
        self.stats.faults += 1;
        self.trace
            .note(self.now, Happened::Fault(name, node, other));
        self.queue.push(self.now + lasts_us, Event::FaultEnds(id));
    }

    /// A fault of a disk, or of the power under all of them.
    fn strike_disk(&mut self, node: u8) -> (&'static str, Fault) {
        match self.rng.disks.below(5) {
            0 => {
                let nodes = self.layout.nodes();
                let up = nodes.into_iter().filter(|n| self.host(*n).host.is_some());
                let up: Vec<u8> = up.collect();
                self.power_cut();
                ("power cut of everything", Fault::PowerCut(up))
            }
            1 => {
                self.fill_disk(node, true);
                ("disk full", Fault::DiskFull(node))
            }
            2 => {
                self.fail_disk(node);
                ("disk fails", Fault::DiskFails)
            }
            3 if self.may_forget(node) => {
                self.crash(node);
                self.damage_journal(node);
                ("journal damaged", Fault::Down(node))
            }
            _ => {
                self.crash(node);
                ("crash", Fault::Down(node))
            }
        }
    }

    fn cut_pairs(&mut self, pairs: Vec<(u8, u8)>) -> Fault {
        for (from, to) in &pairs {
            self.network.cut(*from, *to);
        }
        Fault::Cut(pairs)
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
                    self.network.mend(from, to);
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
            Fault::Down(node) => self.start(node),
            Fault::PowerCut(nodes) => nodes.into_iter().for_each(|node| self.start(node)),
            Fault::DiskFull(node) => self.fill_disk(node, false),
            Fault::DiskFails => {}
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
