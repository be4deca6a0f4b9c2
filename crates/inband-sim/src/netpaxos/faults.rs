//! The faults of the NetPaxos world.

use inband_netpaxos::c::{IB_NETPAXOS_CONTROL, IB_NETPAXOS_REQUEST};

use super::{Host, NetPaxos, CLIENTS, LEARNERS, SERIALIZERS};
use crate::links::TypeRates;
use crate::{listed, Rates, Strike, Time, World};

listed! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault, said by name {
        CutOneWay = "cut-one-way",
        CutBothWays = "cut-both-ways",
        MinionCutFromStorage = "minion-cut-from-storage",
        MinionCutFromLearners = "minion-cut-from-learners",
        SerializerCutFromMinions = "serializer-cut-from-minions",
        HostPaused = "host-paused",
        SerializerRestarted = "serializer-restarted",
        SerializerGone = "serializer-gone",
        MinionRestarted = "minion-restarted",
        MinionGone = "minion-gone",
        StorageRestarted = "storage-restarted",
        StorageGone = "storage-gone",
        /// It loses its disk too, where storage is on disk.
        StorageReplaced = "storage-replaced",
        LearnerRestarted = "learner-restarted",
        LearnerGone = "learner-gone",
        ClientRestarted = "client-restarted",
        PacketsLost = "packets-lost",
        PacketsRepeated = "packets-repeated",
        PacketsLate = "packets-late",
        PacketsDamaged = "packets-damaged",
        /// Requests reach one minion later than the others.
        MinionLate = "minion-late",
        /// Packets on one link overtake each other: from a serializer, or from a minion to its storage or a learner.
        LinkReorders = "link-reorders",
        /// Most packets of one type are lost or late.
        OneTypeLate = "one-type-late",
    }
}

/// Maximum extra delay of packets to a late minion, and of a packet on a link that reorders.
const SLOW_NS: Time = 400_000;

impl World<NetPaxos> {
    fn any(&mut self, kind: fn(u8) -> Host, count: u8) -> Host {
        kind(1 + self.rng.faults.below(count.into()) as u8)
    }

    fn any_host(&mut self) -> Host {
        let minions = self.system.sizes.minions();
        match self.rng.faults.below(8) {
            0 => self.any(Host::Serializer, SERIALIZERS),
            1..=2 => self.any(Host::Minion, minions),
            3..=4 => self.any(Host::Storage, minions),
            5..=6 => self.any(Host::Learner, LEARNERS),
            _ => self.any(Host::Client, CLIENTS),
        }
    }

    /// Returns whether the cluster can do without this host's memory.
    fn may_lose(&self, host: Host) -> bool {
        match host {
            Host::Storage(minion) => {
                let storages = self.system.storage.iter();
                let complete = storages.filter(|(n, storage)| {
                    let storage = storage.as_ref();
                    **n != minion && storage.is_some_and(|s| s.process.is_complete())
                });
                let others = usize::from(self.system.sizes.minions()) - 1;
                complete.count() > others - usize::from(self.system.sizes.failures)
            }
            Host::Learner(number) => {
                let floor = self.floor();
                let learners = self.system.learner.iter();
                let mut others = learners.filter(|(n, _)| **n != number);
                others.any(|(_, l)| l.as_ref().is_some_and(|l| l.position() >= floor))
            }
            _ => true,
        }
    }

    fn restart(&mut self, host: Host) -> Option<Strike<NetPaxos>> {
        self.stop(host);
        self.start(host, false);
        Some(Strike::Once)
    }

    fn gone(&mut self, host: Host) -> Option<Strike<NetPaxos>> {
        self.stop(host);
        Strike::until(move |world: &mut World<NetPaxos>| world.start(host, false))
    }

    /// Returns whether the host keeps what it needs across a restart.
    fn may_stop(&self, host: Host) -> bool {
        let has_disk = matches!(host, Host::Storage(_) | Host::Learner(_));
        let keeps = has_disk && self.system.is_durable;
        self.is_up(host) && (keeps || self.may_lose(host))
    }

