//! Asks the other replicas for the time, on its own thread, and answers their queries.
//!
//! A query is a TCP connection to the address that serves checkpoints. The client sends the magic; the server answers
//! with the magic, whether cluster time is known, cluster time and the wall clock (milliseconds, 64 bits, big-endian).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use inband_transport::paced::Pace;
use inband_transport::tls::Transport;
use nix::time::{clock_gettime, ClockId};

use crate::checkpoint::{read_array, read_u64, write_u64};
use crate::cluster_clock::{ClockAnswer, ClockReading, ClusterClock};
use crate::limit_hits::RateLimit;
use crate::limits::{
    CLOCK_PERIOD_MS, CLOCK_ROUND_TRIP_MS_MAX, CLOCK_SKEW_MS_MAX, CLOCK_START_PERIOD_MS,
};

/// First bytes of a query and of its answer; the digit is the version.
pub const CLOCK_MAGIC: [u8; 8] = *b"IBCLOCK1";

/// How long a peer may be silent.
const PACE: Pace = Pace {
    silence_max: Duration::from_millis(2 * CLOCK_ROUND_TRIP_MS_MAX),
    grace: Duration::MAX,
    bytes_per_s_min: 0,
};

type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The clocks of this host.
#[derive(Clone)]
pub struct HostClocks {
    /// The wall clock in milliseconds. It may be wrong and may jump.
    pub wall_ms: Clock,
    /// A monotonic clock in microseconds, with an arbitrary origin, that keeps running while the host is suspended.
    pub steady_us: Clock,
}

impl std::fmt::Debug for HostClocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostClocks")
    }
}

impl Default for HostClocks {
    fn default() -> Self {
        let begun = Instant::now();
        Self {
            wall_ms: Arc::new(|| {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
                since_epoch.map_or(0, |time| {
                    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
                })
            }),
            steady_us: Arc::new(move || match clock_gettime(ClockId::CLOCK_BOOTTIME) {
                Ok(time) => time.tv_sec() as u64 * 1_000_000 + time.tv_nsec() as u64 / 1000,
                // Only kernels without this clock fail here.
                Err(_) => begun.elapsed().as_micros() as u64,
            }),
        }
    }
}

/// Cluster time, shared by all threads of a replica.
#[derive(Clone)]
pub struct SharedClock(Arc<Shared>);

