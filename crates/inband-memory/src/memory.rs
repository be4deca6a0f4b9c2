//! Replicated memory over UDP, blocking: drives the client's state machine from a socket.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::{wait_readable, HostSocket, PACKETS_PER_TURN};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::namespace::enter;

use crate::client::{Client, ClientConfig, Counts, Op, Out, Outcome};
use crate::epoch::Nanos;
use crate::lines::{Lines, MemoryError, Transfer};
use crate::wire::{lines_of, parse};
use crate::SPACES;

/// Configuration of a connection to replicated memory.
#[derive(Debug, Clone)]
pub struct MemoryConfig {
    /// The switches, in the same order at every client.
    pub switches: Vec<SocketAddrV4>,
    /// `None`: packets are not authenticated.
    pub keys: Option<Keys>,
    /// Local address to send from; port 0: any.
    pub bind: SocketAddrV4,
    /// Maximum number of requests in flight.
    pub window: u32,
    /// Without an answer for this long, the client looks for another switch.
    pub suspect_after_min: Duration,
    /// Where answers are slow, the client waits up to this long before it has another switch activated.
    pub suspect_after_max: Duration,
    /// A request that has not completed within this time fails.
    pub deadline: Duration,
    /// How long to poll before sleeping.
    pub spin: Duration,
    /// The network namespace to send from.
    pub namespace: Option<PathBuf>,
}

impl MemoryConfig {
    /// Returns the defaults for these switches.
    pub fn new(switches: Vec<SocketAddrV4>) -> MemoryConfig {
        let client = ClientConfig::new(switches.len());
        MemoryConfig {
            switches,
            keys: None,
            bind: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            window: client.window,
            suspect_after_min: Duration::from_nanos(client.suspect_after_min_ns),
            suspect_after_max: Duration::from_nanos(client.suspect_after_max_ns),
            deadline: Duration::from_nanos(client.deadline_ns),
            spin: Duration::from_micros(20),
            namespace: None,
        }
    }
}

#[derive(Debug)]
pub enum ConnectError {
    /// No switch was given.
    NoSwitches,
    Io(io::Error),
    /// No switch is active, or none answers.
    NoAnswer(Vec<SocketAddrV4>, Duration),
    /// The active switch has no room for another session.
    Full(SocketAddrV4),
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConnectError::NoSwitches => write!(f, "no switch was given"),
            ConnectError::Io(error) => write!(f, "cannot open a socket: {error}"),
            ConnectError::NoAnswer(switches, deadline) => {
                let switches: Vec<String> = switches.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "no switch of {} became active within {} ms: does one run, do a majority of servers, and is the key the same?",
                    switches.join(", "),
                    deadline.as_millis()
                )
            }
            ConnectError::Full(switch) => write!(
                f,
                "the switch {switch} has no room for another client: end one, or start the switches with more --sessions and --slots"
            ),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> ConnectError {
        ConnectError::Io(error)
    }
}

