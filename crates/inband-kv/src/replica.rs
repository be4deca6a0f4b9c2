//! The runtime of a replica: one thread, one loop, owning its sockets, its log and its store.
//!
//! A turn of the loop reads what clients sent, packs and submits it, and asks the log at once what
//! was decided: on the fast path the decision is there when `submit` returns. It applies the burst,
//! writes the replies, and only then goes to sleep; before that it asks the log again for a short
//! while if values of its own are undecided.

mod answers;

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use inband_paxos::log::{Burst, ReplicatedLog, SubmitError, Ticket};

use crate::checkpoint_server::CheckpointServer;
use crate::connection::{Intake, Queued};
use crate::control::{add, set, ReplicaControl};
use crate::front::{Front, Ready};
use crate::info::Identity;
use crate::limits::{READ_BUDGET_BYTES, TICK_BACKLOG_MS, TICK_IDLE_MS, TICK_STAGGER_MS};
use crate::loader::Loader;
use crate::local::{self, World};
use crate::packer::{Packer, Rejected};
use crate::reply::Reply;
use crate::store::{Outcomes, Store, StoreError};

/// Longest sleep: flags set by other threads are looked at this often at least.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Where replicated time comes from: a wall clock in milliseconds.
pub type WallClock = Box<dyn FnMut() -> u64>;

/// How a replica is run.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Name shown in `INFO`.
    pub name: String,
    /// Number among the replicas, from 0; each proposes ticks a little later than the one before.
    pub replica_index: u64,
    /// Most clients at a time.
    pub clients_max: usize,
    /// How long to ask the log again and again, while own values are undecided, before sleeping.
    pub spin_us: u64,
}

impl Default for ReplicaConfig {
    fn default() -> Self {
        Self {
            name: "inband".into(),
            replica_index: 0,
            clients_max: 10_000,
            spin_us: 50,
        }
    }
}

