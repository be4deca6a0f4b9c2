//! What the processes have in common: the cluster's file, the directory, the socket and its event loop, the control
//! socket.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_ground::auth::{Gate, Keys};
use inband_ground::inherit;
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::config::Durability;
use inband_host::line_json::Server;
use inband_host::live_keys::LiveKeys;
use inband_host::notify::Notifier;
use inband_host::signals::{StopSignals, LISTEN_FDS_ENV};
use inband_host::state_dir::{self, read_number, write_number, StateError, StateLock};
use inband_host::wait::wait;
use inband_netpaxos::cluster::{Cluster, FILE, LOG_ID, NEW, OWNER};
use inband_netpaxos::control::To;
use inband_netpaxos::role::next_incarnation;
use inband_netpaxos::status::{socket_of, Ask, Reply};
use inband_netpaxos::wire::{log_id_of, set_log_id, unpacked};
use inband_netpaxos::{NetPaxos, LOGS};

use super::metrics;

/// How often the process checks whether it is to stop.
const STOP_POLL: Duration = Duration::from_millis(20);
/// Packets handled before the clock is read again.
pub const PACKETS_OF_A_TURN: usize = 64;
/// The same where a turn ends with a sync. A disk may take as long for one as packets take to fill a queue: with fewer, what
/// is repeated meanwhile would come faster than it is answered, and nothing be decided any more.
pub const PACKETS_OF_A_SYNC: usize = 1 << 14;
/// The use of inherited sockets for Prometheus.
const METRICS: &str = "metrics";
/// The file in the directory with the number of the last start.
const INCARNATION: &str = "incarnation";

/// What to do if something in a process's directory is damaged.
pub const START_EMPTY: &str = "the directory cannot be used; remove it, and start this process again with the same number (a storage server without --new): it gets what it needs from the others";

/// Options of every process.
#[derive(Debug, Args)]
pub struct ProcessArgs {
    /// Number of this process among its kind, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub number: u8,
    /// Directory with the cluster's file, cluster.json
    #[arg(long, value_name = "DIR")]
    pub cluster: PathBuf,
    /// Directory for the control socket and for data that must survive a restart
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// memory: what the process stores is lost when it ends; sync: it is on disk before it is announced
    #[arg(long, default_value_t = Durability::Memory)]
    pub durability: Durability,
    /// Serve /metrics for Prometheus at this address: numbers only, to anyone who asks
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
}

/// A process that holds its directory and its socket.
pub struct Process {
    pub name: String,
    pub listen: SocketAddrV4,
    pub cluster: Cluster,
    socket: HostSocket,
    gate: Gate,
    keys: LiveKeys,
    data: PathBuf,
    signals: Option<StopSignals>,
    /// Inherited listeners for Redis clients.
    resp: Vec<TcpListener>,
    metrics: Vec<TcpListener>,
    started: Instant,
    _lock: StateLock,
}

/// What a process's loop has to handle.
pub enum Turn<'a> {
    /// The next deadline has passed, or a batch of packets has been handled.
    Tick,
    /// The keys were replaced.
    Keys(&'a Keys),
    /// A packet of this many bytes has arrived.
    Packet(&'a mut [u8; PACKET_LEN_MAX_BYTES], usize),
}

/// Returns counters by name.
pub fn named<const N: usize>(counters: [(&str, u64); N]) -> BTreeMap<String, u64> {
    let counters = counters.into_iter();
    counters.map(|(name, n)| (name.to_owned(), n)).collect()
}

/// Returns the wall clock, as the time since 1970.
pub fn wall_clock() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// Locks the state that a process's loop shares with its control socket.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers requests on the control socket in this directory, and those for metrics.
pub fn answer_in<T: Send + 'static>(
    data: &Path,
    listeners: Vec<TcpListener>,
    shared: &Arc<Mutex<T>>,
    answer: impl Fn(&mut T, Ask) -> Reply + Send + Sync + 'static,
) -> Result<Server> {
    let shared = Arc::clone(shared);
    let handle = Arc::new(move |ask: Ask| answer(&mut lock(&shared), ask));
    for listener in listeners {
        let handle = Arc::clone(&handle);
        metrics::start(listener, move |ask| handle(ask))?;
    }
    let handle = move |ask: Ask| handle(ask);
    Ok(Server::start(&socket_of(data), handle, Reply::Error)?)
}

