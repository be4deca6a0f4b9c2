//! Hosts start, stop, stand still, and are well again.

use inband_dataplane::flair::{FlairGeometry, FlairSwitch};
use inband_flair::replica::{Config, Replica};
use inband_flair::timing::{Nanos, Timing, TUNING};
use inband_raft::Tuning;
use inband_storage::Cut;

use super::{ReplicaHost, World};
use crate::drifting_clock::Clock;
use crate::flair::faults::Faults;
use crate::flair::links::Host;
use crate::flair::stats::add_replica;
use crate::flair::trace::Happened;

/// Node ids of switches follow those of replicas.
const SWITCH_NODES: u8 = 100;

impl World {
    pub(super) fn start_replica(&mut self, number: u8, founder: bool) {
        let config = Config {
            replica: number,
            replicas: self.layout.replicas,
            node: u16::from(number) + 1,
            set: 0,
            sets: 1,
            switches: self.layout.switches,
            groups: self.layout.groups,
            founder,
            reads: self.layout.reads,
            leader_avoidance: self.layout.leader_avoidance,
            load_awareness: false,
            timing: Timing {
                tick_ns: self.layout.tick_ns,
                step_down_ns: self.layout.step_down_ns,
                ..Timing::default()
            },
            tuning: Tuning {
                compact_entries: self.layout.log_entries,
                keep_entries: self.layout.log_entries,
                // Power may be cut between any two slices.
                rewrite_slice_bytes: 64,
                ..TUNING
            },
        };
        let random = self.rng.next_u64();
        let now = self.local(Host::Replica(number));
        let replica = match self.disks.get(usize::from(number)) {
            Some(disk) => Replica::open(config, Box::new(disk.clone()), random, now),
            None => Replica::new(config, random, now),
        };
        let replica = replica.expect("it starts");
        self.replicas[usize::from(number)].replica = Some(replica);
        let started = Happened::Started(Host::Replica(number));
        self.trace.note(self.now, started);
        self.sleep(Host::Replica(number), now);
    }

    /// A switch starts, and knows nothing.
    pub(super) fn start_switch(&mut self, number: u8) {
        let geometry = FlairGeometry {
            sets: 1,
            groups: self.layout.groups,
        };
        let incarnation = self.rng.next_u64() | 1;
        let switch = FlairSwitch::new(SWITCH_NODES + number, geometry, incarnation);
        self.switches[usize::from(number)] = Some(switch);
        let started = Happened::Started(Host::Switch(number));
        self.trace.note(self.now, started);
        self.active[usize::from(number)] = 0;
    }

    /// A switch forgets everything, and is down until it is started.
    pub fn stop_switch(&mut self, number: u8) {
        if let Some(switch) = self.switches[usize::from(number)].take() {
            self.count_reasons(&switch);
            let stopped = Happened::Stopped(Host::Switch(number));
            self.trace.note(self.now, stopped);
        }
    }

    /// A switch is back, and knows nothing. If its machine has restarted, too, its clock shows something else.
    pub fn reset_switch(&mut self, number: u8, with_machine: bool) {
        self.stop_switch(number);
        self.stats.resets += 1;
        let clock = Clock::random(&mut self.rng);
        let host = self.hosts.get_mut(&Host::Switch(number));
        if with_machine {
            host.expect("a switch").clock = clock;
        }
        self.suspended.remove(&number);
        self.start_switch(number);
    }

    /// A switch that was stopped is back, and its machine has restarted.
    pub fn restart_switch(&mut self, number: u8) {
        if self.switch(number).is_none() {
            self.reset_switch(number, true);
        }
    }

    /// A replica is gone, with everything it knew but what is on its disk, if it has one.
    pub fn stop_replica(&mut self, number: u8) {
        let host = &mut self.replicas[usize::from(number)];
        if let Some(replica) = host.replica.take() {
            self.trace
                .note(self.now, Happened::Stopped(Host::Replica(number)));
            add_replica(&mut host.counters, replica.counters());
            if let Some(disk) = self.disks.get(usize::from(number)) {
                let cut = [Cut::Unsynced, Cut::Torn, Cut::Scattered][self.rng.below(3) as usize];
                disk.power_cut(cut, &mut |below| self.rng.below(below));
            }
        }
    }

    /// A replica that was stopped is back, and knows nothing but what is on its disk.
    pub fn restart_replica(&mut self, number: u8) {
        if self.replicas[usize::from(number)].replica.is_none() {
            self.stats.restarts += 1;
            // A log that has begun stays what it is.
            let founds = number == 0 && self.layout.sync;
            self.start_replica(number, founds);
        }
    }

    /// Would the group go on without this replica, as every other one sees it? Logs in memory bear the loss of a
    /// minority, those counted that are not back as voters yet.
    pub fn may_stop_replica(&self, number: u8) -> bool {
        if self.layout.sync {
            return true;
        }
        let is_lame = |host: &ReplicaHost| {
            let ids = host.replica.as_ref().map(Replica::raft_ids);
            ids.is_none_or(|(id, voters, _)| !voters.contains(&id))
        };
        let all = self.replicas.iter().enumerate();
        let others_lame = all.filter(|(n, host)| *n != usize::from(number) && is_lame(host));
        if (others_lame.count() + 1) * 2 >= self.replicas.len() {
            return false;
        }
        let others = || {
            let up = self.replicas.iter().enumerate();
            up.filter(|(n, _)| *n != usize::from(number))
                .filter_map(|(_, host)| host.replica.as_ref())
        };
        let alive: Vec<u64> = others().map(|replica| replica.raft_ids().0).collect();
        let mut voting = others().map(|replica| replica.raft_ids().1);
        let has_majority = |voters: Vec<u64>| {
            let left = voters.iter().filter(|id| alive.contains(id)).count();
            voters.is_empty() || left * 2 > voters.len()
        };
        let is_known = others().any(|replica| !replica.raft_ids().1.is_empty());
        is_known && voting.all(has_majority)
    }

    /// A host does nothing until then; what comes waits.
    pub fn pause(&mut self, host: Host, until: Nanos) {
        if let Some(common) = self.hosts.get_mut(&host) {
            common.paused_until = common.paused_until.max(until);
        }
    }

    /// The machine of a switch is suspended for so long: it does nothing, and its clock stands still. So it may serve a
    /// session that is over, which is no breach of [`crate::flair::Rule::OneSwitchServes`]; histories must be right all the same.
    pub fn suspend_switch(&mut self, number: u8, ns: Nanos) {
        self.pause(Host::Switch(number), self.now + ns);
        if let Some(common) = self.hosts.get_mut(&Host::Switch(number)) {
            common.clock.stood_still(ns);
        }
        self.suspended.insert(number);
    }

    /// A host's clock runs at another rate from now on; 1 000 000 is true time's.
    pub fn set_clock_rate(&mut self, host: Host, rate_ppm: u64) {
        if let Some(common) = self.hosts.get_mut(&host) {
            common.clock = common.clock.at_rate(self.now, rate_ppm);
        }
    }

    /// Nothing is wrong any more: links work, everybody is up and awake.
    pub fn heal(&mut self) {
        self.links.heal();
        self.faults = Faults::default();
        for common in self.hosts.values_mut() {
            common.paused_until = common.paused_until.min(self.now);
        }
        for number in 0..self.layout.replicas {
            self.restart_replica(number);
        }
        for number in 0..self.layout.switches {
            self.restart_switch(number);
        }
    }
}
