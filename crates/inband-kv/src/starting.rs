//! Serves clients before there is a store: they are accepted and get LOADING, as from a Redis that loads its data. Once the
//! store is open, its replica continues with the same connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_resp::front::{Front, Ready};
use inband_resp::reply::Reply;
use inband_resp::request::Args;
use mio::Waker;

use crate::connection::{Connection, Intake, Item, Next};
use crate::control::Status;
use crate::guard::Guard;
use crate::info::Identity;
use crate::latencies::Latencies;
use crate::limit_hits::{LimitHit, LimitHits};
use crate::limits::READ_BUDGET_BYTES;
use crate::local::{self, World};
use crate::machine::MachineConfig;
use crate::peer_exchange::Peers;
use crate::replica::ReplicaConfig;
use crate::script_cache::Scripts;
use crate::subscriptions::Subscriptions;
use crate::table::CommandId;

/// The reply to commands that need the store.
const STARTING: &str = "LOADING Inband is opening its store; try again or use another replica";
/// Longest sleep: the time limits of clients are checked at least this often.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// The sockets of a replica's clients, who may have connected before the replica exists.
pub struct Clients {
    pub(crate) front: Front<Connection>,
    pub(crate) waker: Waker,
    pub(crate) limit_hits: Arc<LimitHits>,
    pub(crate) latencies: Arc<Latencies>,
    /// Number of requests answered so far.
    pub(crate) requests: u64,
    /// When they were first served.
    pub(crate) started: Instant,
}

impl Clients {
    /// Nobody is served yet.
    pub fn listen(config: &ReplicaConfig, listeners: Vec<TcpListener>) -> io::Result<Self> {
        let mut front = Front::new(listeners, &[], config.clients_max, config.tls.clone())?;
        let waker = front.take_waker();
        Ok(Self {
            waker: waker.ok_or_else(|| io::Error::other("no waker"))?,
            front,
            limit_hits: Arc::default(),
            latencies: Arc::default(),
            requests: 0,
            started: Instant::now(),
        })
    }

    /// Also serves the clients of these sockets.
    pub fn listen_at(&mut self, listeners: Vec<TcpListener>) -> io::Result<()> {
        let mut listeners = listeners.into_iter();
        listeners.try_for_each(|listener| self.front.listen(listener))
    }

    /// Returns where clients reach this replica.
    pub(crate) fn announced(&self, config: &ReplicaConfig) -> inband_host::config::ClientAddress {
        let own = config.discovery.announce.clone();
        let listens = || self.front.local_addrs().first().copied();
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        own.unwrap_or_else(|| listens().unwrap_or(nowhere).into())
    }
}

/// The sockets, and the number of requests answered.
type Served = (Front<Connection>, u64);

/// Serves clients on a thread of its own until the store is open.
pub struct Starting {
    stop: Arc<AtomicBool>,
    waker: Option<Waker>,
    thread: Option<JoinHandle<io::Result<Served>>>,
    limit_hits: Arc<LimitHits>,
    latencies: Arc<Latencies>,
    started: Instant,
}

impl Starting {
    /// Serves the clients of a replica with this configuration and store.
    pub fn start(
        config: &ReplicaConfig,
        store: &MachineConfig,
        clients: Clients,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let own = clients.announced(config);
        let reception = Reception {
            identity: config.identity(store.partitions, store.sync, &clients),
            peers: Peers::new(config.discovery.node, own, Vec::new()),
            config: config.clone(),
            front: clients.front,
            limit_hits: clients.limit_hits.clone(),
            latencies: clients.latencies.clone(),
            refusal: Reply::error(STARTING),
            scripts: Scripts::default(),
            subscriptions: Subscriptions::default(),
            requests: clients.requests,
            attention: Vec::new(),
            scratch: vec![0; READ_BUDGET_BYTES],
            now: Instant::now(),
            guard: Guard::new(clients.limit_hits.clone(), Instant::now()),
        };
        let for_thread = stop.clone();
        let thread = std::thread::Builder::new().name("ib-starting".into());
        Ok(Self {
            thread: Some(thread.spawn(move || reception.run(&for_thread))?),
            stop,
            waker: Some(clients.waker),
            limit_hits: clients.limit_hits,
            latencies: clients.latencies,
            started: clients.started,
        })
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // Without it, the thread notices at the end of its sleep.
        if let Some(Err(error)) = self.waker.as_ref().map(Waker::wake) {
            tracing::warn!("waking the thread that serves clients: {error}");
        }
    }

