//! Messages between replicas over TCP, for a replica's single thread. Incoming messages are queued, and a file
//! descriptor signals them. With certificates, a peer can send only in the name of its own replica.

use std::collections::BTreeMap;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use inband_transport::accept::stop_listening;
use inband_transport::frames::{read_body, read_len, Links};
use inband_transport::paced::Pace;
use inband_transport::tls::{is_refused, Transport};
use serde::de::DeserializeOwned;
use serde::Serialize;

/// Maximum message length. Entries and parts of snapshots are far shorter.
const MESSAGE_LEN_MAX_BYTES: usize = 64 << 20;
/// Messages being read or queued, in total: one of maximum length plus the usual traffic.
const INCOMING_BYTES_MAX: usize = MESSAGE_LEN_MAX_BYTES + (32 << 20);
/// Capacity of the queue; when it is full, the connections' threads wait.
const QUEUE_MESSAGES: usize = 1024;
/// Read buffer of a connection.
const BUFFER_BYTES: usize = 64 << 10;
/// Concurrent connections. A peer has one, or two while it reconnects.
const CONNECTIONS_MAX: usize = 32;
/// Pause after accepting fails for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A leader sends constantly; a follower may be silent for long.
const PACE: Pace = Pace {
    silence_max: Duration::from_secs(60),
    grace: Duration::ZERO,
    bytes_per_s_min: 0,
};
/// A message must be complete this long after its first byte,
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// plus one second per this many bytes.
const MESSAGE_BYTES_PER_S_MIN: u64 = 1 << 20;

pub struct PeerLinks<M> {
    listener: TcpListener,
    number: u8,
    links: Links<(u8, M)>,
    messages: Receiver<Incoming<M>>,
    wake: UnixStream,
    shared: Arc<PeerListener<M>>,
}

/// A message, who sent it, and its bytes.
type Incoming<M> = (u8, M, usize);

struct PeerListener<M> {
    messages: SyncSender<Incoming<M>>,
    /// Bytes of messages being read or queued.
    incoming_bytes: AtomicUsize,
    waker: UnixStream,
    /// A wake-up byte has been written and not yet consumed.
    is_awake: AtomicBool,
    stop: AtomicBool,
    refused: AtomicU64,
    closed_slow: AtomicU64,
    closed_memory: AtomicU64,
    closed_protocol: AtomicU64,
    transport: Transport,
    /// Node ids of the set's replicas, by number.
    nodes: Vec<u8>,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<M: Serialize + DeserializeOwned + Send + 'static> PeerLinks<M> {
    /// Listens for peers, as this replica. `nodes` are the node ids of all replicas of the set.
    pub fn listen(
        address: SocketAddr,
        number: u8,
        nodes: Vec<u8>,
        transport: Transport,
    ) -> io::Result<PeerLinks<M>> {
        let listener = TcpListener::bind(address)?;
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (sender, messages) = mpsc::sync_channel(QUEUE_MESSAGES);
        let shared = Arc::new(PeerListener {
            messages: sender,
            incoming_bytes: AtomicUsize::new(0),
            waker,
            is_awake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            closed_slow: AtomicU64::new(0),
            closed_memory: AtomicU64::new(0),
            closed_protocol: AtomicU64::new(0),
            transport: transport.clone(),
            nodes,
        });
        let for_thread = (listener.try_clone()?, shared.clone());
        thread::Builder::new()
            .name("peer-listen".into())
            .spawn(move || accept(&for_thread.0, &for_thread.1))?;
        Ok(PeerLinks {
            listener,
            number,
            links: Links::new(transport, "peer-link"),
            messages,
            wake,
            shared,
        })
    }

    /// Sends a message if that is possible without blocking. Otherwise the message is lost, as on a network.
    pub fn send(&mut self, to: SocketAddr, message: M) {
        self.links.send(to, (self.number, message));
    }

    /// Returns the next message and the replica that sent it.
    pub fn receive(&mut self) -> Option<(u8, M)> {
        let (from, message, len_bytes) = match self.messages.try_recv() {
            Ok(incoming) => incoming,
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {
                if !self.shared.is_awake.swap(false, Ordering::AcqRel) {
                    return None;
                }
                // The pipe holds at most one byte.
                let _ = (&self.wake).read(&mut [0; 8]);
                // A message queued before the flag was cleared caused no wake-up.
                self.messages.try_recv().ok()?
            }
        };
        self.shared.release(len_bytes);
        Some((from, message))
    }

    #[cfg(test)]
    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it has an address")
    }

    /// For `poll(2)`.
    pub fn fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Counters of refused and closed connections, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let shared = &self.shared;
        let own = [
            ("flair_peers_refused", &shared.refused),
            ("flair_peers_closed_slow", &shared.closed_slow),
            ("flair_peers_closed_memory", &shared.closed_memory),
            ("flair_peers_closed_protocol", &shared.closed_protocol),
        ];
        let own = own.map(|(name, counter)| (name, counter.load(Ordering::Relaxed)));
        own.into_iter()
            .chain(shared.transport.counters().all())
            .collect()
    }
}

