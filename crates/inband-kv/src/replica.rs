//! The runtime of a replica: one thread and one loop that own its sockets, its log and its store. Where there are cores,
//! [workers](crate::workers) take part in reading sockets, applying the bursts and writing replies.
//!
//! A turn of the loop reads requests, packs and submits them, and polls the logs at once: on the fast path the decision
//! is there when `submit` returns. It applies the bursts, writes the replies, and only then sleeps; before sleeping it
//! polls the logs for a short while if its own values are undecided.

mod answers;
mod catching_up;
mod clients;
mod cross_partition;
mod durability;
mod exports;
mod guard;
mod large;
mod loading;
mod markers;
mod published;
mod reads;
mod subscribers;
mod time;
mod together;
mod waiting;
mod watchers;

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::atomic::AtomicUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inband_host::log::{ReplicatedLog, SubmitError, Ticket};
use inband_resp::front::{Front, Ready};
use inband_resp::password::Password;
use inband_resp::reply::Reply;
use inband_resp::timeouts::ClientTimeouts;
use inband_transport::tls::Transport;
use rustls::ServerConfig;

use crate::checkpoint_server::CheckpointServer;
use crate::clock_exchange::{ClockExchange, HostClocks, SharedClock};
use crate::connection::Connection;
use crate::control::{add, ReplicaControl};
use crate::discovery::Discovery;
use crate::guard::Guard;
use crate::info::Identity;
use crate::limit_hits::LimitHit;
use crate::limits::{
    CHANGES_BYTES_MAX, CLIENTS_MEMORY_BYTES_MAX, COMMAND_LEN_BYTES_MAX, DELIVERED_BYTES_MAX,
    READ_BUDGET_BYTES, SUBSCRIBER_OUTPUT_BYTES_MAX, UNWRITTEN_AGE_MS_MAX, WAITING_CLIENTS_MAX,
};
use crate::loader::Loader;
use crate::machine::Machine;
use crate::packer::{Packer, Rejected, Submission};
use crate::parse::ReadMode;
use crate::peer_exchange::{PeerExchange, Peers};
use crate::space::SpaceWatch;
use crate::starting::Clients;
use crate::store::{Outcomes, StoreError};
use crate::subscriptions::Subscriptions;
use crate::syncer::Syncer;
use crate::waiting_clients::WaitingClients;
use crate::workers::{WorkerConfig, Workers};
use catching_up::CatchUp;
use cross_partition::Several;
use markers::Marker;
pub(crate) use subscribers::{end_subscriptions, over_channel_limit};
use watchers::Watchers;

/// In `sync` mode, the shortest interval between the starts of two syncs of the stores.
const SYNC_PERIOD_MIN: Duration = Duration::from_millis(5);
/// Longest time that applied instances stay unwritten.
const UNWRITTEN_AGE_MAX: Duration = Duration::from_millis(UNWRITTEN_AGE_MS_MAX);
/// How long a turn keeps applying newly decided instances before it serves the sockets again.
const TURN_MAX: Duration = Duration::from_millis(2);
/// The error for commands for the logs while the replica drains. Clients treat this code as temporary.
const DRAINING: &str =
    "LOADING this replica takes no more commands because it is to be stopped; use another replica";
/// The same for a host that was removed from the cluster.
const NO_MEMBER: &str =
    "LOADING this host is in no configuration of its cluster: it was removed, or is not a member yet; use another replica";
/// Longest sleep: flags set by other threads are checked at least this often.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Interval between checks for overdue commands.
const OVERDUE_PERIOD: Duration = Duration::from_millis(100);

