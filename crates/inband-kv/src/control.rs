//! How other threads monitor and control a running replica.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inband_resp::password::Password;
use mio::Waker;
use rustls::ServerConfig;

use crate::clock_exchange::SharedClock;
use crate::cluster_clock::ClusterClock;
use crate::export::{ExportError, Summary};
use crate::latencies::{Latencies, Latency};
use crate::limit_hits::{LimitHit, LimitHits};
use crate::store::{SharedDbs, StoreError, StoreFigures};

/// Buckets of the latency histogram. Bucket `i` counts round trips below `2^i` microseconds that are in no lower
/// bucket; the last one counts all others.
pub const LATENCY_BUCKETS: usize = 28;

/// Polling interval while waiting for a replica.
const WAIT_STEP: Duration = Duration::from_millis(2);

/// The state of a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Sum of the applied instances of all logs.
    pub applied_instance: u64,
    /// Last instance applied, by log.
    pub applied_instances: Vec<u64>,
    /// Replicated time in milliseconds: the latest of all partitions.
    pub time_ms: u64,
    /// How far the wall clock is ahead of the majority's; `None` if too few replicas answer or they do not agree.
    pub clock_skew_ms: Option<i64>,
    /// Number of other replicas whose clocks are known.
    pub clocks_heard: u64,
    /// Why commands are refused, if the time is not known.
    pub clock_refusal: Option<String>,
    /// Why writes are refused, if they are.
    pub write_refusal: Option<String>,
    pub keys: u64,
    /// Named client sessions.
    pub client_sessions: u64,
    pub connected_clients: u64,
    /// Clients that wait in blocking pops.
    pub waiting_clients: u64,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// How often each limit was hit, in the order of [`LimitHit::ALL`].
    pub limit_hits: [u64; LimitHit::ALL.len()],
    /// Memory that this replica holds for clients.
    pub clients_memory_bytes: u64,
    /// Requests answered by this replica.
    pub requests_total: u64,
    /// Commands applied, submitted by any replica.
    pub commands_applied_total: u64,
    /// Commands that this replica has read without going through the log.
    pub reads_total: u64,
    /// How often workers took part in a turn.
    pub worker_rounds_total: u64,
    /// CPU time of all threads for what workers took part in.
    pub worker_cpu_us_total: u64,
    /// Values submitted by this replica.
    pub values_submitted_total: u64,
    /// Undecided values that this replica has submitted.
    pub values_in_flight: u64,
    /// Bytes delivered and not applied, because a partition waits at a marker.
    pub delivered_bytes: u64,
    /// Commands answered with "outcome unknown".
    pub outcomes_unknown_total: u64,
    /// A checkpoint is being fetched.
    pub is_loading: bool,
    /// The store has not caught up with the log, and commands are refused meanwhile.
    pub is_behind: bool,
    /// The store may be behind: it has not yet applied all that was decided when it asked.
    pub is_catching_up: bool,
    /// Bytes of that checkpoint received so far.
    pub loading_bytes: u64,
    /// Size of that checkpoint.
    pub loading_bytes_total: u64,
    pub checkpoints_installed_total: u64,
    /// Checkpoints served to peers.
    pub checkpoints_served_total: u64,
    /// No new commands are accepted.
    pub is_draining: bool,
    /// Draining is complete: nothing is undecided or queued.
    pub is_drained: bool,
    /// Counts of command round trips, see [`LATENCY_BUCKETS`].
    pub latency_us_buckets: [u64; LATENCY_BUCKETS],
}

/// What clients must present from now on; `None`: as before. Connections stay, and stay authenticated.
#[derive(Debug, Default)]
pub struct NewAccess {
    pub password: Option<Password>,
    pub tls: Option<Arc<ServerConfig>>,
}