impl<M> Drop for PeerLinks<M> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        stop_listening(&self.listener);
    }
}

impl<M> PeerListener<M> {
    fn release(&self, len_bytes: usize) {
        self.incoming_bytes.fetch_sub(len_bytes, Ordering::AcqRel);
    }
}

/// Accounts for the bytes of a message while it is being read.
struct Held<'a, M> {
    shared: &'a PeerListener<M>,
    len_bytes: usize,
}

impl<'a, M> Held<'a, M> {
    /// Fails with [`ErrorKind::OutOfMemory`] if the message would exceed the limit.
    fn new(shared: &'a PeerListener<M>, len_bytes: usize) -> io::Result<Held<'a, M>> {
        let before = shared.incoming_bytes.fetch_add(len_bytes, Ordering::AcqRel);
        let held = Held { shared, len_bytes };
        match before + len_bytes <= INCOMING_BYTES_MAX {
            true => Ok(held),
            false => Err(ErrorKind::OutOfMemory.into()),
        }
    }

    /// The message is complete; the receiver that dequeues it releases its bytes.
    fn hand_over(mut self) -> usize {
        std::mem::take(&mut self.len_bytes)
    }
}

impl<M> Drop for Held<'_, M> {
    fn drop(&mut self) {
        self.shared.release(self.len_bytes);
    }
}

fn accept<M: DeserializeOwned + Send + 'static>(
    listener: &TcpListener,
    shared: &Arc<PeerListener<M>>,
) {
    let open = Arc::new(());
    for stream in listener.incoming() {
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        if Arc::strong_count(&open) > CONNECTIONS_MAX {
            count(&shared.refused);
            continue; // closes the connection
        }
        let (shared, open) = (shared.clone(), open.clone());
        let serve = move || {
            let _open = open;
            // However a connection ends, the peer reconnects.
            if let Err(error) = serve(stream, &shared) {
                match error.kind() {
                    // Already counted by the transport.
                    _ if is_refused(&error) => {}
                    ErrorKind::TimedOut => count(&shared.closed_slow),
                    ErrorKind::OutOfMemory => count(&shared.closed_memory),
                    ErrorKind::InvalidData => count(&shared.closed_protocol),
                    _ => {}
                }
            }
        };
        let _ = thread::Builder::new().name("peer-conn".into()).spawn(serve);
    }
}

