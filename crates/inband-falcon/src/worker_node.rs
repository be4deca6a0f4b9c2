//! A worker with real sockets, with a runner for each of its executors. It has one thread besides those of the runners.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use inband_ground::auth::{Digest, Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_transport::tls::Transport;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::blobs::{self, Blobs};
use crate::clock::Clock;
use crate::coalescer::Coalescer;
use crate::limits::BLOBS_LEN_BYTES_MAX;
use crate::message::{Outcome, Payload};
use crate::observer::{Observer, Step};
use crate::outbox::Outbox;
use crate::packets::{Codec, HostMessage, Incoming};
use crate::registry::Register;
use crate::runner::{Runner, Tools};
use crate::timing::{ExecutorTiming, Nanos, MS};
use crate::worker::{self, Action, Ended, Pull, Worker};

const SOCKET: Token = Token(0);
const DONE: Token = Token(1);
/// Packets handled before runners that have ended are checked.
const BATCH_PACKETS: usize = 64;
/// Such batches before timers are checked.
const BATCHES: usize = 16;
/// How often to try to find a free port.
const PORT_TRIES: usize = 100;
/// Longest sleep.
const IDLE_MAX_NS: Nanos = 100 * MS;

pub struct Config {
    pub scheduler: SocketAddrV4,
    /// Where it listens, for packets and, at the same port, for fetches of long results. Port 0: any free port.
    pub address: SocketAddrV4,
    /// A name for people.
    pub name: String,
    /// How many tasks it runs at a time.
    pub executors: u8,
    /// Bitmap of its resources.
    pub resources: u64,
    pub tools: Tools,
    /// `None`: packets are not authenticated.
    pub keys: Option<Keys>,
    /// How values are digested.
    pub digest: Digest,
    pub timing: ExecutorTiming,
}

