//! The thread that takes waiting frames from the switch and sends them later.
//!
//! It runs in the switch's namespace: a frame sent on a switch-side veth arrives at the host.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libbpf_rs::{RingBuffer, RingBufferBuilder};
use nix::ifaddrs::getifaddrs;
use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::socket::{sendto, socket, AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType};
use nix::sys::time::TimeSpec;

use crate::error::LabError;
use crate::faults::LinkFaults;
use crate::netns::NetnsHandle;
use crate::queue::{Frame, WaitingFrames, WAITING_MAX_BYTES};
use crate::switch::{self, Ports, QueueTables, SwitchTables, IFINDEX_BASE, PORTS_MAX};

/// Length of the header in front of the frame in `struct switch_queued_frame`.
const QUEUED_HEADER_BYTES: usize = 16;
/// Longest sleep, so that a missed wake-up cannot block the thread permanently.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// Per-port counters of the thread.
#[derive(Debug, Default)]
pub(crate) struct PortCounts {
    pub(crate) released: AtomicU64,
    pub(crate) overflowed: AtomicU64,
}

enum Change {
    /// Hold, delay or release a link.
    Link(LinkFaults),
    /// The port's interface exists.
    Open,
    /// The port's interface is about to be removed.
    Close,
}

struct Command {
    port: usize,
    change: Change,
    done: Sender<Result<(), LabError>>,
}

/// Handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Injector {
    commands: Option<Sender<Command>>,
    wake: UnixStream,
    counts: Arc<[PortCounts]>,
    thread: Option<JoinHandle<()>>,
}

