//! The second phase of a run: faults end and everything must finish.

use inband_paxos::host::Host;
use inband_paxos::timing::Micros;

use crate::paxos::event::Event;
use crate::paxos::invariant::Invariant;
use crate::paxos::limits::{CROWD, CROWD_PPM, LIVENESS_MAX_US, LIVENESS_PROBE_US, READS_PPM};
use crate::paxos::plane::Plane;
use crate::paxos::{counts, World};

/// Recoveries of single instances that a host has begun.
pub(crate) fn recoveries(host: &Host) -> u64 {
    let learners = host.partitions().iter().filter_map(|p| p.learner());
    learners.map(|l| l.stats().recoveries).sum()
}

impl World {
    /// Makes the clients of each replica submit a command at this mean interval; 0: none.
    pub fn load(&mut self, every_us: Micros) {
        let started = self.system.load_us == 0 && every_us > 0;
        self.system.load_us = every_us;
        if started {
            for node in self.system.layout.replicas.clone() {
                let wait_us = self.system.rng.load.wait(every_us);
                self.after(wait_us, Event::Submit(node));
            }
        }
    }

    /// Handles the timer of a replica's clients.
    pub(crate) fn client(&mut self, node: u8) {
        if self.system.load_us == 0 {
            return;
        }
        // Occasionally submit more commands at once than fit in a window.
        let crowd = self.system.rng.load.chance_ppm(CROWD_PPM);
        let count = if crowd { CROWD } else { 1 };
        for _ in 0..count {
            self.submit(node);
            if self.system.rng.load.chance_ppm(READS_PPM) {
                self.read(node);
            }
        }
        let wait_us = self.system.rng.load.wait(self.system.load_us);
        self.after(wait_us, Event::Submit(node));
    }

    /// Chooses hosts that stay down: never more than the cluster is designed to survive.
    pub fn choose_the_dead(&mut self) -> Vec<u8> {
        let mut dead = Vec::new();
        let mut replicas = self.system.layout.replica_failures_max();
        let mut leaders = self.system.layout.leaders.len() - 1;
        for sim in &self.system.hosts {
            let node = sim.node;
            let is = |of: &[u8]| usize::from(of.contains(&node));
            let (r, l) = (
                is(&self.system.layout.replicas),
                is(&self.system.layout.leaders),
            );
            let spared = sim.host.is_some() || replicas < r || leaders < l;
            let spared = spared || !self.may_die(node, &dead);
            if !spared && self.rng.faults.chance_ppm(500_000) {
                dead.push(node);
                replicas -= r;
                leaders -= l;
            }
        }
        dead
    }

    /// Replicas that are up.
    pub fn living_replicas(&self) -> Vec<u8> {
        let mut living = self.system.layout.replicas.clone();
        living.retain(|node| self.host(*node).host.is_some());
        living
    }

    /// Returns whether everything is finished, and all replicas that are up are equal.
    pub fn is_settled(&self) -> bool {
        let replicas = self.living_replicas();
        let is_equal = |partition: usize| {
            let applied = self.system.ledger.last(partition);
            let hash = self.system.ledger.state_after(partition, applied);
            applied >= self.system.observers[partition].chosen_highest()
                && replicas.iter().all(|node| {
                    let state = &self.host(*node).apps[partition].live;
                    state.applied == applied && (applied == 0 || Some(state.hash) == hash)
                })
        };
        self.plane_is_settled()
            && replicas
                .iter()
                .all(|node| self.system.ledger.is_idle(*node))
            && (0..self.system.layout.partitions).all(is_equal)
    }

    /// Call when faults have ended: in bounded time every running replica must complete a command and a read in each
    /// log, everything in flight must end, and all running replicas must be equal.
    pub fn must_settle(&mut self) {
        let started = self.now;
        let until = started + LIVENESS_MAX_US;
        self.system.load_us = 0;
        let living = self.living_replicas();
        let logs = 0..self.system.layout.partitions;
        for (node, partition) in living.iter().flat_map(|n| logs.clone().map(|p| (*n, p))) {
            let mut got_through = false;
            while !got_through && self.now < until && self.violation.is_none() {
                let before = self.system.ledger.ends;
                let asked = self.submit_to(node, partition) && self.read_from(node, partition);
                let probe_until = (self.now + LIVENESS_PROBE_US).min(until);
                self.step_until(probe_until, |w| w.system.ledger.is_idle(node));
                let after = self.system.ledger.ends;
                let succeeded = after.success > before.success && after.reads > before.reads;
                got_through = asked && succeeded && self.system.ledger.is_idle(node);
                if !got_through {
                    self.now = self.now.max(probe_until);
                }
            }
            if !got_through {
                let why = self.explain();
                let late = format!("replica {node} gets no command through to {partition}: {why}");
                self.check(Err(Invariant::Liveness.broken(late)));
            }
        }
        if self.violation.is_none() && !self.step_until(until, World::is_settled) {
            let late = format!("not settled in time: {}", self.explain());
            self.check(Err(Invariant::Liveness.broken(late)));
        }
        if self.violation.is_none() {
            let equal = self.stores_are_equal();
            self.check(equal);
        }
        for sim in &self.system.hosts {
            self.stats
                .count(counts::RECOVERIES, sim.host.as_ref().map_or(0, recoveries));
        }
    }

    /// Returns the state of all hosts, for the report of a failure.
    pub fn explain(&self) -> String {
        let logs = 0..self.system.layout.partitions;
        let logs = logs.map(|partition| self.explain_log(partition));
        let plane = self.system.plane.iter().map(Plane::explain);
        logs.chain(plane).collect::<Vec<String>>().join("\n  ")
    }

    fn explain_log(&self, partition: usize) -> String {
        let chosen = self.system.observers[partition].chosen_highest();
        let mut lines = vec![format!("log {partition}: chosen up to {chosen}")];
        for sim in &self.system.hosts {
            let Some(host) = &sim.host else {
                lines.push(format!("node {} is down", sim.node));
                continue;
            };
            let log = host.partition(partition);
            let mut line = format!("node {}", sim.node);
            if let Some(learner) = log.learner() {
                line += &format!(
                    ": replica applied {}, next {}, known {}, outstanding {}, floor {}",
                    sim.apps[partition].live.applied,
                    learner.next(),
                    learner.known_highest(),
                    self.system.ledger.outstanding(sim.node),
                    log.trim().floor(),
                );
            }
            if let Some(leadership) = log.leadership() {
                let view = host.leader_view(partition);
                line += &format!(
                    ": leader active {} round {} next {} floor {}",
                    leadership.is_active(),
                    crate::paxos::trace::round_name(view.round),
                    view.next,
                    view.floor
                );
            }
            if let (true, Some(switch)) = (
                self.system.layout.acceptor_hosts.contains(&sim.node),
                host.switch(),
            ) {
                let view = switch.registers().acceptor.acceptor(partition);
                line += &format!(
                    ": acceptor voting {} promise {} floor {} highest {}",
                    view.voting,
                    crate::paxos::trace::round_name(view.promise),
                    view.floor,
                    view.highest
                );
            }
            lines.push(line);
        }
        lines.join("\n    ")
    }
}
