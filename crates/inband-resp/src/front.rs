//! A server's sockets: listeners, connections and their readiness. The server defines the connection type.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use nix::sys::socket::{setsockopt, sockopt};
use rustls::{ServerConfig, ServerConnection};

use crate::limits::{
    ACCEPTS_PER_TURN_MAX, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES,
};
use crate::wire::Wire;

const EVENTS_PER_TURN: usize = 1024;
const WAKER: Token = Token(0);
const LOG: Token = Token(1);
const FIRST_LISTENER: usize = 2;
const FIRST_CONNECTION: usize = 1024;
/// Pause after `accept` failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client that has just connected.
#[derive(Debug)]
pub struct Arrival {
    /// Never reused.
    pub id: u64,
    pub wire: Wire,
    pub peer: SocketAddr,
    pub now: Instant,
}

/// What may now be possible on a socket; everything, if it has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    pub is_readable: bool,
    /// Reading up to the end: the client has closed its side.
    pub is_read_closed: bool,
    pub is_writable: bool,
}

/// A server's connection to a client.
pub trait ClientConnection {
    fn wire(&mut self) -> &mut Wire;
    /// The socket's readiness may have changed.
    fn note_readiness(&mut self, readiness: Readiness);
    /// Approximate memory that the server holds for this client.
    fn memory_bytes(&self) -> usize;
}

#[derive(Debug)]
struct Slot<C> {
    connection: C,
    /// Memory included in the total.
    accounted_bytes: usize,
}

/// The open connections, each in a fixed slot.
#[derive(Debug)]
pub struct Connections<C> {
    slots: Vec<Option<Slot<C>>>,
    free: Vec<usize>,
    count: usize,
    /// Memory of all of them, as last accounted.
    memory_bytes: usize,
}

impl<C> Default for Connections<C> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            count: 0,
            memory_bytes: 0,
        }
    }
}

impl<C: ClientConnection> Connections<C> {
    /// Returns the number of open connections.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the connection in a slot.
    pub fn get(&self, slot: usize) -> Option<&C> {
        Some(&self.slots.get(slot)?.as_ref()?.connection)
    }

    /// Returns the connection in a slot.
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut C> {
        Some(&mut self.slots.get_mut(slot)?.as_mut()?.connection)
    }

    /// Returns the connections in these slots, which must ascend; slots without one are left out.
    pub fn each_mut(&mut self, places: &[usize]) -> Vec<&mut C> {
        let (mut rest, mut first) = (&mut self.slots[..], 0);
        let mut found = Vec::with_capacity(places.len());
        for place in places {
            let Some((slot, behind)) = rest
                .get_mut(place - first..)
                .and_then(<[_]>::split_first_mut)
            else {
                break;
            };
            found.extend(slot.as_mut().map(|slot| &mut slot.connection));
            (rest, first) = (behind, place + 1);
        }
        found
    }

    pub fn iter(&self) -> impl Iterator<Item = &C> {
        self.slots.iter().flatten().map(|slot| &slot.connection)
    }

    /// Returns all connections with their slots.
    pub fn places(&self) -> impl Iterator<Item = (usize, &C)> {
        let places = self.slots.iter().enumerate();
        places.filter_map(|(place, slot)| Some((place, &slot.as_ref()?.connection)))
    }

    /// Returns the slot of the client that holds most memory, as last accounted.
    pub fn largest(&self) -> Option<usize> {
        let slots = self.slots.iter().enumerate();
        let held = slots.filter_map(|(place, slot)| Some((place, slot.as_ref()?.accounted_bytes)));
        held.max_by_key(|(_, bytes)| *bytes).map(|(place, _)| place)
    }

    /// Returns the slot of the client to close while all clients together hold more than this.
    pub fn largest_beyond(&self, max_bytes: usize) -> Option<usize> {
        self.largest().filter(|_| self.memory_bytes > max_bytes)
    }

    /// Memory that the server holds for all clients, as last accounted.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Account for a client's current memory.
    pub fn account(&mut self, slot: usize) {
        if let Some(Some(slot)) = self.slots.get_mut(slot) {
            let memory_bytes = slot.connection.memory_bytes();
            self.memory_bytes += memory_bytes;
            self.memory_bytes -= std::mem::replace(&mut slot.accounted_bytes, memory_bytes);
        }
    }

