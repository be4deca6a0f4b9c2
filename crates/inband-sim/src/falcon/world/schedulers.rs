//! Schedulers of the world: packets go through the real role; its process registers workers.

use inband_dataplane::falcon::{FalconSwitch, Policy, Verdict};
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;
use inband_falcon::packets::{HostMessage, Incoming};
use inband_falcon::registry::{Change, Register, Registry};
use inband_falcon::timing::MS;

use super::World;
use crate::falcon::links::Host;
use crate::falcon::shadow::{Handled, Shadow};

/// Its node id in packets.
const NODE: u8 = 1;
/// The only set.
const SET: usize = 0;

/// A scheduler; `None`: it is down.
#[derive(Default)]
pub(super) struct SchedulerHost(Option<Scheduler>);

struct Scheduler {
    switch: FalconSwitch,
    registry: Registry<std::net::SocketAddrV4>,
    shadow: Shadow,
}

impl Scheduler {
    fn write(&self, change: Change) {
        let registers = self.switch.registers();
        match change {
            Change::Add {
                worker,
                incarnation,
                resources,
            } => registers.register(SET, usize::from(worker), incarnation, resources),
            Change::Remove { worker } => registers.unregister(SET, usize::from(worker)),
        }
    }
}

impl World {
    /// A scheduler starts, and knows nothing.
    pub fn start_scheduler(&mut self, number: u8) {
        if self.schedulers[usize::from(number)].0.is_some() {
            return;
        }
        let config = self.layout.falcon;
        let incarnation = self.rng.next_u64().max(1);
        let switch = FalconSwitch::new(NODE, config, incarnation);
        if self.layout.wraps {
            for queue in 0..config.policy.queues() {
                let before = self.rng.below(40) as u32;
                switch
                    .registers()
                    .start_at(SET, queue, 0u32.wrapping_sub(before));
            }
        }
        let pull_ms = match config.policy {
            Policy::Locality => config.locality_wait_ns.div_ceil(MS) as u32,
            _ => 0,
        };
        let scheduler = Scheduler {
            registry: Registry::new(config.workers, self.layout.worker_lease_ns, pull_ms),
            shadow: Shadow::new(config),
            switch,
        };
        self.schedulers[usize::from(number)].0 = Some(scheduler);
        self.trace
            .host(self.now, Host::Scheduler(number), "STARTED");
    }

    /// A scheduler is gone, with its queue.
    pub fn stop_scheduler(&mut self, number: u8) {
        let Some(scheduler) = self.schedulers[usize::from(number)].0.take() else {
            return;
        };
        for (name, count) in scheduler.switch.counters() {
            *self.stats.reasons.entry(name).or_default() += count;
        }
        let (taken, given) = scheduler.shadow.counts();
        self.stats.host("taken", taken);
        self.stats.host("given", given);
        self.stats.host("schedulers stopped", 1);
        self.trace
            .host(self.now, Host::Scheduler(number), "STOPPED");
    }

    /// Tasks in the queues of all schedulers.
    pub fn queued(&self) -> usize {
        let up = self.schedulers.iter().filter_map(|host| host.0.as_ref());
        up.map(|scheduler| scheduler.shadow.tasks()).sum()
    }

    /// Executors that wait with a scheduler.
    pub fn parked(&self) -> u32 {
        let up = self.schedulers.iter().filter_map(|host| host.0.as_ref());
        up.map(|scheduler| scheduler.switch.registers().parked(SET))
            .sum()
    }

    pub(super) fn tick_scheduler(&mut self, number: u8) {
        let own = Host::Scheduler(number);
        let now = self.local(own);
        let Some(scheduler) = &mut self.schedulers[usize::from(number)].0 else {
            return;
        };
        for change in scheduler.registry.tick(now) {
            scheduler.write(change);
        }
        let due = scheduler.registry.due();
        self.sleep(own, due);
    }

    pub(super) fn at_scheduler(&mut self, number: u8, from: Host, bytes: &[u8]) {
        let own = Host::Scheduler(number);
        let now_ns = self.local(own);
        let Some(scheduler) = &mut self.schedulers[usize::from(number)].0 else {
            return;
        };
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..bytes.len()].copy_from_slice(bytes);
        let address = from.address();
        let (verdict, _, len) = scheduler
            .switch
            .handle(&mut buffer, bytes.len(), address, now_ns);
        let handled = Handled {
            packet: bytes,
            from: address,
            now_ns,
            verdict,
            left: &buffer[..len],
        };
        let held = scheduler
            .shadow
            .on_packet(&handled, scheduler.switch.registers());
        self.must(held);
        let to = match verdict {
            Verdict::Drop => return,
            Verdict::Pass => return self.on_register(number, from, bytes),
            Verdict::Back => from,
            Verdict::ToExecutor(address) => match Host::at(address) {
                Some(host) => host,
                None => return,
            },
        };
        self.send(own, to, buffer[..len].to_vec());
    }

    fn on_register(&mut self, number: u8, from: Host, bytes: &[u8]) {
        for incoming in self.codec.read_admitted(bytes) {
            if let Incoming::Host(_, HostMessage::Register(said)) = incoming {
                self.register_worker(number, from, said);
            }
        }
    }

    fn register_worker(&mut self, number: u8, from: Host, said: Register) {
        let own = Host::Scheduler(number);
        let now = self.local(own);
        let Some(scheduler) = &mut self.schedulers[usize::from(number)].0 else {
            return;
        };
        let (answer, change) = scheduler.registry.on_register(now, from.address(), said);
        if let Some(change) = change {
            scheduler.write(change);
        }
        let due = scheduler.registry.due();
        let registered = HostMessage::Registered(scheduler.switch.incarnation(), answer);
        let packet = self.codec.host(0, &registered).to_vec();
        self.sleep(own, due);
        self.send(own, from, packet);
    }
}
