//! A worker on real packets: its executors, each with a runner. One thread beside those of the runners.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;

use inband_dataplane::auth::{Digest, Gate, Keys};
use inband_dataplane::falcon::wire::EXECUTORS;
use inband_dataplane::socket::HostSocket;
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;
use inband_transport::tls::Transport;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::blobs::{self, Blobs};
use crate::clock::Clock;
use crate::executor::{Action, Executor};
use crate::limits::INLINE_LEN_BYTES_MAX;
use crate::message::{Outcome, Payload, ToClient, ToExecutor};
use crate::observer::{Observer, Step};
use crate::outbox::Outbox;
use crate::packets::{Codec, Given, HostMessage, Incoming};
use crate::registry::{Register, Registered};
use crate::results::Results;
use crate::runner::{Runner, Tools};
use crate::task::Attempt;
use crate::timing::{ExecutorTiming, Nanos, MS};

const SOCKET: Token = Token(0);
const DONE: Token = Token(1);
/// How often a worker that is not known yet asks to be.
const REGISTER_NS: Nanos = 50 * MS;
/// So long a worker that ends listens for tasks that it was given just before, and tells the scheduler again: either
/// may be lost.
const DRAIN_MIN_NS: Nanos = 3 * REGISTER_NS;
/// Packets handled before runners that have ended are looked at.
const BATCH_PACKETS: usize = 64;
/// Of those, before what is due is looked at.
const BATCHES: usize = 16;
/// What clients are told before packets are looked at again.
const TOLD_AT_ONCE: usize = 4;
/// What waits to be told to clients; more is told at once.
const LATER_MAX: usize = 256;
/// How often any free port is looked for.
const PORT_TRIES: usize = 100;
/// Longest sleep.
const IDLE_MAX_NS: Nanos = 100 * MS;

/// What a worker is told once.
pub struct Config {
    /// The scheduler.
    pub scheduler: SocketAddrV4,
    /// Where it listens, for packets and, at the same port, for who fetches long results. Port 0: any.
    pub address: SocketAddrV4,
    /// For people.
    pub name: String,
    /// How many tasks it runs at a time.
    pub executors: u8,
    /// Bitmap of what its tasks may need.
    pub resources: u64,
    /// What its runners work with.
    pub tools: Tools,
    /// The cluster's keys, and how values are digested.
    pub keys: Option<Keys>,
    /// See `keys`.
    pub digest: Digest,
    /// Times.
    pub timing: ExecutorTiming,
}

