//! The faults of the box's world.

use inband_box::membership::bitmap;
use inband_box::node::Start;
use inband_box::wire::Type;

use super::{Event, Host, Zab, CLIENTS, MS, PLACES};
use crate::links::TypeRates;
use crate::{listed, Rates, Strike, Time, World};

listed! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault, said by name {
        CutOneWay = "cut-one-way",
        CutBothWays = "cut-both-ways",
        NodeIsolated = "node-isolated",
        LeaderIsolated = "leader-isolated",
        /// The leader can only send, or only receive.
        LeaderHalfDeaf = "leader-half-deaf",
        /// The node sends, but receives nothing.
        NodeDeaf = "node-deaf",
        Split = "split",
        NodePaused = "node-paused",
        LeaderPaused = "leader-paused",
        ProcessPaused = "process-paused",
        NodeRestarted = "node-restarted",
        NodeGone = "node-gone",
        LeaderRestarted = "leader-restarted",
        /// Affects all nodes or, with logs in memory, one.
        PowerCut = "power-cut",
        /// Damages a byte of a node's log on disk, or of its table. The node restarts.
        DiskDamaged = "disk-damaged",
        ClientGone = "client-gone",
        PacketsLost = "packets-lost",
        PacketsRepeated = "packets-repeated",
        PacketsLate = "packets-late",
        PacketsDamaged = "packets-damaged",
        /// Most packets of one type are lost, or arrive after their receiver has timed out.
        OneTypeLate = "one-type-late",
        /// The leader is told to stop. It hands over its lead first, and starts again at once.
        LeaderStops = "leader-stops",
    }
}

/// A node that is told to stop does so after this at the latest.
const STOPS_WITHIN_NS: Time = 100 * MS;
/// How often such a node looks whether it may.
const LOOKS_EVERY_NS: Time = MS / 2;

impl World<Zab> {
    fn any_node(&mut self) -> u8 {
        let nodes: Vec<u8> = self.system.node.keys().copied().collect();
        *self.rng.faults.pick(&nodes).expect("some")
    }

    /// Returns the leader of the highest epoch.
    pub fn leader(&self) -> Option<u8> {
        let (_, (node, _)) = self.system.led.last_key_value()?;
        self.system.node[node].is_some().then_some(*node)
    }

    /// Nodes that run and have their log, as a bitmap.
    pub(super) fn with_logs(&self) -> u8 {
        let nodes = self.system.node.iter();
        let with_logs =
            nodes.filter(|(_, host)| host.as_ref().is_some_and(|host| !host.node.is_recovering()));
        bitmap(with_logs.map(|(node, _)| *node))
    }

    /// Whether a majority keeps its memory without this node.
    fn may_lose(&self, node: u8) -> bool {
        let keep = self.with_logs() & !(1 << node);
        let hosts = self.system.node.values().flatten();
        let mut memberships = hosts.flat_map(|host| {
            let latest = host.node.latest(&host.role);
            // A leader makes it a member at any time, also if it does not know yet that the node has lost its memory.
            let has_joined = host.node.has_caught_up(latest.joining);
            let joined = has_joined.then(|| latest.with_joined());
            std::iter::once(latest).chain(joined)
        });
        // A change may be on its way to nodes that do not know of it yet.
        let changes = self.system.changes;
        let to = changes.filter(|(zxid, _)| *zxid > self.system.ledger.len());
        let is_kept = self.system.membership().has_majority(keep)
            && to.is_none_or(|(_, membership)| membership.has_majority(keep))
            && memberships.all(|membership| membership.has_majority(keep));
        is_kept && self.system.node[&node].is_some()
    }

    /// Returns whether a node may stop, keeping what is on its disk.
    fn may_end(&self, node: u8) -> bool {
        match self.system.is_durable {
            true => self.system.node[&node].is_some(),
            false => self.may_lose(node),
        }
    }

    fn power_cut(&mut self) -> Option<Strike<Zab>> {
        let up = self.system.up();
        for node in &up {
            self.stop_node(*node);
        }
        let all: Vec<u8> = self.system.node.keys().copied().collect();
        for node in all {
            self.cut_power(node);
        }
        for node in up {
            self.start_node(node, Start::Recovering);
        }
        Some(Strike::Once)
    }

    fn between(&self, some: &[u8]) -> Vec<(Host, Host)> {
        let others = (1..=PLACES).filter(|node| !some.contains(node));
        others
            .flat_map(|other| some.iter().map(move |one| (Host(*one), Host(other))))
            .collect()
    }

    /// Cuts all links between some nodes and the others.
    pub fn isolate(&mut self, some: &[u8]) -> Option<Strike<Zab>> {
        let pairs = self.between(some);
        let back = pairs.iter().map(|(a, b)| (*b, *a));
        let both = pairs.iter().copied().chain(back).collect();
        self.cut(both)
    }

    /// Repairs all links.
    pub fn reconnect(&mut self) {
        self.links.heal();
    }

    /// Pauses a node, role and process.
    pub fn pause_node(&mut self, node: u8, lasts: Time) {
        self.pause(Host(node), self.now + lasts);
    }

