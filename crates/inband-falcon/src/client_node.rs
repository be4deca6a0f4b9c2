//! A client with real sockets. Its methods may be called from several threads.

mod fetchers;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_ground::auth::{Digest, Gate, Keys};
use inband_ground::socket::{HostSocket, PACKETS_PER_TURN};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::key_watch::KeyWatch;
use inband_transport::tls::Transport;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::blobs::Blobs;
use crate::client::{self, Action, Client, Counters};
use crate::clock::Clock;
use crate::coalescer::Coalescer;
use crate::message::{Outcome, Payload};
use crate::outbox::Outbox;
use crate::packets::{ClusterInfo, Codec, HostMessage, Incoming, Peer};
use crate::task::{Attempt, Failure, JobId, SubmitError, TaskId, TaskSpec};
use crate::timing::{ClientTiming, Nanos, MS};
use fetchers::{Fetch, Fetchers};

const SOCKET: Token = Token(0);
const WAKE: Token = Token(1);
/// Longest sleep of the thread.
const IDLE_MAX_NS: Nanos = 100 * MS;
/// With more SUBMITs unanswered, new ones may wait for the thread, which the answers wake, and leave together. Fewer leave
/// at once, because executors may be waiting for them.
const UNANSWERED_MAX: usize = 16;
/// Interval at which a scheduler that does not answer is asked again.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone)]
pub struct Config {
    pub scheduler: SocketAddrV4,
    /// The user who owns the tasks; `None`: drawn at random.
    pub user: Option<u32>,
    /// See [`client::Config`].
    pub tasks_per_submit: usize,
    /// See [`client::Config`].
    pub losses_max: u32,
    /// `None`: packets are not authenticated.
    pub keys: Option<Keys>,
    /// How values are digested.
    pub digest: Digest,
    /// The file of the keys: they are replaced when it changes.
    pub key_file: Option<PathBuf>,
    pub timing: ClientTiming,
}

impl Config {
    /// Creates a client of this scheduler, without keys.
    pub fn new(scheduler: SocketAddrV4) -> Config {
        Config {
            scheduler,
            user: None,
            tasks_per_submit: 1,
            losses_max: 3,
            keys: None,
            digest: Digest::PLAIN,
            key_file: None,
            timing: ClientTiming::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The scheduler does not answer.
    #[error("no scheduler answers at {0}; is it up, and does it have the same key?")]
    NoScheduler(SocketAddrV4),
    /// The job was not accepted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An event of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An executor has begun the task, which can no longer be cancelled. Repeated if the executor was lost.
    Started(TaskId),
    /// The task is done: its output, its own error, or a failure of Falcon.
    Done(TaskId, Result<Result<Vec<u8>, Vec<u8>>, Failure>),
}

struct Core {
    client: Client<Peer>,
    codec: Codec,
    socket: HostSocket,
    submits: Outbox,
    coalescer: Coalescer,
    /// Long work, for executors to fetch.
    blobs: Blobs,
    events: Sender<Event>,
    fetchers: Fetchers,
    /// The last answer to [`ClientNode::ask`].
    said: Option<ClusterInfo>,
}

struct Shared {
    core: Mutex<Core>,
    has_heard: Condvar,
    clock: Clock,
    config: Config,
    user: u32,
    stop: AtomicBool,
    waker: Waker,
}

pub struct ClientNode {
    shared: Arc<Shared>,
    events: Mutex<Receiver<Event>>,
    thread: Option<JoinHandle<()>>,
}

impl ClientNode {
    /// Opens a client. Does not wait for the scheduler; [`ClientNode::executors`] does.
    pub fn open(config: Config) -> Result<ClientNode, ClientError> {
        let here = local_address(config.scheduler)?;
        let socket = HostSocket::bind(SocketAddrV4::new(here, 0))?;
        let listener = TcpListener::bind((here, 0))?;
        let poll = Poll::new()?;
        let fd = socket.fd();
        poll.registry()
            .register(&mut SourceFd(&fd), SOCKET, Interest::READABLE)?;
        let user = config.user.unwrap_or_else(rand::random);
        let client = Client::new(client::Config {
            user,
            // Another client of the same user draws another number.
            first_job: rand::random::<u32>() >> 1,
            tasks_per_submit: config.tasks_per_submit,
            losses_max: config.losses_max,
            timing: config.timing,
        });
        let (sender, events) = channel();
        let gate = Gate::of::<crate::dataplane::Falcon>(config.keys, 1);
        let core = Core {
            client,
            codec: Codec::new(gate, config.digest),
            socket,
            submits: Outbox::default(),
            coalescer: Coalescer::default(),
            blobs: Blobs::serve(listener, Transport::plain(), config.digest)?,
            events: sender,
            fetchers: Fetchers::new(config.digest),
            said: None,
        };
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            has_heard: Condvar::new(),
            clock: Clock::start(),
            config,
            user,
            stop: AtomicBool::new(false),
            waker: Waker::new(poll.registry(), WAKE)?,
        });
        let for_thread = Arc::clone(&shared);
        let key_file = shared.config.key_file.as_deref();
        let key_file = key_file.map(|path| KeyWatch::new(path, shared.config.digest));
        let run = move || serve(&for_thread, poll, key_file);
        let thread = std::thread::Builder::new().name("falcon-client".into());
        Ok(ClientNode {
            shared,
            events: Mutex::new(events),
            thread: Some(thread.spawn(run)?),
        })
    }

