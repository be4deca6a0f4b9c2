//! A scheduler on real packets: its role in this process or in the kernel, and the process that registers workers.

use std::io;
use std::net::SocketAddrV4;
use std::time::Duration;

use inband_dataplane::auth::{Digest, Gate, Keys};
use inband_dataplane::falcon::{FalconConfig, FalconSwitch, Policy, Verdict};
use inband_dataplane::socket::HostSocket;
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::clock::Clock;
use crate::packets::{Codec, HostMessage, Incoming};
use crate::registry::{Change, Registry, Worker};
use crate::timing::{Nanos, MS};

/// Its node id in packets. None of a client's or an executor's, which is 0.
const NODE: u8 = 1;
/// Its number: the only set of this configuration.
const SET: usize = 0;
/// Packets handled before what is due is looked at.
const BATCH_PACKETS: usize = 256;
/// Longest sleep.
const IDLE_MAX_NS: Nanos = 100 * MS;

/// What a scheduler is told once.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens. Port 0: any.
    pub address: SocketAddrV4,
    /// Sizes and rules.
    pub falcon: FalconConfig,
    /// A worker that is silent for so long is forgotten.
    pub worker_lease_ns: Nanos,
    /// The cluster's keys, and how values are digested.
    pub keys: Option<Keys>,
    /// See `keys`.
    pub digest: Digest,
}

/// Why a scheduler cannot run on.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// Sizes.
    #[error("{0}")]
    Config(String),
    /// An address cannot be bound.
    #[error("cannot listen at {address}: {source}; is it an address of this host, and free?")]
    Address {
        /// Of the configuration.
        address: SocketAddrV4,
        /// What the system said.
        source: io::Error,
    },
    /// Something that fails.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a scheduler knows of itself, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Drawn at its start.
    pub incarnation: u64,
    /// Tasks in its queues.
    pub queued: u64,
    /// Executors that wait.
    pub parked: u32,
    /// Workers: number, what they are called, executors.
    pub workers: Vec<(u16, String, u8)>,
}

/// See the module.
pub struct SchedulerNode {
    address: SocketAddrV4,
    clock: Clock,
    poll: Poll,
    socket: HostSocket,
    codec: Codec,
    switch: FalconSwitch,
    registry: Registry<SocketAddrV4>,
}

impl SchedulerNode {
    /// Listen, with the role in this process.
    pub fn open(config: Config) -> Result<SchedulerNode, SchedulerError> {
        config.falcon.validate().map_err(SchedulerError::Config)?;
        let failed = |source| SchedulerError::Address {
            address: config.address,
            source,
        };
        let socket = HostSocket::bind(config.address).map_err(failed)?;
        let poll = Poll::new()?;
        let fd = socket.fd();
        poll.registry()
            .register(&mut SourceFd(&fd), Token(0), Interest::READABLE)?;
        let pull_ms = match config.falcon.policy {
            Policy::Locality => config.falcon.locality_wait_ns.div_ceil(MS) as u32,
            _ => 0,
        };
        Ok(SchedulerNode {
            address: socket.local_address()?,
            clock: Clock::start(),
            poll,
            socket,
            codec: Codec::new(Gate::for_falcon(config.keys, 1), config.digest),
            switch: FalconSwitch::new(NODE, config.falcon, rand::random()),
            registry: Registry::new(config.falcon.workers, config.worker_lease_ns, pull_ms),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// What it knows of itself.
    pub fn status(&self) -> Status {
        let registers = self.switch.registers();
        let worker = |(number, worker): (u16, &Worker<_>)| {
            (number, worker.said.name.clone(), worker.said.executors)
        };
        Status {
            incarnation: self.switch.incarnation(),
            queued: registers.tasks(SET),
            parked: registers.parked(SET),
            workers: self.registry.workers().map(worker).collect(),
        }
    }

    /// Handle what has come, do what is due, and wait for more.
    pub fn turn(&mut self) -> Result<(), SchedulerError> {
        let may_be_more = self.receive()?;
        let now = self.clock.now();
        for change in self.registry.tick(now) {
            self.write(change);
        }
        let due_ns = self.registry.due().saturating_sub(self.clock.now());
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
        let packet = buffer.first_chunk_mut::<PACKET_LEN_MAX_BYTES>();
        let packet = packet.expect("it is longer");
        let now = self.clock.now();
        let (verdict, _, len_bytes) = self.switch.handle(packet, len_bytes, from, now);
        let to = match verdict {
            Verdict::Drop => return,
            Verdict::Pass => return self.on_host(&buffer[..len_bytes], from),
            Verdict::Back => from,
            Verdict::ToExecutor(address) => address,
        };
        self.codec.sign(&mut buffer[..len_bytes]);
        self.socket.send(&buffer[..len_bytes], to);
    }

    /// For this process.
    fn on_host(&mut self, packet: &[u8], from: SocketAddrV4) {
        let answer = match self.codec.read_admitted(packet) {
            Some(Incoming::Host(_, HostMessage::Register(said))) => {
                let now = self.clock.now();
                let (answer, change) = self.registry.on_register(now, from, said);
                if let Some(change) = change {
                    self.write(change);
                }
                HostMessage::Registered(self.switch.incarnation(), answer)
            }
            Some(Incoming::Host(_, HostMessage::AskStatus)) => {
                let executors = self
                    .registry
                    .workers()
                    .map(|(_, w)| u32::from(w.said.executors));
                HostMessage::Status {
                    executors: executors.sum(),
                }
            }
            _ => return,
        };
        let packet = self.codec.host(0, &answer);
        self.socket.send(packet, from);
    }

    fn write(&self, change: Change) {
        let registers = self.switch.registers();
        match change {
            Change::Add {
                worker,
                incarnation,
                resources,
            } => {
                registers.register(SET, usize::from(worker), incarnation, resources);
            }
            Change::Remove { worker } => registers.unregister(SET, usize::from(worker)),
        }
    }
}
