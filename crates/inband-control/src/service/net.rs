//! Communication between control services over TCP. Connections are one-way: an answer to a host travels over the
//! connection to its own service. Only client calls are answered on their own connection.

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
/// A client that is silent for this long is disconnected.
const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A new connection must send something within this time, and a frame must be completed within it.
const FRAME_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections served at once.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Most bytes of all frames that are being read or wait for the service's thread.
const INCOMING_BYTES_MAX: usize = 64 << 20;
/// Pause after `accept` failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often each limit was hit, and connections were refused or closed.
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
    /// Returns all counters, with their names in `inband status --json` and in the metrics.
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

/// Bytes of received frames, counted while it exists.
pub(super) struct Share {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl Share {
    /// `None`: the limit would be exceeded.
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

/// A frame on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Frame {
    /// Distinguishes clusters.
    pub cluster: u64,
    /// The sender, and the address for answers; node 0: a client.
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

/// A controller's announcement of its log to the other controllers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Announcement {
    pub raft_id: u64,
    pub is_in_group: bool,
    pub identity: Identity,
    pub settings: String,
}

/// An event for the service's thread.
pub(super) enum Event {
    Frame(Frame, Share),
    Call(Request, Sender<Response>),
    Stop,
}

/// Shared by the threads that serve connections.
pub(super) struct ListenerState {
    /// Frames of other clusters are ignored.
    pub cluster: u64,
    pub events: SyncSender<Event>,
    pub stop: Arc<AtomicBool>,
    pub counters: Arc<ListenerCounters>,
    /// Bytes of frames that are being read or wait.
    pub incoming_bytes: Arc<AtomicUsize>,
    pub transport: Transport,
}

/// Serves connections until told to stop.
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
                // The pending connection is still there: without a pause this would spin.
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
                // However a connection ends, the peer notices and opens another one.
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

/// Any rate is acceptable as long as frames are completed in time.
const PACE: Pace = Pace {
    silence_max: CLIENT_IDLE_TIMEOUT,
    grace: Duration::ZERO,
    bytes_per_s_min: 0,
};

fn serve(stream: TcpStream, shared: &ListenerState) -> io::Result<()> {
    let mut stream = shared.transport.accept(stream, PACE)?;
    stream.paced_mut().must_end_in(Some(FRAME_TIMEOUT));
    let mut has_spoken = false;
    // The node for which its certificate is valid, if known.
    let mut node = None;
    loop {
        let len = match read_len(&mut stream, FRAME_LEN_MAX_BYTES) {
            Err(error) if has_spoken && error.kind() == io::ErrorKind::TimedOut => return Ok(()),
            len => len?,
        };
        stream.paced_mut().must_end_in(Some(FRAME_TIMEOUT));
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
                stream.paced_mut().must_end_in(Some(FRAME_TIMEOUT));
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
        stream.paced_mut().must_end_in(None);
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
