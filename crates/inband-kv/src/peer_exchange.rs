//! Which replicas serve, and where clients reach them. Each replica asks the others, on its own thread.
//!
//! A question is a TCP connection to the address that serves checkpoints. The asker sends the magic. The answer is the
//! magic, then node id, whether the replica serves, the id of the node that it takes for the master, and port (64 bits
//! each, big-endian), then the host as a string.
//!
//! A replica that refuses the connection, or has not answered [`PEER_MISSES_MAX`] questions in a row, is left out until
//! it answers again.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inband_host::config::ClientAddress;
use inband_transport::paced::Pace;
use inband_transport::tls::Transport;

use crate::checkpoint::{read_array, read_text, read_u64, write_text, write_u64};
use crate::limits::{
    PEER_MISSES_MAX, PEER_MISSING_PERIOD_MS, PEER_PERIOD_MS, PEER_ROUND_TRIP_MS_MAX,
};

/// First bytes of a question and of its answer; the digit is the version.
pub const PEER_MAGIC: [u8; 8] = *b"IBPEERS1";

/// How long a peer may be silent.
const PACE: Pace = Pace {
    silence_max: Duration::from_millis(PEER_ROUND_TRIP_MS_MAX),
    grace: Duration::MAX,
    bytes_per_s_min: 0,
};

/// What a replica tells about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Node id.
    pub node: u64,
    /// Where clients connect.
    pub address: ClientAddress,
    /// It takes commands.
    pub is_serving: bool,
    /// The node that it takes for the master.
    pub master: Option<u64>,
}

/// How a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It takes commands, and nothing is known to be wrong.
    Serves,
    /// It takes commands, and nothing has been decided for a while.
    Stuck,
    /// It takes no commands now.
    Refuses,
}

/// The replicas as one of them knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The replica that has this view.
    pub own: u64,
    /// The living ones, by node id. The first is the master: as all replicas take all commands, any of them would do,
    /// and so they agree on one.
    pub living: Vec<Announcement>,
}

impl View {
    pub fn master(&self) -> Option<&Announcement> {
        self.living.first()
    }

    /// Returns where to send a client that should talk to the master, if that is another replica and it agrees.
    pub fn redirection(&self) -> Option<&ClientAddress> {
        let master = self.master()?;
        let is_other = master.node != self.own && master.master == Some(master.node);
        is_other.then_some(&master.address)
    }
}

#[derive(Debug)]
struct Peer {
    /// The last answer, unless the peer is taken for dead.
    heard: Option<Announcement>,
    /// Questions in a row without an answer.
    misses: u32,
}

#[derive(Debug)]
struct State {
    own: Announcement,
    peers: BTreeMap<SocketAddr, Peer>,
}

impl State {
    fn hears_anybody(&self) -> bool {
        self.peers.values().any(|peer| peer.heard.is_some())
    }

    fn note_master(&mut self) {
        self.own.master = self.view().master().map(|master| master.node);
    }

    /// Returns when to ask again: sooner if not all serve.
    fn period(&self) -> Duration {
        let serves = |peer: &Peer| peer.heard.as_ref().is_some_and(|heard| heard.is_serving);
        Duration::from_millis(match self.peers.values().all(serves) {
            true => PEER_PERIOD_MS,
            false => PEER_MISSING_PERIOD_MS,
        })
    }

    fn view(&self) -> View {
        let heard = self.peers.values().filter_map(|peer| peer.heard.as_ref());
        let all = std::iter::once(&self.own).chain(heard);
        let mut living: Vec<_> = all.filter(|one| one.is_serving).cloned().collect();
        living.sort_by(|a, b| (a.node, &a.address).cmp(&(b.node, &b.address)));
        View {
            own: self.own.node,
            living,
        }
    }
}

/// The replicas, shared by all threads of one of them.
#[derive(Clone)]
pub struct Peers(Arc<Mutex<State>>);