/// Configuration of a replica.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Name shown in `INFO`.
    pub name: String,
    /// Index of the replica, from 0; each replica proposes ticks a little later than the one before it.
    pub replica_index: u64,
    /// Maximum number of clients.
    pub clients_max: usize,
    /// Most memory that this replica holds for all clients.
    pub clients_memory_bytes_max: usize,
    /// Maximum number of clients in blocking pops.
    pub waiting_clients_max: usize,
    /// Most unsent bytes of a subscriber.
    pub subscriber_output_bytes_max: usize,
    /// Most bytes of the latest changes, for clients that watch keys.
    pub changes_bytes_max: usize,
    /// Memory limit for what a log has delivered and is not applied; see [`DELIVERED_BYTES_MAX`].
    pub delivered_bytes_max: usize,
    /// Time limits for clients.
    pub timeouts: ClientTimeouts,
    /// How long to poll the log before sleeping, while own values are undecided.
    pub spin_us: u64,
    /// How long a command may take; after that its outcome is unknown. Must be longer than the log's own deadline,
    /// which covers everything up to the decision.
    pub deadline_ms: u64,
    /// The read mode of connections that have not chosen one.
    pub reads: ReadMode,
    /// If set, clients must authenticate with this password.
    pub password: Option<Password>,
    /// If set, clients must use TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// The transport for checkpoints.
    pub transport: Transport,
    pub clocks: HostClocks,
    pub discovery: Discovery,
    pub workers: WorkerConfig,
}

impl Default for ReplicaConfig {
    fn default() -> Self {
        Self {
            name: "inband".into(),
            replica_index: 0,
            clients_max: 10_000,
            clients_memory_bytes_max: CLIENTS_MEMORY_BYTES_MAX,
            waiting_clients_max: WAITING_CLIENTS_MAX,
            subscriber_output_bytes_max: SUBSCRIBER_OUTPUT_BYTES_MAX,
            changes_bytes_max: CHANGES_BYTES_MAX,
            delivered_bytes_max: DELIVERED_BYTES_MAX,
            timeouts: ClientTimeouts::default(),
            spin_us: 50,
            deadline_ms: 7_000,
            reads: ReadMode::default(),
            password: None,
            tls: None,
            transport: Transport::plain(),
            clocks: HostClocks::default(),
            discovery: Discovery::default(),
            workers: WorkerConfig::default(),
        }
    }
}

impl ReplicaConfig {
    /// Returns what a replica with this configuration says about itself.
    pub(crate) fn identity(&self, partitions: usize, is_sync: bool, clients: &Clients) -> Identity {
        Identity {
            name: self.name.clone(),
            replica_index: self.replica_index,
            partitions,
            clients_max: self.clients_max,
            reads: self.reads,
            worker_threads: self.workers.threads,
            is_sync,
            idle_s: self.timeouts.idle.map_or(0, |idle| idle.as_secs()),
            started: clients.started,
            addresses: clients.front.local_addrs(),
            command_len_bytes_max: COMMAND_LEN_BYTES_MAX,
            has_tls: self.tls.is_some(),
            discovery: self.discovery.clone(),
        }
    }
}

/// Why a replica stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// A socket, or waiting for sockets, failed.
    #[error("network: {0}; restart the replica")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The number of logs does not match the store.
    #[error("there are {log_count} logs, and the store of {partitions} partition(s) needs {needed}; configure the same number of partitions for both")]
    Logs {
        log_count: usize,
        /// Number of partitions of the store.
        partitions: usize,
        /// Number of logs that the store needs.
        needed: usize,
    },
}

/// A replica's state for one log.
struct Lane {
    packer: Packer,
    tick: Option<Ticket>,
    last_delivery: Instant,
    marker: Marker,
    /// Last instance applied.
    applied: u64,
    /// The last instance reported to the log as applied.
    reported: u64,
    /// Delivery is paused because too much waits to be applied.
    is_paused: bool,
}