    fn insert(&mut self, connection: C) -> usize {
        self.count += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(Slot {
            connection,
            accounted_bytes: 0,
        });
        slot
    }

    fn remove(&mut self, place: usize) -> Option<C> {
        let slot = self.slots.get_mut(place)?.take()?;
        self.memory_bytes -= slot.accounted_bytes;
        self.count -= 1;
        self.free.push(place);
        Some(slot.connection)
    }
}

/// The result of one wait.
#[derive(Debug, Default)]
pub struct Ready {
    /// Connections that may be readable or writable.
    pub connections: Vec<usize>,
}

/// The result of accepting clients.
#[derive(Debug, Default)]
pub struct Accepted {
    pub slots: Vec<usize>,
    /// Number of clients refused because there are too many.
    pub refused: u64,
    /// Set if descriptors or memory have run out: accepting pauses.
    pub failure: Option<io::Error>,
}

/// The sockets of a server.
pub struct Front<C> {
    poll: Poll,
    events: Events,
    waker: Option<Waker>,
    listeners: Vec<(TcpListener, bool)>,
    accept_after: Option<Instant>,
    pub connections: Connections<C>,
    clients_max: usize,
    next_id: u64,
    tls: Option<Arc<ServerConfig>>,
    refusal: &'static [u8],
}