impl ProcessArgs {
    /// Takes the directory, and listens at the address in the cluster's file.
    pub fn start(&self, kind: &str, addresses: fn(&Cluster) -> &[SocketAddrV4]) -> Result<Process> {
        let cluster = Cluster::load(&self.cluster)?;
        let all = addresses(&cluster);
        let listen = all.get(usize::from(self.number) - 1).copied();
        let listen = listen.with_context(|| {
            format!(
                "--number {}: the cluster has {} of this kind",
                self.number,
                all.len()
            )
        })?;
        ensure!(
            cluster.key_file.is_some() || listen.ip().is_loopback() || cluster.is_isolated()?,
            "{listen} is beyond loopback, where anybody could write to the log; give cluster.json a key_file (`inband key new` makes one)"
        );
        let keys = LiveKeys::load(cluster.key_file.as_deref())?;
        let signals = StopSignals::take_supervised()?.reloading(keys.reading());
        let (mut metrics, resp): (Vec<_>, Vec<_>) = inherit::listeners(LISTEN_FDS_ENV)
            .into_iter()
            .partition(|(usage, _)| usage == METRICS);
        if let Some(address) = self.metrics {
            let failed = || format!("--metrics: cannot listen at {address}");
            let listener = TcpListener::bind(address).with_context(failed)?;
            metrics.push((METRICS.to_owned(), listener));
        }
        let listeners = |named: Vec<(String, TcpListener)>| {
            named.into_iter().map(|(_, listener)| listener).collect()
        };
        state_dir::create(&self.data)?;
        let lock = StateLock::take(&self.data).context("--data")?;
        let name = format!("{kind}/{}", self.number);
        claim(&self.data, &name)?;
        let socket =
            HostSocket::bind(listen).with_context(|| format!("cannot listen at {listen}"))?;
        Ok(Process {
            name,
            listen,
            cluster,
            socket,
            gate: Gate::of::<NetPaxos>(keys.keys(), LOGS),
            keys,
            data: self.data.clone(),
            signals: Some(signals),
            resp: listeners(resp),
            metrics: listeners(metrics),
            started: Instant::now(),
            _lock: lock,
        })
    }
}

/// Marks a directory as that of this process. What one has voted for must not become another's votes.
fn claim(data: &Path, name: &str) -> Result<()> {
    let path = data.join(OWNER);
    let owner = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return inband_storage::replace(&path, name.as_bytes(), inband_storage::FILE_MODE)
                .with_context(|| format!("cannot write {}", path.display()));
        }
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    ensure!(
        owner == name,
        "--data {}: this is the directory of {owner}; give {name} one of its own",
        data.display()
    );
    Ok(())
}

/// Returns the number in a file of a process's directory; 0 if there is no file.
fn number_in(path: &Path) -> Result<u64> {
    read_number(path).map_err(|error| match error {
        StateError::Damaged { .. } => anyhow::Error::new(error).context(START_EMPTY),
        error => error.into(),
    })
}

