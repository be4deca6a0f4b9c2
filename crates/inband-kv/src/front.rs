//! The sockets of a replica: listeners, connections and what is ready on them.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inband_resp::wire::Wire;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use nix::sys::socket::{setsockopt, sockopt};
use rustls::{ServerConfig, ServerConnection};

use crate::connection::Connection;
use crate::limit_hits::{LimitHit, LimitHits, Seldom};
use crate::limits::{
    ACCEPTS_PER_TURN_MAX, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES,
};

const EVENTS_PER_TURN: usize = 1024;
const WAKER: Token = Token(0);
const LOG: Token = Token(1);
const FIRST_LISTENER: usize = 2;
const FIRST_CONNECTION: usize = 1024;
/// Pause after accepting failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The open connections, each at a fixed place.
#[derive(Debug, Default)]
pub struct Connections {
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
    count: usize,
    /// Memory of all of them, as far as it was accounted for.
    memory_bytes: usize,
}

impl Connections {
    /// Number of open connections.
    pub fn len(&self) -> usize {
        self.count
    }

    /// No connection is open.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The connection at a place.
    pub fn get(&self, slot: usize) -> Option<&Connection> {
        self.slots.get(slot)?.as_ref()
    }

    /// The connection at a place.
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// All connections.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().flatten()
    }

    /// Places of all connections.
    pub fn places(&self) -> impl Iterator<Item = (usize, &Connection)> {
        let places = self.slots.iter().enumerate();
        places.filter_map(|(slot, connection)| Some((slot, connection.as_ref()?)))
    }

    /// Memory that all clients make the replica hold, as last accounted for.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Account for the memory that a client holds now.
    pub fn account(&mut self, slot: usize) {
        if let Some(Some(connection)) = self.slots.get_mut(slot) {
            let memory_bytes = connection.memory_bytes();
            self.memory_bytes += memory_bytes;
            self.memory_bytes -= std::mem::replace(&mut connection.accounted_bytes, memory_bytes);
        }
    }

    fn insert(&mut self, connection: Connection) -> usize {
        self.count += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(connection);
        slot
    }

    fn remove(&mut self, slot: usize) -> Option<Connection> {
        let connection = self.slots.get_mut(slot)?.take()?;
        self.memory_bytes -= connection.accounted_bytes;
        self.count -= 1;
        self.free.push(slot);
        Some(connection)
    }
}

/// What one wait found.
#[derive(Debug, Default)]
pub struct Ready {
    /// Connections with something to read, or that can be written again.
    pub connections: Vec<usize>,
}

/// The sockets of a replica.
pub struct Front {
    poll: Poll,
    events: Events,
    waker: Option<Waker>,
    listeners: Vec<(TcpListener, bool)>,
    accept_after: Option<Instant>,
    /// The open connections.
    pub connections: Connections,
    clients_max: usize,
    partitions: usize,
    next_id: u64,
    hits: Arc<LimitHits>,
    seldom: Seldom,
    security: FrontSecurity,
}

/// What clients must do before they are served.
#[derive(Debug, Clone, Default)]
pub struct FrontSecurity {
    /// Speak TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// Say a password.
    pub needs_password: bool,
}