    /// Returns the user who owns the tasks.
    pub fn user(&self) -> u32 {
        self.shared.user
    }

    /// Asks the scheduler for the number of executors.
    pub fn executors(&self, limit: Duration) -> Result<u32, ClientError> {
        Ok(self.ask(limit)?.executors)
    }

    /// Asks the scheduler for the cluster's properties.
    pub fn ask(&self, limit: Duration) -> Result<ClusterInfo, ClientError> {
        let until = Instant::now() + limit;
        let mut core = self.shared.lock();
        core.said = None;
        loop {
            core.send_host(self.shared.config.scheduler, 0, &HostMessage::AskStatus);
            core.flush();
            let waited = self.shared.has_heard.wait_timeout(core, ASK_INTERVAL);
            core = waited.unwrap_or_else(PoisonError::into_inner).0;
            match core.said.clone() {
                Some(said) => return Ok(said),
                None if Instant::now() >= until => {
                    return Err(ClientError::NoScheduler(self.shared.config.scheduler));
                }
                None => {}
            }
        }
    }

    /// Submits a job: see [`Client::submit`]. Its tasks are numbered from 0.
    pub fn submit(
        &self,
        specs: Vec<TaskSpec>,
        after: &[JobId],
        limit: Option<Duration>,
    ) -> Result<JobId, ClientError> {
        let now = self.shared.clock.now();
        let deadline = limit.map(|limit| now + limit.as_nanos() as Nanos);
        let mut core = self.shared.lock();
        let due = core.client.due();
        let job = core.client.submit(now, specs, after, deadline)?;
        core.act(&self.shared);
        if core.client.submits_open() <= UNANSWERED_MAX {
            core.flush();
        }
        if core.client.due() < due {
            // The thread may be sleeping for longer than that.
            self.shared.waker.wake()?;
        }
        Ok(job)
    }

    /// Cancels a task that no executor has begun: see [`Client::cancel`].
    pub fn cancel(&self, id: TaskId) -> bool {
        let mut core = self.shared.lock();
        let done = core.client.cancel(self.shared.clock.now(), id);
        core.settle(&self.shared);
        done
    }

    /// Cancels a task even if it runs: see [`Client::kill`].
    pub fn kill(&self, id: TaskId) -> bool {
        let mut core = self.shared.lock();
        let done = core.client.kill(self.shared.clock.now(), id);
        core.settle(&self.shared);
        done
    }

    /// Waits up to `limit` for events and returns them.
    pub fn wait(&self, limit: Duration) -> Vec<Event> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        match events.recv_timeout(limit) {
            Ok(first) => std::iter::once(first).chain(events.try_iter()).collect(),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
        }
    }

    /// Returns the number of tasks that are not done.
    pub fn tasks_left(&self) -> usize {
        self.shared.lock().client.tasks_left()
    }

    pub fn counters(&self) -> Counters {
        self.shared.lock().client.counters()
    }
}

impl Drop for ClientNode {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // If this fails, the thread notices within its longest sleep.
        let _ = self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the source address of packets to the scheduler.
pub fn local_address(scheduler: SocketAddrV4) -> io::Result<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(scheduler)?;
    match socket.local_addr()?.ip() {
        std::net::IpAddr::V4(address) => Ok(address),
        std::net::IpAddr::V6(_) => unreachable!("it was bound to IPv4"),
    }
}

