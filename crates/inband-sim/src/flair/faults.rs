//! What goes wrong, and when, by the seed.

use inband_flair::timing::{Nanos, MS};

use super::limits::SLOW_NS;
use super::links::Host;
use super::trace::Happened;
use super::world::{Event, World};
use crate::listed::listed;
use crate::rng::Rng;

listed! {
    /// Kinds of faults.
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
        /// Everything is off for a while; only if replicas have disks.
        PowerCut = "power-cut",
        SwitchReset = "switch-reset",
        SwitchGone = "switch-gone",
        FollowerBehind = "follower-behind",
        PacketsLost = "packets-lost",
        PacketsLate = "packets-late",
        RepliesLate = "replies-late",
    }
}

impl Fault {
    /// Names of all.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Fault::ALL.into_iter().map(Fault::name)
    }
}

/// How a fault is undone.
#[derive(Debug)]
enum Undo {
    Mend(Vec<(Host, Host)>),
    Start(u8),
    StartSwitch(u8),
    StartAll,
    SpeedUp(Host, Host),
    Lose(u64),
    HoldUp(u64),
    ReplyLate(u64),
}

/// Faults under way.
#[derive(Debug, Default)]
pub(super) struct Faults {
    every_ns: Nanos,
    undo: Vec<Option<Undo>>,
}

fn pick(rng: &mut Rng, below: u8) -> u8 {
    rng.below(u64::from(below)) as u8
}

impl World {
    /// Faults strike this often, on average.
    pub(super) fn be_unkind(&mut self, every_ns: Nanos) {
        self.faults.every_ns = every_ns;
        let wait = self.rng_faults.wait(every_ns);
        self.queue.push(self.now + wait, Event::Fault);
    }

    pub(super) fn next_fault(&mut self) {
        if self.faults.every_ns == 0 {
            return;
        }
        let fault = *self.rng_faults.pick(&Fault::ALL).expect("there are some");
        let lasts_ns = self.rng_faults.between(5, 200) * MS;
        if let Some(undo) = self.strike(fault, lasts_ns) {
            self.note_fault(fault);
            let number = self.faults.undo.len();
            self.faults.undo.push(Some(undo));
            let ends = self.now + lasts_ns;
            self.queue.push(ends, Event::FaultEnds(number));
        }
        let wait = self.rng_faults.wait(self.faults.every_ns);
        self.queue.push(self.now + wait, Event::Fault);
    }

    fn any_host(&mut self) -> Host {
        let layout = self.layout;
        let rng = &mut self.rng_faults;
        match rng.below(5) {
            0..=1 => Host::Replica(pick(rng, layout.replicas)),
            2..=3 => Host::Switch(pick(rng, layout.switches)),
            _ => Host::Client(pick(rng, layout.clients)),
        }
    }

    fn cut(&mut self, pairs: Vec<(Host, Host)>) -> Option<Undo> {
        pairs.iter().for_each(|(a, b)| self.links.cuts.cut(*a, *b));
        Some(Undo::Mend(pairs))
    }

    fn pause_for(&mut self, host: Host, lasts_ns: Nanos) -> Option<Undo> {
        self.pause(host, self.now + lasts_ns);
        Some(Undo::Mend(vec![]))
    }

    fn lose(&mut self, replica: u8) -> Option<Undo> {
        if self.replica(replica).is_none() || !self.may_stop_replica(replica) {
            return None;
        }
        self.stop_replica(replica);
        Some(Undo::Start(replica))
    }

    fn strike(&mut self, fault: Fault, lasts_ns: Nanos) -> Option<Undo> {
        let (replicas, switches) = (self.layout.replicas, self.layout.switches);
        let replica = pick(&mut self.rng_faults, replicas);
        let switch = pick(&mut self.rng_faults, switches);
        let leader = self.leader();
        let rate = |rng: &mut Rng| [20_000, 100_000, 300_000][rng.below(3) as usize];
        match fault {
            Fault::CutOneWay => {
                let (a, b) = (self.any_host(), self.any_host());
                self.cut(vec![(a, b)])
            }
            Fault::CutBothWays => {
                let (a, b) = (self.any_host(), self.any_host());
                self.cut(vec![(a, b), (b, a)])
            }
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
            Fault::PowerCut if self.layout.sync => {
                (0..replicas).for_each(|replica| self.stop_replica(replica));
                (0..switches).for_each(|switch| self.stop_switch(switch));
                Some(Undo::StartAll)
            }
            Fault::PowerCut => None,
            Fault::SwitchReset => {
                let with_machine = self.rng_faults.below(2) == 0;
                self.reset_switch(switch, with_machine);
                Some(Undo::Mend(vec![]))
            }
            Fault::SwitchGone => {
                self.switch(switch)?;
                self.stop_switch(switch);
                Some(Undo::StartSwitch(switch))
            }
            Fault::FollowerBehind => {
                let (from, to) = (Host::Replica(leader?), Host::Replica(replica));
                let by = self.rng_faults.below(SLOW_NS);
                self.links.slow_down(from, to, by);
                Some(Undo::SpeedUp(from, to))
            }
            Fault::PacketsLost => {
                let ppm = rate(&mut self.rng_faults);
                self.links.rates.loss_ppm += ppm;
                Some(Undo::Lose(ppm))
            }
            Fault::PacketsLate => {
                let ppm = rate(&mut self.rng_faults);
                self.links.rates.hold_up_ppm += ppm;
                Some(Undo::HoldUp(ppm))
            }
            Fault::RepliesLate => {
                let ppm = 2 * rate(&mut self.rng_faults);
                self.links.rates.late_replies_ppm += ppm;
                Some(Undo::ReplyLate(ppm))
            }
        }
    }

    pub(super) fn end_fault(&mut self, number: usize) {
        // Those of before everything was healed are gone.
        let Some(undo) = self.faults.undo.get_mut(number).and_then(Option::take) else {
            return;
        };
        self.trace.note(self.now, Happened::FaultEnds);
        match undo {
            Undo::Mend(pairs) => pairs.iter().for_each(|(a, b)| self.links.cuts.mend(*a, *b)),
            Undo::Start(replica) => self.restart_replica(replica),
            Undo::StartSwitch(switch) => self.restart_switch(switch),
            Undo::StartAll => {
                (0..self.layout.replicas).for_each(|replica| self.restart_replica(replica));
                (0..self.layout.switches).for_each(|switch| self.restart_switch(switch));
            }
            Undo::SpeedUp(from, to) => self.links.slow_down(from, to, 0),
            Undo::Lose(ppm) => self.links.rates.loss_ppm -= ppm,
            Undo::HoldUp(ppm) => self.links.rates.hold_up_ppm -= ppm,
            Undo::ReplyLate(ppm) => self.links.rates.late_replies_ppm -= ppm,
        }
    }
}
