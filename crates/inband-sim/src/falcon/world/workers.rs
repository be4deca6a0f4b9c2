//! Workers of the world: executors and results in the manner of `worker_node`; what runs is played.

use std::net::SocketAddrV4;

use inband_dataplane::falcon::wire::EXECUTORS;
use inband_falcon::executor::{Action, Executor};
use inband_falcon::limits::INLINE_LEN_BYTES_MAX;
use inband_falcon::message::{Outcome, Payload, Place, ToClient, ToExecutor};
use inband_falcon::packets::{Given, HostMessage, Incoming};
use inband_falcon::registry::{Register, Registered};
use inband_falcon::results::Results;
use inband_falcon::task::Attempt;
use inband_falcon::timing::{Nanos, MS};

use super::{Event, World};
use crate::falcon::limits::{FETCH_AGAIN_NS, FETCH_LIMIT_NS, RESTART_NS};
use crate::falcon::links::Host;
use crate::falcon::rule::Rule;
use crate::falcon::work::{outcome_of, Ends, Plan};

/// How often a worker that is not known yet asks to be.
const REGISTER_NS: Nanos = 50 * MS;

/// As the scheduler knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    scheduler: u64,
    worker: u16,
    incarnation: u32,
    lease_ns: Nanos,
}

/// What an executor runs.
#[derive(Debug)]
struct Run {
    number: u64,
    attempt: Attempt,
    /// The work, or where it is.
    payload: Payload,
    is_stopped: bool,
    /// When it gives up to fetch the work.
    fetch_until: Nanos,
}

struct Slot {
    executor: Executor<SocketAddrV4>,
    run: Option<Run>,
    /// What it was told to leave, as long as it has got nothing else.
    revoked: Option<Attempt>,
}

struct Worker {
    token: u64,
    resources: u64,
    slots: Vec<Slot>,
    results: Results<(SocketAddrV4, u32)>,
    known: Option<Known>,
    is_refused: bool,
    register_at: Nanos,
}

impl Worker {
    /// Which of its executors this is.
    fn number_of(&self, executor: u32) -> Option<usize> {
        let known = self.known?;
        let number = executor.checked_sub(u32::from(known.worker) * EXECUTORS)?;
        let number = usize::try_from(number).ok()?;
        (number < self.slots.len()).then_some(number)
    }

    fn due(&self) -> Nanos {
        let executors = self.slots.iter().map(|slot| slot.executor.due());
        let due = executors.min().unwrap_or(Nanos::MAX);
        due.min(self.results.due()).min(self.register_at)
    }
}

/// A worker.
#[derive(Default)]
pub(super) struct WorkerHost {
    /// `None`: it is down.
    process: Option<Box<Worker>>,
    /// Its tasks take so many times as long.
    pub slowness: u64,
}

impl World {
    /// A worker's process starts.
    pub fn start_worker(&mut self, number: u8) {
        if self.workers[usize::from(number)].process.is_some() {
            return;
        }
        let own = Host::Worker(number);
        let now = self.local(own);
        let slot = || Slot {
            executor: Executor::new(self.layout.executor, now),
            run: None,
            revoked: None,
        };
        let slots = (0..self.layout.executors).map(|_| slot()).collect();
        let token = self.number();
        // Every resource is with somebody.
        let resources = 1 << (1 + number / self.layout.schedulers) | 2;
        let worker = Worker {
            token,
            resources,
            slots,
            results: Results::new(self.layout.executor),
            known: None,
            is_refused: false,
            register_at: now,
        };
        self.workers[usize::from(number)].process = Some(Box::new(worker));
        self.trace.host(self.now, own, "STARTED");
        self.tick_worker(number);
    }

    /// A worker's process ends without a word.
    pub fn stop_worker(&mut self, number: u8) {
        let own = Host::Worker(number);
        let Some(worker) = self.workers[usize::from(number)].process.take() else {
            return;
        };
        for slot in &worker.slots {
            let counters = slot.executor.counters();
            self.stats.host("tasks run", counters.tasks_run);
            self.stats.host("revoked", counters.revoked);
            self.stats.host("clients silent", counters.clients_silent);
            self.stats.host("pulls repeated", counters.pulls_repeated);
            self.stats.host("damaged tasks", counters.damaged);
        }
        self.stats
            .host("results thrown away", worker.results.thrown_away());
        self.stats.host("workers stopped", 1);
        self.blobs.retain(|(host, _), _| *host != own);
        self.trace.host(self.now, own, "STOPPED");
    }

    /// Is a worker's process up?
    pub fn is_worker_up(&self, number: u8) -> bool {
        self.workers[usize::from(number)].process.is_some()
    }

