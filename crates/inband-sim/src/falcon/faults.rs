//! The faults of Falcon's world.

use inband_falcon::dataplane::wire::Type;
use inband_falcon::timing::Nanos;

use super::host::Host;
use super::limits::CLOCK_JUMP_NS;
use super::{Falcon, World};
use crate::faults::Strike;
use crate::links::{Rates, TypeRates};
use crate::listed;
use crate::rng::Rng;

listed! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault, said by name {
        CutOneWay = "cut-one-way",
        CutBothWays = "cut-both-ways",
        WorkerCutOff = "worker-cut-off",
        PausedScheduler = "paused-scheduler",
        PausedWorker = "paused-worker",
        PausedClient = "paused-client",
        WorkerLost = "worker-lost",
        WorkerDrained = "worker-drained",
        AllWorkersLost = "all-workers-lost",
        SchedulerLost = "scheduler-lost",
        SchedulerReset = "scheduler-reset",
        ClientLost = "client-lost",
        ClientLostForLong = "client-lost-for-long",
        SlowWorker = "slow-worker",
        ClockJump = "clock-jump",
        PacketsLost = "packets-lost",
        PacketsLate = "packets-late",
        PacketsDamaged = "packets-damaged",
        OneTypeLost = "one-type-lost",
    }
}

fn pick(rng: &mut Rng, below: u8) -> u8 {
    rng.below(u64::from(below)) as u8
}

impl World {
    fn any_host(&mut self) -> Host {
        let layout = self.system.layout;
        let rng = &mut self.rng.faults;
        match rng.below(5) {
            0 => Host::Scheduler(pick(rng, layout.schedulers)),
            1..=2 => Host::Worker(pick(rng, layout.workers)),
            _ => Host::Client(pick(rng, layout.clients)),
        }
    }

    pub(super) fn strike(&mut self, fault: Fault, lasts_ns: Nanos) -> Option<Strike<Falcon>> {
        let layout = self.system.layout;
        let scheduler = pick(&mut self.rng.faults, layout.schedulers);
        let worker = pick(&mut self.rng.faults, layout.workers);
        let client = pick(&mut self.rng.faults, layout.clients);
        match fault {
            Fault::CutOneWay => self.cut_one_way(World::any_host),
            Fault::CutBothWays => self.cut_both_ways(World::any_host),
            Fault::WorkerCutOff => {
                let worker = Host::Worker(worker);
                let clients = (0..layout.clients).map(Host::Client);
                let others = clients.chain((0..layout.schedulers).map(Host::Scheduler));
                let pairs = others.flat_map(|other| [(worker, other), (other, worker)]);
                self.cut(pairs.collect())
            }
            Fault::PausedScheduler => self.pause_for(Host::Scheduler(scheduler), lasts_ns),
            Fault::PausedWorker => self.pause_for(Host::Worker(worker), lasts_ns),
            Fault::PausedClient => self.pause_for(Host::Client(client), lasts_ns),
            Fault::WorkerLost => {
                self.stop_worker(worker);
                Strike::until(move |world| world.start_worker(worker))
            }
            Fault::WorkerDrained => {
                self.drain_worker(worker);
                Strike::for_a_while()
            }
            Fault::AllWorkersLost => {
                let all: Vec<u8> = (0..layout.workers).collect();
                all.iter().for_each(|worker| self.stop_worker(*worker));
                Strike::until(move |world| all.into_iter().for_each(|w| world.start_worker(w)))
            }
            Fault::SchedulerLost => {
                self.stop_scheduler(scheduler);
                Strike::until(move |world| world.start_scheduler(scheduler))
            }
            Fault::SchedulerReset => {
                self.stop_scheduler(scheduler);
                self.start_scheduler(scheduler);
                Strike::for_a_while()
            }
            Fault::ClientLost | Fault::ClientLostForLong => {
                self.stop_client(client);
                Strike::until(move |world| world.start_client(client))
            }
            Fault::SlowWorker => {
                let slowness = self.rng.faults.between(2, 40);
                self.slow_down(worker, slowness);
                Strike::until(move |world: &mut World| world.slow_down(worker, 1))
            }
            Fault::ClockJump => {
                let host = self.any_host();
                let ahead_ns = self.rng.faults.below(CLOCK_JUMP_NS);
                self.jump(host, ahead_ns);
                Strike::for_a_while()
            }
            Fault::PacketsLost => self.lose_packets(),
            Fault::PacketsLate => self.hold_up_packets(),
            Fault::PacketsDamaged if !self.system.layout.may_be_damaged() => None,
            Fault::PacketsDamaged => {
                let bit_flip_ppm = self.any_share_ppm();
                self.raise_rates(Rates {
                    bit_flip_ppm,
                    ..Rates::default()
                })
            }
            Fault::OneTypeLost => {
                let kind = *self.rng.faults.pick(&Type::ALL).expect("there are some") as u8;
                let rates = TypeRates {
                    kind,
                    loss_ppm: [300_000, 1_000_000][self.rng.faults.below(2) as usize],
                    hold_up_ppm: 0,
                };
                self.raise_type_rates(u64::from(kind), rates)
            }
        }
    }
}