fn serve<M: DeserializeOwned>(stream: TcpStream, shared: &PeerListener<M>) -> io::Result<()> {
    // Reads a message and its length with one system call.
    let stream = shared.transport.accept(stream, PACE)?;
    let mut stream = BufReader::with_capacity(BUFFER_BYTES, stream);
    // The replica for which the certificate has been verified.
    let mut known = None;
    loop {
        let len_bytes = match read_len(&mut stream, MESSAGE_LEN_MAX_BYTES) {
            // The peer had nothing to send.
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(()),
            len_bytes => len_bytes?,
        };
        let seconds = len_bytes as u64 / MESSAGE_BYTES_PER_S_MIN;
        let limit = MESSAGE_TIMEOUT + Duration::from_secs(seconds);
        stream.get_mut().paced_mut().must_end_in(Some(limit));
        let held = Held::new(shared, len_bytes)?;
        let (from, message): (u8, M) = read_body(&mut stream, len_bytes)?;
        let node = shared.nodes.get(usize::from(from));
        let node = *node.ok_or(ErrorKind::InvalidData)?;
        if known != Some(from) && !stream.get_ref().may_be_node(node) {
            return Ok(()); // already counted by the transport
        }
        known = Some(from);
        stream.get_mut().paced_mut().must_end_in(None);
        let gone = |_| io::Error::from(ErrorKind::NotConnected);
        let incoming = (from, message, held.hand_over());
        shared.messages.send(incoming).map_err(gone)?;
        if !shared.is_awake.swap(true, Ordering::AcqRel) {
            // If the pipe is full, the receiver is already awake.
            let _ = (&shared.waker).write(&[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Part;
    use inband_transport::certificates::{Authority, CertificateFiles};
    use std::path::Path;
    use std::time::Instant;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn peers(number: u8, transport: Transport) -> PeerLinks<u64> {
        let address = inband_testing::port::free_address();
        let nodes = (0..3).map(|place| Part::Replica(place).node()).collect();
        PeerLinks::listen(address, number, nodes, transport).expect("listens")
    }

    /// Polls for the next message.
    fn next(links: &mut PeerLinks<u64>) -> (u8, u64) {
        loop {
            if let Some(message) = links.receive() {
                return message;
            }
            let mut fds = [nix::poll::PollFd::new(
                std::os::fd::AsFd::as_fd(&links.wake),
                nix::poll::PollFlags::POLLIN,
            )];
            let woken = nix::poll::poll(&mut fds, 10_000u16).expect("polls");
            assert_eq!(woken, 1, "nobody was woken");
        }
    }

    fn wait_for(links: &PeerLinks<u64>, counter: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while links.counters()[counter] == 0 {
            assert!(Instant::now() < deadline, "{:?}", links.counters());
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn messages_come_in_order_and_wake_whoever_polls() {
        let mut one = peers(1, Transport::plain());
        let mut other = peers(2, Transport::plain());
        for number in 0..100 {
            one.send(other.address(), number);
        }
        for number in 0..100 {
            assert_eq!(next(&mut other), (1, number));
        }
        assert_eq!(other.receive(), None);
        assert_eq!(other.shared.incoming_bytes.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_peer_that_says_little_is_listened_to_on_one_connection() {
        let mut one = peers(1, Transport::plain());
        let mut other = peers(2, Transport::plain());
        for number in 0..15 {
            one.send(other.address(), number);
            // Messages on a connection that has ended are lost.
            assert_eq!(next(&mut other), (1, number));
            thread::sleep(Duration::from_millis(100));
        }
    }

    #[test]
    fn nonsense_is_hung_up_on() {
        let mut one = peers(1, Transport::plain());
        let mut stream = TcpStream::connect(one.address()).expect("connects");
        stream.write_all(&[0xff; 64]).expect("sends");
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
        wait_for(&one, "flair_peers_closed_protocol");
        assert_eq!(one.receive(), None);
    }

    #[test]
    fn all_messages_together_are_bounded() {
        let one = peers(1, Transport::plain());
        let connect = || TcpStream::connect(one.address()).expect("connects");
        let announce = |mut stream: &TcpStream, len_bytes: usize| {
            let len = (len_bytes as u32).to_be_bytes();
            stream.write_all(&len).expect("announces");
        };
        let first = connect();
        announce(&first, MESSAGE_LEN_MAX_BYTES);
        let deadline = Instant::now() + TIMEOUT;
        let held = || one.shared.incoming_bytes.load(Ordering::Acquire);
        while held() < MESSAGE_LEN_MAX_BYTES {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(2));
        }
        let mut second = connect();
        announce(&second, INCOMING_BYTES_MAX - MESSAGE_LEN_MAX_BYTES + 1);
        assert_eq!(second.read(&mut [0; 1]).unwrap_or(0), 0, "hung up on");
        wait_for(&one, "flair_peers_closed_memory");
        drop(first);
        while held() > 0 {
            assert!(Instant::now() < deadline, "it is given back");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn connections_are_bounded() {
        let one = peers(1, Transport::plain());
        let streams: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| TcpStream::connect(one.address()).expect("connects"))
            .collect();
        let mut further = TcpStream::connect(one.address()).expect("connects");
        assert_eq!(further.read(&mut [0; 1]).unwrap_or(0), 0, "hung up on");
        wait_for(&one, "flair_peers_refused");
        drop(streams);
    }

    fn secure(authority: &Authority, dir: &Path, replica: usize) -> Transport {
        let dir = dir.join(replica.to_string());
        let files = CertificateFiles {
            ca: dir.join("ca.pem"),
            certificate: dir.join("certificate.pem"),
            key: dir.join("key.pem"),
        };
        let node = Part::Replica(replica).node();
        authority.issue(node, &[], &files).expect("a certificate");
        Transport::mutual(&files).expect("usable")
    }

    #[test]
    fn with_certificates_nobody_speaks_for_another_and_strangers_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::open_or_make(&dir.path().join("a"), "c").expect("made");
        let foreign = Authority::open_or_make(&dir.path().join("b"), "c").expect("made");
        let transport = |replica| secure(&authority, dir.path(), replica);
        let mut one = peers(1, transport(1));
        let mut two = peers(2, transport(2));
        two.send(one.address(), 7);
        assert_eq!(next(&mut one), (2, 7));
        for (number, transport, counter) in [
            (0, transport(2), "tls_refused_other_node"),
            (
                2,
                secure(&foreign, &dir.path().join("f"), 2),
                // The peer rejects first: to it, our certificate is the foreign one.
                "tls_handshakes_failed",
            ),
            (2, Transport::plain(), "tls_refused_plain"),
        ] {
            let mut stranger = peers(number, transport);
            stranger.send(one.address(), 8);
            wait_for(&one, counter);
        }
        two.send(one.address(), 9);
        assert_eq!(next(&mut one), (2, 9), "and nothing of the others");
    }
}