    /// Executors that have a task.
    pub fn busy(&self) -> usize {
        let up = self.workers.iter().filter_map(|host| host.process.as_ref());
        let slots = up.flat_map(|worker| &worker.slots);
        slots.filter(|slot| !slot.executor.is_idle()).count()
    }

    /// Tasks that the executors of a worker that is up have run.
    pub fn tasks_run(&self, number: u8) -> u64 {
        let slots = self.workers[usize::from(number)].process.iter();
        let slots = slots.flat_map(|worker| &worker.slots);
        slots.map(|slot| slot.executor.counters().tasks_run).sum()
    }

    /// Is every worker registered?
    pub fn all_registered(&self) -> bool {
        let is_known = |worker: &Worker| worker.known.is_some();
        let mut hosts = self.workers.iter();
        hosts.all(|host| host.process.as_ref().is_some_and(|w| is_known(w)))
    }

    fn worker(&mut self, number: u8) -> Option<&mut Worker> {
        self.workers[usize::from(number)].process.as_deref_mut()
    }

    pub(super) fn rest_worker(&mut self, number: u8) {
        if let Some(due) = self.worker(number).map(|worker| worker.due()) {
            self.sleep(Host::Worker(number), due);
        }
    }

    pub(super) fn tick_worker(&mut self, number: u8) {
        let now = self.local(Host::Worker(number));
        let Some(worker) = self.worker(number) else {
            return;
        };
        let registers = now >= worker.register_at;
        if registers {
            let known = worker.known.filter(|_| !worker.is_refused);
            let again_ns = known.map_or(REGISTER_NS, |known| known.lease_ns / 5);
            worker.register_at = now + again_ns;
        }
        let again = worker.results.tick(now);
        let gone = worker.results.take_gone();
        let late = |slot: &Slot| now >= slot.executor.due();
        let slots = worker.slots.len();
        let late: Vec<usize> = (0..slots).filter(|at| late(&worker.slots[*at])).collect();
        if registers {
            self.register(number);
        }
        for slot in late {
            self.at_slot(number, slot, |executor, now| executor.tick(now));
        }
        for ((client, executor), message) in again {
            self.tell_client(number, executor, client, message);
        }
        for outcome in gone {
            self.forget_outcome(number, &outcome);
        }
        self.rest_worker(number);
    }

    fn register(&mut self, number: u8) {
        let executors = self.layout.executors;
        let Some(worker) = self.worker(number) else {
            return;
        };
        let register = HostMessage::Register(Register {
            token: worker.token,
            name: String::new(),
            executors,
            resources: worker.resources,
            leaves: false,
        });
        let packet = self.codec.host(0, &register).to_vec();
        self.send(Host::Worker(number), self.scheduler_of(number), packet);
    }

    pub(super) fn on_worker_packet(&mut self, number: u8, from: Host, bytes: &[u8]) {
        if !self.is_worker_up(number) {
            return;
        }
        match self.codec.read(bytes) {
            Some(Incoming::Given(given)) => self.on_given(number, given),
            Some(Incoming::Damaged {
                executor,
                pull_seq,
                is_repeated,
            }) => {
                if let Some(slot) = self.worker(number).and_then(|w| w.number_of(executor)) {
                    self.at_slot(number, slot, |executor, now| {
                        executor.on_damaged(now, pull_seq, is_repeated);
                    });
                }
            }
            Some(Incoming::NoTask { executor, pull_seq }) => {
                if let Some(slot) = self.worker(number).and_then(|w| w.number_of(executor)) {
                    self.at_slot(number, slot, |executor, now| {
                        executor.on_no_task(now, pull_seq)
                    });
                }
            }
            Some(Incoming::NotRegistered {
                executor,
                worker_incarnation,
            }) => self.on_not_registered(number, executor, worker_incarnation),
            Some(Incoming::Host(_, HostMessage::Registered(scheduler, answer))) => {
                self.on_registered(number, scheduler, answer);
            }
            Some(Incoming::Host(executor, HostMessage::ToExecutor(message))) => {
                self.on_client_says(number, from.address(), executor as usize, message);
            }
            _ => {}
        }
        self.rest_worker(number);
    }

    fn on_given(&mut self, number: u8, given: Given) {
        if let Some((client, reply)) = given.relay {
            self.tell_client(number, 0, client, ToClient::Reply(reply));
        }
        let Some(slot) = self
            .worker(number)
            .and_then(|w| w.number_of(given.executor))
        else {
            return;
        };
        if let Some(worker) = self.worker(number) {
            worker.slots[slot].revoked = None;
        }
        self.at_slot(number, slot, |executor, now| {
            executor.on_task(now, given.pull_seq, given.client, given.entry);
        });
    }

