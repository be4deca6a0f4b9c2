//! A node's process: the role's packets, the sans-I/O node, the machine that executes the log, and on its own thread
//! the gateway for memcached clients.

mod told;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::io::Read;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, Context, Result};
use inband_ground::auth::{Gate, Keys};
use inband_ground::soft::Soft;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::backend::Choice;
use inband_host::live_keys::LiveKeys;
use inband_host::state_dir::write_number;
use inband_host::wait::wait;
use mio::Waker;
use nix::time::{clock_gettime, ClockId};

use crate::apply::Machine;
use crate::changes::{Changed, Changer, Changes};
use crate::durable::{Durability, Durable};
use crate::gateway::datagrams::Listener;
use crate::gateway::{Counters, Event, Gateway, Settings};
use crate::kernel::Kernel;
use crate::membership::{ids, Change};
use crate::node::{append, Config, Node, Out, Start, To};
use crate::ports::Ports;
use crate::promise::{Nanos, Stored};
use crate::registers::ORIGIN_ROLE;
use crate::role::{Mode, Record, Role, Verdict};
use crate::snapshot::Snapshot;
pub use crate::status::{status_at, Status};
use crate::store::{Reader, Table};
use crate::stored::{self, HAS_LOG};
use crate::to_node::ToNode;
use crate::{wire, Zab, GROUPS};

/// How often the process checks whether it is to stop.
const STOP_POLL: Duration = Duration::from_millis(20);
/// Time that a leader has to hand over its lead on SIGTERM; after that it exits anyway.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);
/// Packets handled before everything else gets its turn.
const PACKETS_PER_TURN: usize = 256;
const CHUNK_BYTES: u64 = crate::store::CHUNK_BYTES as u64;
/// Records applied before everything else, such as heartbeats, gets its turn.
const APPLIED_PER_TURN: usize = 256;
/// Buckets of the table copied for a snapshot before everything else gets its turn.
const SNAPSHOT_BUCKETS_PER_TURN: usize = 512;
/// How often time must pass in the log while something waits for it.
const TICK_MS: u64 = 500;

/// Returns the path of a node's control socket.
pub fn socket_of(data: &Path) -> PathBuf {
    data.join("control.sock")
}

/// Configuration of a node's process.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The node's id, the number of nodes, and the election's parameters.
    pub config: Config,
    /// The addresses of all nodes, from node 1.
    pub nodes: Vec<SocketAddrV4>,
    /// Directory of the node's promise.
    pub data: PathBuf,
    pub is_founding: bool,
    /// What survives a crash.
    pub durability: Durability,
    /// Chunks of its table, the same at every node.
    pub chunks: u64,
    pub keys: Option<Keys>,
    /// Where its role runs, and why.
    pub choice: Choice,
    /// Configuration of its gateway.
    pub gateway: Settings,
}

/// A gateway's request to its node.
pub(crate) enum Asked {
    Submit(Vec<u8>),
    Barrier(u64),
    /// A request of an operator.
    Change(Change, Sender<Changed>),
}

/// Why a node has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was told to stop.
    Stopped,
    /// It misses more than the other nodes' logs have. Restarted as a recovering node, it gets their table.
    BeginsAgain,
    /// The node is no longer a member, and never will be again.
    Removed,
    /// The others know that it has run before, and its directory does not.
    Lost,
}

/// A running node.
pub struct Process {
    spec: Spec,
    role: Soft<Zab>,
    /// The role's program, if it runs in the kernel. Packets that it passes arrive at the socket.
    kernel: Option<Kernel>,
    ports: Ports,
    gate: Gate,
    /// Replaced while it runs.
    keys: LiveKeys,
    node: Node,
    machine: Machine,
    durable: Option<Durable>,
    out: Out,
    /// What the node has stored.
    on_disk: Stored,
    asked: Receiver<Asked>,
    events: Sender<Event>,
    waker: Waker,
    /// A byte from another thread wakes this one.
    woken: UnixStream,
    gateway: Option<std::thread::JoinHandle<io::Result<()>>>,
    gateway_counters: Arc<Counters>,
    memcached: Vec<SocketAddr>,
    memcached_udp: Option<SocketAddr>,
    memcached_local_udp: Option<SocketAddr>,
    stop: Arc<AtomicBool>,
    /// Reads whose index is known: index, number.
    reads: VecDeque<(u64, u64)>,
    appended_ms: u64,
    seen_last: u64,
    status: Arc<Mutex<Option<Status>>>,
    status_at: Nanos,
    packets_refused: AtomicU64,
    snapshots_made: u64,
    snapshots_installed: u64,
    changer: Option<Changer>,
    changes: Changes,
    /// The nodes that the program in the kernel sends to.
    group: u8,
}

