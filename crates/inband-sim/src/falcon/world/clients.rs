//! The world's clients, driven as `client_node` drives them: what they submit and how it ends.

use inband_falcon::client::{self, Action, Client};
use inband_falcon::dataplane::wire::{PRIORITIES, RESOURCES};
use inband_falcon::limits::DESC_LEN_BYTES_MAX;
use inband_falcon::message::{Outcome, Payload, ToExecutor};
use inband_falcon::packets::{HostMessage, Peer};
use inband_falcon::task::{Attempt, JobId, TaskId, TaskSpec, Work};
use inband_falcon::timing::{Nanos, MS};

use crate::falcon::host::Host;
use crate::falcon::invariant::Invariant;
use crate::falcon::system::Event;
use crate::falcon::work::{Ends, Plan};
use crate::falcon::{trace, World};

/// Job numbers that each start of a client may use.
const JOBS_OF_A_START: u32 = 1 << 20;
/// A new job may wait for this many of the latest jobs.
const JOBS_AWAITED: usize = 4;

struct Process {
    client: Client<Peer>,
    /// Unique among all starts.
    number: u64,
    user: u32,
    first_job: u32,
}

/// A client; `None`: it is down.
#[derive(Default)]
pub(in crate::falcon) struct ClientHost(Option<Box<Process>>);

impl World {
    /// Starts a client as the same user as before.
    pub fn start_client(&mut self, number: u8) {
        if self.system.clients[usize::from(number)].0.is_some() {
            return;
        }
        let start = self.number();
        // Some users share a counter at the scheduler, some share a queue, and some are the same user.
        let user = 7 + [0, 1024, 64, 1, 0, 2][usize::from(number) % 6];
        let first_job = start as u32 * JOBS_OF_A_START;
        let client = Client::new(client::Config {
            user,
            first_job,
            tasks_per_submit: self.system.layout.tasks_per_submit,
            losses_max: self.system.layout.losses_max,
            timing: self.system.layout.client,
        });
        let process = Process {
            client,
            number: start,
            user,
            first_job,
        };
        self.system.clients[usize::from(number)].0 = Some(Box::new(process));
        trace::host(&mut self.trace, self.now, Host::Client(number), "STARTED");
    }

    /// Ends a client's process without notice.
    pub fn stop_client(&mut self, number: u8) {
        let own = Host::Client(number);
        let Some(process) = self.system.clients[usize::from(number)].0.take() else {
            return;
        };
        self.nothing_is_left_behind(own, process.client.tasks_left());
        let counters = process.client.counters();
        self.stats.count("submitted", counters.submitted);
        self.stats.count("submits repeated", counters.repeated);
        self.stats.count("refused by full queues", counters.refused);
        self.stats.count("given up", counters.lost);
        self.stats
            .count("schedulers lost", counters.schedulers_lost);
        self.stats.count("results twice", counters.results_twice);
        self.stats.count("clients stopped", 1);
        self.system.blobs.retain(|(host, _), _| *host != own);
        trace::host(&mut self.trace, self.now, own, "STOPPED");
    }

    fn process(&mut self, number: u8) -> Option<&mut Process> {
        self.system.clients[usize::from(number)].0.as_deref_mut()
    }

    /// Tasks of running clients that have not ended.
    pub fn tasks_left(&self) -> usize {
        let up = self
            .system
            .clients
            .iter()
            .filter_map(|host| host.0.as_ref());
        up.map(|process| process.client.tasks_left()).sum()
    }

    /// Returns a running client's counters.
    pub fn client_counters(&self, number: u8) -> Option<client::Counters> {
        let process = self.system.clients[usize::from(number)].0.as_ref()?;
        Some(process.client.counters())
    }

    /// Lets clients submit new jobs, or stops them.
    pub fn set_load(&mut self, is_loaded: bool) {
        self.system.is_loaded = is_loaded;
    }

    pub(in crate::falcon) fn rest_client(&mut self, number: u8) {
        if let Some(due) = self.process(number).map(|process| process.client.due()) {
            self.sleep(Host::Client(number), due);
        }
    }