    fn on_not_registered(&mut self, number: u8, executor: u32, incarnation: u32) {
        let now = self.local(Host::Worker(number));
        let Some(worker) = self.worker(number) else {
            return;
        };
        let is_known_so = worker.known.is_some_and(|k| k.incarnation == incarnation);
        let is_late = !is_known_so || worker.number_of(executor).is_none();
        if !is_late && !worker.is_refused {
            worker.is_refused = true;
            worker.register_at = now;
        }
    }

    fn on_registered(&mut self, number: u8, scheduler: u64, answer: Registered) {
        let Registered::As {
            worker,
            worker_incarnation: incarnation,
            lease_ms,
            pull_ms,
        } = answer
        else {
            // Its process ends and says why; somebody starts it again.
            self.stop_worker(number);
            self.stats.host("workers refused", 1);
            return self
                .queue
                .push(self.now + RESTART_NS, Event::StartWorker(number));
        };
        let known = Known {
            scheduler,
            worker,
            incarnation,
            lease_ns: Nanos::from(lease_ms) * MS,
        };
        let Some(of) = self.worker(number) else {
            return;
        };
        of.is_refused = false;
        if of.known.replace(known) != Some(known) {
            for slot in 0..usize::from(self.layout.executors) {
                let pull_ns = Nanos::from(pull_ms) * MS;
                self.at_slot(number, slot, |executor, now| {
                    executor.on_registered(now, pull_ns);
                });
            }
        }
    }

    fn on_client_says(&mut self, number: u8, from: SocketAddrV4, slot: usize, message: ToExecutor) {
        let Some(worker) = self.worker(number) else {
            return;
        };
        if let ToExecutor::Acknowledged(attempt) = message {
            let outcome = worker
                .results
                .on_acknowledged(&(from, slot as u32), attempt);
            if let Some(outcome) = outcome {
                self.forget_outcome(number, &outcome);
            }
            return;
        }
        let Some(at) = worker.slots.get_mut(slot) else {
            return;
        };
        if let ToExecutor::Revoked(attempt) = message {
            at.revoked = Some(attempt);
        }
        self.at_slot(number, slot, |executor, now| {
            executor.on_client(now, &from, message)
        });
    }

    /// Something happens to an executor; do what it wants then.
    fn at_slot(
        &mut self,
        number: u8,
        slot: usize,
        event: impl FnOnce(&mut Executor<SocketAddrV4>, Nanos),
    ) {
        let now = self.local(Host::Worker(number));
        let Some(worker) = self.worker(number) else {
            return;
        };
        let executor = &mut worker.slots[slot].executor;
        event(executor, now);
        for action in executor.actions() {
            match action {
                Action::Pull { pull_seq } => self.pull(number, slot, pull_seq),
                Action::Tell(client, message) => {
                    self.tell_client(number, slot as u32, client, message);
                }
                Action::Run(attempt, payload) => self.run_task(number, slot, attempt, payload),
                Action::Stop(attempt) => self.stop_run(number, slot, attempt),
                Action::Keep(client, attempt, outcome) => {
                    self.keep_result(number, slot, client, attempt, outcome);
                }
            }
        }
    }

    fn pull(&mut self, number: u8, slot: usize, pull_seq: u64) {
        let Some(known) = self.worker(number).and_then(|worker| worker.known) else {
            return;
        };
        let executor = u32::from(known.worker) * EXECUTORS + slot as u32;
        let packet = self
            .codec
            .pull(known.scheduler, executor, known.incarnation, pull_seq);
        let packet = packet.to_vec();
        self.send(Host::Worker(number), self.scheduler_of(number), packet);
    }

    fn tell_client(&mut self, number: u8, slot: u32, client: SocketAddrV4, message: ToClient) {
        let message = HostMessage::ToClient(message);
        let packet = self.codec.host(slot, &message).to_vec();
        if let Some(client) = Host::at(client) {
            self.send(Host::Worker(number), client, packet);
        }
    }

    fn run_task(&mut self, number: u8, slot: usize, attempt: Attempt, payload: Payload) {
        let run_number = self.number();
        let fetch_until = self.now + FETCH_LIMIT_NS;
        let Some(worker) = self.worker(number) else {
            return;
        };
        let at = &mut worker.slots[slot];
        let is_revoked = at.revoked == Some(attempt);
        let is_here = matches!(payload, Payload::Inline(_));
        at.run = Some(Run {
            number: run_number,
            attempt,
            payload,
            is_stopped: false,
            fetch_until,
        });
        if is_revoked {
            self.broken(Rule::RevokedNotRun, format!("{attempt:?} begins"));
        }
        match is_here {
            true => self.begin_run(number, slot),
            false => {
                let event = Event::FetchesWork(number, slot, run_number);
                self.queue.push(self.now + MS / 2, event);
            }
        }
    }