/// Why a worker cannot start or has to stop.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The address cannot be bound.
    #[error("cannot listen at {address}: {source}; is it an address of this host, and free?")]
    Address {
        address: SocketAddrV4,
        source: io::Error,
    },
    /// The scheduler refuses the worker.
    #[error("the scheduler refuses this worker: {0}")]
    Refused(#[from] crate::registry::Refusal),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Wakes the node's thread if it sleeps.
struct RunnerWaker {
    waker: Waker,
    sleeps: AtomicBool,
}

impl RunnerWaker {
    fn new(waker: Waker) -> RunnerWaker {
        let sleeps = AtomicBool::new(false);
        RunnerWaker { waker, sleeps }
    }

    /// Called by a runner after it has sent its outcome.
    fn wake_if_asleep(&self) {
        if self.sleeps.swap(false, Ordering::SeqCst) {
            // If this fails, the thread notices within its longest sleep.
            let _ = self.waker.wake();
        }
    }

    /// Called by the node before its last check: whatever that does not see will wake it.
    fn sleeps(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
    }

    fn is_awake(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
    }
}

pub struct WorkerNode {
    config: Config,
    clock: Clock,
    worker: Worker,
    /// By executor.
    runners: Vec<Runner>,
    poll: Poll,
    socket: HostSocket,
    codec: Codec,
    blobs: Blobs,
    done: Receiver<(usize, Outcome)>,
    waker: Arc<RunnerWaker>,
    /// Messages to clients, held back while tasks may still be waiting.
    coalescer: Coalescer,
    pulls: Outbox,
    observer: Option<Observer>,
}

impl WorkerNode {
    /// Opens the sockets and starts the runners. The worker looks for its scheduler for as long as it takes.
    pub fn open(mut config: Config) -> Result<WorkerNode, WorkerError> {
        let (socket, listener) = bind(&mut config.address)?;
        let poll = Poll::new()?;
        let fd = socket.fd();
        poll.registry()
            .register(&mut SourceFd(&fd), SOCKET, Interest::READABLE)?;
        let waker = Arc::new(RunnerWaker::new(Waker::new(poll.registry(), DONE)?));
        let clock = Clock::start();
        let gate = Gate::of::<crate::dataplane::Falcon>(config.keys, 1);
        let (sender, done) = channel();
        let tools = Arc::new(std::mem::take(&mut config.tools));
        let runners = (0..usize::from(config.executors))
            .map(|number| runner(number, &tools, sender.clone(), Arc::clone(&waker)));
        let worker = worker::Config {
            token: rand::random(),
            name: config.name.clone(),
            executors: config.executors,
            resources: config.resources,
            results_len_bytes_max: BLOBS_LEN_BYTES_MAX,
            timing: config.timing,
        };
        Ok(WorkerNode {
            worker: Worker::new(worker, clock.now()),
            runners: runners.collect::<io::Result<_>>()?,
            clock,
            poll,
            socket,
            codec: Codec::new(gate, config.digest),
            blobs: Blobs::serve(listener, Transport::plain(), config.digest)?,
            done,
            waker,
            coalescer: Coalescer::default(),
            pulls: Outbox::default(),
            observer: None,
            config,
        })
    }

    /// Reports every task to this observer from now on, which costs time.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    pub fn address(&self) -> SocketAddrV4 {
        self.config.address
    }

    /// Replaces the keys. Has no effect if there were none at the start.
    pub fn set_keys(&mut self, keys: Keys) {
        self.codec.set_keys(keys);
    }

    pub fn is_registered(&self) -> bool {
        self.worker.is_registered()
    }

    /// Returns how many tasks it runs at a time.
    pub fn executors(&self) -> usize {
        self.worker.executors().len()
    }

    /// Returns how many of its executors wait for tasks.
    pub fn idle(&self) -> usize {
        self.worker.idle()
    }

    /// Returns the number of tasks run.
    pub fn tasks_run(&self) -> u64 {
        self.worker.tasks_run()
    }

    /// Handles received packets and expired timers, then waits for more.
    pub fn turn(&mut self) -> Result<(), WorkerError> {
        // Even under load, check timers and send to clients.
        let mut may_be_more = true;
        for _ in 0..BATCHES {
            may_be_more = self.take_done()? | self.receive()?;
            if !may_be_more && !self.coalescer.is_empty() {
                // Let runners that have a task, or wait for one, go first; their messages can leave together with
                // these.
                thread::yield_now();
                may_be_more = self.take_done()? | self.receive()?;
            }
            if !may_be_more {
                break;
            }
        }
        let now = self.clock.now();
        self.worker.tick(now);
        self.act(now)?;
        self.pulls.flush(&self.socket);
        self.coalescer.flush(&mut self.codec, &self.socket);
        let due_ns = self.worker.due().saturating_sub(self.clock.now());
        self.waker.sleeps();
        let wait_ns = if may_be_more | self.take_done()? {
            0
        } else {
            due_ns.min(IDLE_MAX_NS)
        };
        let mut events = Events::with_capacity(4);
        let waited = self
            .poll
            .poll(&mut events, Some(Duration::from_nanos(wait_ns)));
        self.waker.is_awake();
        match waited {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Handles runners that have ended their tasks. Returns false if there were none.
    fn take_done(&mut self) -> Result<bool, WorkerError> {
        let mut any = false;
        while let Ok((number, outcome)) = self.done.try_recv() {
            let now = self.clock.now();
            self.worker.finished(now, number, outcome);
            self.act(now)?;
            any = true;
        }
        self.pulls.flush(&self.socket);
        Ok(any)
    }

    /// Tells the scheduler that this worker stops.
    pub fn leave(&mut self) {
        self.register(self.worker.leaving());
    }

    /// Leaves the scheduler and takes no more tasks; those that it has continue. See [`WorkerNode::is_drained`].
    pub fn drain(&mut self) {
        self.worker.drain(self.clock.now());
    }

    /// See [`Worker::is_drained`].
    pub fn is_drained(&self) -> bool {
        self.worker.is_drained(self.clock.now())
    }

    /// Handles some of the received packets. Returns false if there were none.
    fn receive(&mut self) -> Result<bool, WorkerError> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for taken in 0..BATCH_PACKETS {
            let Some((len_bytes, from)) = self.socket.receive(&mut buffer)? else {
                return Ok(taken > 0);
            };
            let now = self.clock.now();
            for incoming in self.codec.read(&buffer[..len_bytes]) {
                self.note(&incoming);
                self.worker.on_incoming(now, from, incoming);
                self.act(now)?;
            }
        }
        Ok(true)
    }

    fn note(&mut self, incoming: &Incoming) {
        if let (Some(observer), Incoming::Given(given)) = (&mut self.observer, incoming) {
            let id = given.entry.attempt.id;
            observer(Step::Received, id.job, id.task);
        }
    }

    /// Carries out the worker's actions.
    fn act(&mut self, now: Nanos) -> Result<(), WorkerError> {
        for action in self.worker.actions() {
            match action {
                Action::Register(register) => self.register(register),
                Action::Pull(pull) => self.pull(pull),
                Action::Tell {
                    client,
                    executor,
                    message,
                } => {
                    let message = HostMessage::ToClient(message);
                    self.coalescer
                        .send(&mut self.codec, &self.socket, client, executor, &message);
                }
                Action::Run { executor, work, .. } => self.run(executor, work),
                Action::Stop { executor, .. } => self.runners[executor].stop(),
                Action::Store(ended) => {
                    self.store(now, ended);
                    self.act(now)?;
                }
                Action::Forget(place) => self.blobs.forget(place.token),
                Action::GiveUp(refusal) => return Err(refusal.into()),
            }
        }
        Ok(())
    }

    fn register(&mut self, register: Register) {
        let packet = self.codec.host(0, &HostMessage::Register(register));
        self.socket.send(packet, self.config.scheduler);
    }

    fn pull(&mut self, pull: Pull) {
        let packet = self.codec.pull(
            pull.scheduler,
            pull.executor,
            pull.worker_incarnation,
            pull.pull_seq,
        );
        self.pulls.send(&self.socket, packet, self.config.scheduler);
    }

    fn run(&self, executor: usize, work: Payload) {
        let runner = &self.runners[executor];
        match work {
            Payload::Inline(work) => runner.start(work),
            Payload::At(place) => {
                let digest = self.config.digest;
                let fetch = move || blobs::fetch(&Transport::plain(), &digest, &place);
                runner.start_fetched(fetch);
            }
        }
    }

    fn store(&mut self, now: Nanos, ended: Ended) {
        if let Payload::Inline(bytes) = ended.outcome.payload() {
            let place = self.blobs.keep(bytes).map_err(|error| error.to_string());
            self.worker.stored(now, ended, place);
        }
    }
}

/// Returns a socket for packets, and one at the same port for fetches.
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
            // A port that is free for one socket may be in use for the other.
            Err(error) if wanted.port() == 0 && is_taken(&error) && !last => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

fn runner(
    number: usize,
    tools: &Arc<Tools>,
    done: Sender<(usize, Outcome)>,
    waker: Arc<RunnerWaker>,
) -> io::Result<Runner> {
    let name = format!("executor-{number}");
    Runner::new(Arc::clone(tools), name, move |outcome| {
        // The node outlives its runners, and checks again by itself.
        let _ = done.send((number, outcome));
        waker.wake_if_asleep();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_port_is_one_that_is_free_for_both_sockets() {
        let here = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
        // Occupy about one port in a hundred.
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