pub struct Replica {
    config: ReplicaConfig,
    identity: Identity,
    control: Arc<ReplicaControl>,
    front: Front<Connection>,
    workers: Workers,
    log: Box<dyn ReplicatedLog>,
    machine: Machine,
    /// One per log.
    lanes: Vec<Lane>,
    several: Several,
    waiting: WaitingClients,
    subscriptions: Subscriptions,
    watchers: Watchers,
    /// Number of exports in progress.
    exports: Arc<AtomicUsize>,
    loader: Loader,
    /// Since when there are applied instances of which no write has begun.
    unwritten_since: Option<Instant>,
    /// Set if applied instances must be synced before they are reported.
    syncer: Option<Syncer>,
    /// Applied instances covered by the running sync.
    syncing: Vec<u64>,
    /// Earliest time of the next sync.
    sync_after: Instant,
    clock: SharedClock,
    space: SpaceWatch,
    /// The reply to writes while they are refused.
    write_refusal: Option<Reply>,
    /// Queries the other replicas' clocks.
    _clock_exchange: ClockExchange,
    peers: Peers,
    /// Asks the other replicas where clients reach them.
    _peer_exchange: PeerExchange,
    /// Cluster time is not known yet.
    is_timeless: bool,
    /// The configuration in force names this host.
    is_member: bool,
    catch_up: CatchUp,
    /// A checkpoint is being fetched; clients get LOADING.
    is_loading: bool,
    /// The logs that need the checkpoint.
    loading_logs: Vec<usize>,
    /// Values that no client waits for any more: a checkpoint was installed meanwhile, or they timed out.
    orphans: HashSet<Ticket>,
    overdue_looked_at: Instant,
    guard: Guard,
    now: Instant,
    /// Cluster time; if it is not known, the latest applied time.
    clock_ms: u64,
    // Reused between turns.
    ready: Ready,
    attention: Vec<usize>,
    dirty: Vec<usize>,
    outcomes: Outcomes,
    rejected: Vec<Rejected>,
    scratch: Vec<u8>,
    /// The last turn ended while more was being decided.
    has_more: bool,
    /// Number of commands queued on connections or in the packer.
    waiting_commands: usize,
    /// Length of the replies in this turn to reads that do not go through the log.
    read_reply_bytes: usize,
    /// Steps on collections of the same reads.
    read_steps: u64,
    /// Serves while the replica exists.
    checkpoint_server: Option<CheckpointServer>,
}

impl Replica {
    /// Creates a replica of `log` with its copy in `machine`. Clients connect to `listeners`, peers that need a
    /// checkpoint to `checkpoint_listener`.
    pub fn new(
        config: ReplicaConfig,
        machine: Machine,
        log: Box<dyn ReplicatedLog>,
        listeners: Vec<TcpListener>,
        checkpoint_listener: Option<TcpListener>,
    ) -> Result<Self, ReplicaError> {
        let clients = Clients::listen(&config, listeners)?;
        Self::of(config, machine, log, clients, checkpoint_listener)
    }

