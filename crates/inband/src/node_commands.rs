//! Commands from other threads for a node: the thread that owns it runs them between two packets.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::time::Instant;

use inband_paxos::log::Burst;
use inband_paxos::node::Node;

use crate::read_probe::ReadProbe;

type NodeCommand = Box<dyn FnOnce(&mut Node) + Send>;

/// Accepts commands from any thread.
#[derive(Clone)]
pub struct NodeCommands {
    queue: Sender<NodeCommand>,
    waker: Arc<UnixStream>,
    is_woken: Arc<AtomicBool>,
    probe: Arc<ReadProbe>,
}

/// The receiving end, for the node's thread.
pub struct NodeCommandQueue {
    node_commands: Receiver<NodeCommand>,
    wakeups: UnixStream,
    is_woken: Arc<AtomicBool>,
    probe: Arc<ReadProbe>,
}

/// Creates both ends.
pub fn node_commands() -> io::Result<(NodeCommands, NodeCommandQueue)> {
    let (queue, node_commands) = mpsc::channel();
    let (waker, wakeups) = UnixStream::pair()?;
    waker.set_nonblocking(true)?;
    wakeups.set_nonblocking(true)?;
    let is_woken = Arc::new(AtomicBool::new(false));
    let probe = Arc::<ReadProbe>::default();
    let entrance = NodeCommands {
        queue,
        waker: Arc::new(waker),
        is_woken: is_woken.clone(),
        probe: probe.clone(),
    };
    let queue = NodeCommandQueue {
        node_commands,
        wakeups,
        is_woken,
        probe,
    };
    Ok((entrance, queue))
}

impl NodeCommands {
    /// Runs this command soon, in the order of the calls; never, if the node has ended.
    pub fn send(&self, command: impl FnOnce(&mut Node) + Send + 'static) {
        if self.queue.send(Box::new(command)).is_err() {
            return;
        }
        // If the pipe is full, the thread is being woken already. The flag is set last: a thread that sees it may drain
        // the pipe.
        let _ = (&*self.waker).write(&[1]);
        self.is_woken.store(true, Ordering::Release);
    }

    /// Reads all logs; see [`ReadProbe::read`]. Only on a host that learns them.
    pub fn confirm_reads(&self, deadline: Instant) -> Option<Vec<u64>> {
        self.probe.read(deadline, || self.send(|_| {}))
    }
}

impl NodeCommandQueue {
    /// Readable when there are commands, and permanently once all senders are gone.
    pub fn fd(&self) -> RawFd {
        self.wakeups.as_raw_fd()
    }

    /// Runs all pending commands.
    pub fn run(&mut self, node: &mut Node) {
        if !self.is_woken.swap(false, Ordering::Acquire) {
            return;
        }
        while matches!(self.wakeups.read(&mut [0; 64]), Ok(n) if n > 0) {}
        while let Ok(command) = self.node_commands.try_recv() {
            command(node);
        }
    }

    /// Begins what [`NodeCommands::confirm_reads`] asks for. Before every poll.
    pub fn begin_reads(&self, node: &mut Node) {
        self.probe.begin(node);
    }

    /// Takes the results from what a poll has returned.
    pub fn take_reads(&self, bursts: &mut [Burst]) {
        self.probe.end(bursts);
    }
}
