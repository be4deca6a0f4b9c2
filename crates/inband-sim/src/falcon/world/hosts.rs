//! Clocks jump, workers become slow.

use inband_falcon::timing::Nanos;

use crate::falcon::host::Host;
use crate::falcon::World;

impl World {
    /// A host's clock shows so much more from now on.
    pub fn jump(&mut self, host: Host, ahead_ns: Nanos) {
        if let Host::Worker(number) = host {
            self.is_held_up(number);
        }
        self.clock(host).jump(ahead_ns);
        // Whatever is due by now comes at once.
        self.forget_wake(host);
        self.rest(host);
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
        self.system.workers[usize::from(worker)].slowness = slowness;
    }
}