    /// The same, for clients who may have connected already.
    pub fn of(
        config: ReplicaConfig,
        mut machine: Machine,
        mut log: Box<dyn ReplicatedLog>,
        clients: Clients,
        checkpoint_listener: Option<TcpListener>,
    ) -> Result<Self, ReplicaError> {
        let (log_count, needed) = (log.partitions(), machine.logs());
        if log_count != needed {
            return Err(ReplicaError::Logs {
                log_count,
                partitions: machine.partitions(),
                needed,
            });
        }
        for (partition, applied) in machine.applied().into_iter().enumerate() {
            log.reset(partition, applied);
        }
        machine.defer_writes();
        let catch_up = CatchUp::begin(&mut *log, Instant::now());
        clients.front.wake_on(&log.wake_fds())?;
        let identity = config.identity(machine.partitions(), machine.is_sync(), &clients);
        let own = clients.announced(&config);
        let Clients {
            front,
            waker,
            limit_hits,
            latencies,
            requests,
            ..
        } = clients;
        let applied_ms = machine.time_ms();
        let clock = SharedClock::new(config.clocks.clone(), log.checkpoint_peers(), applied_ms);
        let control = Arc::new(ReplicaControl::new(
            waker,
            machine.shared(),
            limit_hits,
            latencies,
            clock.clone(),
        ));
        let workers = Workers::start(config.workers)?;
        machine.work_with(workers.clone());
        let for_writer = control.clone();
        machine.write_on_thread(move || for_writer.wake())?;
        // Its thread may outlive the replica. It must not hold the last reference to the stores: RocksDB cannot be
        // closed while the process exits.
        let for_exchange = Arc::downgrade(&control);
        let clock_exchange =
            ClockExchange::start(clock.clone(), config.transport.clone(), move || {
                if let Some(control) = for_exchange.upgrade() {
                    control.wake();
                }
            })?;
        let peers = Peers::new(config.discovery.node, own, log.checkpoint_peers());
        let peer_exchange = PeerExchange::start(peers.clone(), config.transport.clone())?;
        let checkpoint_server = match checkpoint_listener {
            None => None,
            Some(listener) => Some(CheckpointServer::start(
                listener,
                machine.shared(),
                machine.outgoing(),
                control.checkpoints_served.clone(),
                control.limit_hits.clone(),
                config.transport.clone(),
                Some((clock.clone(), peers.clone())),
            )?),
        };
        let now = Instant::now();
        let value_len_bytes_max = log.max_value_len_bytes();
        let applied = machine.applied();
        let lane = |log: usize| Lane {
            packer: Packer::new(log, value_len_bytes_max),
            tick: None,
            last_delivery: now,
            marker: Marker::default(),
            applied: applied[log],
            reported: applied[log],
            is_paused: false,
        };
        let syncer = match machine.is_sync() {
            true => Some(Syncer::start(machine.shared(), control.clone())?),
            false => None,
        };
        let changes = machine.shared().transient().changes.clone();
        changes.set_bytes_max(config.changes_bytes_max);
        let space = SpaceWatch::new(machine.dirs().to_vec());
        let guard = Guard::new(control.limit_hits.clone(), now);
        let mut replica = Self {
            identity,
            loader: Loader::new(control.clone(), config.transport.clone()),
            config,
            unwritten_since: None,
            syncer,
            syncing: Vec::new(),
            sync_after: now,
            control,
            front,
            workers,
            log,
            lanes: (0..log_count).map(lane).collect(),
            several: Several::default(),
            waiting: WaitingClients::new(machine.shared().transient().awaited.clone()),
            subscriptions: machine.shared().transient().subscriptions.clone(),
            watchers: Watchers::new(changes),
            exports: Arc::default(),
            machine,
            is_timeless: clock.time_ms(0).is_none(),
            is_member: true,
            clock,
            space,
            write_refusal: None,
            _clock_exchange: clock_exchange,
            peers,
            _peer_exchange: peer_exchange,
            catch_up,
            is_loading: false,
            loading_logs: Vec::new(),
            orphans: HashSet::new(),
            overdue_looked_at: now,
            guard,
            now,
            clock_ms: 0,
            ready: Ready::default(),
            attention: Vec::new(),
            dirty: Vec::new(),
            outcomes: Outcomes::default(),
            rejected: Vec::new(),
            scratch: vec![0; READ_BUDGET_BYTES],
            has_more: false,
            waiting_commands: 0,
            read_reply_bytes: 0,
            read_steps: 0,
            checkpoint_server,
        };
        add(&replica.control.counters.requests_total, requests);
        let connected = replica.front.connections.places();
        for slot in connected.map(|(slot, _)| slot).collect::<Vec<_>>() {
            replica.want_attention(slot);
        }
        replica.publish();
        Ok(replica)
    }

