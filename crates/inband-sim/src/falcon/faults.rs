//! What goes wrong, and when, by the seed.

use inband_dataplane::falcon::wire::Type;
use inband_falcon::timing::{Nanos, MS};

use super::limits::CLOCK_JUMP_NS;
use super::links::Host;
use super::world::{Event, World};
use crate::listed::listed;
use crate::rng::Rng;

listed! {
    /// Kinds of faults.
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

impl Fault {
    /// Names of all.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Fault::ALL.into_iter().map(Fault::name)
    }
}

/// How a fault is undone.
#[derive(Debug)]
enum Undo {
    Mend(Vec<(Host, Host)>),
    StartScheduler(u8),
    StartWorkers(Vec<u8>),
    StartClient(u8),
    SpeedUp(u8),
    Lose(u64),
    HoldUp(u64),
    Flip(u64),
    LetPass(u8),
}

/// Faults under way.
#[derive(Debug, Default)]
pub(super) struct Faults {
    every_ns: Nanos,
    undo: Vec<Option<Undo>>,
}

fn pick(rng: &mut Rng, below: u8) -> u8 {
    rng.below(u64::from(below)) as u8
}

impl World {
    /// Faults strike this often, on average.
    pub(super) fn be_unkind(&mut self, every_ns: Nanos) {
        self.faults.every_ns = every_ns;
        let wait = self.rng_faults.wait(every_ns);
        self.queue.push(self.now + wait, Event::Fault);
    }

    pub(super) fn next_fault(&mut self) {
        if self.faults.every_ns == 0 {
            return;
        }
        let fault = *self.rng_faults.pick(&Fault::ALL).expect("there are some");
        let lasts_ns = self.rng_faults.between(2, 150) * MS;
        let lasts_ns = match fault {
            // What it has left in the queue is found one by one.
            Fault::ClientLostForLong => 6 * lasts_ns,
            _ => lasts_ns,
        };
        if let Some(undo) = self.strike(fault, lasts_ns) {
            self.note_fault(fault);
            let number = self.faults.undo.len();
            self.faults.undo.push(Some(undo));
            let ends = self.now + lasts_ns;
            self.queue.push(ends, Event::FaultEnds(number));
        }
        let wait = self.rng_faults.wait(self.faults.every_ns);
        self.queue.push(self.now + wait, Event::Fault);
    }

    fn any_host(&mut self) -> Host {
        let layout = self.layout;
        let rng = &mut self.rng_faults;
        match rng.below(5) {
            0 => Host::Scheduler(pick(rng, layout.schedulers)),
            1..=2 => Host::Worker(pick(rng, layout.workers)),
            _ => Host::Client(pick(rng, layout.clients)),
        }
    }

    fn cut(&mut self, pairs: Vec<(Host, Host)>) -> Option<Undo> {
        pairs.iter().for_each(|(a, b)| self.links.cuts.cut(*a, *b));
        Some(Undo::Mend(pairs))
    }

    fn pause_for(&mut self, host: Host, lasts_ns: Nanos) -> Option<Undo> {
        self.pause(host, self.now + lasts_ns);
        Some(Undo::Mend(vec![]))
    }

    fn strike(&mut self, fault: Fault, lasts_ns: Nanos) -> Option<Undo> {
        let layout = self.layout;
        let scheduler = pick(&mut self.rng_faults, layout.schedulers);
        let worker = pick(&mut self.rng_faults, layout.workers);
        let client = pick(&mut self.rng_faults, layout.clients);
        let rate = |rng: &mut Rng| [20_000, 100_000, 300_000][rng.below(3) as usize];
        match fault {
            Fault::CutOneWay => {
                let (a, b) = (self.any_host(), self.any_host());
                self.cut(vec![(a, b)])
            }
            Fault::CutBothWays => {
                let (a, b) = (self.any_host(), self.any_host());
                self.cut(vec![(a, b), (b, a)])
            }
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
                Some(Undo::StartWorkers(vec![worker]))
            }
            Fault::WorkerDrained => {
                self.drain_worker(worker);
                Some(Undo::Mend(vec![]))
            }
            Fault::AllWorkersLost => {
                let all: Vec<u8> = (0..layout.workers).collect();
                all.iter().for_each(|worker| self.stop_worker(*worker));
                Some(Undo::StartWorkers(all))
            }
            Fault::SchedulerLost => {
                self.stop_scheduler(scheduler);
                Some(Undo::StartScheduler(scheduler))
            }
            Fault::SchedulerReset => {
                self.stop_scheduler(scheduler);
                self.start_scheduler(scheduler);
                Some(Undo::Mend(vec![]))
            }
            Fault::ClientLost | Fault::ClientLostForLong => {
                self.stop_client(client);
                Some(Undo::StartClient(client))
            }
            Fault::SlowWorker => {
                let slowness = self.rng_faults.between(2, 40);
                self.slow_down(worker, slowness);
                Some(Undo::SpeedUp(worker))
            }
            Fault::ClockJump => {
                let host = self.any_host();
                let ahead_ns = self.rng_faults.below(CLOCK_JUMP_NS);
                self.jump(host, ahead_ns);
                Some(Undo::Mend(vec![]))
            }
            Fault::PacketsLost => {
                let ppm = rate(&mut self.rng_faults);
                self.links.rates.loss_ppm += ppm;
                Some(Undo::Lose(ppm))
            }
            Fault::PacketsLate => {
                let ppm = rate(&mut self.rng_faults);
                self.links.rates.hold_up_ppm += ppm;
                Some(Undo::HoldUp(ppm))
            }
            Fault::PacketsDamaged if !self.layout.may_be_damaged() => None,
            Fault::PacketsDamaged => {
                let ppm = rate(&mut self.rng_faults);
                self.links.rates.flip_ppm += ppm;
                Some(Undo::Flip(ppm))
            }
            Fault::OneTypeLost => {
                let kind = *self.rng_faults.pick(&Type::ALL).expect("there are some") as u8;
                let ppm = [300_000, 1_000_000][self.rng_faults.below(2) as usize];
                self.links.lost_types.insert(kind, ppm);
                Some(Undo::LetPass(kind))
            }
        }
    }

    pub(super) fn end_fault(&mut self, number: usize) {
        // Those of before everything was healed are gone.
        let Some(undo) = self.faults.undo.get_mut(number).and_then(Option::take) else {
            return;
        };
        match undo {
            Undo::Mend(pairs) => pairs.iter().for_each(|(a, b)| self.links.cuts.mend(*a, *b)),
            Undo::StartScheduler(number) => self.start_scheduler(number),
            Undo::StartWorkers(all) => all.into_iter().for_each(|w| self.start_worker(w)),
            Undo::StartClient(number) => self.start_client(number),
            Undo::SpeedUp(worker) => self.slow_down(worker, 1),
            Undo::Lose(ppm) => self.links.rates.loss_ppm -= ppm,
            Undo::HoldUp(ppm) => self.links.rates.hold_up_ppm -= ppm,
            Undo::Flip(ppm) => self.links.rates.flip_ppm -= ppm,
            Undo::LetPass(kind) => {
                self.links.lost_types.remove(&kind);
            }
        }
    }
}