struct Shared {
    clock: Mutex<ClusterClock>,
    peers: Mutex<Vec<SocketAddr>>,
    host: HostClocks,
    log_limit: RateLimit,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedClock {
    /// Returns the clock of a replica that starts and has applied everything up to `applied_ms`.
    pub fn new(host: HostClocks, peers: Vec<SocketAddr>, applied_ms: u64) -> Self {
        let now_us = (host.steady_us)();
        let mut clock = ClusterClock::new(now_us, peers.len() + 1);
        clock.applied(now_us, applied_ms);
        if peers.is_empty() {
            clock.heard(now_us, (host.wall_ms)(), &[]);
        }
        Self(Arc::new(Shared {
            clock: Mutex::new(clock),
            peers: Mutex::new(peers),
            host,
            log_limit: RateLimit::default(),
        }))
    }

    /// Replaces the list of the other replicas.
    pub fn set_peers(&self, peers: Vec<SocketAddr>) {
        lock(&self.0.clock).set_replicas(peers.len() + 1);
        *lock(&self.0.peers) = peers;
    }

    /// Cluster time, given that everything up to `applied_ms` has been applied; `None` if it is not known yet.
    pub fn time_ms(&self, applied_ms: u64) -> Option<u64> {
        let now_us = (self.0.host.steady_us)();
        let mut clock = lock(&self.0.clock);
        clock.applied(now_us, applied_ms);
        clock.time_ms(now_us)
    }

    pub fn look<R>(&self, at: impl FnOnce(&ClusterClock) -> R) -> R {
        at(&lock(&self.0.clock))
    }

    /// Answers a query whose magic has been read.
    pub(crate) fn answer(&self, to: &mut impl Write) -> io::Result<()> {
        let now_us = (self.0.host.steady_us)();
        let told = lock(&self.0.clock).tell(now_us, (self.0.host.wall_ms)());
        let mut bytes = Vec::from(CLOCK_MAGIC);
        write_u64(&mut bytes, u64::from(told.time_ms.is_some()))?;
        write_u64(&mut bytes, told.time_ms.unwrap_or(0))?;
        write_u64(&mut bytes, told.wall_ms)?;
        to.write_all(&bytes)?;
        to.flush()
    }

    fn ask(&self, peer: SocketAddr, transport: &Transport) -> io::Result<ClockAnswer> {
        let timeout = Duration::from_millis(CLOCK_ROUND_TRIP_MS_MAX);
        let mut stream = transport.connect(peer, timeout, PACE)?;
        let asked_us = (self.0.host.steady_us)();
        stream.write_all(&CLOCK_MAGIC)?;
        stream.flush()?;
        let told = read_reading(&mut stream)?;
        let answered_us = (self.0.host.steady_us)();
        Ok(ClockAnswer {
            told,
            asked_us,
            answered_us,
        })
    }

    /// Queries all others. Returns whether cluster time is known now.
    fn ask_all(&self, transport: &Transport) -> bool {
        let peers = lock(&self.0.peers).clone();
        let mut answers = Vec::new();
        for peer in peers {
            match self.ask(peer, transport) {
                Ok(heard) => answers.push(heard),
                Err(error) => tracing::debug!("asking {peer} for the time: {error}"),
            }
        }
        let now_us = (self.0.host.steady_us)();
        let mut clock = lock(&self.0.clock);
        let was_known = clock.time_ms(now_us).is_some();
        clock.heard(now_us, (self.0.host.wall_ms)(), &answers);
        let is_known = clock.time_ms(now_us).is_some();
        let skew_ms = clock.skew_ms().unwrap_or(0);
        let refusal = clock.refusal();
        drop(clock);
        if is_known && !was_known {
            let heard = answers.len();
            tracing::info!("the time of the cluster is known; {heard} other replicas told it");
        }
        let is_wrong = skew_ms.unsigned_abs() > CLOCK_SKEW_MS_MAX;
        if let Some(refusal) = refusal.filter(|_| self.0.log_limit.is_due()) {
            tracing::warn!("commands are refused: {refusal}");
        } else if is_wrong && self.0.log_limit.is_due() {
            tracing::warn!(
                "this host's wall clock is {skew_ms} ms ahead of the majority of the replicas' (limit \
                 {CLOCK_SKEW_MS_MAX} ms); nothing goes by it, but set it"
            );
        }
        is_known
    }
}

fn read_reading(from: &mut impl Read) -> io::Result<ClockReading> {
    if read_array(from)? != CLOCK_MAGIC {
        let text = "it does not tell the time; an older version?";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let is_known = read_u64(from)? == 1;
    let time_ms = read_u64(from)?;
    Ok(ClockReading {
        time_ms: is_known.then_some(time_ms),
        wall_ms: read_u64(from)?,
    })
}

/// Queries until dropped.
pub struct ClockExchange {
    /// Dropped to end the thread.
    _stop: Sender<()>,
}

impl ClockExchange {
    /// Queries the peers of `clock`; `wake` is called once the time is known.
    pub fn start(
        clock: SharedClock,
        transport: Transport,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let run = move || run(&clock, &transport, &wake, &stopped);
        // The thread is detached: it holds no resources that others need.
        std::thread::Builder::new()
            .name("ib-clock".into())
            .spawn(run)?;
        Ok(Self { _stop: stop })
    }
}

fn run(clock: &SharedClock, transport: &Transport, wake: &dyn Fn(), stopped: &Receiver<()>) {
    let mut was_known = false;
    loop {
        let is_known = clock.ask_all(transport);
        if is_known && !was_known {
            wake();
        }
        was_known = is_known;
        let period_ms = match is_known {
            true => CLOCK_PERIOD_MS,
            false => CLOCK_START_PERIOD_MS,
        };
        let waited = stopped.recv_timeout(Duration::from_millis(period_ms));
        if waited != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
