//! A scheduler with real sockets: its role in this process or in the kernel, and the process next to it.

mod status;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use crate::dataplane::wire::{self, Type};
use crate::dataplane::xdp::{
    allow_forwarding, forward_of, may_look_up_clients, FalconXdp, FalconXdpSpec,
};
use crate::dataplane::{FalconConfig, FalconRegisters, FalconSwitch, Verdict};
use inband_ground::auth::{Digest, Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::{XdpError, XdpMode};
use inband_host::backend::{self, Place};
use inband_host::config::Dataplane;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::clock::Clock;
use crate::observer::{Observer, Step};
use crate::outbox::Outbox;
use crate::packets::{Codec, Incoming};
use crate::resources::{ResourceError, ResourceNames};
use crate::scheduler::{self, Scheduler, Waking, NODE};
use crate::timing::{Nanos, MS};
pub use status::{Status, WorkerStatus};

const SOCKET: Token = Token(0);
const WAKE: Token = Token(1);
/// Packets handled before timers are checked.
const BATCH_PACKETS: usize = 256;
/// Default time that a worker may be silent.
pub const WORKER_LEASE_NS: Nanos = 2000 * MS;
/// Longest sleep.
const IDLE_MAX_NS: Nanos = 100 * MS;

#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens. Port 0: any free port.
    pub address: SocketAddrV4,
    pub falcon: FalconConfig,
    /// Where the role runs. In the kernel it needs the interface that has the address, and a port.
    pub dataplane: Dataplane,
    /// See `dataplane`.
    pub interface: Option<String>,
    /// Resource names, from number 1 on.
    pub resource_names: Vec<String>,
    /// A worker that is silent for this long is removed.
    pub worker_lease_ns: Nanos,
    /// `None`: packets are not authenticated.
    pub keys: Option<Keys>,
    /// How values are digested.
    pub digest: Digest,
}

impl Config {
    /// Creates a scheduler in user space, first come first served, without keys.
    pub fn new(address: SocketAddrV4) -> Config {
        Config {
            address,
            falcon: FalconConfig::default(),
            dataplane: Dataplane::Udp,
            interface: None,
            resource_names: Vec::new(),
            worker_lease_ns: WORKER_LEASE_NS,
            keys: None,
            digest: Digest::PLAIN,
        }
    }
}

/// Why a scheduler cannot start or has to stop.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    Resources(#[from] ResourceError),
    /// The program cannot be loaded.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// A role in the kernel needs an interface.
    #[error("dataplane {0} attaches to an interface; name the one that has the address")]
    NoInterface(Dataplane),
    /// The address cannot be bound.
    #[error("cannot listen at {address}: {source}; is it an address of this host, and free?")]
    Address {
        address: SocketAddrV4,
        source: io::Error,
    },
    #[error(transparent)]
    Io(#[from] io::Error),
}

enum Backend {
    /// In this process.
    Soft(FalconSwitch),
    /// In the kernel; only packets that it could not address are passed up.
    Kernel(Box<FalconXdp>),
}

impl Backend {
    fn registers(&self) -> &FalconRegisters {
        match self {
            Backend::Soft(switch) => switch.registers(),
            Backend::Kernel(xdp) => xdp.registers(),
        }
    }
}

pub struct SchedulerNode {
    address: SocketAddrV4,
    clock: Clock,
    poll: Poll,
    waker: Arc<Waker>,
    socket: HostSocket,
    codec: Codec,
    backend: Backend,
    dataplane: Dataplane,
    scheduler: Scheduler,
    outbox: Outbox,
    observer: Option<Observer>,
}