    /// Ends this, and returns the clients for the replica.
    pub fn finish(mut self) -> io::Result<Clients> {
        self.stop();
        let ended = || io::Error::other("the thread that serves clients has ended");
        let thread = self.thread.take().ok_or_else(ended)?;
        let (front, requests) = thread.join().map_err(|_| ended())??;
        Ok(Clients {
            front,
            waker: self.waker.take().ok_or_else(ended)?,
            limit_hits: self.limit_hits.clone(),
            latencies: self.latencies.clone(),
            requests,
            started: self.started,
        })
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread works with.
struct Reception {
    config: ReplicaConfig,
    identity: Identity,
    front: Front<Connection>,
    limit_hits: Arc<LimitHits>,
    latencies: Arc<Latencies>,
    refusal: Reply,
    /// No other replica is known, no script and no subscriber.
    peers: Peers,
    scripts: Scripts,
    subscriptions: Subscriptions,
    requests: u64,
    attention: Vec<usize>,
    scratch: Vec<u8>,
    now: Instant,
    guard: Guard,
}

impl Reception {
    fn run(mut self, stop: &AtomicBool) -> io::Result<Served> {
        let mut ready = Ready::default();
        while !stop.load(Ordering::Acquire) {
            let pause = self.front.accept_pause(self.now).unwrap_or(SLEEP_MAX);
            let timeout = match self.attention.is_empty() {
                true => pause.min(SLEEP_MAX),
                false => Duration::ZERO,
            };
            self.front.wait(timeout, &mut ready)?;
            self.now = Instant::now();
            self.latencies.set_now(self.now);
            for slot in ready.connections.drain(..) {
                self.want_attention(slot);
            }
            self.accept();
            self.close_timed_out();
            for slot in std::mem::take(&mut self.attention) {
                self.serve(slot);
            }
            self.bound_memory();
        }
        // The replica looks at all of them.
        for slot in self.attention.drain(..) {
            if let Some(connection) = self.front.connections.get_mut(slot) {
                connection.is_in_attention_list = false;
            }
        }
        Ok((self.front, self.requests))
    }

    fn want_attention(&mut self, slot: usize) {
        if let Some(connection) = self.front.connections.get_mut(slot) {
            if !connection.is_in_attention_list {
                connection.is_in_attention_list = true;
                self.attention.push(slot);
            }
        }
    }

    fn accept(&mut self) {
        let partitions = self.identity.partitions;
        let is_trusted = self.config.password.is_none();
        let latencies = &self.latencies;
        let make = |arrival| Connection::new(arrival, partitions, is_trusted, latencies);
        let accepted = self.front.accept(self.now, make);
        self.guard.note_refused(&accepted);
        for slot in accepted.slots {
            self.want_attention(slot);
        }
    }

    fn serve(&mut self, slot: usize) {
        let Some(connection) = self.front.connections.get_mut(slot) else {
            return;
        };
        connection.is_in_attention_list = false;
        connection.start_turn();
        loop {
            let intake = Intake {
                partitions: self.identity.partitions,
                refusal: Some(&self.refusal),
                write_refusal: None,
                has_room_to_delete: true,
                reads: self.config.reads,
                now: self.now,
                hits: &self.limit_hits,
                scripts: &self.scripts,
                redirection: None,
            };
            let Some(connection) = self.front.connections.get_mut(slot) else {
                return;
            };
            let before = connection.requests;
            let next = connection.next(&intake, &mut self.scratch);
            self.requests += connection.requests - before;
            match next {
                Ok(Next::Nothing) => break,
                Ok(Next::Answered) => {}
                Ok(Next::Local(id, args)) => {
                    let reply = self.execute(slot, id, args.args());
                    self.answer(slot, reply);
                }
                Ok(Next::LocalTransaction(items)) => {
                    let replies = items.into_iter().map(|item| self.item(slot, item));
                    let replies = Reply::Array(replies.collect());
                    self.answer(slot, replies);
                }
                Ok(Next::Command(_) | Next::Scan(_) | Next::Pop(_) | Next::Export) => {
                    // The intake's refusal answers these; the connection would wait forever.
                    tracing::error!("a command was accepted while the store is being opened");
                    return self.close(slot);
                }
                Err(error) => {
                    tracing::debug!("reading from a client: {error}");
                    if error.kind() == io::ErrorKind::InvalidData {
                        self.limit_hits.count(LimitHit::Tls);
                    }
                    return self.close(slot);
                }
            }
        }
        self.write(slot);
    }

    /// As in Redis, the connection can be set up and the server inspected, and everything else is refused.
    fn execute(&mut self, slot: usize, id: CommandId, args: Args<'_>) -> Reply {
        if !local::is_for_starting(id) {
            return self.refusal.clone();
        }
        if let Some(asked) = local::unblock(id, args) {
            // No client waits.
            return asked.map_or_else(|reply| reply, |_| Reply::Integer(0));
        }
        let status = self.status();
        let mut world = World {
            status,
            expiring_keys: &|| 0_u64,
            connections: &mut self.front.connections,
            slot,
            password: self.config.password.as_ref(),
            hits: &self.limit_hits,
            identity: &self.identity,
            scripts: &self.scripts,
            subscriptions: &self.subscriptions,
            peers: &self.peers,
            events: None,
            now: self.now,
        };
        local::execute(id, args, &mut world)
    }

    fn item(&mut self, slot: usize, item: Item) -> Reply {
        match item {
            Item::Local(id, args) => self.execute(slot, id, args.args()),
            Item::Answered(reply) => reply,
            Item::Replicated => self.refusal.clone(),
        }
    }

    fn status(&self) -> Status {
        Status {
            is_loading: true,
            connected_clients: self.front.connections.len() as u64,
            connections_total: self.front.accepted(),
            clients_memory_bytes: self.front.connections.memory_bytes() as u64,
            requests_total: self.requests,
            limit_hits: self.limit_hits.snapshot(),
            ..Status::default()
        }
    }

    fn answer(&mut self, slot: usize, reply: Reply) {
        if let Some(connection) = self.front.connections.get_mut(slot) {
            connection.answer_local(reply);
        }
    }

    fn write(&mut self, slot: usize) {
        let Some(connection) = self.front.connections.get_mut(slot) else {
            return;
        };
        if connection.is_over_output_limit() {
            return self.close_for(slot, LimitHit::Output);
        }
        if let Err(error) = connection.write_output(self.now) {
            tracing::debug!("writing to {}: {error}", connection.peer);
            return self.close(slot);
        }
        if connection.is_finished() {
            connection.wire.say_goodbye();
            return self.close(slot);
        }
        let has_more = connection.has_input_work();
        self.front.connections.account(slot);
        if has_more {
            self.want_attention(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        drop(self.front.close(slot));
    }

    fn close_for(&mut self, slot: usize, hit: LimitHit) {
        if let Some(client) = self.front.connections.get(slot) {
            self.guard.note_closed(client, hit);
            self.close(slot);
        }
    }

    fn close_timed_out(&mut self) {
        let (clients, timeouts) = (&self.front.connections, &self.config.timeouts);
        for (slot, hit) in self.guard.timed_out(clients, timeouts, self.now) {
            self.close_for(slot, hit);
        }
    }

    fn bound_memory(&mut self) {
        let max_bytes = self.config.clients_memory_bytes_max;
        while let Some(slot) = self.front.connections.largest_beyond(max_bytes) {
            self.close_for(slot, LimitHit::Memory);
        }
    }
}