/// Why a replica ended.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// A socket, or waiting for sockets, failed.
    #[error("network: {0}; restart the replica")]
    Io(#[from] std::io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A replica.
pub struct Replica {
    config: ReplicaConfig,
    identity: Identity,
    control: Arc<ReplicaControl>,
    front: Front,
    log: Box<dyn ReplicatedLog>,
    store: Store,
    packer: Packer,
    loader: Loader,
    clock: WallClock,
    /// Clients meanwhile get LOADING.
    is_loading: bool,
    tick: Option<Ticket>,
    /// Values nobody waits for any more, because a checkpoint came in between.
    orphans: HashSet<Ticket>,
    last_delivery: Instant,
    now: Instant,
    wall_ms: u64,
    // Reused between turns.
    ready: Ready,
    attention: Vec<usize>,
    dirty: Vec<usize>,
    burst: Burst,
    outcomes: Outcomes,
    rejected: Vec<Rejected>,
    scratch: Vec<u8>,
    /// Commands queued on connections or in the packer.
    waiting_commands: usize,
    /// Kept alive as long as the replica.
    checkpoint_server: Option<CheckpointServer>,
}

impl Replica {
    /// A replica of `log` with its copy in `store`. Clients come over `listeners`, peers that need
    /// a checkpoint over `checkpoint_listener`.
    pub fn new(
        config: ReplicaConfig,
        store: Store,
        mut log: Box<dyn ReplicatedLog>,
        listeners: Vec<TcpListener>,
        checkpoint_listener: Option<TcpListener>,
    ) -> Result<Self, ReplicaError> {
        log.reset(0, store.applied());
        let mut front = Front::new(listeners, &log.wake_fds(), config.clients_max)?;
        let waker = front
            .take_waker()
            .ok_or_else(|| std::io::Error::other("no waker"))?;
        let control = Arc::new(ReplicaControl::new(waker, store.shared()));
        let checkpoint_server = match checkpoint_listener {
            None => None,
            Some(listener) => Some(CheckpointServer::start(
                listener,
                store.shared(),
                store.outgoing(),
                control.checkpoints_served.clone(),
            )?),
        };
        let packer = Packer::new(log.max_value_len_bytes());
        let now = Instant::now();
        let identity = Identity {
            name: config.name.clone(),
            replica_index: config.replica_index,
            clients_max: config.clients_max,
            started: now,
            addresses: front.local_addrs(),
            command_len_bytes_max: packer.command_len_bytes_max(),
        };
        let replica = Self {
            config,
            identity,
            loader: Loader::new(control.clone()),
            control,
            front,
            log,
            store,
            packer,
            clock: Box::new(system_time_ms),
            is_loading: false,
            tick: None,
            orphans: HashSet::new(),
            last_delivery: now,
            now,
            wall_ms: 0,
            ready: Ready::default(),
            attention: Vec::new(),
            dirty: Vec::new(),
            burst: Burst::new(),
            outcomes: Outcomes::default(),
            rejected: Vec::new(),
            scratch: vec![0; READ_BUDGET_BYTES],
            waiting_commands: 0,
            checkpoint_server,
        };
        replica.publish();
        Ok(replica)
    }

    /// Watches and directs this replica from other threads.
    pub fn control(&self) -> Arc<ReplicaControl> {
        self.control.clone()
    }

    /// The replica's copy.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The replica's log.
    pub fn log_mut(&mut self) -> &mut dyn ReplicatedLog {
        &mut *self.log
    }

    /// The address on which checkpoints are served.
    pub fn checkpoint_address(&self) -> Option<std::net::SocketAddr> {
        self.checkpoint_server
            .as_ref()
            .map(CheckpointServer::address)
    }

    /// Take replicated time from elsewhere than the system's clock.
    pub fn set_clock(&mut self, clock: WallClock) {
        self.clock = clock;
    }

    /// Serve until [`ReplicaControl::stop`], then sync the store.
    pub fn run(&mut self) -> Result<(), ReplicaError> {
        while !self.control.is_stopping() {
            self.poll_once(SLEEP_MAX)?;
        }
        self.store.sync()?;
        Ok(())
    }

    /// One turn of the loop; sleeps at most `timeout`.
    pub fn poll_once(&mut self, timeout: Duration) -> Result<(), ReplicaError> {
        let timeout = self.sleep_time(timeout);
        self.front.wait(timeout, &mut self.ready)?;
        self.now = Instant::now();
        self.wall_ms = (self.clock)();
        for i in 0..self.ready.connections.len() {
            self.want_attention(self.ready.connections[i]);
        }
        self.accept();
        self.finish_loading()?;
        self.tick_if_due();
        self.serve_attention();
        self.decide_and_apply()?;
        self.spin()?;
        self.publish();
        Ok(())
    }

    fn sleep_time(&self, timeout: Duration) -> Duration {
        if !self.attention.is_empty() {
            return Duration::ZERO;
        }
        let mut timeout = timeout.min(self.log.poll_timeout()).min(SLEEP_MAX);
        if self.accepts() {
            let pause = self.front.accept_pause(self.now);
            timeout = pause.map_or(timeout, |pause| timeout.min(pause));
        }
        timeout
    }

    fn accepts(&self) -> bool {
        !self.is_loading && !self.control.is_draining()
    }

    fn accept(&mut self) {
        if self.accepts() {
            let mut accepted = Vec::new();
            self.front.accept(self.now, &mut accepted);
            accepted
                .into_iter()
                .for_each(|slot| self.want_attention(slot));
        }
    }

    fn want_attention(&mut self, slot: usize) {
        if let Some(connection) = self.front.connections.get_mut(slot) {
            if !connection.is_in_attention_list {
                connection.is_in_attention_list = true;
                self.attention.push(slot);
            }
        }
    }

    /// Read from and answer all connections that something happened to.
    fn serve_attention(&mut self) {
        let slots = std::mem::take(&mut self.attention);
        for slot in &slots {
            if let Some(connection) = self.front.connections.get_mut(*slot) {
                connection.is_in_attention_list = false;
                self.serve(*slot);
            }
        }
        // Connections that asked again meanwhile come in the next turn.
        if self.attention.is_empty() {
            self.attention = slots;
            self.attention.clear();
        }
    }

    /// Take a connection's requests and answer those whose turn it is.
    fn serve(&mut self, slot: usize) {
        let intake = Intake {
            command_len_bytes_max: self.packer.command_len_bytes_max(),
            is_draining: self.control.is_draining(),
            now: self.now,
        };
        let Some(connection) = self.front.connections.get_mut(slot) else {
            return;
        };
        if connection.has_input_work() {
            let before = connection.requests;
            match connection.take_requests(intake, &mut self.scratch) {
                Ok(commands) => self.waiting_commands += commands,
                Err(error) => {
                    tracing::debug!("reading from {}: {error}", connection.peer);
                    return self.close(slot);
                }
            }
            add(
                &self.control.counters.requests_total,
                connection.requests - before,
            );
        }
        self.answer_local(slot);
        let Some(connection) = self.front.connections.get_mut(slot) else {
            return;
        };
        if connection.is_ready_to_pack() {
            self.packer.push_ready(slot, connection);
        }
        let has_more = connection.has_input_work();
        self.dirty.push(slot);
        if has_more {
            self.want_attention(slot);
        }
    }

    /// Answer the requests at the front of a connection's queue that do not need the log.
    fn answer_local(&mut self, slot: usize) {
        loop {
            let connection = self.front.connections.get_mut(slot);
            let Some(queued) = connection.and_then(|c| c.next_local()) else {
                return;
            };
            let reply = match queued {
                Queued::Answered(reply) => reply,
                Queued::Local(id, args) => {
                    self.publish();
                    let mut world = World {
                        store: &self.store,
                        status: self.control.status(),
                        connections: &mut self.front.connections,
                        slot,
                        identity: &self.identity,
                        now: self.now,
                    };
                    local::execute(id, args.args(), &mut world)
                }
                Queued::Replicated { .. } => return,
            };
            if let Some(connection) = self.front.connections.get_mut(slot) {
                connection.reply(&reply);
            }
        }
    }

    /// Pack, submit, ask the log, apply and reply until nothing more comes of it.
    fn decide_and_apply(&mut self) -> Result<(), ReplicaError> {
        loop {
            self.pack();
            let has_progress = self.apply_burst()?;
            self.write_replies();
            if !has_progress {
                return Ok(());
            }
        }
    }

    fn pack(&mut self) {
        if self.is_loading {
            let text = local::loading_error(self.control.loading_bytes.load(Ordering::Relaxed));
            let reply = Reply::error(text);
            // Answering makes room for requests that were read already: until there are none.
            while self.packer.has_waiting() {
                for (slot, count) in self.packer.reject_waiting(&mut self.front.connections) {
                    self.waiting_commands -= count;
                    if let Some(connection) = self.front.connections.get_mut(slot) {
                        (0..count).for_each(|_| connection.reply(&reply));
                    }
                    self.serve(slot);
                }
            }
            return;
        }
        self.packer.pack(
            &mut self.front.connections,
            &mut *self.log,
            self.wall_ms,
            &mut self.rejected,
        );
        for rejected in std::mem::take(&mut self.rejected) {
            let reply = Reply::error(match rejected.error {
                SubmitError::Closed(_) => format!("TRYAGAIN {}", rejected.error),
                _ => format!("ERR {}", rejected.error),
            });
            self.reply_all(rejected.parts, &reply);
        }
    }

    /// Ask the log what was decided, apply it and append the replies; was there anything?
    fn apply_burst(&mut self) -> Result<bool, ReplicaError> {
        self.burst.clear();
        self.log.poll(std::slice::from_mut(&mut self.burst));
        if self.burst.checkpoint_needed {
            self.start_loading();
        }
        for (ticket, failure) in std::mem::take(&mut self.burst.failed) {
            self.fail(ticket, failure);
        }
        if self.burst.decided().len() == 0 {
            return Ok(false);
        }
        self.outcomes.clear();
        self.store.apply(self.burst.decided(), &mut self.outcomes)?;
        self.log.applied(0, self.store.applied());
        self.now = Instant::now();
        self.last_delivery = self.now;
        add(
            &self.control.counters.commands_applied_total,
            self.outcomes.commands,
        );
        let outcomes = std::mem::take(&mut self.outcomes);
        for outcome in &outcomes.values {
            self.finish(*outcome, &outcomes.replies);
        }
        self.outcomes = outcomes;
        Ok(true)
    }

    fn write_replies(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let Some(connection) = self.front.connections.get_mut(slot) else {
                continue;
            };
            let was_full = !connection.output.is_empty();
            if let Err(error) = connection.write_output() {
                tracing::debug!("writing to {}: {error}", connection.peer);
                self.close(slot);
                continue;
            }
            if connection.is_finished() {
                self.close(slot);
            } else if was_full && (connection.has_input_work() || connection.has_turn()) {
                // There was no room for its replies; now there is.
                self.want_attention(slot);
            }
        }
        self.dirty = dirty;
    }

    fn close(&mut self, slot: usize) {
        if let Some(connection) = self.front.close(slot) {
            self.waiting_commands -= connection.queued_commands();
        }
    }

    /// Ask the log again for a short while: a decision is often only microseconds away.
    fn spin(&mut self) -> Result<(), ReplicaError> {
        if self.config.spin_us == 0 || self.packer.in_flight() == 0 || !self.attention.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + Duration::from_micros(self.config.spin_us);
        while self.packer.in_flight() > 0 && Instant::now() < deadline {
            if self.apply_burst()? {
                self.write_replies();
                return self.decide_and_apply();
            }
            std::hint::spin_loop();
        }
        self.write_replies();
        Ok(())
    }

    /// Let replicated time go on when nobody else does and a key is due to expire.
    fn tick_if_due(&mut self) {
        let is_due = self.store.earliest_expiry_ms() <= self.wall_ms;
        if !is_due || self.tick.is_some() || self.is_loading || self.control.is_draining() {
            return;
        }
        let has_backlog = self.store.earliest_expiry_ms() <= self.store.time_ms();
        let idle_ms = if has_backlog {
            TICK_BACKLOG_MS
        } else {
            TICK_IDLE_MS
        };
        let idle = Duration::from_millis(idle_ms + TICK_STAGGER_MS * self.config.replica_index);
        if self.now.saturating_duration_since(self.last_delivery) >= idle {
            self.tick = self.packer.submit_tick(&mut *self.log, self.wall_ms);
        }
    }

    fn start_loading(&mut self) {
        if !self.is_loading {
            tracing::warn!(
                applied = self.store.applied(),
                "peers no longer hold what is missing"
            );
        }
        self.is_loading = true;
        let peers = self.log.checkpoint_peers();
        self.loader
            .start(self.now, peers, self.store.applied(), self.store.incoming());
    }

    /// Install a checkpoint that has arrived.
    fn finish_loading(&mut self) -> Result<(), ReplicaError> {
        let Some(result) = self.loader.take_result(self.now) else {
            return Ok(());
        };
        let incoming = self.store.incoming();
        match result.map(|_| self.store.install(&incoming)) {
            Ok(Ok(())) => {
                tracing::info!(applied = self.store.applied(), "installed a checkpoint");
                add(&self.control.counters.checkpoints_installed_total, 1);
                self.log.reset(0, self.store.applied());
                self.is_loading = false;
                self.orphan_values();
            }
            // The log went on meanwhile; if it still needs a checkpoint it says so again.
            Ok(Err(error @ StoreError::CheckpointTooOld { .. })) => {
                tracing::warn!("installing a checkpoint: {error}");
                self.is_loading = false;
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(error) => tracing::warn!("fetching a checkpoint: {error}"),
        }
        Ok(())
    }

    /// Tell other threads.
    fn publish(&self) {
        let c = &self.control.counters;
        set(&c.applied_instance, self.store.applied());
        set(&c.time_ms, self.store.time_ms());
        set(&c.keys, self.store.keys());
        set(&c.client_sessions, self.store.client_sessions() as u64);
        set(&c.connected_clients, self.front.connections.len() as u64);
        set(&c.connections_total, self.front.accepted());
        set(&c.connections_refused_total, self.front.refused);
        set(&c.values_submitted_total, self.packer.submitted);
        set(&c.values_in_flight, self.packer.in_flight() as u64);
        c.is_loading.store(self.is_loading, Ordering::Relaxed);
        let is_idle = self.waiting_commands == 0 && self.packer.is_idle();
        c.is_drained
            .store(self.control.is_draining() && is_idle, Ordering::Release);
    }
}

/// The system's wall clock.
fn system_time_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |time| {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    })
}
