//! The faults of FLAIR's world.

use inband_flair::dataplane::wire::Type;
use inband_flair::timing::Nanos;

use super::host::Host;
use super::limits::SLOW_NS;
use super::{Flair, World};
use crate::faults::Strike;
use crate::links::TypeRates;
use crate::listed;
use crate::rng::Rng;

listed! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault, said by name {
        CutOneWay = "cut-one-way",
        CutBothWays = "cut-both-ways",
        LeaderCutFromReplicas = "leader-cut-from-replicas",
        LeaderUnheardBySwitch = "leader-unheard-by-switch",
        SwitchUnheardByLeader = "switch-unheard-by-leader",
        SwitchCutFromLeaderOnly = "switch-cut-from-leader-only",
        PausedReplica = "paused-replica",
        PausedLeader = "paused-leader",
        PausedSwitch = "paused-switch",
        ReplicaLost = "replica-lost",
        LeaderLost = "leader-lost",
        /// All hosts lose power for a while; only if replicas have disks.
        PowerCut = "power-cut",
        SwitchReset = "switch-reset",
        SwitchGone = "switch-gone",
        FollowerBehind = "follower-behind",
        PacketsLost = "packets-lost",
        PacketsLate = "packets-late",
        RepliesLate = "replies-late",
    }
}

fn pick(rng: &mut Rng, below: u8) -> u8 {
    rng.below(u64::from(below)) as u8
}

impl World {
    fn any_host(&mut self) -> Host {
        let layout = self.system.layout;
        let rng = &mut self.rng.faults;
        match rng.below(5) {
            0..=1 => Host::Replica(pick(rng, layout.replicas)),
            2..=3 => Host::Switch(pick(rng, layout.switches)),
            _ => Host::Client(pick(rng, layout.clients)),
        }
    }

    fn lose(&mut self, replica: u8) -> Option<Strike<Flair>> {
        if self.replica(replica).is_none() || !self.may_stop_replica(replica) {
            return None;
        }
        self.stop_replica(replica);
        let with_machine = self.rng.faults.below(2) == 0;
        Strike::until(move |world| world.restart_replica(replica, with_machine))
    }

    pub(super) fn strike(&mut self, fault: Fault, lasts_ns: Nanos) -> Option<Strike<Flair>> {
        let (replicas, switches) = (self.system.layout.replicas, self.system.layout.switches);
        let replica = pick(&mut self.rng.faults, replicas);
        let switch = pick(&mut self.rng.faults, switches);
        let leader = self.leader();
        match fault {
            Fault::CutOneWay => self.cut_one_way(World::any_host),
            Fault::CutBothWays => self.cut_both_ways(World::any_host),
            Fault::LeaderCutFromReplicas => {
                let leader = Host::Replica(leader?);
                let others = (0..replicas).map(Host::Replica).filter(|r| *r != leader);
                let pairs = others.flat_map(|r| [(leader, r), (r, leader)]);
                self.cut(pairs.collect())
            }
            Fault::LeaderUnheardBySwitch => {
                self.cut(vec![(Host::Replica(leader?), Host::Switch(switch))])
            }
            Fault::SwitchUnheardByLeader => {
                self.cut(vec![(Host::Switch(switch), Host::Replica(leader?))])
            }
            Fault::SwitchCutFromLeaderOnly => {
                let (leader, switch) = (Host::Replica(leader?), Host::Switch(switch));
                self.cut(vec![(leader, switch), (switch, leader)])
            }
            Fault::PausedReplica => self.pause_for(Host::Replica(replica), lasts_ns),
            Fault::PausedLeader => self.pause_for(Host::Replica(leader?), lasts_ns),
            Fault::PausedSwitch => self.pause_for(Host::Switch(switch), lasts_ns),
            Fault::ReplicaLost => self.lose(replica),
            Fault::LeaderLost => self.lose(leader?),
            Fault::PowerCut if self.system.layout.sync => {
                (0..replicas).for_each(|replica| self.stop_replica(replica));
                (0..switches).for_each(|switch| self.stop_switch(switch));
                Strike::until(move |world| {
                    (0..replicas).for_each(|replica| world.restart_replica(replica, true));
                    (0..switches).for_each(|switch| world.restart_switch(switch));
                })
            }
            Fault::PowerCut => None,
            Fault::SwitchReset => {
                let with_machine = self.rng.faults.below(2) == 0;
                self.reset_switch(switch, with_machine);
                Strike::for_a_while()
            }
            Fault::SwitchGone => {
                self.switch(switch)?;
                self.stop_switch(switch);
                Strike::until(move |world| world.restart_switch(switch))
            }
            Fault::FollowerBehind => {
                let (from, to) = (Host::Replica(leader?), Host::Replica(replica));
                let by = self.rng.faults.below(SLOW_NS);
                self.links.slow_down(from, to, by);
                Strike::until(move |world| world.links.slow_down(from, to, 0))
            }
            Fault::PacketsLost => self.lose_packets(),
            Fault::PacketsLate => self.hold_up_packets(),
            Fault::RepliesLate => {
                let rates = TypeRates {
                    kind: Type::WriteReply as u8,
                    loss_ppm: 0,
                    hold_up_ppm: 2 * self.any_share_ppm(),
                };
                self.raise_type_rates(self.fault_number(), rates)
            }
        }
    }
}