/// Binds a socket in the cluster's network namespace, whichever one the calling thread is in.
fn bind(config: &MemoryConfig) -> io::Result<HostSocket> {
    let Some(namespace) = &config.namespace else {
        return HostSocket::bind(config.bind);
    };
    let bind = || {
        enter(namespace).map_err(|error| io::Error::other(format!("{error:#}")))?;
        HostSocket::bind(config.bind)
    };
    std::thread::scope(|scope| {
        let bound = scope.spawn(bind).join();
        bound.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A connection to replicated memory. Threads do not share one: each opens its own.
pub struct Memory {
    socket: HostSocket,
    gate: Gate,
    client: Client,
    out: Out,
    config: MemoryConfig,
    started: Instant,
    /// Until when the connection has taken all packets that arrived, or waited for them.
    listened: Nanos,
    /// Outcomes of [`Memory::submit`] that arrived during a transfer.
    aside: VecDeque<(u64, Outcome)>,
    /// Tickets of failed transfers, whose outcomes nobody waits for.
    forgotten: Vec<Range<u64>>,
    is_abandoned: bool,
    buffer: Box<[u8; PACKET_LEN_MAX_BYTES + 1]>,
}

impl Memory {
    /// Finds the active switch and opens a session.
    pub fn connect(config: MemoryConfig) -> Result<Memory, ConnectError> {
        if config.switches.is_empty() {
            return Err(ConnectError::NoSwitches);
        }
        let socket = bind(&config)?;
        let started = Instant::now();
        let client_config = ClientConfig {
            window: config.window,
            suspect_after_min_ns: config.suspect_after_min.as_nanos() as Nanos,
            suspect_after_max_ns: config.suspect_after_max.as_nanos() as Nanos,
            deadline_ns: config.deadline.as_nanos() as Nanos,
            ..ClientConfig::new(config.switches.len())
        };
        let mut out = Out::default();
        let client = Client::new(client_config, 1, rand::random(), &mut out);
        let mut memory = Memory {
            socket,
            gate: Gate::of::<crate::Memory>(config.keys, SPACES),
            client,
            out,
            config,
            started,
            listened: 1,
            aside: VecDeque::new(),
            forgotten: Vec::new(),
            is_abandoned: false,
            buffer: Box::new([0; PACKET_LEN_MAX_BYTES + 1]),
        };
        memory.send();
        while memory.client.chunks().is_none() {
            if started.elapsed() > memory.config.deadline {
                if let Some(full) = memory.client.full_switch() {
                    return Err(ConnectError::Full(memory.config.switches[full]));
                }
                let (switches, deadline) = (memory.config.switches.clone(), memory.config.deadline);
                return Err(ConnectError::NoAnswer(switches, deadline));
            }
            memory.turn()?;
        }
        Ok(memory)
    }

    /// Returns the client's counters.
    pub fn counts(&self) -> Counts {
        self.client.counts()
    }

    /// Returns the switch in use, and the epoch in which it is active.
    pub fn switch(&self) -> Option<(SocketAddrV4, u64)> {
        let (switch, epoch) = self.client.switch()?;
        Some((self.config.switches[switch], epoch))
    }

    /// Ends without notifying the switches, as a killed process does: its sessions stay open there until they have been
    /// idle for too long. For tests of that situation.
    #[doc(hidden)]
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }

    /// Starts a request, for a caller that keeps several in flight; [`Memory::take_done`] returns its outcome.
    pub fn submit(&mut self, op: Op) -> u64 {
        let ticket = self.begin(op);
        self.send();
        ticket
    }

    /// Like [`Memory::submit`], but leaves the packets queued for [`Memory::send`].
    fn begin(&mut self, op: Op) -> u64 {
        let now = self.now();
        self.client.submit(now, op, &mut self.out)
    }

    /// Takes the outcome of a completed request, if there is one, after handling the packets that have arrived.
    pub fn take_done(&mut self) -> io::Result<Option<(u64, Outcome)>> {
        self.receive()?;
        self.tick();
        Ok(self.aside.pop_front().or_else(|| self.next_done()))
    }

    /// Returns the next completed request that somebody waits for.
    fn next_done(&mut self) -> Option<(u64, Outcome)> {
        let forgotten = &self.forgotten;
        std::iter::from_fn(|| self.client.take_done())
            .find(|(ticket, _)| !forgotten.iter().any(|tickets| tickets.contains(ticket)))
    }

    /// Waits for the next request to complete. Returns `None` if none is in flight.
    pub fn wait_done(&mut self) -> io::Result<Option<(u64, Outcome)>> {
        match self.aside.pop_front() {
            Some(done) => Ok(Some(done)),
            None => self.wait_next(),
        }
    }

    /// Like [`Memory::wait_done`]; also returns `None` if no request completes by `until`.
    pub fn wait_done_until(
        &mut self,
        until: Option<Instant>,
    ) -> io::Result<Option<(u64, Outcome)>> {
        let Some(until) = until else {
            return self.wait_done();
        };
        loop {
            if let Some(done) = self.take_done()? {
                return Ok(Some(done));
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.client.outstanding() == 0 || left.is_zero() {
                return Ok(None);
            }
            self.turn_within(left)?;
        }
    }

    fn wait_next(&mut self) -> io::Result<Option<(u64, Outcome)>> {
        loop {
            if let Some(done) = self.next_done() {
                return Ok(Some(done));
            }
            if self.client.outstanding() == 0 {
                return Ok(None);
            }
            self.turn()?;
        }
    }

    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos + 1
    }

    /// Sends the queued packets.
    fn send(&mut self) {
        let (socket, gate, switches) = (&self.socket, &self.gate, &self.config.switches);
        self.out.drain(|switch, packet| {
            gate.sign(packet);
            socket.queue(packet, switches[*switch]);
        });
        socket.flush();
    }

    /// Handles the packets that have arrived. Returns whether there were any.
    fn receive(&mut self) -> io::Result<bool> {
        let mut any = false;
        self.client.was_away(self.listened..self.now());
        loop {
            let mut handle = |packet: &[u8], from| {
                let Some(switch) = self.config.switches.iter().position(|at| *at == from) else {
                    return;
                };
                if packet.len() > PACKET_LEN_MAX_BYTES || !self.gate.admits(packet) {
                    return;
                }
                if let Ok((header, value)) = parse(packet) {
                    let now = self.started.elapsed().as_nanos() as Nanos + 1;
                    let out = &mut self.out;
                    self.client.on_packet(now, switch, &header, value, out);
                }
            };
            let handled =
                self.socket
                    .receive_some(&mut self.buffer, |buffer, len_bytes, from| {
                        handle(&buffer[..len_bytes], from);
                    })?;
            any |= handled > 0;
            // A flood must not keep it from its deadlines.
            if handled < PACKETS_PER_TURN || self.client.due() <= self.now() {
                break;
            }
        }
        self.listened = self.now();
        if any {
            self.send();
        }
        Ok(any)
    }

    fn tick(&mut self) {
        let now = self.now();
        if self.client.due() <= now {
            self.client.tick(now, &mut self.out);
            self.send();
        }
    }

    /// Waits until a packet has arrived or a deadline is due, and handles it.
    fn turn(&mut self) -> io::Result<()> {
        self.turn_within(Duration::from_secs(1))
    }

    /// Like `turn`, but waits at most `limit`.
    fn turn_within(&mut self, limit: Duration) -> io::Result<()> {
        let spin_until = self.now() + self.config.spin.min(limit).as_nanos() as Nanos;
        loop {
            if self.receive()? {
                return Ok(());
            }
            let now = self.now();
            if self.client.due() <= now {
                self.tick();
                return Ok(());
            }
            if now >= spin_until {
                break;
            }
            std::hint::spin_loop();
        }
        let left_ns = self.client.due().saturating_sub(self.now());
        let wait = Duration::from_nanos(left_ns).min(limit);
        let until = self.now() + wait.as_nanos() as Nanos;
        wait_readable([self.socket.fd()], wait);
        self.listened = self.now().min(until);
        self.receive()?;
        self.tick();
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.is_abandoned {
            self.client.goodbye(&mut self.out);
            self.send();
        }
    }
}

impl Lines for Memory {
    fn chunks(&self) -> u64 {
        self.client.chunks().expect("connected")
    }

    fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), MemoryError> {
        let mut first = None;
        for transfer in transfers.iter() {
            let op = match transfer {
                Transfer::Read { chunk, lines, .. } => Op::Read {
                    chunk: *chunk,
                    lines: *lines,
                },
                Transfer::Write {
                    chunk,
                    lines,
                    from,
                    sole_writer,
                } => Op::Write {
                    chunk: *chunk,
                    lines: *lines,
                    from: Box::new(**from),
                    sole_writer: *sole_writer,
                },
            };
            if matches!(op, Op::Read { lines: 0, .. } | Op::Write { lines: 0, .. }) {
                continue; // not of this transfer
            }
            let ticket = self.begin(op);
            first.get_or_insert(ticket);
        }
        self.send();
        // Tickets are consecutive; transfers of no lines have none.
        let Some(first) = first else {
            return Ok(());
        };
        let asked: Vec<usize> = (0..transfers.len())
            .filter(|at| transfers[*at].lines() != 0)
            .collect();
        let mut result = Ok(());
        let mut left = asked.len();
        while left > 0 {
            let Ok(done) = self.wait_next() else {
                self.forgotten.push(first..first + asked.len() as u64);
                return Err(MemoryError::TimedOut);
            };
            let (ticket, outcome) = done.expect("as many as were asked");
            if ticket < first {
                self.aside.push_back((ticket, outcome));
                continue;
            }
            left -= 1;
            let transfer = &mut transfers[asked[(ticket - first) as usize]];
            let failed = match (outcome, transfer) {
                (
                    Outcome::Read(lines, _),
                    Transfer::Read {
                        lines: of, into, ..
                    },
                ) => {
                    for n in lines_of(*of) {
                        into[n] = lines[n];
                    }
                    continue;
                }
                (Outcome::Written, _) => continue,
                (Outcome::Unknown, _) => MemoryError::OutcomeUnknown,
                (Outcome::OutOfRange(chunks), transfer) => MemoryError::OutOfRange {
                    chunk: transfer.chunk(),
                    chunks,
                },
                (Outcome::TimedOut | Outcome::Read(..), _) => MemoryError::TimedOut,
            };
            result = result.and(Err(failed));
        }
        result
    }
}

impl Transfer<'_> {
    pub fn chunk(&self) -> u64 {
        match self {
            Transfer::Read { chunk, .. } | Transfer::Write { chunk, .. } => *chunk,
        }
    }

    /// Returns the bitmap of its lines.
    pub fn lines(&self) -> u16 {
        match self {
            Transfer::Read { lines, .. } | Transfer::Write { lines, .. } => *lines,
        }
    }
}
