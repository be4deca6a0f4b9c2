//! The world's workers. What their executors run is simulated in `runs`.

use inband_falcon::message::{Outcome, Payload, ToClient, ToExecutor};
use inband_falcon::packets::{HostMessage, Incoming};
use inband_falcon::registry::Register;
use inband_falcon::task::Attempt;
use inband_falcon::timing::Nanos;
use inband_falcon::worker::{self, Action, Ended, Pull, Worker};

use super::runs::Run;
use super::silence::Silence;
use crate::falcon::host::Host;
use crate::falcon::invariant::Invariant;
use crate::falcon::limits::RESTART_NS;
use crate::falcon::system::Event;
use crate::falcon::{trace, World};

/// An executor.
#[derive(Default)]
pub(in crate::falcon) struct Slot {
    pub run: Option<Run>,
    /// The attempt that was revoked, until the next task arrives.
    pub revoked: Option<Attempt>,
}

pub(in crate::falcon) struct Process {
    pub worker: Worker,
    pub slots: Vec<Slot>,
    pub silence: Silence,
}

#[derive(Default)]
pub(in crate::falcon) struct WorkerHost {
    /// `None`: it is down.
    pub process: Option<Box<Process>>,
    /// Its tasks take this many times as long.
    pub slowness: u64,
}

impl World {
    pub fn start_worker(&mut self, number: u8) {
        if self.is_worker_up(number) {
            return;
        }
        let own = Host::Worker(number);
        let now = self.local(own);
        let config = worker::Config {
            token: self.number(),
            name: String::new(),
            executors: self.system.layout.executors,
            // Every resource exists on some worker.
            resources: 1 << (1 + number / self.system.layout.schedulers) | 2,
            results_len_bytes_max: self.system.layout.results_len_bytes_max,
            timing: self.system.layout.executor,
        };
        let process = Process {
            worker: Worker::new(config, now),
            slots: (0..self.system.layout.executors)
                .map(|_| Slot::default())
                .collect(),
            silence: Silence::default(),
        };
        self.system.workers[usize::from(number)].process = Some(Box::new(process));
        trace::host(&mut self.trace, self.now, own, "STARTED");
        self.tick_worker(number);
    }

    /// Ends a worker's process without notice.
    pub fn stop_worker(&mut self, number: u8) {
        let own = Host::Worker(number);
        let Some(process) = self.system.workers[usize::from(number)].process.take() else {
            return;
        };
        let worker = &process.worker;
        for executor in worker.executors() {
            let counters = executor.counters();
            self.stats.count("tasks run", counters.tasks_run);
            self.stats.count("revoked", counters.revoked);
            self.stats.count("clients silent", counters.clients_silent);
            self.stats
                .count("clients skipped", counters.clients_skipped);
            self.stats.count("clients busy", counters.clients_busy);
            self.stats.count("pulls repeated", counters.pulls_repeated);
            self.stats.count("damaged tasks", counters.damaged);
        }
        self.stats
            .count("results thrown away", worker.results_thrown_away());
        self.stats.count("workers stopped", 1);
        self.nothing_is_left_behind(own, worker.results_kept());
        self.system.blobs.retain(|(host, _), _| *host != own);
        trace::host(&mut self.trace, self.now, own, "STOPPED");
    }

    /// Ends its process and starts it again later.
    pub(super) fn restart_worker(&mut self, number: u8, why: &'static str) {
        self.stats.count(why, 1);
        self.stop_worker(number);
        self.after(RESTART_NS, Event::StartWorker(number));
    }

    /// Drains a worker: it takes no more tasks, and restarts once those that it has are done.
    pub fn drain_worker(&mut self, number: u8) {
        let now = self.local(Host::Worker(number));
        if let Some(process) = self.worker(number) {
            process.worker.drain(now);
        }
        self.tick_worker(number);
    }

    pub fn is_worker_up(&self, number: u8) -> bool {
        self.system.workers[usize::from(number)].process.is_some()
    }

    fn workers_up(&self) -> impl Iterator<Item = &Worker> {
        let up = self
            .system
            .workers
            .iter()
            .filter_map(|w| w.process.as_deref());
        up.map(|process| &process.worker)
    }

    /// Executors that have a task.
    pub fn busy(&self) -> usize {
        self.workers_up()
            .map(|worker| worker.executors().len() - worker.idle())
            .sum()
    }

    /// Tasks that the executors of a running worker have run.
    pub fn tasks_run(&self, number: u8) -> u64 {
        let process = self.system.workers[usize::from(number)].process.as_deref();
        process.map_or(0, |process| process.worker.tasks_run())
    }

    pub fn all_registered(&self) -> bool {
        let registered = self.workers_up().filter(|worker| worker.is_registered());
        registered.count() == self.system.workers.len()
    }

    pub(super) fn worker(&mut self, number: u8) -> Option<&mut Process> {
        self.system.workers[usize::from(number)]
            .process
            .as_deref_mut()
    }

    pub(in crate::falcon) fn rest_worker(&mut self, number: u8) {
        if let Some(due) = self.worker(number).map(|process| process.worker.due()) {
            self.sleep(Host::Worker(number), due);
        }
    }

    pub(in crate::falcon) fn tick_worker(&mut self, number: u8) {
        self.at_worker(number, |worker, now| worker.tick(now));
        let now = self.local(Host::Worker(number));
        let is_drained = |process: &mut Process| process.worker.is_drained(now);
        if self.worker(number).is_some_and(is_drained) {
            self.restart_worker(number, "workers drained");
        }
        self.rest_worker(number);
    }

