//! Messages between replicas, over TCP, for the one thread of a replica: what has come waits in a queue, and a
//! descriptor says that there is something.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use inband_transport::frames::{read_frame, Links};
use inband_transport::paced::Pace;
use inband_transport::tls::Transport;
use serde::de::DeserializeOwned;
use serde::Serialize;

/// Longest message: a snapshot of a whole store.
const MESSAGE_LEN_MAX_BYTES: usize = 1 << 30;
/// Messages that wait for the replica's thread; then their senders wait.
const QUEUE_MESSAGES: usize = 1024;
/// Connections served at once: a peer has one, and a new one while the old one ends.
const CONNECTIONS_MAX: usize = 32;
/// Pause after accepting failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A peer that leads says something all the time; one that follows may be silent for long.
const PACE: Pace = Pace {
    silence_max: Duration::from_secs(60),
    grace: Duration::from_secs(1),
    bytes_per_s_min: 1 << 20,
};

/// See the module.
pub struct PeerLinks<M> {
    address: SocketAddr,
    links: Links<M>,
    messages: Receiver<M>,
    wake: UnixStream,
    door: Arc<Door<M>>,
}

struct Door<M> {
    messages: SyncSender<M>,
    waker: UnixStream,
    /// The waker has written, and nobody has looked since.
    is_awake: AtomicBool,
    stop: AtomicBool,
    refused: AtomicU64,
    transport: Transport,
}

impl<M: Serialize + DeserializeOwned + Send + 'static> PeerLinks<M> {
    /// Listen for peers.
    pub fn listen(address: SocketAddr, transport: Transport) -> io::Result<PeerLinks<M>> {
        let listener = TcpListener::bind(address)?;
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (sender, messages) = mpsc::sync_channel(QUEUE_MESSAGES);
        let door = Arc::new(Door {
            messages: sender,
            waker,
            is_awake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            transport: transport.clone(),
        });
        let for_thread = door.clone();
        thread::Builder::new()
            .name("peer-listen".into())
            .spawn(move || accept(&listener, &for_thread))?;
        Ok(PeerLinks {
            address,
            links: Links::new(transport, "peer-link"),
            messages,
            wake,
            door,
        })
    }

    /// Send a message if that is possible now; else it is lost, as on a network.
    pub fn send(&mut self, to: SocketAddr, message: M) {
        self.links.send(to, message);
    }

    /// The next message that has come.
    pub fn receive(&mut self) -> Option<M> {
        match self.messages.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                if !self.door.is_awake.swap(false, Ordering::AcqRel) {
                    return None;
                }
                // Nothing or one byte is in it.
                let _ = (&self.wake).read(&mut [0; 8]);
                // What came before the flag was cleared woke nobody again.
                self.messages.try_recv().ok()
            }
        }
    }

    /// For polling.
    pub fn fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Connections that were not what they should have been.
    pub fn refused(&self) -> u64 {
        self.door.refused.load(Ordering::Relaxed)
    }
}

impl<M> Drop for PeerLinks<M> {
    fn drop(&mut self) {
        self.door.stop.store(true, Ordering::Release);
        // Wakes the accepting thread, so that the port is free again.
        let _ = TcpStream::connect_timeout(&self.address, ACCEPT_PAUSE);
    }
}

fn accept<M: DeserializeOwned + Send + 'static>(listener: &TcpListener, door: &Arc<Door<M>>) {
    let open = Arc::new(());
    for stream in listener.incoming() {
        if door.stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        if Arc::strong_count(&open) > CONNECTIONS_MAX {
            door.refused.fetch_add(1, Ordering::Relaxed);
            continue; // hangs up
        }
        let (door, open) = (door.clone(), open.clone());
        let serve = move || {
            let _open = open;
            match serve(stream, &door) {
                // However a connection ends, the peer opens another.
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    door.refused.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        };
        let _ = thread::Builder::new().name("peer-conn".into()).spawn(serve);
    }
}

fn serve<M: DeserializeOwned>(stream: TcpStream, door: &Door<M>) -> io::Result<()> {
    let mut stream = door.transport.accept(stream, PACE)?;
    loop {
        let message = read_frame(&mut stream, MESSAGE_LEN_MAX_BYTES)?;
        let gone = |_| io::Error::from(ErrorKind::NotConnected);
        door.messages.send(message).map_err(gone)?;
        if !door.is_awake.swap(true, Ordering::AcqRel) {
            // A full pipe is awake already.
            let _ = (&door.waker).write(&[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> PeerLinks<u64> {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        PeerLinks::listen(address, Transport::plain()).expect("listens")
    }

    #[test]
    fn messages_come_in_order_and_wake_whoever_polls() {
        let (mut one, mut other) = (peers(), peers());
        let to = other.address;
        for number in 0..100 {
            one.send(to, number);
        }
        let mut expected = 0;
        while expected < 100 {
            let mut fds = [nix::poll::PollFd::new(
                std::os::fd::AsFd::as_fd(&other.wake),
                nix::poll::PollFlags::POLLIN,
            )];
            let woken = nix::poll::poll(&mut fds, 10_000u16).expect("polls");
            assert_eq!(woken, 1, "{expected} came, and nobody was woken for more");
            while let Some(number) = other.receive() {
                assert_eq!(number, expected);
                expected += 1;
            }
        }
        assert_eq!(other.receive(), None);
    }

    #[test]
    fn nonsense_is_hung_up_on() {
        let mut one = peers();
        let mut stream = TcpStream::connect(one.address).expect("connects");
        stream.write_all(&[0xff; 64]).expect("sends");
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
        assert_eq!(one.receive(), None);
    }
}
