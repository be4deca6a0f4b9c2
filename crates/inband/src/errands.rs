//! What other threads want done to a node: one thread owns it, and does their errands between two
//! packets.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;

use inband_paxos::node::Node;

type Errand = Box<dyn FnOnce(&mut Node) + Send>;

/// Takes errands, from any thread.
#[derive(Clone)]
pub struct Errands {
    queue: Sender<Errand>,
    bell: Arc<UnixStream>,
    has_rung: Arc<AtomicBool>,
}

/// Where the node's thread finds them.
pub struct ErrandQueue {
    errands: Receiver<Errand>,
    bell: UnixStream,
    has_rung: Arc<AtomicBool>,
}

/// A queue and its entrance.
pub fn errands() -> io::Result<(Errands, ErrandQueue)> {
    let (queue, errands) = mpsc::channel();
    let (ring, bell) = UnixStream::pair()?;
    ring.set_nonblocking(true)?;
    bell.set_nonblocking(true)?;
    let has_rung = Arc::new(AtomicBool::new(false));
    let entrance = Errands {
        queue,
        bell: Arc::new(ring),
        has_rung: has_rung.clone(),
    };
    let queue = ErrandQueue {
        errands,
        bell,
        has_rung,
    };
    Ok((entrance, queue))
}

impl Errands {
    /// Have this done soon, in the order of the calls. Dropped undone if the node has ended.
    pub fn send(&self, errand: impl FnOnce(&mut Node) + Send + 'static) {
        if self.queue.send(Box::new(errand)).is_err() {
            return;
        }
        // A full bell rings already. The flag comes last: once it is seen, the bell can be silenced.
        let _ = (&*self.bell).write(&[1]);
        self.has_rung.store(true, Ordering::Release);
    }
}

impl ErrandQueue {
    /// Readable when there is something to do; for ever, when nobody is left who could want something.
    pub fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Do what is to be done.
    pub fn run(&mut self, node: &mut Node) {
        if !self.has_rung.swap(false, Ordering::Acquire) {
            return;
        }
        while matches!(self.bell.read(&mut [0; 64]), Ok(n) if n > 0) {}
        while let Ok(errand) = self.errands.try_recv() {
            errand(node);
        }
    }
}
