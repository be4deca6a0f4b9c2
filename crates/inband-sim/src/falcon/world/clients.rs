//! Clients of the world, in the manner of `client_node`: what they want, and what comes of it.

use inband_dataplane::falcon::wire::{PRIORITIES, RESOURCES};
use inband_falcon::client::{self, Action, Client};
use inband_falcon::limits::DESC_LEN_BYTES_MAX;
use inband_falcon::message::{Outcome, Payload, ToExecutor};
use inband_falcon::packets::{HostMessage, Peer};
use inband_falcon::task::{Attempt, JobId, TaskId, TaskSpec, Work};
use inband_falcon::timing::{Nanos, MS};

use super::{Event, World};
use crate::falcon::links::Host;
use crate::falcon::rule::Rule;
use crate::falcon::work::{Ends, Plan};

/// Jobs of one start of a client.
const JOBS_OF_A_START: u32 = 1 << 20;
/// The last so many jobs are those that a new one may wait for.
const JOBS_AWAITED: usize = 4;

struct Process {
    client: Client<Peer>,
    /// Of all starts.
    number: u64,
    user: u32,
    first_job: u32,
}

/// A client; `None`: it is down.
#[derive(Default)]
pub(super) struct ClientHost(Option<Box<Process>>);

impl World {
    /// A client starts, of the same user as before.
    pub fn start_client(&mut self, number: u8) {
        if self.clients[usize::from(number)].0.is_some() {
            return;
        }
        let start = self.number();
        // Some are counted together by the scheduler, or share a queue; and some are one.
        let user = 7 + [0, 1024, 64, 1, 0, 2][usize::from(number) % 6];
        let first_job = start as u32 * JOBS_OF_A_START;
        let client = Client::new(client::Config {
            user,
            first_job,
            tasks_per_submit: self.layout.tasks_per_submit,
            losses_max: self.layout.losses_max,
            timing: self.layout.client,
        });
        let process = Process {
            client,
            number: start,
            user,
            first_job,
        };
        self.clients[usize::from(number)].0 = Some(Box::new(process));
        self.trace.host(self.now, Host::Client(number), "STARTED");
    }

    /// A client's process ends without a word.
    pub fn stop_client(&mut self, number: u8) {
        let own = Host::Client(number);
        let Some(process) = self.clients[usize::from(number)].0.take() else {
            return;
        };
        self.nothing_is_left_behind(own, process.client.tasks_left());
        let counters = process.client.counters();
        self.stats.host("submitted", counters.submitted);
        self.stats.host("submits repeated", counters.repeated);
        self.stats.host("refused by full queues", counters.refused);
        self.stats.host("given up", counters.lost);
        self.stats.host("schedulers lost", counters.schedulers_lost);
        self.stats.host("results twice", counters.results_twice);
        self.stats.host("clients stopped", 1);
        self.blobs.retain(|(host, _), _| *host != own);
        self.trace.host(self.now, own, "STOPPED");
    }

    fn process(&mut self, number: u8) -> Option<&mut Process> {
        self.clients[usize::from(number)].0.as_deref_mut()
    }

    /// Tasks of living clients that have not ended.
    pub fn tasks_left(&self) -> usize {
        let up = self.clients.iter().filter_map(|host| host.0.as_ref());
        up.map(|process| process.client.tasks_left()).sum()
    }

    /// What a living client counts.
    pub fn client_counters(&self, number: u8) -> Option<client::Counters> {
        let process = self.clients[usize::from(number)].0.as_ref()?;
        Some(process.client.counters())
    }

    /// Clients stop beginning anything, or go on.
    pub fn set_load(&mut self, is_loaded: bool) {
        self.is_loaded = is_loaded;
    }

    pub(super) fn rest_client(&mut self, number: u8) {
        if let Some(due) = self.process(number).map(|process| process.client.due()) {
            self.sleep(Host::Client(number), due);
        }
    }

    pub(super) fn at_client(&mut self, number: u8, event: impl FnOnce(&mut Client<Peer>, Nanos)) {
        let now = self.local(Host::Client(number));
        let Some(process) = self.process(number) else {
            return;
        };
        event(&mut process.client, now);
        self.act_client(number);
        self.rest_client(number);
    }