fn serve(shared: &Arc<Shared>, mut poll: Poll, mut key_file: Option<KeyWatch>) {
    let mut events = Events::with_capacity(4);
    while !shared.stop.load(Ordering::Acquire) {
        let fresh = key_file.as_mut().and_then(KeyWatch::changed);
        let due = {
            let mut core = shared.lock();
            if let Some(keys) = fresh {
                core.codec.set_keys(keys);
            }
            let may_be_more = core.receive(shared);
            let now = shared.clock.now();
            core.client.tick(now);
            core.settle(shared);
            if may_be_more {
                continue;
            }
            core.client.due()
        };
        let wait_ns = due.saturating_sub(shared.clock.now()).min(IDLE_MAX_NS);
        // If interrupted, the loop checks again.
        let _ = poll.poll(&mut events, Some(Duration::from_nanos(wait_ns)));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A long result was fetched, or could not be.
    fn fetched(self: &Arc<Self>, from: Peer, attempt: Attempt, outcome: Option<Outcome>) {
        let mut core = self.lock();
        core.client
            .fetched(self.clock.now(), from, attempt, outcome);
        core.settle(self);
    }
}

impl Core {
    /// Handles packets that have arrived. Returns whether there may be more.
    fn receive(&mut self, shared: &Arc<Shared>) -> bool {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for _ in 0..PACKETS_PER_TURN {
            let Ok(Some((len_bytes, from))) = self.socket.receive(&mut buffer) else {
                return false;
            };
            let now = shared.clock.now();
            for incoming in self.codec.read(&buffer[..len_bytes]) {
                self.on_incoming(shared, now, from, incoming);
            }
            self.act(shared);
        }
        true
    }

    fn on_incoming(&mut self, shared: &Shared, now: Nanos, from: SocketAddrV4, incoming: Incoming) {
        match incoming {
            Incoming::Host(_, HostMessage::Status(said)) => {
                self.said = Some(said);
                shared.has_heard.notify_all();
            }
            incoming => self.client.on_incoming(now, from, incoming),
        }
    }

    /// Carries out the client's actions and sends everything, so that nothing is left when the lock is released.
    fn settle(&mut self, shared: &Arc<Shared>) {
        self.act(shared);
        self.flush();
    }

    /// Carries out the client's actions; packets may be held back to leave together.
    fn act(&mut self, shared: &Arc<Shared>) {
        for action in self.client.actions() {
            match action {
                Action::Submit {
                    submit_seq,
                    queue,
                    entries,
                } => {
                    let user = shared.user;
                    let packet = self.codec.submit(user, submit_seq, queue, &entries);
                    self.submits
                        .send(&self.socket, packet, shared.config.scheduler);
                }
                Action::Tell(peer, message) => {
                    let message = HostMessage::ToExecutor(message);
                    self.send_host(peer.address, peer.executor, &message);
                }
                Action::Store(peer, attempt) => {
                    let work = self.client.kept(attempt.id);
                    let place = work.and_then(|work| self.blobs.keep(work).ok());
                    self.client.stored(peer, attempt, place);
                    self.act(shared);
                }
                Action::Forget(place) => self.blobs.forget(place.token),
                Action::Fetch(peer, attempt, outcome) => {
                    let shared = Arc::clone(shared);
                    self.fetchers.fetch(Fetch {
                        outcome,
                        done: Box::new(move |outcome| shared.fetched(peer, attempt, outcome)),
                    });
                }
                // Fails if the receiver is gone; then there is nobody to tell.
                Action::Started(id) => drop(self.events.send(Event::Started(id))),
                Action::Done(id, outcome) => self.done(id, outcome),
            }
        }
    }

    fn done(&mut self, id: TaskId, outcome: Result<Outcome, Failure>) {
        let outcome = outcome.map(|outcome| match outcome {
            Outcome::Output(Payload::Inline(output)) => Ok(output),
            Outcome::Error(Payload::Inline(error)) => Err(error),
            Outcome::Output(Payload::At(_)) | Outcome::Error(Payload::At(_)) => {
                unreachable!("it is done once it is here")
            }
        });
        let _ = self.events.send(Event::Done(id, outcome));
    }

    fn send_host(&mut self, to: SocketAddrV4, executor: u32, message: &HostMessage) {
        self.coalescer
            .send(&mut self.codec, &self.socket, to, executor, message);
    }

    /// Sends everything that was held back.
    fn flush(&mut self) {
        self.submits.flush(&self.socket);
        self.coalescer.flush(&mut self.codec, &self.socket);
    }
}