impl Front {
    /// Serve `listeners` for a store of so many partitions, and wake up when one of `wake_fds`
    /// becomes readable.
    pub fn new(
        listeners: Vec<StdListener>,
        wake_fds: &[RawFd],
        clients_max: usize,
        partitions: usize,
        hits: Arc<LimitHits>,
        security: FrontSecurity,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        for fd in wake_fds {
            poll.registry()
                .register(&mut SourceFd(fd), LOG, Interest::READABLE)?;
        }
        let mut registered = Vec::new();
        for (i, listener) in listeners.into_iter().enumerate() {
            listener.set_nonblocking(true)?;
            let mut listener = TcpListener::from_std(listener);
            let token = FIRST_LISTENER + i;
            if token >= FIRST_CONNECTION {
                return Err(io::Error::other("too many listeners for one replica"));
            }
            poll.registry()
                .register(&mut listener, Token(token), Interest::READABLE)?;
            // Clients may have come before it was registered.
            registered.push((listener, true));
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            waker: Some(waker),
            listeners: registered,
            accept_after: None,
            connections: Connections::default(),
            clients_max,
            partitions,
            next_id: 1,
            hits,
            seldom: Seldom::default(),
            security,
        })
    }

    /// Wakes [`wait`](Self::wait) from other threads; can be taken once.
    pub fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    /// The addresses listened on.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter_map(|(l, _)| l.local_addr().ok())
            .collect()
    }

    /// Wait for something to be ready.
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
                        note_readiness(connection, event);
                        ready.connections.push(slot);
                    }
                }
            }
        }
        Ok(())
    }

    /// How long accepting has to pause; zero if a client may be waiting already.
    pub fn accept_pause(&self, now: Instant) -> Option<Duration> {
        let is_any_ready = self.listeners.iter().any(|(_, is_ready)| *is_ready);
        is_any_ready.then(|| {
            self.accept_after
                .map_or(Duration::ZERO, |after| after.saturating_duration_since(now))
        })
    }

    /// Accept clients. Other processes may accept from the same sockets: whoever is first gets one.
    pub fn accept(&mut self, now: Instant, accepted: &mut Vec<usize>) {
        if self.accept_after.is_some_and(|after| now < after) {
            return;
        }
        self.accept_after = None;
        for i in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN_MAX {
                let (listener, is_ready) = &mut self.listeners[i];
                if !*is_ready {
                    break;
                }
                match listener.accept() {
                    Ok((stream, peer)) => accepted.extend(self.admit(stream, peer, now)),
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => *is_ready = false,
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                        // It stays in the listener's queue, which so stays ready: without a pause
                        // the loop would spin.
                        _ => {
                            self.hits.count(LimitHit::Accept);
                            if self.seldom.is_due() {
                                tracing::warn!(
                                    "accepting a client: {error}; raise the limit of open files \
                                     (ulimit -n) or lower host.limits.max_clients"
                                );
                            }
                            self.accept_after = Some(now + ACCEPT_PAUSE);
                            return;
                        }
                    },
                }
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, now: Instant) -> Option<usize> {
        if self.connections.len() >= self.clients_max {
            self.hits.count(LimitHit::Clients);
            // Best effort: the client is gone either way. One that speaks TLS would not understand.
            if self.security.tls.is_some() {
                return None;
            }
            let _ = stream.write(b"-ERR max number of clients reached\r\n");
            return None;
        }
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY of {peer}: {error}");
        }
        if let Err(error) = keep_alive(&stream) {
            tracing::debug!("SO_KEEPALIVE of {peer}: {error}");
        }
        let tls = match self.security.tls.clone().map(ServerConnection::new) {
            None => None,
            Some(Ok(tls)) => Some(tls),
            Some(Err(error)) => {
                tracing::debug!("TLS of {peer}: {error}");
                return None;
            }
        };
        let wire = Wire::new(stream, tls);
        let is_trusted = !self.security.needs_password;
        let connection =
            Connection::new(self.next_id, wire, peer, self.partitions, is_trusted, now);
        let slot = self.connections.insert(connection);
        self.next_id += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let token = Token(FIRST_CONNECTION + slot);
        let connection = self.connections.get_mut(slot)?;
        match self
            .poll
            .registry()
            .register(&mut connection.wire.tcp, token, interest)
        {
            Ok(()) => Some(slot),
            Err(error) => {
                tracing::warn!("registering {peer}: {error}");
                self.connections.remove(slot);
                None
            }
        }
    }

    /// Close a connection; what was known of it.
    pub fn close(&mut self, slot: usize) -> Option<Connection> {
        let mut connection = self.connections.remove(slot)?;
        let tcp = &mut connection.wire.tcp;
        if let Err(error) = self.poll.registry().deregister(tcp) {
            tracing::debug!("deregistering {}: {error}", connection.peer);
        }
        Some(connection)
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.next_id - 1
    }
}

/// Have the kernel find out about clients whose host is gone.
fn keep_alive(stream: &TcpStream) -> nix::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)
}

fn note_readiness(connection: &mut Connection, event: &Event) {
    connection.is_readable |= event.is_readable() || event.is_error();
    connection.is_read_closed |= event.is_read_closed() || event.is_error();
    connection.is_writable |= event.is_writable() || event.is_error();
}