    fn act_client(&mut self, number: u8) {
        let own = Host::Client(number);
        let Some(process) = self.process(number) else {
            return;
        };
        let (user, start) = (process.user, process.number);
        for action in process.client.actions() {
            match action {
                Action::Submit {
                    submit_seq,
                    queue,
                    entries,
                } => {
                    let packet = self.codec.submit(user, submit_seq, queue, &entries);
                    let packet = packet.to_vec();
                    self.send(own, self.scheduler_of(number), packet);
                }
                Action::Tell(peer, message) => self.tell_executor(number, peer, message),
                Action::Store(peer, attempt) => self.store_work(number, peer, attempt),
                Action::Forget(place) => self.forget(own, &place),
                Action::Fetch(peer, attempt, outcome) => {
                    let what = Box::new((peer, attempt, outcome));
                    let event = Event::FetchesResult(number, start, what);
                    self.queue.push(self.now + MS / 2, event);
                }
                Action::Started(id) => {
                    if self.ledger.ended(id).is_some() {
                        self.broken(Rule::TakenOnce, format!("{id:?} begins after its end"));
                    }
                }
                Action::Done(id, outcome) => self.on_done(number, id, outcome),
            }
        }
    }

    fn on_done(
        &mut self,
        number: u8,
        id: TaskId,
        outcome: Result<Outcome, inband_falcon::task::Failure>,
    ) {
        let own = Host::Client(number);
        let now = self.local(own);
        let words = u64::from(id.job) << 32 | u64::from(id.task);
        self.trace
            .about(self.now, own, words, (id, outcome.is_ok()));
        let held = self.ledger.ends(now, id, outcome);
        self.must(held);
    }

    fn tell_executor(&mut self, number: u8, peer: Peer, message: ToExecutor) {
        if let ToExecutor::Go(attempt, _) = &message {
            if self.ledger.ended(attempt.id).is_some() {
                let what = format!("GO for {attempt:?}, which has ended");
                self.broken(Rule::RevokedNotRun, what);
            }
        }
        let message = HostMessage::ToExecutor(message);
        let from = Host::Client(number);
        self.tell(from, peer.address, peer.executor, &message);
    }

    fn store_work(&mut self, number: u8, peer: Peer, attempt: Attempt) {
        let work = |process: &mut Process| process.client.kept(attempt.id).map(<[u8]>::to_vec);
        let Some(work) = self.process(number).and_then(work) else {
            return;
        };
        // Too much is kept now and then.
        let place = (self.rng.below(8) > 0).then(|| self.keep(Host::Client(number), work));
        if let Some(process) = self.process(number) {
            process.client.stored(peer, attempt, place);
        }
        self.act_client(number);
    }

    pub(super) fn on_client_packet(&mut self, number: u8, from: Host, bytes: &[u8]) {
        for incoming in self.codec.read(bytes) {
            let from = from.address();
            self.at_client(number, |client, now| {
                client.on_incoming(now, from, incoming)
            });
        }
    }

    pub(super) fn on_fetches_result(
        &mut self,
        number: u8,
        start: u64,
        (peer, attempt, outcome): (Peer, Attempt, Outcome),
    ) {
        if self
            .process(number)
            .is_none_or(|process| process.number != start)
        {
            return;
        }
        let Payload::At(place) = outcome.payload() else {
            return;
        };
        let bytes = self.fetch(Host::Client(number), place);
        let outcome = bytes.map(|bytes| outcome.with(Payload::Inline(bytes)));
        self.at_client(number, |client, now| {
            client.fetched(now, peer, attempt, outcome);
        });
    }

    pub(super) fn on_think(&mut self, number: u8) {
        if !self.is_loaded {
            return;
        }
        let wait = self.rng.wait(self.layout.think_ns);
        self.queue.push(self.now + wait, Event::Think(number));
        let limit = self.layout.outstanding;
        let is_idle = self
            .process(number)
            .is_some_and(|p| p.client.tasks_left() < limit);
        if is_idle {
            self.random_job(number);
        }
        if self.rng.below(8) == 0 {
            self.give_up_something(number);
        }
    }

    fn give_up_something(&mut self, number: u8) {
        let (skip, is_hard) = (self.rng.below(6) as usize, self.rng.below(3) == 0);
        let Some(process) = self.process(number) else {
            return;
        };
        let (user, first_job) = (process.user, process.first_job);
        let open = self.ledger.open_task(user, first_job, skip);
        // Another client of this user has others.
        let is_own = |id: &TaskId| id.job - first_job < JOBS_OF_A_START;
        if let Some(id) = open.filter(is_own) {
            self.give_up(number, id, is_hard);
        }
    }