impl<C: ClientConnection> Front<C> {
    /// Serves `listeners`, and wakes up when one of `wake_fds` becomes readable. With `tls`, clients must use TLS.
    pub fn new(
        listeners: Vec<StdListener>,
        wake_fds: &[RawFd],
        clients_max: usize,
        tls: Option<Arc<ServerConfig>>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let mut front = Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            waker: Some(waker),
            listeners: Vec::new(),
            accept_after: None,
            connections: Connections::default(),
            clients_max,
            next_id: 1,
            tls,
            refusal: b"-ERR max number of clients reached\r\n",
        };
        front.wake_on(wake_fds)?;
        for listener in listeners {
            front.listen(listener)?;
        }
        Ok(front)
    }

    /// Serves the clients of one more listener.
    pub fn listen(&mut self, listener: StdListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let token = FIRST_LISTENER + self.listeners.len();
        if token >= FIRST_CONNECTION {
            return Err(io::Error::other("too many listeners for one server"));
        }
        self.poll
            .registry()
            .register(&mut listener, Token(token), Interest::READABLE)?;
        // Clients may have connected before it was registered.
        self.listeners.push((listener, true));
        Ok(())
    }

    /// Also wakes up when one of these descriptors becomes readable.
    pub fn wake_on(&self, fds: &[RawFd]) -> io::Result<()> {
        for fd in fds {
            self.poll
                .registry()
                .register(&mut SourceFd(fd), LOG, Interest::READABLE)?;
        }
        Ok(())
    }

    /// What a client gets that is one too many, in a protocol that is not Redis'.
    #[must_use]
    pub fn refusing_with(self, refusal: &'static [u8]) -> Self {
        Self { refusal, ..self }
    }

    /// Clients that connect from now on must use TLS with this certificate.
    pub fn set_tls(&mut self, tls: Arc<ServerConfig>) {
        self.tls = Some(tls);
    }

    /// Wakes [`wait`](Self::wait) from other threads; can be taken once.
    pub fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    /// Returns the listening addresses.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter_map(|(l, _)| l.local_addr().ok())
            .collect()
    }

    /// Waits until a socket is ready or the timeout expires.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Ready) -> io::Result<()> {
        ready.connections.clear();
        if let Err(error) = self.poll.poll(&mut self.events, Some(timeout)) {
            if error.kind() == io::ErrorKind::Interrupted {
                return Ok(());
            }
            return Err(error);
        }
        for event in &self.events {
            match event.token() {
                WAKER | LOG => {}
                Token(token) if token < FIRST_CONNECTION => {
                    if let Some((_, is_ready)) = self.listeners.get_mut(token - FIRST_LISTENER) {
                        *is_ready = true;
                    }
                }
                Token(token) => {
                    let slot = token - FIRST_CONNECTION;
                    if let Some(connection) = self.connections.get_mut(slot) {
                        connection.note_readiness(readiness(event));
                        ready.connections.push(slot);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns how long accepting must pause; zero if a client may be waiting already.
    pub fn accept_pause(&self, now: Instant) -> Option<Duration> {
        let is_any_ready = self.listeners.iter().any(|(_, is_ready)| *is_ready);
        is_any_ready.then(|| {
            self.accept_after
                .map_or(Duration::ZERO, |after| after.saturating_duration_since(now))
        })
    }

    /// Accepts clients, and turns them into connections with `make`. Other processes may accept from the same sockets:
    /// each client is accepted by only one of them.
    pub fn accept(&mut self, now: Instant, make: impl Fn(Arrival) -> C) -> Accepted {
        let mut accepted = Accepted::default();
        if self.accept_after.is_some_and(|after| now < after) {
            return accepted;
        }
        self.accept_after = None;
        for i in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN_MAX {
                let is_full = self.connections.len() >= self.clients_max;
                let (listener, is_ready) = &mut self.listeners[i];
                if !*is_ready {
                    break;
                }
                match listener.accept() {
                    Ok((stream, _)) if is_full => {
                        accepted.refused += 1;
                        self.refuse(stream);
                    }
                    Ok((stream, peer)) => {
                        accepted.slots.extend(self.admit(stream, peer, now, &make));
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => *is_ready = false,
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                        // It stays in the listener's queue, which therefore stays ready: without a pause the loop would
                        // spin.
                        _ => {
                            accepted.failure = Some(error);
                            self.accept_after = Some(now + ACCEPT_PAUSE);
                            return accepted;
                        }
                    },
                }
            }
        }
        accepted
    }

    fn refuse(&self, mut stream: TcpStream) {
        // Best effort: the client is disconnected either way. A TLS client would not understand this.
        if self.tls.is_none() {
            let _ = stream.write(self.refusal);
        }
    }

    fn admit(
        &mut self,
        stream: TcpStream,
        peer: SocketAddr,
        now: Instant,
        make: &impl Fn(Arrival) -> C,
    ) -> Option<usize> {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY of {peer}: {error}");
        }
        if let Err(error) = keep_alive(&stream) {
            tracing::debug!("SO_KEEPALIVE of {peer}: {error}");
        }
        let tls = match self.tls.clone().map(ServerConnection::new) {
            None => None,
            Some(Ok(tls)) => Some(tls),
            Some(Err(error)) => {
                tracing::debug!("TLS of {peer}: {error}");
                return None;
            }
        };
        let arrival = Arrival {
            id: self.next_id,
            wire: Wire::new(stream, tls),
            peer,
            now,
        };
        let slot = self.connections.insert(make(arrival));
        self.next_id += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let token = Token(FIRST_CONNECTION + slot);
        let connection = self.connections.get_mut(slot)?;
        match self
            .poll
            .registry()
            .register(&mut connection.wire().tcp, token, interest)
        {
            Ok(()) => Some(slot),
            Err(error) => {
                tracing::warn!("registering {peer}: {error}");
                self.connections.remove(slot);
                None
            }
        }
    }

    /// Closes a connection. Returns its state.
    pub fn close(&mut self, slot: usize) -> Option<C> {
        let mut connection = self.connections.remove(slot)?;
        let tcp = &mut connection.wire().tcp;
        if let Err(error) = self.poll.registry().deregister(tcp) {
            tracing::debug!("deregistering a client: {error}");
        }
        Some(connection)
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.next_id - 1
    }
}

/// Makes the kernel detect clients whose host is gone.
fn keep_alive(stream: &TcpStream) -> nix::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)
}

fn readiness(event: &Event) -> Readiness {
    let has_failed = event.is_error();
    Readiness {
        is_readable: event.is_readable() || has_failed,
        is_read_closed: event.is_read_closed() || has_failed,
        is_writable: event.is_writable() || has_failed,
    }
}
