//! Hosts stand still, their clocks jump, and all are well again.

use inband_falcon::timing::Nanos;

use super::World;
use crate::falcon::faults::Faults;
use crate::falcon::links::Host;

impl World {
    /// A host does nothing until then; what comes waits.
    pub fn pause(&mut self, host: Host, until: Nanos) {
        if let Some(common) = self.hosts.get_mut(&host) {
            common.paused_until = common.paused_until.max(until);
        }
        if let Host::Worker(number) = host {
            self.is_held_up(number);
        }
    }

    /// A host's clock shows so much more from now on.
    pub fn jump(&mut self, host: Host, ahead_ns: Nanos) {
        if let Host::Worker(number) = host {
            self.is_held_up(number);
        }
        if let Some(common) = self.hosts.get_mut(&host) {
            common.clock.jump(ahead_ns);
            // Whatever is due by now comes at once.
            common.wake_at = Nanos::MAX;
            self.rest(host);
        }
    }

    fn rest(&mut self, host: Host) {
        match host {
            Host::Scheduler(number) => self.tick_scheduler(number),
            Host::Worker(number) => self.rest_worker(number),
            Host::Client(number) => self.rest_client(number),
        }
    }

    /// A worker's tasks take so many times as long from now on.
    pub fn slow_down(&mut self, worker: u8, slowness: u64) {
        self.workers[usize::from(worker)].slowness = slowness;
    }

    /// Nothing is wrong any more: links work, everybody is up and awake.
    pub fn heal(&mut self) {
        self.links.heal();
        self.faults = Faults::default();
        for common in self.hosts.values_mut() {
            common.paused_until = common.paused_until.min(self.now);
        }
        for number in 0..self.layout.schedulers {
            self.start_scheduler(number);
        }
        for number in 0..self.layout.workers {
            self.slow_down(number, 1);
            self.start_worker(number);
        }
        for number in 0..self.layout.clients {
            self.start_client(number);
        }
    }
}