    /// A client gives up a task: even one that runs, if it is hard.
    pub fn give_up(&mut self, number: u8, id: TaskId, is_hard: bool) {
        let mut is_done = false;
        self.ledger.gives_up(id, true);
        self.at_client(number, |client, now| {
            is_done = match is_hard {
                true => client.kill(now, id),
                false => client.cancel(now, id),
            };
        });
        if !is_done {
            self.ledger.gives_up(id, false);
        }
    }

    fn random_job(&mut self, number: u8) {
        let count = self.rng.between(1, self.layout.job_tasks);
        let specs = (0..count).map(|_| self.random_task(number)).collect();
        let Some(process) = self.process(number) else {
            return;
        };
        let (user, first_job) = (process.user, process.first_job);
        let mut after = Vec::new();
        if self.rng.below(4) == 0 {
            let last = self.ledger.last_jobs(user, first_job, JOBS_AWAITED);
            let is_own = |job: &u32| job - first_job < JOBS_OF_A_START;
            after.extend(last.into_iter().filter(is_own));
            after.truncate(self.rng.between(1, 3) as usize);
        }
        let limit = (self.rng.below(8) == 0).then(|| self.rng.between(5, 200) * MS);
        self.submit(number, specs, &after, limit);
    }

    fn random_task(&mut self, number: u8) -> TaskSpec {
        let takes_ns = match self.rng.below(20) {
            0 => 10 * self.layout.task_ns,
            1 => 0,
            _ => self.rng.below(2 * self.layout.task_ns) + 1,
        };
        let killer_of = self.layout.killer_of;
        let kills = killer_of > 0 && self.rng.below(killer_of) == 0;
        let ends = match self.rng.below(20) {
            _ if kills => Ends::Kills,
            0 => Ends::Error,
            1 => Ends::Output(5_000),
            _ => Ends::Output(8),
        };
        let plan = Plan {
            number: self.number(),
            takes_ns,
            ends,
        };
        let work = match self.rng.below(6) {
            0 => Work::Kept(plan.work(self.rng.below(900) as usize)),
            1 => Work::Kept(plan.work(1_500)),
            _ => Work::Inline(plan.work(self.rng.below(DESC_LEN_BYTES_MAX as u64) as usize)),
        };
        let of_us = self.layout.workers / self.layout.schedulers;
        let resource = self.rng.below(u64::from(of_us) + 1) as u8;
        let worker = self.rng.below(u64::from(of_us) + 1) as u16;
        TaskSpec {
            work,
            priority: self.rng.below(u64::from(PRIORITIES)) as u8,
            resource: resource.min(RESOURCES - 1),
            worker: (self.rng.below(3) > 0).then_some(worker + 63 * u16::from(number)),
        }
    }

    /// A client submits a job. Returns its number.
    pub fn submit(
        &mut self,
        number: u8,
        specs: Vec<TaskSpec>,
        after: &[u32],
        limit: Option<Nanos>,
    ) -> Option<u32> {
        let work = |spec: &TaskSpec| match &spec.work {
            Work::Inline(work) | Work::Kept(work) => work.clone(),
        };
        let works: Vec<Vec<u8>> = specs.iter().map(work).collect();
        let now = self.local(Host::Client(number));
        let deadline = limit.map(|limit| now + limit);
        let user = self.process(number)?.user;
        let jobs: Vec<JobId> = after.iter().copied().map(JobId).collect();
        let process = self.process(number)?;
        let job = process.client.submit(now, specs, &jobs, deadline);
        let JobId(job) = job.expect("it may be submitted");
        let key = (user, job);
        self.ledger.begins(key, works, after.to_vec(), deadline);
        self.act_client(number);
        self.rest_client(number);
        Some(job)
    }

    /// The tasks of a client's job, from 0.
    pub fn task(&self, number: u8, job: u32, task: u32) -> TaskId {
        let process = self.clients[usize::from(number)].0.as_ref();
        let user = process.expect("it is up").user;
        TaskId { user, job, task }
    }

    /// How a task ended, as its client was told.
    pub fn ended(&self, id: TaskId) -> Option<&'static str> {
        self.ledger.ended(id)
    }
}