impl Process {
    /// Returns the time since the start, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64 + 1
    }

    /// Returns the number of this start, which is higher than all earlier ones, after recording it. `now`: the wall
    /// clock, in the unit of the incarnation, for a process whose directory was lost.
    pub fn incarnation(&self, now: u64) -> Result<u64> {
        let last = self.last_incarnation()?;
        let incarnation = next_incarnation(last, now);
        write_number(&self.data, INCARNATION, incarnation)?;
        Ok(incarnation)
    }

    /// Checks that the directory belongs to the cluster's log. With `accept_loss` it may belong to another one, but not to
    /// this one: packets of processes that have not stopped would be taken for those of the new log.
    pub fn check_log(&self, accept_loss: bool) -> Result<()> {
        let path = self.data.join(LOG_ID);
        if !path.exists() {
            return Ok(());
        }
        let former = number_in(&path)?;
        let log_id = self.cluster.log_id;
        ensure!(
            !accept_loss || former != log_id,
            "--accept-loss: this directory has the log {log_id}, which log_id in {FILE} names, too: to go on with it, leave out --new and --accept-loss; to give it up, write another number there, the same on all machines"
        );
        ensure!(
            accept_loss || former == log_id,
            "--data {}: this directory has the log {former}, and log_id in {FILE} is {log_id}; give the directory or the {FILE} of the same log",
            self.data.display()
        );
        Ok(())
    }

    /// Marks the directory as that of the cluster's log. What another log has left there must be gone.
    pub fn claim_log(&self) -> Result<()> {
        Ok(write_number(&self.data, LOG_ID, self.cluster.log_id)?)
    }

    /// Returns the number of the last start in this directory; 0: there was none.
    pub fn last_incarnation(&self) -> Result<u64> {
        number_in(&self.data.join(INCARNATION))
    }

    /// Returns whether the directory is marked as that of a new log, and the process has not begun.
    pub fn is_marked_new(&self) -> bool {
        self.data.join(NEW).exists()
    }

    /// The process has begun: it is not new at its next start.
    pub fn remove_mark(&self) -> Result<()> {
        let path = self.data.join(NEW);
        if self.is_marked_new() {
            let remove = || {
                std::fs::remove_file(&path)?;
                inband_storage::sync_dir(&self.data)
            };
            remove().with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Makes a packet one of this log, signs it and queues it for each recipient. It leaves before the process sleeps.
    pub fn send(&self, packet: &mut [u8], to: impl IntoIterator<Item = SocketAddrV4>) {
        set_log_id(packet, self.cluster.log_id);
        self.gate.sign(packet);
        for to in to {
            self.socket.queue(packet, to);
        }
    }

    /// Like [`Process::send`], for each of these packets.
    pub fn send_all(&self, packets: Vec<(To, Vec<u8>)>) {
        let Cluster {
            storages, learners, ..
        } = &self.cluster;
        for (to, mut packet) in packets {
            let group = match to {
                To::Storages => storages,
                To::Learners => learners,
                To::Node(id) => {
                    self.send(&mut packet, self.cluster.address_of(id));
                    continue;
                }
                To::Proposer(reply_to) => {
                    self.send(&mut packet, [unpacked(reply_to)]);
                    continue;
                }
            };
            let others = group.iter().filter(|address| **address != self.listen);
            self.send(&mut packet, others.copied());
        }
    }

    /// Answers requests on the control socket, from the state that the loop shares.
    pub fn answer<T: Send + 'static>(
        &mut self,
        shared: &Arc<Mutex<T>>,
        answer: impl Fn(&mut T, Ask) -> Reply + Send + Sync + 'static,
    ) -> Result<Server> {
        let metrics = self.take_metrics();
        answer_in(&self.data, metrics, shared, answer)
    }

    /// Runs until a signal arrives. `turn` gets each packet that the gate admits, and a tick after at most this many packets
    /// and when it is due. What it returns for a tick is the time of the next one.
    pub fn serve(
        mut self,
        packets_of_a_turn: usize,
        mut turn: impl FnMut(&Process, Turn<'_>) -> Result<u64>,
    ) -> Result<()> {
        let mut buffer = Box::new([0; PACKET_LEN_MAX_BYTES + 1]);
        let signals = self.take_signals();
        let mut notifier = Notifier::from_environment();
        notifier.ready("answers");
        let mut stop_at = 0;
        loop {
            let now = self.now();
            if now >= stop_at {
                if signals.end(&mut notifier) {
                    return Ok(());
                }
                if let Some(keys) = self.adopt_keys() {
                    turn(&self, Turn::Keys(&keys))?;
                }
                stop_at = now + STOP_POLL.as_nanos() as u64;
            }
            let due = turn(&self, Turn::Tick)?;
            let left = Duration::from_nanos(due.saturating_sub(self.now()));
            self.socket.flush();
            wait(
                &[self.socket.fd()],
                self.socket.sleep_time(left.min(STOP_POLL)),
            );
            for _ in 0..packets_of_a_turn {
                match self.receive(&mut buffer)? {
                    None => break,
                    Some(0) => {}
                    Some(len_bytes) => {
                        let packet = buffer.first_chunk_mut().expect("it is shorter by one");
                        turn(&self, Turn::Packet(packet, len_bytes))?;
                    }
                }
            }
        }
    }

    /// Receives the next packet, if one has arrived, and returns its length; 0 if the gate refuses it, or it belongs to
    /// another log.
    pub fn receive(
        &mut self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES + 1],
    ) -> Result<Option<usize>> {
        let Some((len_bytes, _)) = self.socket.receive(buffer)? else {
            return Ok(None);
        };
        let is_admitted = len_bytes <= PACKET_LEN_MAX_BYTES && {
            let packet = &buffer[..len_bytes];
            self.gate.admits(packet) && log_id_of(packet) == Some(self.cluster.log_id)
        };
        Ok(Some(if is_admitted { len_bytes } else { 0 }))
    }

    /// Returns the keys as they were at its start.
    pub fn keys(&self) -> Option<Keys> {
        self.keys.keys()
    }

    /// Uses the keys that were read again, if any, and returns them.
    pub fn adopt_keys(&mut self) -> Option<Keys> {
        let keys = self.keys.take()?;
        self.gate.set_keys(keys);
        Some(keys)
    }

    /// Returns its socket, for processes with their own event loop.
    pub fn socket(&self) -> &HostSocket {
        &self.socket
    }

    /// Returns the inherited listeners for Redis clients.
    pub fn take_listeners(&mut self) -> Vec<TcpListener> {
        std::mem::take(&mut self.resp)
    }

    /// Returns the listeners for Prometheus.
    pub fn take_metrics(&mut self) -> Vec<TcpListener> {
        std::mem::take(&mut self.metrics)
    }

    /// Returns the signals that end it, for code that waits for them itself.
    pub fn take_signals(&mut self) -> StopSignals {
        self.signals.take().expect("they are taken once")
    }
}
