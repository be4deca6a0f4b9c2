//! The Redis protocol in front of FLAIR: GET, SET, DEL and the other commands that Redis clients use.
//!
//! Commands of one connection take effect and are answered in order: a read waits for the writes before it, a write for
//! everything before it. Reads run concurrently, and so do the operations of a command on several keys, each at the
//! replica set of its key. A write that had to be retransmitted holds back other clients' writes to its key: the client
//! that sent it may have given up and reconnected, and must not see the old write take effect after a newer one.

mod command;
mod connection;
mod hits;
mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::key_file::KeyFile;
use inband_resp::front::{Front, Ready};
use inband_resp::password::Password;
use inband_resp::timeouts::{ClientTimeouts, TimeoutChecks};
use rustls::ServerConfig;

use crate::client::{self, Op, Out, SubmitError, Ticket};
use crate::clock::boot_time_ns;
use crate::config::Config;
use crate::digests::Digests;
use crate::limits::{GATEWAY_CLIENTS_MAX, GATEWAY_MEMORY_BYTES_MAX, GATEWAY_READ_BUDGET_BYTES};
use crate::sets::Clients;
use crate::timing::ClientTiming;
use connection::{Connection, Refusal, Turn};
use hits::{Hit, Hits};
use writes::Writes;

/// Maximum packets received before clients get a turn.
const BATCH_PACKETS: usize = 256;
/// Maximum sleep; bounds how long stopping takes.
const IDLE_MAX: Duration = Duration::from_millis(100);
/// Minimum time between two log lines that clients can cause.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Authentication and limits of Redis clients.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    pub password: Option<Password>,
    /// The TLS configuration; `None` means plain TCP.
    pub tls: Option<Arc<ServerConfig>>,
    pub clients_max: usize,
    /// Maximum memory that all clients together may use, in bytes.
    pub memory_bytes_max: usize,
    pub timeouts: ClientTimeouts,
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings {
            password: None,
            tls: None,
            clients_max: GATEWAY_CLIENTS_MAX,
            memory_bytes_max: GATEWAY_MEMORY_BYTES_MAX,
            timeouts: ClientTimeouts::default(),
        }
    }
}

/// Runs in one thread.
pub struct Gateway {
    front: Front<Connection>,
    ready: Ready,
    /// Connections to look at in the next turn.
    attention: Vec<usize>,
    settings: ClientSettings,
    scratch: Vec<u8>,
    socket: HostSocket,
    gate: Gate,
    switches: Vec<SocketAddrV4>,
    clients: Clients,
    out: Out,
    /// The connection that waits for an operation: its slot and its id.
    waiting: HashMap<Ticket, (usize, u64)>,
    /// Writes in flight, including those of closed connections.
    writes: Writes,
    /// Connections that must wait until another operation ends before they submit their next one.
    full: BTreeSet<usize>,
    hits: Hits,
    commands: u64,
    packets_unsent: u64,
    checks: TimeoutChecks,
    logged_at: Option<Instant>,
}

impl Gateway {
    /// Listens for clients on `listeners` and forwards requests to the switches of `config`. With `keys`, packets
    /// without a valid tag are dropped.
    pub fn open(
        config: &Config,
        keys: Option<&KeyFile>,
        listeners: Vec<TcpListener>,
        settings: ClientSettings,
    ) -> io::Result<Gateway> {
        let switches: Vec<_> = config.cluster.switches.iter().map(|s| s.address).collect();
        let sets = config.cluster.sets();
        let of_each = client::Config {
            set: 0,
            switches: switches.len() as u8,
            reads: config.cluster.reads,
            nonce: rand::random(),
            timing: ClientTiming::default(),
        };
        let mut clients = Clients::new(of_each, sets);
        if let Some(keys) = keys {
            clients.set_digests(Digests::new(keys.digest()));
        }
        let address = config.host.address.expect("a checked gateway has one");
        let socket = HostSocket::bind(address)?;
        let fds = [socket.fd()];
        let front = Front::new(listeners, &fds, settings.clients_max, settings.tls.clone())?;
        Ok(Gateway {
            front,
            ready: Ready::default(),
            attention: Vec::new(),
            settings,
            scratch: vec![0; GATEWAY_READ_BUDGET_BYTES],
            socket,
            gate: Gate::of::<crate::dataplane::Flair>(keys.map(KeyFile::keys), sets),
            switches,
            clients,
            out: Out::default(),
            waiting: HashMap::new(),
            writes: Writes::default(),
            full: BTreeSet::new(),
            hits: Hits::default(),
            commands: 0,
            packets_unsent: 0,
            checks: TimeoutChecks::new(Instant::now()),
            logged_at: None,
        })
    }