impl Peers {
    pub fn new(node: u64, address: ClientAddress, peers: Vec<SocketAddr>) -> Self {
        let own = Announcement {
            node,
            address,
            is_serving: false,
            master: None,
        };
        let state = State {
            own,
            peers: BTreeMap::new(),
        };
        let new = Self(Arc::new(Mutex::new(state)));
        new.set(peers, Condition::Refuses);
        new
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where the other replicas answer, and how this one is.
    pub fn set(&self, peers: Vec<SocketAddr>, condition: Condition) {
        let mut state = self.lock();
        state.peers.retain(|address, _| peers.contains(address));
        for address in peers {
            state.peers.entry(address).or_insert(Peer {
                heard: None,
                misses: 0,
            });
        }
        state.own.is_serving = match condition {
            Condition::Serves => true,
            // One that reaches nobody is more likely the odd one than the last one.
            Condition::Stuck => state.hears_anybody() || state.peers.is_empty(),
            Condition::Refuses => false,
        };
        state.note_master();
    }

    pub fn view(&self) -> View {
        self.lock().view()
    }

    /// Answers a question whose magic has been read.
    pub(crate) fn answer(&self, to: &mut impl Write) -> io::Result<()> {
        let own = self.lock().own.clone();
        let mut bytes = Vec::from(PEER_MAGIC);
        write_u64(&mut bytes, own.node)?;
        write_u64(&mut bytes, u64::from(own.is_serving))?;
        // 0 is no node id on the wire.
        write_u64(&mut bytes, own.master.map_or(0, |node| node + 1))?;
        write_u64(&mut bytes, u64::from(own.address.port))?;
        write_text(&mut bytes, &own.address.host)?;
        to.write_all(&bytes)?;
        to.flush()
    }

    /// Notes what a peer said, or how the question failed.
    fn note(&self, address: SocketAddr, answer: io::Result<Announcement>) {
        let mut state = self.lock();
        let Some(peer) = state.peers.get_mut(&address) else {
            return;
        };
        let was_heard = peer.heard.is_some();
        match answer {
            Ok(heard) => (peer.heard, peer.misses) = (Some(heard), 0),
            Err(error) => {
                peer.misses = peer.misses.saturating_add(1);
                let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
                if is_refused || peer.misses >= PEER_MISSES_MAX {
                    peer.heard = None;
                }
                if was_heard && peer.heard.is_none() {
                    tracing::info!("the replica at {address} does not answer: {error}");
                }
            }
        }
        state.note_master();
    }

    fn ask_all(&self, transport: &Transport) {
        let peers: Vec<SocketAddr> = self.lock().peers.keys().copied().collect();
        for peer in peers {
            self.note(peer, ask(peer, transport));
        }
    }
}

fn ask(peer: SocketAddr, transport: &Transport) -> io::Result<Announcement> {
    let timeout = Duration::from_millis(PEER_ROUND_TRIP_MS_MAX);
    let mut stream = transport.connect(peer, timeout, PACE)?;
    stream.write_all(&PEER_MAGIC)?;
    stream.flush()?;
    read_announcement(&mut stream)
}

fn read_announcement(from: &mut impl Read) -> io::Result<Announcement> {
    let wrong = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidData, text));
    if read_array(from)? != PEER_MAGIC {
        return wrong("it does not tell where its clients connect; an older version?");
    }
    let node = read_u64(from)?;
    let is_serving = read_u64(from)? == 1;
    let master = read_u64(from)?.checked_sub(1);
    let port = u16::try_from(read_u64(from)?);
    let host = read_text(from)?;
    // What it sends is repeated to clients.
    let Ok(address) = port.map_or(Err(String::new()), |port| {
        ClientAddress { host, port }.to_string().parse()
    }) else {
        return wrong("the address that it announces is none");
    };
    Ok(Announcement {
        node,
        address,
        is_serving,
        master,
    })
}

/// Asks until dropped.
pub struct PeerExchange {
    /// Dropped to end the thread.
    _stop: Sender<()>,
}

impl PeerExchange {
    pub fn start(peers: Peers, transport: Transport) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let run = move || run(&peers, &transport, &stopped);
        // The thread is detached: it holds no resources that others need.
        std::thread::Builder::new()
            .name("ib-peers".into())
            .spawn(run)?;
        Ok(Self { _stop: stop })
    }
}