    /// Monitors and controls this replica from other threads.
    pub fn control(&self) -> Arc<ReplicaControl> {
        self.control.clone()
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn log_mut(&mut self) -> &mut dyn ReplicatedLog {
        &mut *self.log
    }

    /// Returns the address on which checkpoints are served.
    pub fn checkpoint_address(&self) -> Option<std::net::SocketAddr> {
        self.checkpoint_server
            .as_ref()
            .map(CheckpointServer::address)
    }

    /// Serves until [`ReplicaControl::stop`], then syncs the store.
    pub fn run(&mut self) -> Result<(), ReplicaError> {
        while !self.control.is_stopping() {
            self.poll_once(SLEEP_MAX)?;
        }
        if self.is_disk_full() {
            tracing::warn!(
                "ends as by a crash: {}",
                self.space.why().unwrap_or_default()
            );
            return Ok(());
        }
        self.machine.sync()?;
        Ok(())
    }

    /// One turn of the loop; sleeps at most `timeout`.
    pub fn poll_once(&mut self, timeout: Duration) -> Result<(), ReplicaError> {
        let timeout = self.sleep_time(timeout);
        self.front.wait(timeout, &mut self.ready)?;
        let before = self.now;
        self.read_clock();
        self.note_pause(self.now.saturating_duration_since(before));
        self.look_at_catch_up();
        self.look_at_clock();
        self.look_at_disks();
        self.look_at_membership();
        self.look_at_checkpoints();
        for i in 0..self.ready.connections.len() {
            self.want_attention(self.ready.connections[i]);
        }
        self.change_access();
        self.accept();
        self.finish_loading()?;
        self.give_up_overdue();
        self.end_waits();
        self.close_timed_out();
        self.tick_if_due();
        self.serve_attention();
        self.decide_and_apply()?;
        self.spin()?;
        if self.watchers.is_due() {
            self.push_changes();
            self.write_replies();
        }
        self.write_if_due()?;
        self.sync_if_due()?;
        self.publish();
        Ok(())
    }

    fn read_clock(&mut self) {
        self.now = Instant::now();
        self.control.latencies.set_now(self.now);
    }

    fn sleep_time(&self, timeout: Duration) -> Duration {
        if !self.attention.is_empty() || self.has_more || self.watchers.is_due() {
            return Duration::ZERO;
        }
        let mut timeout = timeout.min(self.log.poll_timeout()).min(SLEEP_MAX);
        if self.accepts() {
            let pause = self.front.accept_pause(self.now);
            timeout = pause.map_or(timeout, |pause| timeout.min(pause));
        }
        // The end of a write wakes this thread.
        let is_writing = self.machine.is_writing();
        if let Some(since) = self.unwritten_since.filter(|_| !is_writing) {
            let age = self.now.saturating_duration_since(since);
            timeout = timeout.min(UNWRITTEN_AGE_MAX.saturating_sub(age));
        }
        if let Some(deadline) = self.waiting.next_deadline() {
            timeout = timeout.min(deadline.saturating_duration_since(self.now));
        }
        let is_unsynced = |syncer: &Syncer| !syncer.is_busy() && self.has_unreported();
        if self.syncer.as_ref().is_some_and(is_unsynced) && !is_writing {
            timeout = timeout.min(self.sync_after.saturating_duration_since(self.now));
        }
        timeout
    }

    /// Pack, submit, poll the log, apply and reply until nothing more happens, but not for so long that this replica's
    /// clients wait while those of other replicas are served.
    fn decide_and_apply(&mut self) -> Result<(), ReplicaError> {
        let until = Instant::now() + TURN_MAX;
        loop {
            self.pack();
            self.has_more = self.apply_bursts()?;
            self.write_replies();
            self.write_if_due()?;
            if !self.has_more || Instant::now() >= until {
                return Ok(());
            }
        }
    }

    fn pack(&mut self) {
        if self.is_loading {
            return self.reject_waiting();
        }
        self.submit_markers();
        if self.is_timeless {
            // Waiting commands continue, or are refused, once more is known.
            return self.reject_waiting();
        }
        self.refuse_several();
        for lane in &mut self.lanes {
            let mut to = Submission {
                connections: &mut self.front.connections,
                log: &mut *self.log,
                clock_ms: self.clock_ms,
                now: self.now,
            };
            lane.packer.pack(&mut to, &mut self.rejected);
        }
        for rejected in std::mem::take(&mut self.rejected) {
            let reply = Reply::error(match rejected.error {
                SubmitError::Closed(_) => format!("TRYAGAIN {}", rejected.error),
                _ => format!("ERR {}", rejected.error),
            });
            self.orphans.extend(rejected.tickets);
            self.reply_all(rejected.log, rejected.parts, &reply);
        }
    }

    /// Answers the commands that were waiting when loading began.
    fn reject_waiting(&mut self) {
        let Some(reply) = self.refusal() else {
            return;
        };
        for log in 0..self.lanes.len() {
            self.reject_waiting_in(log, &reply);
        }
    }

    /// Refuses what waits for the log of cross-partition commands, if those are not accepted now.
    fn refuse_several(&mut self) {
        let log = self.machine.queue_log();
        let Some(log) = log.filter(|log| self.lanes[*log].packer.has_waiting()) else {
            return;
        };
        if let Some(reply) = self.several_refusal() {
            let count = self.reject_waiting_in(log, &reply);
            let hits = &self.control.limit_hits;
            (0..count).for_each(|_| hits.count(LimitHit::Several));
        }
    }

    /// Answers everything that waits for a log. Returns the number of commands.
    fn reject_waiting_in(&mut self, log: usize, reply: &Reply) -> usize {
        let mut rejected = 0;
        let waiting = self.lanes[log]
            .packer
            .reject_waiting(&mut self.front.connections);
        for (slot, count) in waiting {
            self.waiting_commands -= count;
            rejected += count;
            if let Some(connection) = self.front.connections.get_mut(slot) {
                (0..count).for_each(|_| connection.answer_next(log, reply.clone()));
            }
            self.serve(slot);
        }
        rejected
    }

    /// Polls the logs, applies what was decided and queues the replies. Returns whether there was anything.
    fn apply_bursts(&mut self) -> Result<bool, ReplicaError> {
        self.log.poll(self.machine.bursts());
        self.take_reports();
        self.outcomes.clear();
        if self.is_disk_full() {
            self.machine.bound_unapplied()?;
            return self.answer_reads();
        }
        let has_applied = self.machine.run(&mut self.outcomes)?;
        let goes_on = self.bound_delivered();
        if !has_applied {
            return Ok(self.answer_reads()? || goes_on);
        }
        self.read_clock();
        self.note_applied();
        self.look_for_elements();
        self.deliver_messages();
        self.push_changes();
        let commands = self.outcomes.commands;
        add(&self.control.counters.commands_applied_total, commands);
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for outcome in &outcomes.values {
            self.finish(*outcome, &mut outcomes.replies);
        }
        for (entry, reply) in outcomes.entries.drain(..) {
            self.finish_entry(entry, reply);
        }
        self.outcomes = outcomes;
        self.submit_attempts();
        self.answer_reads()?;
        Ok(true)
    }

    /// A partition may wait at a marker for long while its log continues: pause the logs that deliver too much. Returns
    /// true if a paused log was resumed.
    ///
    /// The log of cross-partition commands is not paused before it has delivered everything up to a marker where a
    /// partition stands: otherwise nothing would be executed there and the backlog would never shrink.
    fn bound_delivered(&mut self) -> bool {
        let mut goes_on = false;
        let needed = self.machine.queue_log();
        let needed = needed.filter(|_| self.machine.needs_entries());
        for (log, lane) in self.lanes.iter_mut().enumerate() {
            let len_bytes = self.machine.delivered_bytes(log);
            let limit = match lane.is_paused {
                true => self.config.delivered_bytes_max / 2,
                false => self.config.delivered_bytes_max,
            };
            let is_paused = len_bytes > limit && needed != Some(log);
            if is_paused != lane.is_paused {
                self.log.pause(log, is_paused);
                lane.is_paused = is_paused;
                goes_on |= !is_paused;
            }
        }
        goes_on
    }

    /// This replica's values that are undecided or not applied, and commands that wait for other partitions.
    fn in_flight(&self) -> usize {
        let values: usize = self.lanes.iter().map(|l| l.packer.in_flight()).sum();
        values + self.several.len()
    }

    /// Polls the logs for a short while: a decision is often only microseconds away.
    fn spin(&mut self) -> Result<(), ReplicaError> {
        if self.config.spin_us == 0 || self.in_flight() == 0 || !self.attention.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + Duration::from_micros(self.config.spin_us);
        while self.in_flight() > 0 && Instant::now() < deadline {
            if self.apply_bursts()? {
                self.write_replies();
                return self.decide_and_apply();
            }
            std::hint::spin_loop();
        }
        self.write_replies();
        Ok(())
    }
}