impl SchedulerNode {
    /// Opens the socket, and attaches the program if the role is to run in the kernel.
    pub fn open(config: Config) -> Result<SchedulerNode, SchedulerError> {
        config.falcon.validate().map_err(SchedulerError::Config)?;
        let resource_names = ResourceNames::new(config.resource_names.clone())?;
        let failed = |source| SchedulerError::Address {
            address: config.address,
            source,
        };
        let socket = HostSocket::bind(config.address).map_err(failed)?;
        let address = socket.local_address()?;
        let poll = Poll::new()?;
        let fd = socket.fd();
        poll.registry()
            .register(&mut SourceFd(&fd), SOCKET, Interest::READABLE)?;
        // Packets carry 0 when the sender does not know the incarnation yet.
        let incarnation = rand::random::<u64>().max(1);
        let (dataplane, backend) = load(&config, address, incarnation)?;
        Ok(SchedulerNode {
            address,
            clock: Clock::start(),
            waker: Arc::new(Waker::new(poll.registry(), WAKE)?),
            poll,
            socket,
            codec: Codec::new(
                Gate::of::<crate::dataplane::Falcon>(config.keys, 1),
                config.digest,
            ),
            backend,
            dataplane,
            scheduler: Scheduler::new(scheduler::Config {
                falcon: config.falcon,
                incarnation,
                worker_lease_ns: config.worker_lease_ns,
                resource_names,
            }),
            outbox: Outbox::default(),
            observer: None,
        })
    }

    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Replaces the keys. Has no effect if there were none at the start.
    pub fn set_keys(&mut self, keys: Keys) -> Result<(), SchedulerError> {
        self.codec.set_keys(keys);
        if let Backend::Kernel(xdp) = &self.backend {
            xdp.set_keys(&keys)?;
        }
        Ok(())
    }

    /// Returns where the role runs.
    pub fn dataplane(&self) -> Dataplane {
        self.dataplane
    }

    /// Reports every task to this observer from now on, which costs time.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    pub fn status(&self) -> Status {
        Status::of(self)
    }

    /// Tasks given to executors since its start.
    pub fn given(&self) -> u64 {
        status::given(&self.counters())
    }

    /// Wakes [`SchedulerNode::turn`] from another thread.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Returns all counters, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut counters = match &self.backend {
            Backend::Soft(switch) => switch.counters(),
            // Maps of a loaded program can normally be read; otherwise the status omits these counters.
            Backend::Kernel(xdp) => xdp.counters().unwrap_or_default(),
        };
        for (name, count) in self.codec.refused() {
            *counters.entry(name).or_default() += count;
        }
        counters
    }

    /// Handles received packets and expired timers, then waits for more.
    pub fn turn(&mut self) -> Result<(), SchedulerError> {
        let may_be_more = self.receive()?;
        self.outbox.flush(&self.socket);
        let registers = self.backend.registers();
        self.scheduler.tick(self.clock.now(), registers);
        let due_ns = self.scheduler.due().saturating_sub(self.clock.now());
        let wait_ns = if may_be_more {
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

    fn receive(&mut self) -> Result<bool, SchedulerError> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for _ in 0..BATCH_PACKETS {
            let Some((len_bytes, from)) = self.socket.receive(&mut buffer)? else {
                return Ok(false);
            };
            self.on_packet(&mut buffer, len_bytes, from);
        }
        Ok(true)
    }

    fn on_packet(
        &mut self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES + 1],
        len_bytes: usize,
        from: SocketAddrV4,
    ) {
        if len_bytes > PACKET_LEN_MAX_BYTES || !self.codec.admits(&buffer[..len_bytes]) {
            return;
        }
        self.tell_observer(&buffer[..len_bytes], Type::Submit, Step::Came);
        let now = self.clock.now();
        let (to, len_bytes) = match &self.backend {
            Backend::Soft(switch) => {
                let packet = buffer.first_chunk_mut::<PACKET_LEN_MAX_BYTES>();
                let packet = packet.expect("it is longer");
                let (verdict, _, len_bytes) = switch.handle(packet, len_bytes, from, now);
                match verdict {
                    Verdict::Drop => return,
                    Verdict::Pass => return self.on_host(&buffer[..len_bytes], from),
                    Verdict::Reply => (from, len_bytes),
                    Verdict::ToExecutor(address) => (address, len_bytes),
                }
            }
            Backend::Kernel(xdp) => {
                let packet = &buffer[..len_bytes];
                match forward_of(packet, NODE, xdp.registers()) {
                    Some(address) => (address, len_bytes),
                    None => return self.on_host(packet, from),
                }
            }
        };
        let packet = &mut buffer[..len_bytes];
        let waking = match self.backend {
            Backend::Soft(_) => Waking::of(packet),
            Backend::Kernel(_) => None,
        };
        self.send(packet, to);
        if let Some(waking) = waking {
            self.wake(now, waking);
        }
    }

    fn send(&mut self, packet: &mut [u8], to: SocketAddrV4) {
        self.tell_observer(packet, Type::Task, Step::Given);
        self.codec.sign(packet);
        self.outbox.send(&self.socket, packet, to);
    }

    fn wake(&mut self, now: Nanos, mut waking: Waking) {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        while let Some(len_bytes) = waking.ask(&mut buffer) {
            let Backend::Soft(switch) = &self.backend else {
                return;
            };
            let handled = switch.handle(&mut buffer, len_bytes, self.address, now);
            let (Verdict::ToExecutor(to), _, len_bytes) = handled else {
                return;
            };
            waking.woken(&mut buffer[..len_bytes]);
            self.send(&mut buffer[..len_bytes], to);
        }
    }

    fn tell_observer(&mut self, packet: &[u8], kind: Type, step: Step) {
        let Some(observer) = &mut self.observer else {
            return;
        };
        if let Ok((header, tasks)) = wire::parse(packet) {
            let tasks = tasks.iter().filter(|_| header.kind == kind);
            tasks.for_each(|task| observer(step, task.job, task.task));
        }
    }

    /// Handles a packet for this process.
    fn on_host(&mut self, packet: &[u8], from: SocketAddrV4) {
        for incoming in self.codec.read_admitted(packet) {
            let Incoming::Host(_, message) = incoming else {
                continue;
            };
            let now = self.clock.now();
            let registers = self.backend.registers();
            if let Some(answer) = self.scheduler.on_message(now, from, message, registers) {
                let packet = self.codec.host(0, &answer);
                self.socket.send(packet, from);
            }
        }
    }
}