fn run(peers: &Peers, transport: &Transport, stopped: &Receiver<()>) {
    loop {
        peers.ask_all(transport);
        let period = peers.lock().period();
        if stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn announcement(node: u64, is_serving: bool) -> Announcement {
        Announcement {
            node,
            address: address(6380 + node as u16).into(),
            is_serving,
            master: Some(node),
        }
    }

    fn living(peers: &Peers) -> Vec<u64> {
        let view = peers.view();
        view.living.iter().map(|one| one.node).collect()
    }

    fn miss(kind: io::ErrorKind) -> io::Result<Announcement> {
        Err(kind.into())
    }

    #[test]
    fn who_lives() {
        let others = vec![address(1), address(3)];
        let peers = Peers::new(2, address(6382).into(), others.clone());
        assert!(living(&peers).is_empty(), "it loads");
        let set = |condition| peers.set(others.clone(), condition);
        set(Condition::Serves);
        assert_eq!(living(&peers), [2]);
        peers.note(address(3), Ok(announcement(3, true)));
        peers.note(address(1), Ok(announcement(1, true)));
        assert_eq!(living(&peers), [1, 2, 3]);
        // One that loads or drains is left out.
        peers.note(address(1), Ok(announcement(1, false)));
        assert_eq!(living(&peers), [2, 3]);
        set(Condition::Refuses);
        assert_eq!(living(&peers), [3]);
        // If nothing is decided while others are heard, the cluster is to blame.
        set(Condition::Stuck);
        assert_eq!(living(&peers), [2, 3]);
        // A refused connection ends it at once, silence after some questions.
        peers.note(address(3), miss(io::ErrorKind::ConnectionRefused));
        assert_eq!(living(&peers), [2]);
        peers.note(address(3), Ok(announcement(3, true)));
        for _ in 1..PEER_MISSES_MAX {
            peers.note(address(3), miss(io::ErrorKind::TimedOut));
            assert_eq!(living(&peers), [2, 3]);
        }
        peers.note(address(3), miss(io::ErrorKind::TimedOut));
        assert_eq!(living(&peers), [2]);
        peers.note(address(1), miss(io::ErrorKind::ConnectionRefused));
        set(Condition::Stuck);
        assert!(living(&peers).is_empty(), "it is cut off");
        set(Condition::Serves);
        assert_eq!(living(&peers), [2]);
        // A host that was removed is forgotten, and unknown ones say nothing.
        peers.note(address(3), Ok(announcement(3, true)));
        peers.set(vec![address(1)], Condition::Serves);
        assert_eq!(living(&peers), [2]);
        peers.note(address(9), Ok(announcement(9, true)));
        assert_eq!(living(&peers), [2]);
        // Without peers it is all there is.
        peers.set(Vec::new(), Condition::Stuck);
        assert_eq!(living(&peers), [2]);
    }

    #[test]
    fn it_asks_more_often_while_one_is_missing() {
        let peers = Peers::new(2, address(6382).into(), vec![address(1)]);
        let period_ms = || peers.lock().period().as_millis() as u64;
        assert_eq!(period_ms(), PEER_MISSING_PERIOD_MS);
        peers.note(address(1), Ok(announcement(1, false)));
        assert_eq!(period_ms(), PEER_MISSING_PERIOD_MS);
        peers.note(address(1), Ok(announcement(1, true)));
        assert_eq!(period_ms(), PEER_PERIOD_MS);
    }

    #[test]
    fn redirections_only_go_to_a_master_that_agrees() {
        let peers = Peers::new(2, address(6382).into(), vec![address(1)]);
        peers.set(vec![address(1)], Condition::Serves);
        assert_eq!(peers.view().redirection(), None, "it is the master itself");
        let undecided = Announcement {
            master: Some(3),
            ..announcement(1, true)
        };
        peers.note(address(1), Ok(undecided));
        assert_eq!(peers.view().redirection(), None);
        peers.note(address(1), Ok(announcement(1, true)));
        assert_eq!(peers.view().redirection(), Some(&address(6381).into()));
    }

    #[test]
    fn an_answer_is_read_as_written() {
        let peers = Peers::new(7, "host-7.example:6379".parse().unwrap(), Vec::new());
        peers.set(Vec::new(), Condition::Serves);
        let mut bytes = Vec::new();
        peers.answer(&mut bytes).unwrap();
        let read = read_announcement(&mut &bytes[..]).unwrap();
        assert_eq!(read, peers.view().living[0]);
        assert_eq!(read.master, Some(7));
        // Clients get no address that this replica would not accept in its configuration.
        let at = bytes.len() - "host-7.example".len();
        for forged in [
            &b"h\r\n+OK.example."[..14],
            b"..............",
            b"0.0.0.0.0.0.00",
        ] {
            bytes[at..].copy_from_slice(forged);
            assert!(read_announcement(&mut &bytes[..]).is_err(), "{forged:?}");
        }
        bytes[7] = b'9';
        assert!(read_announcement(&mut &bytes[..]).is_err());
    }
}
