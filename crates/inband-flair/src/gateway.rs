//! The protocol of Redis in front of FLAIR: GET, SET, DEL and what Redis clients say beside them.
//!
//! Commands of one connection are answered in their order. Those on different keys run at the same time; one on a
//! key that an earlier one still uses waits for it, unless both only read.

mod command;
mod connection;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::net::{SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use inband_dataplane::auth::{Gate, Keys};
use inband_dataplane::socket::HostSocket;
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;
use inband_paxos::key_file::KeyFile;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::client::{self, Client, Out, SubmitError, Ticket};
use crate::clock::boot_time_ns;
use crate::config::Config;
use crate::digests::Digests;
use crate::timing::ClientTiming;
use connection::Connection;

/// Connections at once; further ones are told and closed.
pub const CLIENTS_MAX: usize = 4096;
const EVENTS_MAX: usize = 256;
const SOCKET: Token = Token(0);
const FIRST_LISTENER: usize = 1;
/// Every replica set of this configuration is number 0.
const SET: u16 = 0;
const SETS: usize = 1;
/// Packets taken before clients get a turn.
const BATCH_PACKETS: usize = 256;
/// Longest sleep: it has to notice that it is to stop.
const IDLE_MAX: Duration = Duration::from_millis(100);

/// See the module. One thread.
pub struct Gateway {
    poll: Poll,
    listeners: Vec<mio::net::TcpListener>,
    connections: HashMap<usize, Connection>,
    next_token: usize,
    socket: HostSocket,
    gate: Gate,
    switches: Vec<SocketAddrV4>,
    client: Client,
    out: Out,
    /// Which connection waits for an operation.
    waiting: HashMap<Ticket, usize>,
    /// Connections whose next operation found too many under way.
    full: Vec<usize>,
    counters: Counters,
}

/// What has happened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Commands answered.
    pub commands: u64,
    /// Connections refused: there were too many.
    pub clients_refused: u64,
    /// Connections closed for what they said, or because they read too little.
    pub clients_closed: u64,
    /// Packets that the system did not take.
    pub packets_unsent: u64,
}