    pub(in crate::falcon) fn at_client(
        &mut self,
        number: u8,
        event: impl FnOnce(&mut Client<Peer>, Nanos),
    ) {
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
                    let packet = self.system.codec.submit(user, submit_seq, queue, &entries);
                    let packet = packet.to_vec();
                    self.send(own, self.scheduler_of(number), packet);
                }
                Action::Tell(peer, message) => self.tell_executor(number, peer, message),
                Action::Store(peer, attempt) => self.store_work(number, peer, attempt),
                Action::Forget(place) => self.forget(own, &place),
                Action::Fetch(peer, attempt, outcome) => {
                    let what = Box::new((peer, attempt, outcome));
                    let event = Event::FetchesResult(number, start, what);
                    self.after(MS / 2, event);
                }
                Action::Started(id) => {
                    if self.system.ledger.ended(id).is_some() {
                        self.broken(Invariant::TakenOnce, format!("{id:?} begins after its end"));
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
        trace::about(&mut self.trace, self.now, own, words, (id, outcome.is_ok()));
        let held = self.system.ledger.ends(now, id, outcome);
        self.check(held);
    }

    fn tell_executor(&mut self, number: u8, peer: Peer, message: ToExecutor) {
        if let ToExecutor::Go(attempt, _) = &message {
            if self.system.ledger.ended(attempt.id).is_some() {
                let what = format!("GO for {attempt:?}, which has ended");
                self.broken(Invariant::RevokedNotRun, what);
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
        // Sometimes there is no room for the work.
        let place = (self.rng.hosts.below(8) > 0).then(|| self.keep(Host::Client(number), work));
        if let Some(process) = self.process(number) {
            process.client.stored(peer, attempt, place);
        }
        self.act_client(number);
    }

    pub(in crate::falcon) fn on_client_packet(&mut self, number: u8, from: Host, bytes: &[u8]) {
        for incoming in self.system.codec.read(bytes) {
            let from = from.address();
            self.at_client(number, |client, now| {
                client.on_incoming(now, from, incoming)
            });
        }
    }

    pub(in crate::falcon) fn on_fetches_result(
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

    pub(in crate::falcon) fn on_think(&mut self, number: u8) {
        if !self.system.is_loaded {
            return;
        }
        let wait = self.rng.hosts.wait(self.system.layout.think_ns);
        self.after(wait, Event::Think(number));
        let limit = self.system.layout.outstanding;
        let is_idle = self
            .process(number)
            .is_some_and(|p| p.client.tasks_left() < limit);
        if is_idle {
            self.random_job(number);
        }
        if self.rng.hosts.below(8) == 0 {
            self.give_up_something(number);
        }
    }

    fn give_up_something(&mut self, number: u8) {
        let (skip, is_hard) = (
            self.rng.hosts.below(6) as usize,
            self.rng.hosts.below(3) == 0,
        );
        let Some(process) = self.process(number) else {
            return;
        };
        let (user, first_job) = (process.user, process.first_job);
        let open = self.system.ledger.open_task(user, first_job, skip);
        // Another client of the same user has other job numbers.
        let is_own = |id: &TaskId| id.job - first_job < JOBS_OF_A_START;
        if let Some(id) = open.filter(is_own) {
            self.give_up(number, id, is_hard);
        }
    }

    /// A client cancels a task; if `is_hard`, even one that runs.
    pub fn give_up(&mut self, number: u8, id: TaskId, is_hard: bool) {
        let mut is_done = false;
        self.system.ledger.gives_up(id, true);
        self.at_client(number, |client, now| {
            is_done = match is_hard {
                true => client.kill(now, id),
                false => client.cancel(now, id),
            };
        });
        if !is_done {
            self.system.ledger.gives_up(id, false);
        }
    }

    fn random_job(&mut self, number: u8) {
        let count = self.rng.hosts.between(1, self.system.layout.job_tasks);
        let specs = (0..count).map(|_| self.random_task(number)).collect();
        let Some(process) = self.process(number) else {
            return;
        };
        let (user, first_job) = (process.user, process.first_job);
        let mut after = Vec::new();
        if self.rng.hosts.below(4) == 0 {
            let last = self.system.ledger.last_jobs(user, first_job, JOBS_AWAITED);
            let is_own = |job: &u32| job - first_job < JOBS_OF_A_START;
            after.extend(last.into_iter().filter(is_own));
            after.truncate(self.rng.hosts.between(1, 3) as usize);
        }
        let limit = (self.rng.hosts.below(8) == 0).then(|| self.rng.hosts.between(5, 200) * MS);
        self.submit(number, specs, &after, limit);
    }

    fn random_task(&mut self, number: u8) -> TaskSpec {
        let takes_ns = match self.rng.hosts.below(20) {
            0 => 10 * self.system.layout.task_ns,
            1 => 0,
            _ => self.rng.hosts.below(2 * self.system.layout.task_ns) + 1,
        };
        let killer_of = self.system.layout.killer_of;
        let kills = killer_of > 0 && self.rng.hosts.below(killer_of) == 0;
        let ends = match self.rng.hosts.below(20) {
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
        let work = match self.rng.hosts.below(6) {
            0 => Work::Kept(plan.work(self.rng.hosts.below(900) as usize)),
            1 => Work::Kept(plan.work(1_500)),
            _ => Work::Inline(plan.work(self.rng.hosts.below(DESC_LEN_BYTES_MAX as u64) as usize)),
        };
        let of_us = self.system.layout.workers / self.system.layout.schedulers;
        let resource = self.rng.hosts.below(u64::from(of_us) + 1) as u8;
        let worker = self.rng.hosts.below(u64::from(of_us) + 1) as u16;
        TaskSpec {
            work,
            priority: self.rng.hosts.below(u64::from(PRIORITIES)) as u8,
            resource: resource.min(RESOURCES - 1),
            worker: (self.rng.hosts.below(3) > 0).then_some(worker + 63 * u16::from(number)),
        }
    }

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
        self.system
            .ledger
            .begins(key, works, after.to_vec(), deadline);
        self.act_client(number);
        self.rest_client(number);
        Some(job)
    }

    /// Returns the id of a task, by its index in the job.
    pub fn task(&self, number: u8, job: u32, task: u32) -> TaskId {
        let process = self.system.clients[usize::from(number)].0.as_ref();
        let user = process.expect("it is up").user;
        TaskId { user, job, task }
    }

    /// Returns how a task ended, as its client was told.
    pub fn ended(&self, id: TaskId) -> Option<&'static str> {
        self.system.ledger.ended(id)
    }
}