    /// Returns the addresses that Redis clients connect to.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.front.local_addrs()
    }

    /// Serves until told to stop. Calls `publish` after every turn.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut publish: impl FnMut(&mut Gateway),
    ) -> io::Result<()> {
        while !stop.load(Ordering::Acquire) {
            let more = self.receive()?;
            self.clients.tick(boot_time_ns(), &mut self.out);
            self.settle();
            let timeout = if more { Duration::ZERO } else { self.timeout() };
            self.front.wait(timeout, &mut self.ready)?;
            self.accept();
            let mut slots = std::mem::take(&mut self.attention);
            slots.append(&mut self.ready.connections);
            slots.into_iter().for_each(|slot| self.advance(slot));
            self.settle();
            self.close_timed_out();
            self.bound_memory();
            publish(self);
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        if !self.attention.is_empty() {
            return Duration::ZERO;
        }
        let due = self.clients.due().unwrap_or(u64::MAX);
        let timeout = Duration::from_nanos(due.saturating_sub(boot_time_ns())).min(IDLE_MAX);
        let pause = self.front.accept_pause(Instant::now());
        pause.map_or(timeout, |pause| timeout.min(pause))
    }

    /// Receives packets for the client. Returns whether there may be more.
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
            self.clients
                .on_packet(boot_time_ns(), packet, &mut self.out);
        }
        Ok(true)
    }

    /// Sends packets, answers finished requests and submits what waited for them, until nothing is left.
    fn settle(&mut self) {
        loop {
            self.out.packets.sign(&self.gate);
            for (switch, packet) in self.out.packets.iter() {
                let sent = self.socket.send(packet, self.switches[usize::from(switch)]);
                self.packets_unsent += u64::from(!sent);
            }
            self.out.packets.clear();
            let outcomes = std::mem::take(&mut self.out.outcomes);
            if outcomes.is_empty() {
                return;
            }
            let mut slots: Vec<_> = std::mem::take(&mut self.full).into_iter().collect();
            for (ticket, outcome) in outcomes {
                self.writes.ended(ticket);
                let Some((slot, id)) = self.waiting.remove(&ticket) else {
                    continue;
                };
                // The connection may be closed and its slot reused.
                let connection = self.front.connections.get_mut(slot);
                if let Some(connection) = connection.filter(|c| c.id == id) {
                    connection.done(ticket, outcome);
                    slots.push(slot);
                }
            }
            slots.sort_unstable();
            slots.dedup();
            slots.into_iter().for_each(|slot| self.advance(slot));
        }
    }

    fn accept(&mut self) {
        let is_trusted = self.settings.password.is_none();
        let make = |arrival| Connection::new(arrival, is_trusted);
        let accepted = self.front.accept(Instant::now(), make);
        self.attention.extend(accepted.slots);
        (0..accepted.refused).for_each(|_| self.hits.count(Hit::Clients));
        if let Some(error) = accepted.failure {
            self.hits.count(Hit::Accept);
            self.log(&format!(
                "accepting a client: {error}; raise the limit of open files (ulimit -n)"
            ));
        }
    }

    /// Reads, submits, answers and writes, as far as this connection gets.
    fn advance(&mut self, slot: usize) {
        let Some(connection) = self.front.connections.get_mut(slot) else {
            return;
        };
        let (now, id) = (boot_time_ns(), connection.id);
        let (clients, out, waiting) = (&mut self.clients, &mut self.out, &mut self.waiting);
        let (writes, full, hits) = (&mut self.writes, &mut self.full, &mut self.hits);
        let mut turn = Turn {
            submit: |op: Op| {
                let writes_key = (!op.is_read()).then(|| op.key().to_vec());
                let is_held = |key: &Vec<u8>| writes.hold_back(now, key);
                if writes_key.as_ref().is_some_and(is_held) {
                    full.insert(slot);
                    return Err(Refusal::Later);
                }
                match clients.submit(now, op, out) {
                    Ok(ticket) => {
                        waiting.insert(ticket, (slot, id));
                        if let Some(key) = writes_key {
                            writes.begun(now, ticket, key);
                        }
                        Ok(ticket)
                    }
                    Err(SubmitError::TooMany(_)) => {
                        full.insert(slot);
                        Err(Refusal::Later)
                    }
                    Err(error) => Err(Refusal::Never(error)),
                }
            },
            password: self.settings.password.as_ref(),
            hit: &mut |hit| hits.count(hit),
            scratch: &mut self.scratch,
            now: Instant::now(),
        };
        let result = connection.advance(&mut turn);
        self.commands += std::mem::take(&mut connection.answered);
        match result {
            Ok(true) => self.attention.push(slot),
            Ok(false) => {}
            Err(hit) => return self.close(slot, hit),
        }
        self.front.connections.account(slot);
    }

    fn close(&mut self, slot: usize, hit: Hit) {
        let Some(mut connection) = self.front.close(slot) else {
            return;
        };
        connection.say_goodbye();
        self.hits.count(hit);
        if hit != Hit::Gone {
            self.log(&format!(
                "closed the client at {}: {hit:?}; see docs/limits.md",
                connection.peer
            ));
        }
    }

    /// Logs at most once per [`LOG_PERIOD`]: clients can cause these lines and could flood the log.
    fn log(&mut self, line: &str) {
        let is_new = |at: Instant| at.elapsed() < LOG_PERIOD;
        if !self.logged_at.is_some_and(is_new) {
            self.logged_at = Some(Instant::now());
            tracing::warn!("{line}");
        }
    }

    /// Closes clients that have exceeded a timeout.
    fn close_timed_out(&mut self) {
        let now = Instant::now();
        if !self.checks.are_due(now) {
            return;
        }
        let timeouts = self.settings.timeouts;
        let places = self.front.connections.places();
        let late = places.filter_map(|(slot, c)| Some((slot, c.timed_out(now, &timeouts)?)));
        for (slot, hit) in late.collect::<Vec<_>>() {
            self.close(slot, hit.into());
        }
    }

    /// Closes the clients with the most memory until the total is within the limit.
    fn bound_memory(&mut self) {
        let max_bytes = self.settings.memory_bytes_max;
        while let Some(slot) = self.front.connections.largest_beyond(max_bytes) {
            self.close(slot, Hit::Memory);
        }
    }

    /// Replaces the keys. Has no effect if there were none at start.
    pub fn set_keys(&mut self, keys: Keys) {
        self.gate.set_keys(keys);
    }

    /// Replaces the password, and the certificate for clients that connect from now on; a gateway without them stays so.
    pub fn set_access(&mut self, fresh: ClientSettings) {
        if self.settings.tls.is_some() && fresh.tls.is_some() {
            self.settings.tls = fresh.tls;
            self.settings
                .tls
                .iter()
                .for_each(|tls| self.front.set_tls(Arc::clone(tls)));
        }
        if self.settings.password.is_some() && fresh.password.is_some() {
            self.settings.password = fresh.password;
        }
    }

    /// Returns all counters, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut counters = BTreeMap::from([
            ("gateway_commands", self.commands),
            ("gateway_clients", self.front.connections.len() as u64),
            (
                "gateway_clients_memory_bytes",
                self.front.connections.memory_bytes() as u64,
            ),
            ("gateway_packets_unsent", self.packets_unsent),
        ]);
        counters.extend(self.hits.counters());
        counters.extend(self.gate.counters());
        counters
    }
}