impl Gateway {
    /// Serve clients that come to `listeners`, as a client of the switches of `config`. With `keys` it hears
    /// only packets that carry a right tag.
    pub fn open(
        config: &Config,
        keys: Option<&KeyFile>,
        listeners: Vec<TcpListener>,
    ) -> io::Result<Gateway> {
        let switches: Vec<_> = config.cluster.switches.iter().map(|s| s.address).collect();
        let mut client = Client::new(client::Config {
            set: SET,
            switches: switches.len() as u8,
            nonce: rand::random(),
            timing: ClientTiming::default(),
        });
        if let Some(keys) = keys {
            client.set_digests(Digests::new(keys.digest()));
        }
        let address = config.host.address.expect("a checked gateway has one");
        let poll = Poll::new()?;
        let socket = HostSocket::bind(address)?;
        let fd = socket.fd();
        poll.registry()
            .register(&mut SourceFd(&fd), SOCKET, Interest::READABLE)?;
        let mut taken = Vec::new();
        for (number, listener) in listeners.into_iter().enumerate() {
            listener.set_nonblocking(true)?;
            let mut listener = mio::net::TcpListener::from_std(listener);
            let token = Token(FIRST_LISTENER + number);
            poll.registry()
                .register(&mut listener, token, Interest::READABLE)?;
            taken.push(listener);
        }
        Ok(Gateway {
            next_token: FIRST_LISTENER + taken.len(),
            poll,
            listeners: taken,
            connections: HashMap::new(),
            socket,
            gate: Gate::for_flair(keys.map(KeyFile::keys), SETS),
            switches,
            client,
            out: Out::default(),
            waiting: HashMap::new(),
            full: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// Serve until told to stop; `publish` is called after every turn.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut publish: impl FnMut(&mut Gateway),
    ) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !stop.load(Ordering::Acquire) {
            let more = self.receive()?;
            self.client.tick(boot_time_ns(), &mut self.out);
            self.settle();
            let timeout = if more { Duration::ZERO } else { self.timeout() };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                match event.token() {
                    SOCKET => {}
                    Token(at) if at < FIRST_LISTENER + self.listeners.len() => {
                        self.accept(at - FIRST_LISTENER);
                    }
                    Token(at) => self.serve(at, event.is_readable()),
                }
            }
            publish(self);
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        let due = self.client.due().unwrap_or(u64::MAX);
        Duration::from_nanos(due.saturating_sub(boot_time_ns())).min(IDLE_MAX)
    }

    /// Take what has come for the client. True: there may be more.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for _ in 0..BATCH_PACKETS {
            let Some((len_bytes, _)) = self.socket.receive(&mut buffer)? else {
                return Ok(false);
            };
            let packet = &buffer[..len_bytes];
            if !self.gate.admits(packet) {
                continue;
            }
            self.client.on_packet(boot_time_ns(), packet, &mut self.out);
        }
        Ok(true)
    }

    /// Send what is to be sent, answer what is done, begin what waited for it; until nothing is left.
    fn settle(&mut self) {
        loop {
            self.out.packets.sign(&self.gate);
            for (switch, packet) in self.out.packets.iter() {
                let sent = self.socket.send(packet, self.switches[usize::from(switch)]);
                self.counters.packets_unsent += u64::from(!sent);
            }
            self.out.packets.clear();
            let outcomes = std::mem::take(&mut self.out.outcomes);
            if outcomes.is_empty() {
                return;
            }
            for (ticket, outcome) in outcomes {
                let Some(token) = self.waiting.remove(&ticket) else {
                    continue; // its connection is gone
                };
                if let Some(connection) = self.connections.get_mut(&token) {
                    connection.done(ticket, outcome);
                    self.advance(token);
                }
            }
            self.retry_full();
        }
    }

    /// Connections that found the client full.
    fn retry_full(&mut self) {
        for token in std::mem::take(&mut self.full) {
            self.advance(token);
        }
    }

    fn accept(&mut self, listener: usize) {
        loop {
            // Whatever accepting failed for, the next event tries again.
            let Ok((mut stream, _)) = self.listeners[listener].accept() else {
                return;
            };
            if self.connections.len() >= CLIENTS_MAX {
                self.counters.clients_refused += 1;
                let _ = io::Write::write(&mut stream, b"-ERR max number of clients reached\r\n");
                continue;
            }
            let token = self.next_token;
            self.next_token += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let _ = stream.set_nodelay(true);
            let registered = self
                .poll
                .registry()
                .register(&mut stream, Token(token), interest);
            if registered.is_ok() {
                self.connections.insert(token, Connection::new(stream));
                self.serve(token, true);
            }
        }
    }

    fn serve(&mut self, token: usize, is_readable: bool) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return; // closed a moment ago
        };
        if is_readable {
            connection.has_input();
        }
        self.advance(token);
    }

    /// Read, begin, answer, write: as far as this connection gets.
    fn advance(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let now = boot_time_ns();
        let (client, out, waiting) = (&mut self.client, &mut self.out, &mut self.waiting);
        let full = &mut self.full;
        let result = connection.advance(&mut |op| {
            let submitted = client.submit(now, op, out);
            match &submitted {
                Ok(ticket) => {
                    waiting.insert(*ticket, token);
                }
                Err(SubmitError::TooMany(_)) => full.push(token),
                Err(_) => {}
            }
            submitted
        });
        self.counters.commands += connection.take_answered();
        if let Err(closed) = result {
            self.counters.clients_closed += u64::from(closed.is_misbehaviour());
            let mut gone = self.connections.remove(&token).expect("it was there");
            gone.deregister(self.poll.registry());
        }
    }

    /// Other keys from now on. Without keys at the start there are none.
    pub fn set_keys(&mut self, keys: Keys) {
        self.gate.set_keys(keys);
    }

    /// Everything counted, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let c = &self.counters;
        let mut counters = BTreeMap::from([
            ("gateway_commands", c.commands),
            ("gateway_clients", self.connections.len() as u64),
            ("gateway_clients_refused", c.clients_refused),
            ("gateway_clients_closed", c.clients_closed),
            ("gateway_packets_unsent", c.packets_unsent),
        ]);
        counters.extend(self.gate.counters());
        counters
    }
}
