//! Clock jumps and slow workers.

use inband_falcon::timing::Nanos;

use crate::falcon::host::Host;
use crate::falcon::World;

impl World {
    /// Moves a host's clock forward.
    pub fn jump(&mut self, host: Host, ahead_ns: Nanos) {
        if let Host::Worker(number) = host {
            self.is_held_up(number);
        }
        self.clock(host).jump(ahead_ns);
        // Timers that are due now fire at once.
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

    /// Tasks of this worker take `slowness` times as long from now on.
    pub fn slow_down(&mut self, worker: u8, slowness: u64) {
        self.system.workers[usize::from(worker)].slowness = slowness;
    }
}
