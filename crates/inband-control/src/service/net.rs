//! What control services say to each other over TCP. Connections go one way; an
//! answer to a host travels over the connection to its own service. Only calls of clients are answered
//! on the connection they came on.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use inband_transport::frames::{read_body, read_len, write_frame};
use inband_transport::paced::Pace;
use inband_transport::tls::{is_refused, Transport};
use serde::{Deserialize, Serialize};

use super::call::{Request, Response};
use crate::configuration::{Identity, NodeId};
use crate::message::Message;
use crate::raft_node::RaftMessage;

/// Longest frame in bytes: a piece of votes, or a snapshot of the state, with room to spare.
pub(super) const FRAME_LEN_MAX_BYTES: usize = 8 << 20;
/// A client that says nothing for this long is hung up on.
const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Whoever connects must say something after this long, and a frame that has begun must end.
const FRAME_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections served at once.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Bytes of all frames together that are being read or wait for the service's thread.
const INCOMING_BYTES_MAX: usize = 64 << 20;
/// Pause after accepting failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often each limit was hit: what strangers were refused, or hung up on for.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    connections_refused: AtomicU64,
    accepts_failed: AtomicU64,
    closed_protocol: AtomicU64,
    closed_slow: AtomicU64,
    closed_memory: AtomicU64,
    closed_foreign: AtomicU64,
    links_refused: AtomicU64,
}

impl ListenerCounters {
    /// All of them, with their names in `inband status --json` and in the metrics.
    pub fn all(&self) -> [(&'static str, u64); 7] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            (
                "control_connections_refused",
                get(&self.connections_refused),
            ),
            ("control_accepts_failed", get(&self.accepts_failed)),
            ("control_closed_protocol", get(&self.closed_protocol)),
            ("control_closed_slow", get(&self.closed_slow)),
            ("control_closed_memory", get(&self.closed_memory)),
            ("control_closed_foreign", get(&self.closed_foreign)),
            ("control_links_refused", get(&self.links_refused)),
        ]
    }
}

impl ListenerCounters {
    /// A frame was not sent: too many links are open.
    pub(super) fn link_refused(&self) {
        count(&self.links_refused);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Bytes of frames that came in, counted as long as it lives.
pub(super) struct Share {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl Share {
    /// `None`: it would be too much.
    fn of(bytes: usize, total: &Arc<AtomicUsize>) -> Option<Share> {
        let share = Share {
            bytes,
            total: total.clone(),
        };
        let before = total.fetch_add(bytes, Ordering::AcqRel);
        (before + bytes <= INCOMING_BYTES_MAX).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// What travels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Frame {
    /// Tells clusters apart.
    pub cluster: u64,
    /// Who sends it, and where answers go; node 0: a client.
    pub from: NodeId,
    pub control: Option<SocketAddr>,
    pub body: Body,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Body {
    Host(Message),
    Raft(RaftMessage),
    Announce(Announcement),
    Call(Request),
    Answer(Response),
}

/// A controller's words about its log, to the other controllers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Announcement {
    pub raft_id: u64,
    pub is_in_group: bool,
    pub identity: Identity,
    pub settings: String,
}

/// For the service's thread.
pub(super) enum Event {
    Frame(Frame, Share),
    Call(Request, Sender<Response>),
    Stop,
}

/// What the threads that serve connections share.
pub(super) struct ListenerState {
    /// Frames of another cluster are not listened to.
    pub cluster: u64,
    pub events: SyncSender<Event>,
    pub stop: Arc<AtomicBool>,
    pub counters: Arc<ListenerCounters>,
    /// Bytes of frames that are being read or wait.
    pub incoming_bytes: Arc<AtomicUsize>,
    pub transport: Transport,
}

/// Serve connections until told to stop.
pub(super) fn listen(
    listener: TcpListener,
    shared: ListenerState,
) -> io::Result<thread::JoinHandle<()>> {
    let (shared, open) = (Arc::new(shared), Arc::new(()));
    let accept = move || {
        for stream in listener.incoming() {
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            let Ok(stream) = stream else {
                // Whoever waits is still there: without a pause this would spin.
                count(&shared.counters.accepts_failed);
                thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            if Arc::strong_count(&open) > CONNECTIONS_MAX {
                count(&shared.counters.connections_refused);
                continue; // hangs up
            }
            let (shared, open) = (shared.clone(), open.clone());
            let serve = move || {
                let _open = open;
                // However a connection ends, the peer notices and opens another.
                if let Err(error) = serve(stream, &shared) {
                    match error.kind() {
                        // Counted by the transport.
                        _ if is_refused(&error) => {}
                        io::ErrorKind::TimedOut => count(&shared.counters.closed_slow),
                        io::ErrorKind::InvalidData => count(&shared.counters.closed_protocol),
                        io::ErrorKind::OutOfMemory => count(&shared.counters.closed_memory),
                        _ => {}
                    }
                }
            };
            let _ = thread::Builder::new()
                .name("control-conn".into())
                .spawn(serve);
        }
    };
    thread::Builder::new()
        .name("control-listen".into())
        .spawn(accept)
}

/// Any pace will do as long as frames end in time.
const PACE: Pace = Pace {
    silence_max: CLIENT_IDLE_TIMEOUT,
    grace: Duration::ZERO,
    bytes_per_s_min: 0,
};

fn serve(stream: TcpStream, shared: &ListenerState) -> io::Result<()> {
    let mut stream = shared.transport.accept(stream, PACE)?;
    stream.paced_mut().must_end_in(Some(FRAME_TIMEOUT))?;
    let mut has_spoken = false;
    // For which node its certificate was found to speak.
    let mut node = None;
    loop {
        let len = match read_len(&mut stream, FRAME_LEN_MAX_BYTES) {
            Err(error) if has_spoken && error.kind() == io::ErrorKind::TimedOut => return Ok(()),
            len => len?,
        };
        stream.paced_mut().must_end_in(Some(FRAME_TIMEOUT))?;
        let share = Share::of(len, &shared.incoming_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let frame: Frame = read_body(&mut stream, len)?;
        if frame.cluster != shared.cluster {
            count(&shared.counters.closed_foreign);
            return Ok(());
        }
        let gone = |_| io::Error::from(io::ErrorKind::NotConnected);
        match frame.body {
            Body::Call(request) => {
                drop(share);
                let (answer, answered) = mpsc::channel();
                let call = Event::Call(request, answer);
                shared.events.send(call).map_err(gone)?;
                let response = answered.recv().unwrap_or(Response::OutcomeUnknown);
                stream.paced_mut().must_end_in(Some(FRAME_TIMEOUT))?;
                write_frame(&mut stream, &answer_of(shared.cluster, response))?;
            }
            _ => {
                if node != Some(frame.from) && !stream.may_be_node(frame.from) {
                    return Ok(());
                }
                node = Some(frame.from);
                shared
                    .events
                    .send(Event::Frame(frame, share))
                    .map_err(gone)?;
            }
        }
        stream.paced_mut().must_end_in(None)?;
        has_spoken = true;
    }
}

fn answer_of(cluster: u64, response: Response) -> Frame {
    Frame {
        cluster,
        from: 0,
        control: None,
        body: Body::Answer(response),
    }
}