/// Counters written by the replica's thread and read by any thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// One per log.
    pub applied_instances: Vec<AtomicU64>,
    pub time_ms: AtomicU64,
    pub keys: AtomicU64,
    pub client_sessions: AtomicU64,
    pub connected_clients: AtomicU64,
    pub waiting_clients: AtomicU64,
    pub connections_total: AtomicU64,
    pub clients_memory_bytes: AtomicU64,
    pub requests_total: AtomicU64,
    pub commands_applied_total: AtomicU64,
    pub reads_total: AtomicU64,
    pub worker_rounds_total: AtomicU64,
    pub worker_cpu_us_total: AtomicU64,
    pub values_submitted_total: AtomicU64,
    pub values_in_flight: AtomicU64,
    pub delivered_bytes: AtomicU64,
    pub outcomes_unknown_total: AtomicU64,
    pub is_loading: AtomicBool,
    pub is_behind: AtomicBool,
    pub is_catching_up: AtomicBool,
    pub checkpoints_installed_total: AtomicU64,
    pub is_drained: AtomicBool,
    pub latency_us_buckets: [AtomicU64; LATENCY_BUCKETS],
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Ordering::Relaxed) + number, Ordering::Relaxed);
}

pub(crate) fn set(counter: &AtomicU64, number: u64) {
    counter.store(number, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Status {
    pub fn hits(&self, limit: LimitHit) -> u64 {
        self.limit_hits[limit as usize]
    }
}

impl Counters {
    pub(crate) fn add_latency(&self, round_trip: Duration, count: u64) {
        let us = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        add(
            &self.latency_us_buckets[bucket.min(LATENCY_BUCKETS - 1)],
            count,
        );
    }
}

/// Monitors and controls one replica. Shared between threads.
pub struct ReplicaControl {
    pub(crate) counters: Counters,
    pub(crate) limit_hits: Arc<LimitHits>,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) loading_bytes: Arc<AtomicU64>,
    pub(crate) loading_bytes_total: Arc<AtomicU64>,
    pub(crate) checkpoints_served: Arc<AtomicU64>,
    stop: AtomicBool,
    drain: AtomicBool,
    /// It drains because the process is exiting.
    is_ending: AtomicBool,
    waker: Waker,
    dbs: SharedDbs,
    clock: SharedClock,
    pub(crate) write_refusal: Mutex<Option<String>>,
    new_access: Mutex<NewAccess>,
    has_new_access: AtomicBool,
}

impl std::fmt::Debug for ReplicaControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReplicaControl")
            .field(&self.status())
            .finish()
    }
}

impl ReplicaControl {
    pub(crate) fn new(
        waker: Waker,
        dbs: SharedDbs,
        limit_hits: Arc<LimitHits>,
        latencies: Arc<Latencies>,
        clock: SharedClock,
    ) -> Self {
        let counters = Counters {
            applied_instances: (0..dbs.logs()).map(|_| AtomicU64::new(0)).collect(),
            is_catching_up: AtomicBool::new(true),
            ..Counters::default()
        };
        Self {
            counters,
            limit_hits,
            latencies,
            loading_bytes: Arc::default(),
            loading_bytes_total: Arc::default(),
            checkpoints_served: Arc::default(),
            stop: AtomicBool::new(false),
            drain: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            waker,
            dbs,
            clock,
            write_refusal: Mutex::new(None),
            new_access: Mutex::default(),
            has_new_access: AtomicBool::new(false),
        }
    }

    /// Returns a snapshot of the replica's state.
    pub fn status(&self) -> Status {
        let c = &self.counters;
        let applied_instances: Vec<u64> = c.applied_instances.iter().map(get).collect();
        Status {
            applied_instance: applied_instances.iter().sum(),
            applied_instances,
            time_ms: get(&c.time_ms),
            clock_skew_ms: self.clock.look(ClusterClock::skew_ms),
            clocks_heard: self.clock.look(ClusterClock::heard_of) as u64,
            clock_refusal: self.clock.look(ClusterClock::refusal),
            write_refusal: lock(&self.write_refusal).clone(),
            keys: get(&c.keys),
            client_sessions: get(&c.client_sessions),
            connected_clients: get(&c.connected_clients),
            waiting_clients: get(&c.waiting_clients),
            connections_total: get(&c.connections_total),
            limit_hits: self.limit_hits.snapshot(),
            clients_memory_bytes: get(&c.clients_memory_bytes),
            requests_total: get(&c.requests_total),
            commands_applied_total: get(&c.commands_applied_total),
            reads_total: get(&c.reads_total),
            worker_rounds_total: get(&c.worker_rounds_total),
            worker_cpu_us_total: get(&c.worker_cpu_us_total),
            values_submitted_total: get(&c.values_submitted_total),
            values_in_flight: get(&c.values_in_flight),
            delivered_bytes: get(&c.delivered_bytes),
            outcomes_unknown_total: get(&c.outcomes_unknown_total),
            is_loading: c.is_loading.load(Ordering::Relaxed),
            is_behind: c.is_behind.load(Ordering::Relaxed),
            is_catching_up: c.is_catching_up.load(Ordering::Relaxed),
            loading_bytes: get(&self.loading_bytes),
            loading_bytes_total: get(&self.loading_bytes_total),
            checkpoints_installed_total: get(&c.checkpoints_installed_total),
            checkpoints_served_total: get(&self.checkpoints_served),
            is_draining: self.is_draining(),
            is_drained: c.is_drained.load(Ordering::Acquire),
            latency_us_buckets: std::array::from_fn(|i| get(&c.latency_us_buckets[i])),
        }
    }

