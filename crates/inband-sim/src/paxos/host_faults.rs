//! Faults of a running host: its process is stopped, its clock moved, its links held.

use inband_paxos::timing::Micros;

use crate::paxos::limits::SLOW_QUEUE_MAX_US;
use crate::paxos::store::StoreReplica;
use crate::paxos::World;

impl World {
    /// Stops a host's process, as SIGSTOP does, until [`World::thaw`]; packets wait.
    pub fn freeze(&mut self, node: u8) {
        if let Some(at) = self.index(node) {
            self.system.hosts[at].frozen += 1;
        }
    }

    /// Resumes a stopped process.
    pub fn thaw(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.system.hosts[at];
        sim.frozen = sim.frozen.saturating_sub(1);
        if sim.frozen > 0 {
            return;
        }
        sim.responsive_since = self.now;
        sim.tick_at = Micros::MAX;
        self.arm(at);
        self.flush_later(at);
        self.sync_later(at);
        self.let_go(at);
    }

    /// Empties the data directory of a host that is down and runs the real store.
    pub fn lose_store(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let (logs, sync) = (self.system.layout.partitions, self.system.layout.sync);
        let sim = &mut self.system.hosts[at];
        let empty = || StoreReplica::new(logs, sync).expect("a directory for temporary files");
        if sim.host.is_none() && sim.store.is_some() {
            sim.store = Some(empty());
        }
    }

    /// Makes a host take this long for every packet; 0: no time.
    pub fn slow_down(&mut self, node: u8, packet_us: Micros) {
        if let Some(at) = self.index(node) {
            self.system.hosts[at].packet_us = packet_us;
        }
    }

    /// Returns when a host handles a packet that has just arrived: at once, later, or never.
    pub(crate) fn time_for_packet(&mut self, node: u8) -> Option<Micros> {
        let at = self.index(node)?;
        let sim = &mut self.system.hosts[at];
        let begins_at = sim.busy_until.max(self.now);
        if begins_at > self.now + SLOW_QUEUE_MAX_US {
            return None;
        }
        if sim.packet_us > 0 {
            sim.busy_until = begins_at + sim.packet_us;
        }
        Some(begins_at + sim.packet_us)
    }

    pub fn jump_clock(&mut self, node: u8, by_us: Micros) {
        let Some(at) = self.index(node) else { return };
        self.system.hosts[at].clock.jump(by_us);
        // Its timers follow the clock.
        self.system.hosts[at].tick_at = Micros::MAX;
        self.arm(at);
    }

    /// Stops a host's clock until [`World::start_clock`].
    pub fn stop_clock(&mut self, node: u8) {
        if let Some(at) = self.index(node) {
            self.system.hosts[at].clock.stand(self.now);
        }
    }

    /// Restarts a host's clock from where it stopped.
    pub fn start_clock(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let stood_us = self.system.hosts[at].clock.go_on(self.now);
        self.system.ledger.delay(node, stood_us);
        self.system.hosts[at].tick_at = Micros::MAX;
        self.arm(at);
        self.sync_later(at);
    }

    /// Holds all packets from and to a host until [`World::release_links`]; its process keeps running.
    pub fn hold_links(&mut self, node: u8) {
        if let Some(at) = self.index(node) {
            self.system.hosts[at].links_held += 1;
        }
    }

    /// Releases the held packets.
    pub fn release_links(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.system.hosts[at];
        sim.links_held = sim.links_held.saturating_sub(1);
        if sim.links_held == 0 {
            self.let_go(at);
        }
    }

    fn let_go(&mut self, at: usize) {
        if self.system.hosts[at].frozen > 0 || self.system.hosts[at].links_held > 0 {
            return;
        }
        for (from, to, bytes) in std::mem::take(&mut self.system.hosts[at].waiting) {
            self.transmit(from, to, &bytes);
        }
    }
}
