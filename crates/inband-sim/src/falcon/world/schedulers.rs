//! The world's schedulers: packets go through the real role and to the real process next to it.

use std::net::SocketAddrV4;

use inband_falcon::dataplane::{FalconSwitch, Verdict};
use inband_falcon::packets::Incoming;
use inband_falcon::resources::ResourceNames;
use inband_falcon::scheduler::{self, Scheduler, Waking, NODE, SET};
use inband_falcon::timing::Nanos;
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

use crate::falcon::host::Host;
use crate::falcon::invariant::Breach;
use crate::falcon::shadow::{Handled, Shadow};
use crate::falcon::{trace, World};

/// A scheduler; `None`: it is down.
#[derive(Default)]
pub(in crate::falcon) struct SchedulerHost(Option<Box<Process>>);

struct Process {
    switch: FalconSwitch,
    scheduler: Scheduler,
    shadow: Shadow,
}

impl Process {
    /// Runs a packet through the role. Returns its destination and new length, or the invariant that broke.
    fn handle(
        &mut self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        from: SocketAddrV4,
        now_ns: Nanos,
    ) -> (Verdict, usize, Result<(), Breach>) {
        let packet = buffer[..len_bytes].to_vec();
        let (verdict, _, len_bytes) = self.switch.handle(buffer, len_bytes, from, now_ns);
        let handled = Handled {
            packet: &packet,
            from,
            now_ns,
            verdict,
            left: &buffer[..len_bytes],
        };
        let held = self.shadow.on_packet(&handled, self.switch.registers());
        (verdict, len_bytes, held)
    }
}

impl World {
    /// Starts a scheduler without any state.
    pub fn start_scheduler(&mut self, number: u8) {
        if self.system.schedulers[usize::from(number)].0.is_some() {
            return;
        }
        let config = self.system.layout.falcon;
        let incarnation = self.rng.hosts.next_u64().max(1);
        let switch = FalconSwitch::new(NODE, config, incarnation);
        if self.system.layout.wraps {
            for queue in 0..config.policy.queues() {
                let before = self.rng.hosts.below(40) as u32;
                switch
                    .registers()
                    .start_at(SET, queue, 0u32.wrapping_sub(before));
            }
        }
        let process = Process {
            scheduler: Scheduler::new(scheduler::Config {
                falcon: config,
                incarnation,
                worker_lease_ns: self.system.layout.worker_lease_ns,
                resource_names: ResourceNames::default(),
            }),
            shadow: Shadow::new(config),
            switch,
        };
        self.system.schedulers[usize::from(number)].0 = Some(Box::new(process));
        trace::host(
            &mut self.trace,
            self.now,
            Host::Scheduler(number),
            "STARTED",
        );
    }

    /// Stops a scheduler; its queue is lost.
    pub fn stop_scheduler(&mut self, number: u8) {
        let Some(process) = self.system.schedulers[usize::from(number)].0.take() else {
            return;
        };
        for (name, count) in process.switch.counters() {
            self.stats.count(name, count);
        }
        let (taken, given) = process.shadow.counts();
        self.stats.count("taken", taken);
        self.stats.count("given", given);
        self.stats.count("schedulers stopped", 1);
        trace::host(
            &mut self.trace,
            self.now,
            Host::Scheduler(number),
            "STOPPED",
        );
    }

    pub fn queued(&self) -> usize {
        let up = self
            .system
            .schedulers
            .iter()
            .filter_map(|host| host.0.as_ref());
        up.map(|process| process.shadow.tasks()).sum()
    }

    /// Executors that wait at schedulers.
    pub fn parked(&self) -> u32 {
        let up = self
            .system
            .schedulers
            .iter()
            .filter_map(|host| host.0.as_ref());
        up.map(|process| process.switch.registers().parked(SET))
            .sum()
    }

    fn scheduler(&mut self, number: u8) -> Option<&mut Process> {
        self.system.schedulers[usize::from(number)].0.as_deref_mut()
    }

    pub(in crate::falcon) fn tick_scheduler(&mut self, number: u8) {
        let own = Host::Scheduler(number);
        let now = self.local(own);
        let Some(process) = self.scheduler(number) else {
            return;
        };
        process.scheduler.tick(now, process.switch.registers());
        let due = process.scheduler.due();
        self.sleep(own, due);
    }

    pub(in crate::falcon) fn at_scheduler(&mut self, number: u8, from: Host, bytes: &[u8]) {
        if !self.system.codec.admits(bytes) {
            return; // it was damaged
        }
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..bytes.len()].copy_from_slice(bytes);
        let address = from.address();
        let Some((verdict, len_bytes)) = self.role(number, &mut buffer, bytes.len(), address)
        else {
            return;
        };
        let packet = &mut buffer[..len_bytes];
        let to = match verdict {
            Verdict::Drop => return,
            Verdict::Pass => return self.on_host(number, from, bytes),
            Verdict::Reply => address,
            Verdict::ToExecutor(address) => address,
        };
        let waking = match self.system.layout.wakes {
            true => Waking::of(packet),
            false => None,
        };
        self.leaves(number, to, packet);
        if let Some(waking) = waking {
            self.wake(number, waking);
        }
    }

    /// Wakes executors as the driver of a role in user space does.
    fn wake(&mut self, number: u8, mut waking: Waking) {
        let own = Host::Scheduler(number).address();
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        while let Some(len_bytes) = waking.ask(&mut buffer) {
            let handled = self.role(number, &mut buffer, len_bytes, own);
            let Some((Verdict::ToExecutor(to), len_bytes)) = handled else {
                return;
            };
            waking.woken(&mut buffer[..len_bytes]);
            self.stats.count("executors woken beside", 1);
            self.leaves(number, to, &buffer[..len_bytes]);
        }
    }

    fn role(
        &mut self,
        number: u8,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        from: SocketAddrV4,
    ) -> Option<(Verdict, usize)> {
        let now_ns = self.local(Host::Scheduler(number));
        let process = self.scheduler(number)?;
        let (verdict, len_bytes, held) = process.handle(buffer, len_bytes, from, now_ns);
        self.check(held);
        Some((verdict, len_bytes))
    }

    fn leaves(&mut self, number: u8, to: SocketAddrV4, packet: &[u8]) {
        if let Some(to) = Host::at(to) {
            self.send(Host::Scheduler(number), to, packet.to_vec());
        }
    }

    fn on_host(&mut self, number: u8, from: Host, bytes: &[u8]) {
        let own = Host::Scheduler(number);
        let now = self.local(own);
        for incoming in self.system.codec.read_admitted(bytes) {
            let (Incoming::Host(_, message), Some(process)) = (incoming, self.scheduler(number))
            else {
                continue;
            };
            let registers = process.switch.registers();
            let answer = process
                .scheduler
                .on_message(now, from.address(), message, registers);
            let due = process.scheduler.due();
            self.sleep(own, due);
            if let Some(answer) = answer {
                let packet = self.system.codec.host(0, &answer).to_vec();
                self.send(own, from, packet);
            }
        }
    }
}
