//! Frames between control services over TCP: a length, then the frame. Connections go one way; an
//! answer to a host travels over the connection to its own service. Only calls of clients are answered
//! on the connection they came on.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::call::{Request, Response};
use crate::configuration::{Identity, NodeId};
use crate::message::Message;
use crate::raft_node::RaftMessage;

/// Longest frame in bytes: a piece of votes, or a snapshot of the state, with room to spare.
const FRAME_LEN_MAX_BYTES: usize = 8 << 20;
/// Frames waiting for a peer that does not take them; further ones are dropped, as a network does.
const LINK_QUEUE_FRAMES: usize = 256;
/// How long a connection to a peer may take to open, and a frame to be sent.
const LINK_TIMEOUT: Duration = Duration::from_secs(1);
/// A client that says nothing for this long is hung up on.
const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections served at once.
const CONNECTIONS_MAX: usize = 256;

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
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Announcement {
    pub raft_id: u64,
    pub is_in_group: bool,
    pub identity: Identity,
}

/// For the service's thread.
pub(super) enum Event {
    Frame(Frame),
    Call(Request, Sender<Response>),
    Stop,
}

pub(super) fn write_frame(stream: &mut impl Write, frame: &Frame) -> io::Result<()> {
    let bytes = postcard::to_stdvec(frame).expect("a frame can always be written");
    let len = u32::try_from(bytes.len()).expect("frames are short");
    stream.write_all(&len.to_be_bytes())?;
    stream.write_all(&bytes)?;
    stream.flush()
}

pub(super) fn read_frame(stream: &mut impl Read) -> io::Result<Frame> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    if len > FRAME_LEN_MAX_BYTES {
        return Err(bad("a frame is too long"));
    }
    let mut bytes = Vec::new();
    // Grows as bytes arrive: a length alone reserves nothing.
    stream.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(bad("a frame is cut off"));
    }
    postcard::from_bytes(&bytes).map_err(|_| bad("not a frame"))
}

/// Serve connections until told to stop.
pub(super) fn listen(
    listener: TcpListener,
    cluster: u64,
    events: SyncSender<Event>,
    stop: Arc<AtomicBool>,
) -> io::Result<thread::JoinHandle<()>> {
    let open = Arc::new(());
    let accept = move || {
        for stream in listener.incoming() {
            if stop.load(Ordering::Acquire) {
                return;
            }
            let Ok(stream) = stream else { continue };
            if Arc::strong_count(&open) > CONNECTIONS_MAX {
                continue; // hangs up
            }
            let (events, open) = (events.clone(), open.clone());
            let serve = move || {
                let _open = open;
                // However a connection ends, the peer notices and opens another.
                let _ = serve(stream, cluster, &events);
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

fn serve(mut stream: TcpStream, cluster: u64, events: &SyncSender<Event>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CLIENT_IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(LINK_TIMEOUT))?;
    loop {
        let frame = read_frame(&mut stream)?;
        if frame.cluster != cluster {
            return Ok(());
        }
        let gone = |_| io::Error::from(io::ErrorKind::NotConnected);
        let Body::Call(request) = frame.body else {
            events.send(Event::Frame(frame)).map_err(gone)?;
            continue;
        };
        let (answer, answered) = mpsc::channel();
        events.send(Event::Call(request, answer)).map_err(gone)?;
        let response = answered.recv().unwrap_or(Response::OutcomeUnknown);
        let frame = Frame {
            cluster,
            from: 0,
            control: None,
            body: Body::Answer(response),
        };
        write_frame(&mut stream, &frame)?;
    }
}

/// Connections to other services, each with a thread that opens it and sends.
#[derive(Default)]
pub(super) struct Links {
    links: BTreeMap<SocketAddr, SyncSender<Frame>>,
}

impl Links {
    /// Send a frame if that is possible now; else it is lost.
    pub fn send(&mut self, to: SocketAddr, frame: Frame) {
        let link = self.links.entry(to).or_insert_with(|| {
            let (link, frames) = mpsc::sync_channel(LINK_QUEUE_FRAMES);
            let run = move || run_link(to, &frames);
            // Without a thread the channel is closed, and the next frame tries again.
            let _ = thread::Builder::new()
                .name("control-link".into())
                .spawn(run);
            link
        });
        if let Err(mpsc::TrySendError::Disconnected(_)) = link.try_send(frame) {
            self.links.remove(&to);
        }
    }
}

/// Send frames as they come; whatever does not get through is lost.
fn run_link(to: SocketAddr, frames: &Receiver<Frame>) {
    let mut stream: Option<TcpStream> = None;
    while let Ok(frame) = frames.recv() {
        if stream.is_none() {
            stream = TcpStream::connect_timeout(&to, LINK_TIMEOUT).ok();
        }
        let Some(open) = &mut stream else {
            // What has been waiting meanwhile is out of date.
            while frames.try_recv().is_ok() {}
            continue;
        };
        let _ = open.set_nodelay(true);
        let _ = open.set_write_timeout(Some(LINK_TIMEOUT));
        if write_frame(open, &frame).is_err() {
            stream = None;
        }
    }
}