    /// The run of this number, if it is still that.
    fn run_of(&mut self, number: u8, slot: usize, run: u64) -> Option<&mut Run> {
        let run_of = self.worker(number)?.slots.get_mut(slot)?.run.as_mut();
        run_of.filter(|is| is.number == run)
    }

    pub(super) fn on_fetches_work(&mut self, number: u8, slot: usize, run: u64) {
        let (own, now) = (Host::Worker(number), self.now);
        let Some(is) = self.run_of(number, slot, run) else {
            return;
        };
        let (Payload::At(place), is_over) =
            (is.payload.clone(), is.is_stopped || now > is.fetch_until)
        else {
            return;
        };
        if is_over {
            let said = Outcome::Error(Payload::Inline(b"cannot fetch the work".to_vec()));
            return self.end_run(number, slot, said);
        }
        let Some(work) = self.fetch(own, &place) else {
            let event = Event::FetchesWork(number, slot, run);
            return self.queue.push(now + FETCH_AGAIN_NS, event);
        };
        if let Some(is) = self.run_of(number, slot, run) {
            is.payload = Payload::Inline(work);
        }
        self.begin_run(number, slot);
    }

    /// The work is here: it runs, for as long as it says.
    fn begin_run(&mut self, number: u8, slot: usize) {
        let slowness = self.workers[usize::from(number)].slowness.max(1);
        let Some(worker) = self.worker(number) else {
            return;
        };
        let Some(run) = &worker.slots[slot].run else {
            return;
        };
        let (run_number, id) = (run.number, run.attempt.id);
        let Payload::Inline(work) = run.payload.clone() else {
            return;
        };
        self.trace
            .about(self.now, Host::Worker(number), run_number, id);
        let held = self.ledger.runs(id, &work);
        self.must(held);
        let takes_ns = Plan::of(&work).map_or(0, |plan| plan.takes_ns);
        let ends = Event::RunEnds(number, slot, run_number);
        self.queue.push(self.now + takes_ns * slowness, ends);
    }

    fn stop_run(&mut self, number: u8, slot: usize, attempt: Attempt) {
        let now = self.now;
        let Some(worker) = self.worker(number) else {
            return;
        };
        let run = worker.slots[slot].run.as_mut();
        if let Some(run) = run.filter(|run| run.attempt == attempt) {
            run.is_stopped = true;
            let ends = match run.payload {
                Payload::Inline(_) => Event::RunEnds(number, slot, run.number),
                Payload::At(_) => Event::FetchesWork(number, slot, run.number),
            };
            self.queue.push(now + MS / 10, ends);
        }
    }

    pub(super) fn on_run_ends(&mut self, number: u8, slot: usize, run: u64) {
        let Some(is) = self.run_of(number, slot, run) else {
            return;
        };
        let is_stopped = is.is_stopped;
        let Payload::Inline(work) = &is.payload else {
            return;
        };
        let kills = Plan::of(work).is_some_and(|plan| plan.ends == Ends::Kills);
        if kills && !is_stopped {
            self.stats.host("workers killed by tasks", 1);
            self.stop_worker(number);
            return self
                .queue
                .push(self.now + RESTART_NS, Event::StartWorker(number));
        }
        let outcome = match is_stopped {
            true => Outcome::Error(Payload::Inline(b"it was stopped".to_vec())),
            false => outcome_of(work),
        };
        self.end_run(number, slot, outcome);
    }

    fn end_run(&mut self, number: u8, slot: usize, outcome: Outcome) {
        if let Some(worker) = self.worker(number) {
            worker.slots[slot].run = None;
        }
        self.at_slot(number, slot, |executor, now| {
            executor.finished(now, outcome)
        });
        self.rest_worker(number);
    }

    fn keep_result(
        &mut self,
        number: u8,
        slot: usize,
        client: SocketAddrV4,
        attempt: Attempt,
        outcome: Outcome,
    ) {
        let own = Host::Worker(number);
        let now = self.local(own);
        let outcome = match outcome.payload() {
            Payload::Inline(bytes) if bytes.len() > INLINE_LEN_BYTES_MAX => {
                let place: Place = self.keep(own, bytes.clone());
                outcome.with(Payload::At(place))
            }
            _ => outcome,
        };
        let Some(worker) = self.worker(number) else {
            return;
        };
        let is_revoked = worker.slots[slot].revoked == Some(attempt);
        let key = (client, slot as u32);
        let message = worker.results.keep(now, key, attempt, outcome);
        if is_revoked {
            self.broken(
                Rule::RevokedNotRun,
                format!("the result of {attempt:?} is kept"),
            );
        }
        self.tell_client(number, slot as u32, client, message);
    }

    fn forget_outcome(&mut self, number: u8, outcome: &Outcome) {
        if let Payload::At(place) = outcome.payload() {
            self.forget(Host::Worker(number), place);
        }
    }
}