    /// A node's directory is lost, and its operator starts it as a node of a new cluster.
    pub fn lose_directory(&mut self, node: u8) {
        self.stop_node(node);
        self.system.stored.remove(&node);
        self.system.disk.remove(&node);
        self.system.lost.insert(node);
        self.start_node(node, Start::Founding);
    }

    /// Cuts all links to a node.
    pub fn deafen(&mut self, node: u8) -> Option<Strike<Zab>> {
        let pairs = self.between(&[node]);
        self.cut(pairs.into_iter().map(|(a, b)| (b, a)).collect())
    }

    fn restart(&mut self, node: u8) -> Option<Strike<Zab>> {
        if !self.may_end(node) {
            return None;
        }
        self.stop_node(node);
        if self.rng.faults.below(2) == 0 {
            self.cut_power(node);
        }
        self.start_node(node, Start::Recovering);
        Some(Strike::Once)
    }

    /// Tells a node to stop. It starts again at once.
    pub fn tell_to_stop(&mut self, id: u8) {
        if let Some(Some(host)) = self.system.node.get(&id) {
            let (start, by) = (host.start, self.now + STOPS_WITHIN_NS);
            self.after(0, Event::Stops(Host(id), start, by));
        }
    }

    /// The node that had this start stops as soon as it may, or by this time.
    pub(super) fn stops(&mut self, id: u8, start: u64, by: Time) {
        let hosts = &self.system.node;
        if hosts[&id].as_ref().is_none_or(|host| host.start != start) {
            return;
        }
        let is_handed_over = self.hands_over(id);
        if is_handed_over || self.now >= by {
            let name = match is_handed_over {
                true => "leads handed over",
                false => "leads not handed over",
            };
            self.stats.count(name, 1);
            self.restart(id);
            return;
        }
        self.after(LOOKS_EVERY_NS, Event::Stops(Host(id), start, by));
    }

    pub(super) fn strike(&mut self, fault: Fault, lasts: Time) -> Option<Strike<Zab>> {
        let (node, other) = (self.any_node(), self.any_node());
        let (a, b) = (Host(node), Host(other));
        match fault {
            Fault::CutOneWay => self.cut(vec![(a, b)]),
            Fault::CutBothWays => self.cut(vec![(a, b), (b, a)]),
            Fault::NodeIsolated => self.isolate(&[node]),
            Fault::LeaderIsolated => {
                let leader = self.leader()?;
                self.isolate(&[leader])
            }
            Fault::LeaderHalfDeaf => {
                let leader = self.leader()?;
                let mut pairs = self.between(&[leader]);
                if self.rng.faults.below(2) == 0 {
                    pairs = pairs.into_iter().map(|(a, b)| (b, a)).collect();
                }
                self.cut(pairs)
            }
            Fault::NodeDeaf => self.deafen(node),
            Fault::Split => {
                let nodes = 1..=PLACES;
                let some: Vec<u8> = nodes.filter(|_| self.rng.faults.below(2) == 0).collect();
                self.isolate(&some)
            }
            Fault::NodePaused => self.pause_for(Host(node), lasts),
            Fault::LeaderPaused => {
                let leader = self.leader()?;
                self.pause_for(Host(leader), lasts)
            }
            Fault::ProcessPaused => {
                let until = self.now + lasts;
                self.system.process_paused_until.insert(node, until);
                Strike::for_a_while()
            }
            Fault::NodeRestarted => self.restart(node),
            Fault::LeaderRestarted => {
                let leader = self.leader()?;
                self.restart(leader)
            }
            Fault::NodeGone if !self.may_end(node) => None,
            Fault::NodeGone => {
                self.stop_node(node);
                Strike::until(move |world| world.start_node(node, Start::Recovering))
            }
            Fault::PowerCut if self.system.is_durable => self.power_cut(),
            Fault::PowerCut => self.restart(node),
            Fault::DiskDamaged if !self.may_lose(node) => None,
            Fault::DiskDamaged => {
                self.stop_node(node);
                self.damage_disk(node);
                self.start_node(node, Start::Recovering);
                Some(Strike::Once)
            }
            Fault::ClientGone => {
                let client = self.rng.faults.below(CLIENTS.into()) as u8;
                self.client_leaves(client);
                Some(Strike::Once)
            }
            Fault::PacketsLost => self.raise_rates(Rates::MANY_LOST),
            Fault::PacketsRepeated => self.raise_rates(Rates::MANY_REPEATED),
            Fault::PacketsLate => self.raise_rates(Rates::MANY_LATE),
            Fault::PacketsDamaged => self.raise_rates(Rates::MANY_DAMAGED),
            Fault::OneTypeLate => {
                let (first, last) = (Type::Submit as u64, Type::Control as u64);
                let rates = TypeRates {
                    kind: self.rng.faults.between(first, last) as u8,
                    loss_ppm: 300_000,
                    hold_up_ppm: 800_000,
                };
                self.raise_type_rates(self.fault_number(), rates)
            }
            Fault::LeaderStops => {
                let leader = self.leader()?;
                self.tell_to_stop(leader);
                Some(Strike::Once)
            }
        }
    }
}