/// Creates the role where it is to run.
fn load(
    config: &Config,
    address: SocketAddrV4,
    incarnation: u64,
) -> Result<(Dataplane, Backend), SchedulerError> {
    let spec = |mode, interface: &str, address| FalconXdpSpec {
        node: NODE,
        config: config.falcon,
        incarnation,
        address,
        interface: interface.into(),
        mode,
        keys: config.keys,
    };
    let place = config.interface.as_deref().map(|interface| Place {
        interface,
        address,
        peers: Vec::new(),
    });
    let choice = backend::resolve(config.dataplane, place.as_ref(), |mode, trial| {
        let interface = config.interface.as_deref().unwrap_or_default();
        // A dataplane requested by name is loaded below.
        match config.dataplane {
            Dataplane::Auto => FalconXdp::load(spec(mode, interface, trial)).map(drop),
            _ => Ok(()),
        }
    })?;
    let dataplane = choice.dataplane;
    tracing::info!("scheduler: dataplane {dataplane} ({})", choice.why);
    let mode = match dataplane {
        Dataplane::Xdp => XdpMode::Native,
        Dataplane::XdpGeneric => XdpMode::Generic,
        Dataplane::Udp | Dataplane::Auto => {
            let switch = FalconSwitch::new(NODE, config.falcon, incarnation);
            return Ok((dataplane, Backend::Soft(switch)));
        }
    };
    let interface = config.interface.clone();
    let interface = interface.ok_or(SchedulerError::NoInterface(dataplane))?;
    if !may_look_up_clients(&interface) {
        allow_forwarding(&interface)?;
    }
    let xdp = FalconXdp::load(spec(mode, &interface, address))?;
    Ok((dataplane, Backend::Kernel(Box::new(xdp))))
}