impl Injector {
    /// Starts the thread in the switch's namespace and loads the switch from it. All ports are still closed.
    pub(crate) fn start(
        namespace: NetnsHandle,
        seed: u64,
    ) -> Result<(Self, SwitchTables), LabError> {
        let (wake, woken) = UnixStream::pair().map_err(LabError::system("make a socket pair"))?;
        for end in [&wake, &woken] {
            end.set_nonblocking(true)
                .map_err(LabError::system("set up a socket pair"))?;
        }
        let (commands, receiver) = channel();
        let (started, start) = channel();
        let counts: Arc<[PortCounts]> = (0..PORTS_MAX).map(|_| PortCounts::default()).collect();
        let thread_counts = Arc::clone(&counts);
        let thread = std::thread::Builder::new()
            .name("lab-switch".into())
            .spawn(move || {
                let worker = namespace
                    .enter()
                    .and_then(|()| Worker::new(seed, receiver, woken, thread_counts));
                match worker {
                    Ok((mut worker, tables)) => {
                        // If the caller no longer waits for the answer, the switch is not needed.
                        if started.send(Ok(tables)).is_ok() {
                            worker.run();
                        }
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            })
            .map_err(LabError::system("start the queueing thread"))?;
        let injector = Self {
            commands: Some(commands),
            wake,
            counts,
            thread: Some(thread),
        };
        let tables = start.recv().map_err(|_| LabError::QueueGone)??;
        Ok((injector, tables))
    }

    /// Hold, delay or release a link. Returns when released frames have been sent.
    pub(crate) fn set_link(&self, port: usize, faults: LinkFaults) -> Result<(), LabError> {
        self.command(port, Change::Link(faults))
    }

    /// Opens a port, whose interface must exist.
    pub(crate) fn open(&self, port: usize) -> Result<(), LabError> {
        self.command(port, Change::Open)
    }

    /// Closes a port. Frames that wait for it are dropped.
    pub(crate) fn close(&self, port: usize) -> Result<(), LabError> {
        self.command(port, Change::Close)
    }

    fn command(&self, port: usize, change: Change) -> Result<(), LabError> {
        let (done, result) = channel();
        let commands = self.commands.as_ref().ok_or(LabError::QueueGone)?;
        commands
            .send(Command { port, change, done })
            .map_err(|_| LabError::QueueGone)?;
        // A full pipe wakes the thread as well.
        let _ = (&self.wake).write(&[0]);
        result.recv().map_err(|_| LabError::QueueGone)?
    }

    pub(crate) fn counts(&self, port: usize) -> &PortCounts {
        &self.counts[port]
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.commands = None;
        let _ = (&self.wake).write(&[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    tables: QueueTables,
    ring: RingBuffer<'static>,
    /// Filled by the ring's callback and emptied right afterwards.
    taken: Rc<RefCell<Vec<Frame>>>,
    waiting: WaitingFrames,
    queueing_ports: u64,
    /// Ports that stop queueing once the last of their waiting frames has been sent.
    closing_ports: u64,
    socket: OwnedFd,
    ports: Ports,
    /// One per open port.
    addresses: Vec<Option<LinkAddr>>,
    commands: Receiver<Command>,
    woken: UnixStream,
    counts: Arc<[PortCounts]>,
}

impl Worker {
    fn new(
        seed: u64,
        commands: Receiver<Command>,
        woken: UnixStream,
        counts: Arc<[PortCounts]>,
    ) -> Result<(Self, SwitchTables), LabError> {
        let (switch, tables, ports) = switch::load()?;
        // Protocol 0: the socket only sends.
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .map_err(LabError::system("open a packet socket"))?;
        let waiting = WaitingFrames::new(PORTS_MAX, WAITING_MAX_BYTES, seed);
        let taken = Rc::new(RefCell::new(Vec::new()));
        let take = {
            let taken = Rc::clone(&taken);
            move |record: &[u8]| {
                // Malformed records cannot occur: the switch is the only writer.
                taken.borrow_mut().extend(parse_queued(record));
                0
            }
        };
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&tables.to_user, take)
            .map_err(LabError::bpf("open its queue"))?;
        let ring = builder.build().map_err(LabError::bpf("open its queue"))?;
        let worker = Self {
            tables,
            ring,
            taken,
            waiting,
            queueing_ports: 0,
            closing_ports: 0,
            socket,
            ports,
            addresses: vec![None; PORTS_MAX],
            commands,
            woken,
            counts,
        };
        Ok((worker, switch))
    }

    fn run(&mut self) {
        loop {
            if let Err(error) = self.take_frames() {
                tracing::error!(%error, "the lab's queueing thread ends");
                return;
            }
            self.send_due();
            let mut acknowledge = Vec::new();
            loop {
                match self.commands.try_recv() {
                    Ok(command) => {
                        let result = match command.change {
                            Change::Link(faults) => self.set_link(command.port, faults),
                            Change::Open => self.open(command.port),
                            Change::Close => self.close(command.port),
                        };
                        acknowledge.push((command.done, result));
                    }
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                }
            }
            self.send_due();
            if let Err(error) = self.close_ports() {
                tracing::error!(%error, "the lab's queueing thread ends");
                return;
            }
            for (done, result) in acknowledge {
                // The caller may be gone; the change is in effect.
                let _ = done.send(result);
            }
            self.sleep();
        }
    }

    fn open(&mut self, port: usize) -> Result<(), LabError> {
        let links = getifaddrs().map_err(LabError::system("list the switch's interfaces"))?;
        let address = links
            .filter_map(|i| i.address?.as_link_addr().copied())
            .find(|l| l.ifindex() == IFINDEX_BASE + port)
            .ok_or_else(|| LabError::BadLayout(format!("no link at port {port}")))?;
        let counts = &self.counts[port];
        counts.released.store(0, Ordering::Relaxed);
        counts.overflowed.store(0, Ordering::Relaxed);
        self.ports.open(port)?;
        self.addresses[port] = Some(address);
        Ok(())
    }

    fn close(&mut self, port: usize) -> Result<(), LabError> {
        self.addresses[port] = None;
        self.set_link(port, LinkFaults::default())?;
        self.ports.close(port)
    }

    fn set_link(&mut self, port: usize, faults: LinkFaults) -> Result<(), LabError> {
        let bit = 1u64 << port;
        if faults.queues() {
            self.closing_ports &= !bit;
            self.queueing_ports |= bit;
            self.tables.set_queueing(self.queueing_ports)?;
        } else if self.queueing_ports & bit != 0 {
            self.closing_ports |= bit;
        }
        self.waiting.set_link(Instant::now(), port, faults);
        Ok(())
    }

    /// Frames must not overtake earlier ones that wait, so a port's frames pass through here until none of them waits
    /// any more.
    fn close_ports(&mut self) -> Result<(), LabError> {
        if self.closing_ports == 0 {
            return Ok(());
        }
        self.take_frames()?;
        self.send_due();
        let idle = (0..self.addresses.len())
            .filter(|&p| self.closing_ports >> p & 1 == 1 && !self.waiting.involves(p))
            .fold(0u64, |mask, p| mask | 1 << p);
        if idle != 0 {
            self.closing_ports &= !idle;
            self.queueing_ports &= !idle;
            self.tables.set_queueing(self.queueing_ports)?;
            self.take_frames()?;
            self.send_due();
        }
        Ok(())
    }

    /// Moves all frames from the kernel's ring to the queue.
    fn take_frames(&mut self) -> Result<(), LabError> {
        self.ring
            .consume()
            .map_err(LabError::bpf("read its queue"))?;
        let now = Instant::now();
        for frame in self.taken.borrow_mut().drain(..) {
            let to_port = frame.to_port;
            if !self.waiting.offer(now, frame) {
                self.counts[to_port]
                    .overflowed
                    .fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn send_due(&mut self) {
        while let Some(frame) = self.waiting.next_due(Instant::now()) {
            let Some(address) = &self.addresses[frame.to_port] else {
                continue; // the host is gone
            };
            let counts = &self.counts[frame.to_port];
            let fd = self.socket.as_raw_fd();
            match sendto(fd, &frame.bytes, address, MsgFlags::empty()) {
                Ok(_) => counts.released.fetch_add(1, Ordering::Relaxed),
                // The host's receive queue is full, as can happen on a real wire.
                Err(_) => counts.overflowed.fetch_add(1, Ordering::Relaxed),
            };
        }
    }

    fn sleep(&mut self) {
        let wait = match self.waiting.next_due_at() {
            Some(due) => due.saturating_duration_since(Instant::now()).min(IDLE_WAIT),
            None => IDLE_WAIT,
        };
        let mut fds = [
            PollFd::new(self.tables.to_user.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
        ];
        // An interrupted sleep is merely shorter.
        let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(wait)), None);
        let mut scratch = [0; 64];
        while matches!(self.woken.read(&mut scratch), Ok(n) if n > 0) {}
    }
}

fn parse_queued(record: &[u8]) -> Option<Frame> {
    let word = |at: usize| -> Option<usize> {
        let bytes = record.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes) as usize)
    };
    let (from_port, to_port, len_bytes) = (word(0)?, word(4)?, word(8)?);
    if from_port >= PORTS_MAX || to_port >= PORTS_MAX {
        return None;
    }
    let bytes = record.get(QUEUED_HEADER_BYTES..QUEUED_HEADER_BYTES + len_bytes)?;
    Some(Frame {
        from_port,
        to_port,
        bytes: bytes.into(),
    })
}