/// Returns the role's clock, which is the same in the kernel.
fn clock_ns() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has it");
    time.tv_sec() as Nanos * 1_000_000_000 + time.tv_nsec() as Nanos
}

fn unix_ms() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.map_or(0, |time| time.as_millis() as u64)
}

impl Process {
    /// Starts a node and its gateway, which serves the clients of `listeners` and `datagrams`. If the role's program
    /// runs in the `kernel`, `role` uses its registers.
    pub fn start(
        spec: Spec,
        role: Soft<Zab>,
        kernel: Option<Kernel>,
        ports: Ports,
        listeners: Vec<TcpListener>,
        datagrams: Vec<Listener>,
    ) -> Result<Process> {
        let mut stored = stored::read(&spec.data)?;
        let own = (spec.config.node, stored.session + 1);
        // Shared with the packet program, if that answers GETs. Then there is no journal, and one machine is made.
        let memory = Cell::new(kernel.as_ref().map(Kernel::table).transpose()?.flatten());
        let empty = || {
            let table = match memory.take() {
                Some(region) => Table::in_region(region, spec.chunks),
                None => Table::new(spec.chunks).with_context(|| {
                    let bytes = spec.chunks * CHUNK_BYTES;
                    format!("--memory: {bytes} bytes for the table")
                })?,
            };
            Ok(Machine::new(own, table))
        };
        let (durable, machine) = match spec.durability {
            Durability::Memory => {
                if std::mem::take(&mut stored.has_log) {
                    // From here on it is not complete.
                    write_number(&spec.data, HAS_LOG, 0)?;
                }
                (None, empty()?)
            }
            Durability::Sync => {
                let (durable, machine) =
                    Durable::open(&spec.data, own.0, &mut stored, &role, empty)?;
                (Some(durable), machine)
            }
        };
        let on_disk = stored;
        let start = match (stored.has_log, spec.is_founding) {
            (true, _) => Start::WithLog,
            (false, true) => Start::Founding,
            (false, false) => Start::Recovering,
        };
        let mut node = Node::new(
            spec.config,
            start,
            stored,
            machine.membership(),
            rand::random(),
            clock_ns(),
            &role,
        );
        if let Some(durable) = &durable {
            node.keep_log(durable.durable(), &role);
        }
        let (asked_to, asked) = channel();
        let (events, events_of) = channel();
        let (woken, node_waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        node_waker.set_nonblocking(true)?;
        let changer = Changer {
            asked: asked_to.clone(),
            waker: node_waker.try_clone()?,
        };
        let submit = ToNode {
            asked: asked_to,
            events: events_of,
            waker: node_waker,
            seq: 0,
            wakes: false,
        };
        let reader: Reader = machine.reader();
        let settings = spec.gateway.clone();
        let address = |is_local| {
            let listener = datagrams.iter().find(|d| d.is_local == is_local)?;
            listener.socket.local_addr().ok()
        };
        let (memcached_udp, memcached_local_udp) = (address(false), address(true));
        let mut gateway = Gateway::with_datagrams(listeners, datagrams, reader, submit, settings)?;
        let memcached = gateway.addresses();
        let waker = gateway.take_waker().expect("nobody has taken it");
        let gateway_counters = gateway.counters();
        let stop = Arc::new(AtomicBool::new(false));
        let gateway = {
            let stop = stop.clone();
            let thread = std::thread::Builder::new().name("gateway".to_owned());
            thread.spawn(move || gateway.run(&stop))?
        };
        Ok(Process {
            gate: Gate::of::<Zab>(spec.keys, GROUPS),
            keys: LiveKeys::default(),
            spec,
            role,
            kernel,
            ports,
            node,
            machine,
            durable,
            out: Out::default(),
            on_disk,
            asked,
            events,
            waker,
            woken,
            gateway: Some(gateway),
            gateway_counters,
            memcached,
            memcached_udp,
            memcached_local_udp,
            stop,
            reads: VecDeque::new(),
            appended_ms: 0,
            seen_last: 0,
            status: Arc::default(),
            status_at: 0,
            packets_refused: AtomicU64::new(0),
            snapshots_made: 0,
            snapshots_installed: 0,
            changer: Some(changer),
            changes: Changes::default(),
            group: 0,
        })
    }

    /// Returns the handle for operators; `None` if it was taken before.
    pub fn take_changer(&mut self) -> Option<Changer> {
        self.changer.take()
    }

    /// Uses these keys whenever their file is read again.
    pub fn follow(&mut self, keys: LiveKeys) {
        self.keys = keys;
    }

    /// Returns the node's status, which is renewed several times a second.
    pub fn status(&self) -> Arc<Mutex<Option<Status>>> {
        self.status.clone()
    }

    /// Returns the addresses for memcached clients.
    pub fn memcached(&self) -> &[SocketAddr] {
        &self.memcached
    }

    /// Runs until `stopped` returns true; it is called several times a second.
    pub fn run(mut self, mut stopped: impl FnMut() -> bool) -> Result<End> {
        let result = self.serve(&mut stopped);
        self.stop.store(true, Ordering::Release);
        let _ = self.waker.wake();
        let gateway = self.gateway.take().expect("it was started");
        let ended = gateway
            .join()
            .map_err(|_| anyhow!("the gateway's thread has panicked"))?;
        let end = result?;
        ended.context("the gateway")?;
        Ok(end)
    }

    fn serve(&mut self, stopped: &mut impl FnMut() -> bool) -> Result<End> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        let mut stop_at = 0;
        // If it was told to stop: when it does at the latest.
        let mut stop_by = None;
        loop {
            if let Some(kernel) = &mut self.kernel {
                kernel.begin_turn(&self.role)?;
            }
            let now = clock_ns();
            if self.ports.look(now) {
                let are_up = self.ports.are_links_up();
                if let Some(kernel) = &self.kernel {
                    kernel.set_links_up(are_up);
                }
                match are_up {
                    true => tracing::info!("the links to all nodes are up and are used"),
                    false => tracing::warn!("a link is down: the ordinary interface is used"),
                }
            }
            if now >= stop_at {
                let has_ended = self.gateway.as_ref().is_some_and(|g| g.is_finished());
                if has_ended {
                    return Ok(End::Stopped);
                }
                if stop_by.is_none() && stopped() {
                    stop_by = Some(now + HAND_OVER_MAX.as_nanos() as Nanos);
                }
                if let Some(keys) = self.keys.take() {
                    self.gate.set_keys(keys);
                    if let Some(kernel) = &self.kernel {
                        kernel.set_keys(&keys)?;
                    }
                }
                stop_at = now + STOP_POLL.as_nanos() as Nanos;
            }
            if let Some(stop_by) = stop_by {
                let is_done = self.node.hand_over(now, &self.role, &mut self.out);
                if is_done || now >= stop_by {
                    return Ok(End::Stopped);
                }
            }
            self.role.set_time_ms(unix_ms());
            for _ in 0..PACKETS_PER_TURN {
                let Some(arrived) = self.ports.receive(&mut buffer)? else {
                    break;
                };
                let len_bytes = arrived.len_bytes;
                // Even without a key nobody else on this machine can send from a node's address.
                let from = arrived.from.filter(|_| len_bytes <= PACKET_LEN_MAX_BYTES);
                let admitted = from.filter(|_| self.gate.admits(&buffer[..len_bytes]));
                let Some(from) = admitted else {
                    self.packets_refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let packet = &buffer[..len_bytes];
                if arrived.is_by_link && self.is_own(packet) {
                    // The program made it from a packet that came by a link, but a link is down.
                    self.send_to_others(packet);
                    continue;
                }
                let packet = buffer.first_chunk_mut().expect("it is shorter by one");
                self.packet(packet, len_bytes, from)?;
            }
            self.take_asked();
            let now = clock_ns();
            self.node.on_tick(now, &self.role, &mut self.out);
            self.pass_time();
            self.tell_kernel()?;
            self.flush()?;
            self.make_durable()?;
            self.apply()?;
            if self.out.is_removed {
                return Ok(End::Removed);
            }
            if self.out.is_lost {
                return Ok(End::Lost);
            }
            if self.out.begins_again {
                return Ok(End::BeginsAgain);
            }
            self.install_snapshot()?;
            self.make_snapshot();
            let now = clock_ns();
            self.tell_status(now);
            let is_behind = self.machine.applied() < self.committed();
            let due = match self.machine.has_begun_snapshot() || is_behind {
                true => now,
                false => self.node.due(now, &self.role),
            };
            let left = Duration::from_nanos(due.saturating_sub(now));
            let notes = match &mut self.kernel {
                None => None,
                Some(kernel) => match kernel.end_turn(&self.role) {
                    None => continue,
                    some => some,
                },
            };
            // A negative descriptor is never ready.
            let fds = [self.woken.as_raw_fd(), notes.unwrap_or(-1)];
            let fds: Vec<_> = self.ports.fds().chain(fds).collect();
            wait(&fds, self.ports.sleep_time(left.min(STOP_POLL)));
        }
    }

    /// Tells the program in the kernel which nodes a leader sends to.
    fn tell_kernel(&mut self) -> Result<()> {
        let group = self.node.group();
        if let (Some(kernel), true) = (&mut self.kernel, group != self.group) {
            kernel.set_others(group)?;
            self.group = group;
        }
        Ok(())
    }

    fn is_own(&self, packet: &[u8]) -> bool {
        let own = u16::from(self.spec.config.node);
        wire::parse(packet).is_ok_and(|(header, _)| header.node == own)
    }

    fn send_to_others(&self, packet: &[u8]) {
        for to in ids(self.node.reach()) {
            self.ports.send(packet, to);
        }
    }

    fn packet(
        &mut self,
        packet: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        from: u8,
    ) -> Result<()> {
        let now = clock_ns();
        let handled = self.role.handle_packet(packet, len_bytes, now);
        match handled.verdict {
            Verdict::Drop => {}
            Verdict::Reply => {
                let packet = &mut packet[..handled.len_bytes];
                self.gate.sign(packet);
                self.ports.send(packet, from);
            }
            Verdict::ToOthers => {
                let packet = &mut packet[..handled.len_bytes];
                self.gate.sign(packet);
                self.send_to_others(packet);
            }
            Verdict::Pass => {
                if let Ok((header, value)) = wire::parse(&packet[..handled.len_bytes]) {
                    self.node
                        .on_packet(now, &header, value, &self.role, &mut self.out);
                    self.flush()?;
                }
            }
        }
        Ok(())
    }

    fn take_asked(&mut self) {
        while self.woken.read(&mut [0; 64]).is_ok_and(|len| len == 64) {}
        for asked in self.asked.try_iter() {
            match asked {
                Asked::Submit(value) => {
                    self.node.submit(value);
                }
                Asked::Barrier(id) => self.node.read_index(id),
                Asked::Change(change, to) => {
                    let now = clock_ns();
                    let begun = self.node.change(now, change, &self.role, &mut self.out);
                    self.changes.begun(begun, to, now);
                }
            }
        }
    }

    /// Stores what must be stored, then sends the packets.
    fn flush(&mut self) -> Result<()> {
        if let Some(stored) = self.out.store.take() {
            let began = clock_ns();
            stored::write(&self.spec.data, &stored, &self.on_disk)?;
            self.on_disk = stored;
            let now = clock_ns();
            self.node.on_stored(now, now - began);
        }
        for (to, mut packet) in self.out.packets.drain(..) {
            self.gate.sign(&mut packet);
            match to {
                To::Node(node) => self.ports.queue(&packet, node),
                To::Others => {
                    for node in ids(self.node.reach()) {
                        self.ports.queue(&packet, node);
                    }
                }
            }
        }
        self.ports.flush();
        for (token, index) in self.out.reads.drain(..) {
            self.reads.push_back((index, token));
        }
        Ok(())
    }

    /// Puts the log on disk, and acknowledges it.
    fn make_durable(&mut self) -> Result<()> {
        let Some(durable) = &mut self.durable else {
            return Ok(());
        };
        let (began, before) = (clock_ns(), durable.durable());
        let upto = durable.write(&self.role)?;
        if upto > before {
            self.node.on_log_stored(clock_ns() - began);
        }
        durable.go_on()?;
        durable.begins_checkpoint(&mut self.machine, &self.role)?;
        self.node.on_durable(upto, &self.role, &mut self.out);
        self.flush()
    }

    /// Lets time pass for items that expire, if nothing else does.
    fn pass_time(&mut self) {
        let view = self.role.view();
        let now_ms = unix_ms();
        if view.last != self.seen_last {
            (self.seen_last, self.appended_ms) = (view.last, now_ms);
        }
        let is_leading = view.mode == Mode::Leading && view.committed >= view.established_at;
        // While nothing is committed, such records would fill the log: the window does not hold for them.
        let is_idle = view.last == view.committed;
        if is_leading
            && is_idle
            && self.machine.needs_time()
            && now_ms >= self.appended_ms + TICK_MS
        {
            append(&Record::default(), &self.role, &mut self.out);
        }
    }

    fn make_snapshot(&mut self) {
        if std::mem::take(&mut self.out.takes_snapshot) {
            self.machine.begin_snapshot();
            if let Some(durable) = &mut self.durable {
                durable.gives_way();
            }
        }
        let made = self.machine.go_on_with_snapshot(SNAPSHOT_BUCKETS_PER_TURN);
        if let Some(Snapshot { zxid, bytes }) = made {
            self.snapshots_made += 1;
            let bytes = match &mut self.durable {
                Some(durable) => durable.take(bytes),
                None => Some(bytes),
            };
            if let Some(bytes) = bytes {
                self.node.on_snapshot(Snapshot { zxid, bytes });
            }
        }
    }

    fn install_snapshot(&mut self) -> Result<()> {
        let snapshot = self.out.snapshot.take();
        let applied = self.machine.applied();
        let Some(snapshot) = snapshot.filter(|snapshot| snapshot.zxid > applied) else {
            return Ok(());
        };
        self.machine.restore(&snapshot.bytes)?;
        self.snapshots_installed += 1;
        let machine = &self.machine;
        let (zxid, epoch) = (machine.applied(), machine.epoch());
        // If this returns false, the log already goes on past it.
        self.role.install(zxid, epoch, machine.time_ms());
        self.role.set_applied(zxid);
        let membership = self.machine.membership();
        self.node
            .on_installed(membership, &self.role, &mut self.out);
        if let Some(durable) = &mut self.durable {
            durable.installed(zxid, &snapshot.bytes, &self.role)?;
        }
        Ok(())
    }

    /// Returns up to which record everything may be applied.
    fn committed(&self) -> u64 {
        let durable = self.durable.as_ref().map_or(u64::MAX, Durable::durable);
        self.role.committed().min(durable)
    }

    /// Executes what is committed, and tells the gateway.
    fn apply(&mut self) -> Result<()> {
        let committed = self.committed();
        let now = clock_ns();
        let mut has_told = false;
        let until = committed.min(self.machine.applied() + APPLIED_PER_TURN as u64);
        while self.machine.applied() < until {
            let zxid = self.machine.applied() + 1;
            let Some(record) = self.role.read(zxid) else {
                break;
            };
            let client = self.kernel.as_ref().and_then(|k| k.client_of(&record));
            let mut applied = self.machine.apply(&record)?;
            self.role.set_applied(zxid);
            if record.origin == ORIGIN_ROLE {
                // Only the node that made the record has its client.
                let outcome = applied.outcomes.pop();
                applied.outcomes.clear();
                if let (Some(client), Some(outcome)) = (client, outcome) {
                    let _ = self.events.send(Event::Answer(client, outcome));
                    has_told = true;
                }
            }
            self.node.on_applied(&record, applied.is_executed, now);
            self.changes.on_applied(&record);
            if !applied.outcomes.is_empty() {
                let _ = self.events.send(Event::Outcomes(applied.outcomes));
                has_told = true;
            }
        }
        if !self.changes.is_empty() {
            let (node, role) = (&self.node, &self.role);
            self.changes.tell_late(now, |zxid| node.lacking(zxid, role));
        }
        let applied = self.machine.applied();
        let mut reached = None;
        self.reads.retain(|(index, id)| {
            let is_reached = *index <= applied;
            if is_reached {
                reached = reached.max(Some(*id));
            }
            !is_reached
        });
        if let Some(id) = reached {
            let _ = self.events.send(Event::Barrier(id));
            has_told = true;
        }
        if has_told {
            self.waker.wake()?;
        }
        Ok(())
    }
}
