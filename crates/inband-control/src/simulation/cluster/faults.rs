//! Crashes, cuts and membership changes, at random or requested by a test.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::{new_switch, Cluster, Event, PARTITIONS};
use crate::acceptor::AcceptorState;
use crate::configuration::{majority, Configuration, Identity, NodeId};
use crate::state::{Change, Phase};
use crate::timing::Micros;

impl Cluster {
    /// Takes a host down; with `wiped` its acceptor loses what is in memory.
    pub fn crash(&mut self, id: NodeId, wiped: bool) {
        let host = self.hosts.get_mut(&id).expect("a host");
        let Some(member) = host.member.take() else {
            return;
        };
        for partition in 0..PARTITIONS {
            host.switch.registers().acceptor.seal(partition, 0);
        }
        if wiped {
            host.switch = Rc::new(new_switch(id));
            self.wiped += 1;
            self.lost.insert(id);
            self.checker.forgot(id);
        } else {
            host.kept = member.acceptor().and_then(|a| a.holds());
        }
    }

    pub fn restart_after(&mut self, id: NodeId, after: Micros) {
        self.later(after, Event::Restart(id));
    }

    pub(super) fn fault(&mut self) {
        let Some(weather) = self.weather else {
            return self.later(50_000, Event::Fault);
        };
        let after = self.dice.wait(weather.fault_us);
        self.later(after, Event::Fault);
        let hosts: Vec<NodeId> = self.hosts.keys().copied().collect();
        let id = self.dice.pick(&hosts);
        let time = self.dice.wait(400_000);
        match self.dice.below(100) {
            0..=34 => {
                let wiped = self.dice.chance_ppm(800_000) && self.may_lose(id);
                self.crash(id, wiped);
                self.restart_after(id, time);
            }
            35..=59 => self.hosts.get_mut(&id).expect("a host").cut_off_until = self.now + time,
            60..=69 => {
                let at = self.dice.below(2) as usize;
                self.seats[at].cut_off_until = self.now + time;
            }
            70..=84 => {
                // A new leader of the controllers: it knows the log but has no reports.
                let at = self.dice.below(2) as usize;
                let mut seat = self.new_seat();
                seat.state = self.state.clone();
                seat.applied = self.log.len();
                self.seats[at] = seat;
            }
            _ => self.change(id),
        }
    }

    /// Cuts off all coordinators for this long.
    pub fn cut_off_coordinators(&mut self, time_us: Micros) {
        for seat in &mut self.seats {
            seat.cut_off_until = self.now + time_us;
        }
    }

    pub fn cut_off(&mut self, id: NodeId, time_us: Micros) {
        self.hosts.get_mut(&id).expect("a host").cut_off_until = self.now + time_us;
    }

    /// A node's host returns with an empty state directory.
    pub fn lose_identity(&mut self, id: NodeId) {
        let identity = Identity(self.dice.number());
        let host = self.hosts.get_mut(&id).expect("a host");
        host.identity = identity;
        host.fences = Rc::default();
    }

    /// Requests a random membership change.
    fn change(&mut self, id: NodeId) {
        let member = self.candidate(id);
        let Some(opened) = &self.state.opened else {
            return;
        };
        let acceptors = opened.acceptors();
        let change = if acceptors.contains(&id) {
            Change::Remove(id)
        } else if self.dice.chance_ppm(500_000) {
            Change::Add(member)
        } else {
            let old = self.dice.pick(&acceptors);
            Change::Replace { old, new: member }
        };
        let at = self.dice.below(2) as usize;
        let seat = &self.seats[at];
        if let Ok(command) = seat.coordinator.request(self.now, &seat.state, change) {
            self.propose_command(command);
        }
    }

    /// Returns whether this acceptor may lose its memory without losing data. Always if it belongs to a minority,
    /// counted since the last time all of them voted; otherwise only if the others have everything.
    fn may_lose(&self, id: NodeId) -> bool {
        let Some(opened) = &self.state.opened else {
            return true;
        };
        let mut configurations = vec![opened];
        if let Some(pending) = &self.state.pending {
            let is_installing = matches!(pending.phase, Phase::Installing { .. });
            if is_installing && self.open_proposed.contains(&pending.target.epoch) {
                configurations.push(&pending.target);
            }
        }
        configurations.iter().all(|configuration| {
            let acceptors = configuration.acceptors();
            let mut lost: BTreeSet<_> = self.lost.clone();
            lost.insert(id);
            let minority = acceptors.iter().filter(|a| lost.contains(a)).count();
            let is_minority = minority * 2 < acceptors.len();
            (is_minority && configurations.len() == 1) || self.goes_on(configuration, id)
        })
    }

    /// Returns whether the cluster could continue in a later epoch if this acceptor lost its memory now.
    fn goes_on(&self, configuration: &Configuration, without: NodeId) -> bool {
        let epoch = configuration.epoch;
        let acceptors = configuration.acceptors();
        let holds = |node: &NodeId| {
            let host = &self.hosts[node];
            let live = host.member.as_ref().and_then(|m| m.acceptor()?.holds());
            *node != without && live.or(host.kept).is_some_and(|h| h.serves(epoch))
        };
        let abstains = |node: &NodeId| self.hosts[node].fences.borrow().entered < epoch;
        let sources = acceptors.iter().filter(|n| holds(n)).count();
        let useful = acceptors.iter().filter(|n| holds(n) || abstains(n)).count();
        sources > 0 && useful >= majority(acceptors.len())
    }

    /// Ends all faults: all hosts are up and connected.
    pub fn calm(&mut self) {
        self.weather = None;
        let hosts: Vec<NodeId> = self.hosts.keys().copied().collect();
        for id in hosts {
            self.hosts.get_mut(&id).expect("a host").cut_off_until = 0;
            self.start(id);
        }
        for seat in &mut self.seats {
            seat.cut_off_until = 0;
        }
    }
}