    pub(in crate::falcon) fn on_worker_packet(&mut self, number: u8, from: Host, bytes: &[u8]) {
        if !self.is_worker_up(number) {
            return;
        }
        for incoming in self.system.codec.read(bytes) {
            self.note_revoked(number, &incoming);
            let from = from.address();
            if let (Incoming::Host(_, HostMessage::ToExecutor(_)), Some(process)) =
                (&incoming, self.worker(number))
            {
                process.silence.heard(from);
            }
            self.at_worker(number, |worker, now| {
                worker.on_incoming(now, from, incoming)
            });
        }
        self.rest_worker(number);
    }

    /// Notes revoked attempts, for the invariant.
    fn note_revoked(&mut self, number: u8, incoming: &Incoming) {
        let Some(process) = self.worker(number) else {
            return;
        };
        let (executor, revoked) = match incoming {
            Incoming::Given(given) => {
                if let Some((client, _)) = given.relay {
                    process.silence.heard(client);
                }
                (process.worker.number_of(given.executor), None)
            }
            Incoming::Host(executor, HostMessage::ToExecutor(ToExecutor::Revoked(attempt))) => {
                (Some(*executor as usize), Some(*attempt))
            }
            _ => return,
        };
        if let Some(slot) = executor.and_then(|executor| process.slots.get_mut(executor)) {
            slot.revoked = revoked;
        }
    }

    /// Handles an event at a worker and executes the resulting actions.
    fn at_worker(&mut self, number: u8, event: impl FnOnce(&mut Worker, Nanos)) {
        for action in self.wanted(number, event) {
            self.act_worker(number, action);
        }
    }

    /// Handles an event at a worker and returns the resulting actions.
    fn wanted(&mut self, number: u8, event: impl FnOnce(&mut Worker, Nanos)) -> Vec<Action> {
        let now = self.local(Host::Worker(number));
        let (true_now, timing) = (self.now, self.system.layout.executor);
        let Some(process) = self.worker(number) else {
            return Vec::new();
        };
        event(&mut process.worker, now);
        let wanted = process.worker.actions();
        let executors = process.worker.executors();
        let wasted = process.silence.watch(true_now, executors, &timing);
        if let Some(what) = wasted {
            self.broken(Invariant::SilenceIsCheap, what);
        }
        wanted
    }

    /// A worker is paused, or its clock jumps.
    pub(in crate::falcon) fn is_held_up(&mut self, number: u8) {
        if let Some(process) = self.worker(number) {
            process.silence.forget();
        }
    }

    fn act_worker(&mut self, number: u8, action: Action) {
        let own = Host::Worker(number);
        match action {
            Action::Register(register) => self.register(number, register),
            Action::Pull(pull) => self.pull(number, pull),
            Action::Tell {
                client,
                executor,
                message,
            } => self.tell(own, client, executor, &HostMessage::ToClient(message)),
            Action::Run {
                executor,
                attempt,
                work,
            } => self.run_task(number, executor, attempt, work),
            Action::Stop { executor, attempt } => self.stop_run(number, executor, attempt),
            Action::Store(ended) => self.store(number, ended),
            Action::Forget(place) => self.forget(own, &place),
            // Its process ends and says why.
            Action::GiveUp(_) => self.restart_worker(number, "workers refused"),
        }
    }

    fn register(&mut self, number: u8, register: Register) {
        let packet = self.system.codec.host(0, &HostMessage::Register(register));
        let packet = packet.to_vec();
        self.send(Host::Worker(number), self.scheduler_of(number), packet);
    }

    fn pull(&mut self, number: u8, pull: Pull) {
        let packet = self.system.codec.pull(
            pull.scheduler,
            pull.executor,
            pull.worker_incarnation,
            pull.pull_seq,
        );
        let packet = packet.to_vec();
        self.send(Host::Worker(number), self.scheduler_of(number), packet);
    }

    fn store(&mut self, number: u8, ended: Ended) {
        if let Payload::Inline(bytes) = ended.outcome.payload() {
            let own = Host::Worker(number);
            let kept = self.system.blobs.iter().filter(|((of, _), _)| *of == own);
            let kept: usize = kept.map(|(_, bytes)| bytes.len()).sum();
            let place = match kept + bytes.len() <= self.system.layout.results_len_bytes_max {
                true => Ok(self.keep(own, bytes.clone())),
                false => Err("there is no room".into()),
            };
            self.at_worker(number, |worker, now| worker.stored(now, ended, place));
        }
    }

    /// An executor's run has ended.
    pub(super) fn end_run(&mut self, number: u8, slot: usize, outcome: Outcome) {
        let Some(process) = self.worker(number) else {
            return;
        };
        let slot_of = &mut process.slots[slot];
        let (run, revoked) = (slot_of.run.take(), slot_of.revoked);
        let attempt = run.map(|run| run.attempt);
        let wanted = self.wanted(number, |worker, now| worker.finished(now, slot, outcome));
        if attempt.is_some() && attempt == revoked && wanted.iter().any(is_result) {
            let what = format!("the result of {attempt:?} is kept");
            self.broken(Invariant::RevokedNotRun, what);
        }
        for action in wanted {
            self.act_worker(number, action);
        }
        self.rest_worker(number);
    }
}

fn is_result(action: &Action) -> bool {
    let is_told = |message: &ToClient| matches!(message, ToClient::Result(..));
    matches!(action, Action::Store(_))
        || matches!(action, Action::Tell { message, .. } if is_told(message))
}