/// Why a worker cannot run on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// An address cannot be bound.
    #[error("cannot listen at {address}: {source}; is it an address of this host, and free?")]
    Address {
        /// Of the configuration.
        address: SocketAddrV4,
        /// What the system said.
        source: io::Error,
    },
    /// The scheduler does not take it.
    #[error("the scheduler refuses this worker: {0}")]
    Refused(#[from] crate::registry::Refusal),
    /// Something that fails.
    #[error(transparent)]
    Io(#[from] io::Error),
}

struct Slot {
    executor: Executor<SocketAddrV4>,
    runner: Runner,
}

/// As the scheduler knows it.
#[derive(Debug, Clone, Copy)]
struct Known {
    scheduler: u64,
    worker: u16,
    incarnation: u32,
    lease_ns: Nanos,
}

/// See the module.
pub struct WorkerNode {
    config: Config,
    clock: Clock,
    token: u64,
    poll: Poll,
    socket: HostSocket,
    codec: Codec,
    blobs: Blobs,
    slots: Vec<Slot>,
    /// To which client, by which executor.
    results: Results<(SocketAddrV4, u32)>,
    done: Receiver<(usize, Outcome)>,
    known: Option<Known>,
    /// The scheduler does not know it so any more.
    is_refused: bool,
    register_at: Nanos,
    /// Since when it takes no more tasks.
    drains_since: Option<Nanos>,
    /// What clients are to be told, once nobody waits for a task.
    later: VecDeque<(Vec<u8>, SocketAddrV4)>,
    pulls: Outbox,
    observer: Option<Observer>,
}

impl WorkerNode {
    /// Listen, and start the runners. It looks for its scheduler as long as that takes.
    pub fn open(mut config: Config) -> Result<WorkerNode, WorkerError> {
        let (socket, listener) = bind(&mut config.address)?;
        let poll = Poll::new()?;
        let fd = socket.fd();
        poll.registry()
            .register(&mut SourceFd(&fd), SOCKET, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), DONE)?);
        let clock = Clock::start();
        let gate = Gate::for_falcon(config.keys, 1);
        let (sender, done) = channel();
        let tools = Arc::new(std::mem::take(&mut config.tools));
        let slots = (0..usize::from(config.executors)).map(|number| {
            let runner = runner(number, &tools, sender.clone(), Arc::clone(&waker))?;
            let executor = Executor::new(config.timing, clock.now());
            Ok(Slot { executor, runner })
        });
        let slots = slots.collect::<io::Result<_>>()?;
        Ok(WorkerNode {
            clock,
            token: rand::random(),
            poll,
            socket,
            codec: Codec::new(gate, config.digest),
            blobs: Blobs::serve(listener, Transport::plain(), config.digest)?,
            slots,
            results: Results::new(config.timing),
            done,
            known: None,
            is_refused: false,
            register_at: 0,
            drains_since: None,
            later: VecDeque::new(),
            pulls: Outbox::default(),
            observer: None,
            config,
        })
    }

    /// Tell this one of every task from now on; that costs time.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddrV4 {
        self.config.address
    }

    /// Is it known to its scheduler?
    pub fn is_registered(&self) -> bool {
        self.known.is_some() && !self.is_refused
    }

    /// How many tasks it runs at a time.
    pub fn executors(&self) -> usize {
        self.slots.len()
    }

    /// How many of its executors wait for tasks.
    pub fn idle(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.executor.is_idle())
            .count()
    }

    /// Tasks that were run.
    pub fn tasks_run(&self) -> u64 {
        self.slots
            .iter()
            .map(|slot| slot.executor.counters().tasks_run)
            .sum()
    }

    /// Handle what has come, do what is due, and wait for more.
    pub fn turn(&mut self) -> Result<(), WorkerError> {
        // However busy it is, what is due is looked at.
        let mut may_be_more = true;
        for _ in 0..BATCHES {
            may_be_more = self.take_done() | self.receive()? || self.tell_some();
            if !may_be_more {
                break;
            }
        }
        let now = self.clock.now();
        self.tick(now);
        self.pulls.flush(&self.socket);
        let due_ns = self.due().saturating_sub(self.clock.now());
        let wait_ns = if may_be_more || !self.later.is_empty() {
            0
        } else {
            due_ns.min(IDLE_MAX_NS)
        };
        let mut events = Events::with_capacity(4);
        match self
            .poll
            .poll(&mut events, Some(Duration::from_nanos(wait_ns)))
        {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Runners that have ended their tasks. False: there were none.
    fn take_done(&mut self) -> bool {
        let mut any = false;
        while let Ok((number, outcome)) = self.done.try_recv() {
            let now = self.clock.now();
            self.slots[number].executor.finished(now, outcome);
            self.act(now, number);
            any = true;
        }
        self.pulls.flush(&self.socket);
        any
    }

    /// Send some of what clients are to be told. False: there is nothing.
    fn tell_some(&mut self) -> bool {
        let count = self.later.len().min(TOLD_AT_ONCE);
        for (packet, client) in self.later.drain(..count) {
            self.socket.send(&packet, client);
        }
        count > 0
    }

    /// Tell the scheduler that this worker ends.
    pub fn leave(&mut self) {
        self.register(true);
    }

    /// Leave the scheduler, and take no more tasks; those that it has go on. See [`WorkerNode::is_drained`].
    pub fn drain(&mut self) {
        let now = self.clock.now();
        self.drains_since.get_or_insert(now);
        self.register_at = now;
    }

    /// Nothing runs after [`WorkerNode::drain`], nothing can be on its way, and every client has its results (or
    /// has not asked for them for long).
    pub fn is_drained(&self) -> bool {
        let is_over = |since: Nanos| self.clock.now() >= since + DRAIN_MIN_NS;
        self.drains_since.is_some_and(is_over)
            && self.idle() == self.slots.len()
            && self.results.is_empty()
    }

    fn due(&self) -> Nanos {
        let executors = self.slots.iter().map(|slot| slot.executor.due());
        let due = executors.min().unwrap_or(Nanos::MAX);
        due.min(self.results.due()).min(self.register_at)
    }

    fn tick(&mut self, now: Nanos) {
        if now >= self.register_at {
            // Several of them may be lost before the lease ends.
            let leaves = self.drains_since.is_some();
            let again_ns = match self.known {
                Some(known) if !leaves && !self.is_refused => known.lease_ns / 5,
                _ => REGISTER_NS,
            };
            self.register_at = now + again_ns;
            self.register(leaves);
        }
        for number in 0..self.slots.len() {
            if now >= self.slots[number].executor.due() {
                self.slots[number].executor.tick(now);
                self.act(now, number);
            }
        }
        for ((client, executor), message) in self.results.tick(now) {
            self.tell(executor, client, message);
        }
        for outcome in self.results.take_gone() {
            self.forget(&outcome);
        }
    }

    fn register(&mut self, leaves: bool) {
        let register = HostMessage::Register(Register {
            token: self.token,
            name: self.config.name.clone(),
            executors: self.config.executors,
            resources: self.config.resources,
            leaves,
        });
        let packet = self.codec.host(0, &register);
        self.socket.send(packet, self.config.scheduler);
    }

    /// Some of the packets that have come. False: there were none.
    fn receive(&mut self) -> Result<bool, WorkerError> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for taken in 0..BATCH_PACKETS {
            let Some((len_bytes, from)) = self.socket.receive(&mut buffer)? else {
                return Ok(taken > 0);
            };
            let now = self.clock.now();
            match self.codec.read(&buffer[..len_bytes]) {
                Some(Incoming::Given(given)) => self.on_given(now, given),
                Some(Incoming::Damaged {
                    executor,
                    pull_seq,
                    is_repeated,
                }) => {
                    if let Some(number) = self.number_of(executor) {
                        let executor = &mut self.slots[number].executor;
                        executor.on_damaged(now, pull_seq, is_repeated);
                        self.act(now, number);
                    }
                }
                Some(Incoming::NoTask { executor, pull_seq }) => {
                    if let Some(number) = self.number_of(executor) {
                        self.slots[number].executor.on_no_task(now, pull_seq);
                    }
                }
                Some(Incoming::NotRegistered {
                    executor,
                    worker_incarnation,
                }) => self.on_not_registered(now, executor, worker_incarnation),
                Some(Incoming::Host(_, HostMessage::Registered(scheduler, answer))) => {
                    self.on_registered(now, scheduler, answer)?;
                }
                Some(Incoming::Host(executor, HostMessage::ToExecutor(message))) => {
                    self.on_client(now, from, executor, message);
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// Which of ours it is.
    fn number_of(&self, executor: u32) -> Option<usize> {
        let known = self.known?;
        let number = executor.checked_sub(u32::from(known.worker) * EXECUTORS)?;
        let number = usize::try_from(number).ok()?;
        (number < self.slots.len()).then_some(number)
    }

    /// What the scheduler calls it. Clients know it by its number here: the scheduler may give the worker another one
    /// while a task runs.
    fn executor(&self, number: usize) -> u32 {
        let worker = self.known.map_or(0, |known| known.worker);
        u32::from(worker) * EXECUTORS + number as u32
    }

    fn on_given(&mut self, now: Nanos, given: Given) {
        if let Some(observer) = &mut self.observer {
            let id = given.entry.attempt.id;
            observer(Step::Received, id.job, id.task);
        }
        if let Some((client, reply)) = given.relay {
            self.tell(given.executor, client, ToClient::Reply(reply));
        }
        if let Some(number) = self.number_of(given.executor) {
            let executor = &mut self.slots[number].executor;
            executor.on_task(now, given.pull_seq, given.client, given.entry);
            self.act(now, number);
        }
    }

    fn on_not_registered(&mut self, now: Nanos, executor: u32, incarnation: u32) {
        let is_known_so = self.known.is_some_and(|k| k.incarnation == incarnation);
        let is_late = !is_known_so || self.number_of(executor).is_none();
        // It says so once for each executor.
        if !is_late && self.drains_since.is_none() && !self.is_refused {
            self.is_refused = true;
            self.register_at = now;
        }
    }

    fn on_registered(
        &mut self,
        now: Nanos,
        scheduler: u64,
        answer: Registered,
    ) -> Result<(), WorkerError> {
        if self.drains_since.is_some() {
            return Ok(());
        }
        let (worker, incarnation, lease_ms, pull_ms) = match answer {
            Registered::Refused(refusal) => return Err(refusal.into()),
            Registered::As {
                worker,
                worker_incarnation,
                lease_ms,
                pull_ms,
            } => (worker, worker_incarnation, lease_ms, pull_ms),
        };
        let lease_ns = Nanos::from(lease_ms) * MS;
        self.is_refused = false;
        let before = self.known.replace(Known {
            scheduler,
            worker,
            incarnation,
            lease_ns,
        });
        let is_same = before.is_some_and(|b| {
            (b.scheduler, b.worker, b.incarnation) == (scheduler, worker, incarnation)
        });
        if !is_same {
            for number in 0..self.slots.len() {
                let executor = &mut self.slots[number].executor;
                executor.on_registered(now, Nanos::from(pull_ms) * MS);
                self.act(now, number);
            }
        }
        Ok(())
    }

    fn on_client(&mut self, now: Nanos, from: SocketAddrV4, executor: u32, message: ToExecutor) {
        if let ToExecutor::Acknowledged(attempt) = message {
            let outcome = self.results.on_acknowledged(&(from, executor), attempt);
            if let Some(outcome) = outcome {
                self.forget(&outcome);
            }
            return;
        }
        let number = executor as usize;
        if let Some(slot) = self.slots.get_mut(number) {
            slot.executor.on_client(now, &from, message);
            self.act(now, number);
        }
    }

    /// Do what an executor wants.
    fn act(&mut self, now: Nanos, number: usize) {
        for action in self.slots[number].executor.actions() {
            match action {
                Action::Pull { pull_seq } => self.pull(number, pull_seq),
                Action::Tell(client, message) => self.tell(number as u32, client, message),
                Action::Run(_, Payload::Inline(work)) => self.slots[number].runner.start(work),
                Action::Run(_, Payload::At(place)) => {
                    let digest = self.config.digest;
                    let fetch = move || blobs::fetch(&Transport::plain(), &digest, &place);
                    self.slots[number].runner.start_fetched(fetch);
                }
                Action::Stop(_) => self.slots[number].runner.stop(),
                Action::Keep(client, attempt, outcome) => {
                    self.keep(now, number, client, attempt, outcome);
                }
            }
        }
    }

    fn pull(&mut self, number: usize, pull_seq: u64) {
        let Some(known) = self.known.filter(|_| self.drains_since.is_none()) else {
            return;
        };
        let executor = self.executor(number);
        let pull = self
            .codec
            .pull(known.scheduler, executor, known.incarnation, pull_seq);
        self.pulls.send(&self.socket, pull, self.config.scheduler);
    }

    fn keep(
        &mut self,
        now: Nanos,
        number: usize,
        client: SocketAddrV4,
        attempt: Attempt,
        outcome: Outcome,
    ) {
        let outcome = self.shortened(outcome);
        let executor = number as u32;
        let message = self.results.keep(now, (client, executor), attempt, outcome);
        self.tell(executor, client, message);
    }

    /// What is too long for a packet is to be fetched.
    fn shortened(&self, outcome: Outcome) -> Outcome {
        match outcome.payload() {
            Payload::Inline(bytes) if bytes.len() > INLINE_LEN_BYTES_MAX => {
                match self.blobs.keep(bytes) {
                    Ok(place) => outcome.with(Payload::At(place)),
                    Err(error) => {
                        let said = error.to_string().into_bytes();
                        Outcome::Error(Payload::Inline(said))
                    }
                }
            }
            _ => outcome,
        }
    }

    /// Nobody fetches it any more.
    fn forget(&self, outcome: &Outcome) {
        if let Payload::At(place) = outcome.payload() {
            self.blobs.forget(place.token);
        }
    }

    fn tell(&mut self, executor: u32, client: SocketAddrV4, message: ToClient) {
        let packet = self.codec.host(executor, &HostMessage::ToClient(message));
        self.later.push_back((packet.to_vec(), client));
        if self.later.len() >= LATER_MAX {
            self.tell_some();
        }
    }
}

/// A socket for packets, and one at the same port for who fetches.
fn bind(address: &mut SocketAddrV4) -> Result<(HostSocket, TcpListener), WorkerError> {
    let wanted = *address;
    let failed = |source| WorkerError::Address {
        address: wanted,
        source,
    };
    let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let mut tries = 1..=PORT_TRIES;
    loop {
        let listener = TcpListener::bind(wanted).map_err(failed)?;
        if let SocketAddr::V4(bound) = listener.local_addr().map_err(failed)? {
            *address = bound;
        }
        let last = tries.next().is_none();
        match HostSocket::bind(*address) {
            Ok(socket) => return Ok((socket, listener)),
            // What is free for the one may be somebody's for the other.
            Err(error) if wanted.port() == 0 && is_taken(&error) && !last => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

fn runner(
    number: usize,
    tools: &Arc<Tools>,
    done: Sender<(usize, Outcome)>,
    waker: Arc<Waker>,
) -> io::Result<Runner> {
    let name = format!("executor-{number}");
    Runner::new(Arc::clone(tools), name, move |outcome| {
        // Its node ends after its runners only; and it looks again by itself.
        let _ = done.send((number, outcome));
        let _ = waker.wake();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_port_is_one_that_is_free_for_both_sockets() {
        let here = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
        // In their way: one port in a hundred or so.
        let others = std::iter::repeat_with(|| std::net::UdpSocket::bind(here).expect("a port"));
        let _others: Vec<_> = others.take(400).collect();
        for _ in 0..1000 {
            let mut address = here;
            let (socket, listener) = bind(&mut address).expect("two sockets");
            assert_eq!(socket.local_address().expect("it is bound"), address);
            let bound = listener.local_addr().expect("it is bound");
            assert_eq!(bound, SocketAddr::V4(address));
        }
    }
}