    pub(super) fn strike(&mut self, fault: Fault, lasts: Time) -> Option<Strike<NetPaxos>> {
        let minions = self.system.sizes.minions();
        let (a, b) = (self.any_host(), self.any_host());
        let serializer = self.any(Host::Serializer, SERIALIZERS);
        let minion = self.any(Host::Minion, minions);
        let storage = self.any(Host::Storage, minions);
        let learner = self.any(Host::Learner, LEARNERS);
        let Host::Minion(number) = minion else {
            unreachable!("a minion")
        };
        match fault {
            Fault::CutOneWay => self.cut(vec![(a, b)]),
            Fault::CutBothWays => self.cut(vec![(a, b), (b, a)]),
            Fault::MinionCutFromStorage => self.cut(vec![(minion, Host::Storage(number))]),
            Fault::MinionCutFromLearners => {
                let learners = (1..=LEARNERS).map(Host::Learner);
                self.cut(learners.map(|learner| (minion, learner)).collect())
            }
            Fault::SerializerCutFromMinions => {
                let minions = (1..=minions).map(Host::Minion);
                self.cut(minions.map(|minion| (serializer, minion)).collect())
            }
            Fault::HostPaused => self.pause_for(a, lasts),
            Fault::SerializerRestarted if self.may_stop(serializer) => self.restart(serializer),
            Fault::SerializerGone if self.may_stop(serializer) => self.gone(serializer),
            Fault::MinionRestarted if self.may_stop(minion) => self.restart(minion),
            Fault::MinionGone if self.may_stop(minion) => self.gone(minion),
            Fault::StorageRestarted if self.may_stop(storage) => self.restart(storage),
            Fault::StorageGone if self.may_stop(storage) => self.gone(storage),
            Fault::StorageReplaced if self.is_up(storage) && self.may_lose(storage) => {
                self.stop(storage);
                let Host::Storage(number) = storage else {
                    unreachable!("a storage")
                };
                self.system.disk.remove(&number);
                self.start(storage, false);
                Some(Strike::Once)
            }
            Fault::LearnerRestarted if self.may_stop(learner) => self.restart(learner),
            Fault::LearnerGone if self.may_stop(learner) => self.gone(learner),
            Fault::SerializerRestarted
            | Fault::SerializerGone
            | Fault::MinionRestarted
            | Fault::MinionGone
            | Fault::StorageRestarted
            | Fault::StorageGone
            | Fault::StorageReplaced
            | Fault::LearnerRestarted
            | Fault::LearnerGone => None,
            Fault::ClientRestarted => {
                let client = self.any(Host::Client, CLIENTS);
                self.start(client, false);
                Some(Strike::Once)
            }
            Fault::PacketsLost => self.raise_rates(Rates::MANY_LOST),
            Fault::PacketsRepeated => self.raise_rates(Rates::MANY_REPEATED),
            Fault::PacketsLate => self.raise_rates(Rates::MANY_LATE),
            Fault::PacketsDamaged => self.raise_rates(Rates::MANY_DAMAGED),
            Fault::LinkReorders => {
                let (from, to) = match self.rng.faults.below(3) {
                    0 => (serializer, minion),
                    1 => (minion, Host::Storage(number)),
                    _ => (minion, learner),
                };
                let below = self.rng.faults.below(SLOW_NS);
                self.links.reorder(from, to, below);
                Strike::until(move |world| world.links.reorder(from, to, 0))
            }
            Fault::MinionLate => {
                let by = self.rng.faults.below(SLOW_NS);
                self.links.slow_down(serializer, minion, by);
                Strike::until(move |world| world.links.slow_down(serializer, minion, 0))
            }
            Fault::OneTypeLate => {
                let (first, last) = (IB_NETPAXOS_REQUEST.into(), IB_NETPAXOS_CONTROL.into());
                let rates = TypeRates {
                    kind: self.rng.faults.between(first, last) as u8,
                    loss_ppm: 300_000,
                    hold_up_ppm: 600_000,
                };
                self.raise_type_rates(self.fault_number(), rates)
            }
        }
    }
}