    /// Returns how long requests took, by command.
    pub fn latencies(&self) -> Vec<Latency> {
        self.latencies.all()
    }

    /// Returns what RocksDB says about the databases, one per log.
    pub fn figures(&self) -> Vec<StoreFigures> {
        self.dbs.figures()
    }

    /// Fault injection for writes.
    #[cfg(any(test, feature = "testing"))]
    pub fn faults(&self) -> &crate::testing::Faults {
        self.dbs.faults()
    }

    /// Asks the replica to return from `run`; applied instances are synced first.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Stops accepting commands, waits up to `timeout` until the accepted ones are decided and answered, then
    /// [stop](Self::stop).
    pub fn drain_and_stop(&self, timeout: Duration) {
        self.is_ending.store(true, Ordering::Release);
        self.drain_and_wait(timeout);
        self.stop();
    }

    pub fn drain(&self) {
        self.drain.store(true, Ordering::Release);
        self.wake();
    }

    /// Drains and waitss for completion; `false` after `timeout`.
    pub fn drain_and_wait(&self, timeout: Duration) -> bool {
        self.drain();
        let deadline = Instant::now() + timeout;
        while !self.counters.is_drained.load(Ordering::Acquire) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(WAIT_STEP);
        }
        true
    }

    /// Keeps no changes, or measures no request times, to show what that costs.
    #[cfg(any(test, feature = "testing"))]
    pub fn measure_without(&self, changes: bool, latencies: bool) {
        self.dbs.transient().changes.set_off(changes);
        self.latencies.set_off(latencies);
    }

    /// Approximate number of keys with an expiry time.
    pub fn expiring_keys(&self) -> u64 {
        self.dbs.expiring_keys()
    }

    /// Makes everything applied so far survive a crash of the host.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.dbs.sync_applied()
    }

    /// Applied instances, one per log, and a hash over the whole replicated state, all at one point in time. Reads all
    /// stores on the calling thread.
    pub fn digest(&self) -> Result<(Vec<u64>, u64), StoreError> {
        self.dbs.digest()
    }

    /// Writes all keys, as of one point in time, while the replica keeps running; see [`crate::export`]. Reads all
    /// stores on the calling thread.
    pub fn export(&self, to: impl Write) -> Result<Summary, ExportError> {
        self.dbs.export(to)
    }

    /// Changes what clients must present.
    pub fn set_access(&self, access: NewAccess) {
        let mut new = lock(&self.new_access);
        new.password = access.password.or(new.password.take());
        new.tls = access.tls.or(new.tls.take());
        self.has_new_access.store(true, Ordering::Release);
        drop(new);
        self.wake();
    }

    pub(crate) fn take_access(&self) -> Option<NewAccess> {
        // Every turn of the replica asks.
        if !self.has_new_access.load(Ordering::Acquire) {
            return None;
        }
        let mut new = lock(&self.new_access);
        self.has_new_access.store(false, Ordering::Release);
        Some(std::mem::take(&mut *new))
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain.load(Ordering::Acquire)
    }

    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            // The replica checks its flags in every turn anyway, only later.
            tracing::warn!("waking the replica: {error}");
        }
    }
}
