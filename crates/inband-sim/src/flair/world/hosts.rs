//! Starts, stops, pauses and restarts hosts.

use inband_flair::dataplane::{FlairGeometry, FlairSwitch};
use inband_flair::replica::{Config, Replica};
use inband_flair::timing::{Nanos, Timing, TUNING};
use inband_raft::Tuning;
use inband_storage::Cut;

use super::ReplicaHost;
use crate::drifting_clock::Clock;
use crate::flair::host::Host;
use crate::flair::trace::Happened;
use crate::flair::{counts, World};

/// Node ids of switches follow those of replicas.
const SWITCH_NODES: u8 = 100;

impl World {
    pub(super) fn start_replica(&mut self, number: u8, founder: bool) {
        let config = Config {
            replica: number,
            replicas: self.system.layout.replicas,
            node: u16::from(number) + 1,
            set: 0,
            sets: 1,
            switches: self.system.layout.switches,
            groups: self.system.layout.groups,
            founder,
            reads: self.system.layout.reads,
            leader_avoidance: self.system.layout.leader_avoidance,
            load_awareness: false,
            timing: Timing {
                tick_ns: self.system.layout.tick_ns,
                step_down_ns: self.system.layout.step_down_ns,
                ..Timing::default()
            },
            tuning: Tuning {
                compact_entries: self.system.layout.log_entries,
                keep_entries: self.system.layout.log_entries,
                // Allows a power cut between any two slices.
                slice_bytes: 64,
                ..TUNING
            },
        };
        let random = self.rng.hosts.next_u64();
        let now = self.local(Host::Replica(number));
        let replica = match self.system.disks.get(usize::from(number)) {
            Some(disk) => Replica::open(config, Box::new(disk.clone()), random, now),
            None => Replica::new(config, random, now),
        };
        let replica = replica.expect("it starts");
        self.system.replicas[usize::from(number)].replica = Some(replica);
        let started = Happened::Started(Host::Replica(number));
        self.trace.note(self.now, started);
        self.sleep(Host::Replica(number), now);
    }

    /// Starts a switch without any state.
    pub(super) fn start_switch(&mut self, number: u8) {
        let geometry = FlairGeometry {
            sets: 1,
            groups: self.system.layout.groups,
        };
        let incarnation = self.rng.hosts.next_u64() | 1;
        let switch = FlairSwitch::new(SWITCH_NODES + number, geometry, incarnation);
        self.system.switches[usize::from(number)] = Some(switch);
        let started = Happened::Started(Host::Switch(number));
        self.trace.note(self.now, started);
        self.system.active[usize::from(number)] = 0;
    }

    /// Stops a switch; its state is lost.
    pub fn stop_switch(&mut self, number: u8) {
        if let Some(switch) = self.system.switches[usize::from(number)].take() {
            self.count_reasons(&switch);
            let stopped = Happened::Stopped(Host::Switch(number));
            self.trace.note(self.now, stopped);
        }
    }

    /// Restarts a switch without its state. If its machine restarts too, its clock has another offset.
    pub fn reset_switch(&mut self, number: u8, with_machine: bool) {
        self.stop_switch(number);
        self.stats.count(counts::RESETS, 1);
        let clock = Clock::random(&mut self.rng.hosts);
        if with_machine {
            *self.clock(Host::Switch(number)) = clock;
        }
        self.system.suspended.remove(&number);
        self.start_switch(number);
    }

    /// Restarts a stopped switch together with its machine.
    pub fn restart_switch(&mut self, number: u8) {
        if self.switch(number).is_none() {
            self.reset_switch(number, true);
        }
    }

    /// Stops a replica. Only what is on its disk, if it has one, survives.
    pub fn stop_replica(&mut self, number: u8) {
        let host = &mut self.system.replicas[usize::from(number)];
        if let Some(replica) = host.replica.take() {
            self.trace
                .note(self.now, Happened::Stopped(Host::Replica(number)));
            host.counters.push(replica.counters());
            if let Some(disk) = self.system.disks.get(usize::from(number)) {
                let cut =
                    [Cut::Unsynced, Cut::Torn, Cut::Scattered][self.rng.hosts.below(3) as usize];
                disk.power_cut(cut, &mut |below| self.rng.hosts.below(below));
            }
        }
    }

    /// Restarts a stopped replica with only what is on its disk. If its machine restarts too, its clock has another
    /// offset.
    pub fn restart_replica(&mut self, number: u8, with_machine: bool) {
        if self.system.replicas[usize::from(number)].replica.is_none() {
            self.stats.count(counts::RESTARTS, 1);
            if with_machine {
                let host = Host::Replica(number);
                *self.clock(host) = Clock::random(&mut self.rng.hosts);
                self.forget_wake(host);
                self.stats.count(counts::REBOOTS, 1);
            }
            let founds = number == 0 && self.system.layout.sync;
            self.start_replica(number, founds);
        }
    }

    /// Stops replica 0 at the first acknowledgement of a write, if this is wanted and no other replica has failed: the
    /// write must survive any minority.
    pub(super) fn lose_founder(&mut self) {
        let is_wanted = std::mem::take(&mut self.system.stops_founder);
        let mut all = self.system.replicas.iter();
        let have_lived = all.all(|host| host.replica.is_some() && host.counters.is_empty());
        if is_wanted && have_lived {
            self.stats.count(counts::FOUNDERS_LOST, 1);
            self.stop_replica(0);
        }
    }

    /// Returns whether the group would keep working without this replica, as every other one sees it. Logs in memory
    /// survive the loss of a minority; replicas that restarted and are not yet voters count as lost.
    pub fn may_stop_replica(&self, number: u8) -> bool {
        if self.system.layout.sync {
            return true;
        }
        let is_lame = |host: &ReplicaHost| {
            let ids = host.replica.as_ref().map(Replica::raft_ids);
            ids.is_none_or(|(id, voters, _)| !voters.contains(&id))
        };
        let all = self.system.replicas.iter().enumerate();
        let others_lame = all.filter(|(n, host)| *n != usize::from(number) && is_lame(host));
        if (others_lame.count() + 1) * 2 >= self.system.replicas.len() {
            return false;
        }
        let others = || {
            let up = self.system.replicas.iter().enumerate();
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

    /// Suspends the machine of a switch: it does nothing, and its clock stands still. It may then serve a session that
    /// is over. That is not a breach of [`crate::flair::Invariant::OneSwitchServes`], but histories must still be
    /// linearizable.
    pub fn suspend_switch(&mut self, number: u8, ns: Nanos) {
        self.pause(Host::Switch(number), self.now + ns);
        self.clock(Host::Switch(number)).stood_still(ns);
        self.system.suspended.insert(number);
    }

    /// Changes the rate of a host's clock; 1 000 000 is exact.
    pub fn set_clock_rate(&mut self, host: Host, rate_ppm: u64) {
        let now = self.now;
        let clock = self.clock(host);
        *clock = clock.at_rate(now, rate_ppm);
    }
}
