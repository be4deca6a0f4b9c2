//! Messages over TCP: a length, then the message in postcard format. [`Links`] only sends; a listener reads with
//! [`read_len`] and [`read_body`], and may account for the memory in between.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::paced::Pace;
use crate::tls::{Stream, Transport};

/// Messages queued for a peer that does not accept them; further ones are dropped, as in a network.
const LINK_QUEUE_FRAMES: usize = 256;
/// Time limit for opening a connection, and for the peer to accept a message.
const LINK_TIMEOUT: Duration = Duration::from_secs(1);
/// A link without messages for this long is closed; the next message opens a new one.
const LINK_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Most links at once: to every other possible node, and some that have just changed their address.
const LINKS_MAX: usize = 300;

/// Size of the length prefix.
const LEN_BYTES: usize = 4;
/// Memory reserved on the basis of a message's length alone: enough for most messages.
const BODY_RESERVED_BYTES: usize = 8 << 10;

pub fn write_frame(stream: &mut impl Write, frame: &impl Serialize) -> io::Result<()> {
    // In one write, including the length: two writes would be two packets, and wake the peer twice.
    let room = vec![0; LEN_BYTES];
    let mut bytes = postcard::to_extend(frame, room).expect("a message can always be written");
    let len = u32::try_from(bytes.len() - LEN_BYTES);
    let len = len.map_err(|_| bad("a message of 4 GiB or more"))?;
    bytes[..LEN_BYTES].copy_from_slice(&len.to_be_bytes());
    stream.write_all(&bytes)?;
    stream.flush()
}

/// Returns the length of the message that follows, at most `len_max_bytes`.
pub fn read_len(stream: &mut impl Read, len_max_bytes: usize) -> io::Result<usize> {
    let mut len = [0; LEN_BYTES];
    stream.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > len_max_bytes {
        return Err(bad("a message is too long"));
    }
    Ok(len)
}

/// Returns the message itself. [`io::ErrorKind::InvalidData`] if it does not decode.
pub fn read_body<F: DeserializeOwned>(stream: &mut impl Read, len: usize) -> io::Result<F> {
    // Grows as bytes arrive: a length alone reserves no more than this.
    let mut bytes = Vec::with_capacity(len.min(BODY_RESERVED_BYTES));
    stream.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(|_| bad("not a message"))
}

/// Reads a length and its message.
pub fn read_frame<F: DeserializeOwned>(
    stream: &mut impl Read,
    len_max_bytes: usize,
) -> io::Result<F> {
    let len = read_len(stream, len_max_bytes)?;
    read_body(stream, len)
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

struct Link<F> {
    frames: SyncSender<F>,
    /// Dropped by the link's thread when it ends.
    lives: Weak<()>,
}

/// Connections to other hosts, each with a thread that opens it and sends.
pub struct Links<F> {
    links: BTreeMap<SocketAddr, Link<F>>,
    transport: Transport,
    thread_name: &'static str,
}

impl<F: Serialize + Send + 'static> Links<F> {
    pub fn new(transport: Transport, thread_name: &'static str) -> Links<F> {
        Links {
            links: BTreeMap::new(),
            transport,
            thread_name,
        }
    }

    /// Sends a message if that is possible now; otherwise it is lost. Returns false if too many links are open.
    pub fn send(&mut self, to: SocketAddr, frame: F) -> bool {
        let mut frame = frame;
        if let Some(link) = self.links.get(&to) {
            match link.frames.try_send(frame) {
                Err(mpsc::TrySendError::Disconnected(unsent)) => frame = unsent,
                Ok(()) | Err(mpsc::TrySendError::Full(_)) => return true,
            }
            // The link ended because it was idle, or had no thread.
            self.links.remove(&to);
        }
        if self.links.len() >= LINKS_MAX {
            // Otherwise a host that can make this one answer could make it open any number of links.
            self.links.retain(|_, link| link.lives.strong_count() > 0);
        }
        if self.links.len() >= LINKS_MAX {
            return false;
        }
        let link = self.open(to);
        let _ = link.frames.try_send(frame);
        self.links.insert(to, link);
        true
    }

    fn open(&self, to: SocketAddr) -> Link<F> {
        let (sender, frames) = mpsc::sync_channel(LINK_QUEUE_FRAMES);
        let alive = Arc::new(());
        let lives = Arc::downgrade(&alive);
        let transport = self.transport.clone();
        let run = move || {
            run_link(to, &frames, &transport);
            drop(alive);
        };
        // Without a thread the channel is closed, and the next message retries.
        let _ = thread::Builder::new()
            .name(self.thread_name.into())
            .spawn(run);
        Link {
            frames: sender,
            lives,
        }
    }
}

/// A message must be accepted in time; nothing is read.
const LINK_PACE: Pace = Pace {
    silence_max: LINK_TIMEOUT,
    grace: Duration::ZERO,
    bytes_per_s_min: 0,
};

fn is_alive(stream: &Stream) -> bool {
    matches!(stream.paced().stream().take_error(), Ok(None))
}

/// Sends messages as they arrive; those that do not get through are lost.
fn run_link<F: Serialize>(to: SocketAddr, frames: &Receiver<F>, transport: &Transport) {
    let mut stream: Option<Stream> = None;
    while let Ok(frame) = frames.recv_timeout(LINK_IDLE_TIMEOUT) {
        // Discard a connection that the system has closed: data written to it would be lost.
        stream = stream.filter(is_alive);
        if stream.is_none() {
            stream = transport.connect(to, LINK_TIMEOUT, LINK_PACE).ok();
        }
        let Some(open) = &mut stream else {
            // Messages that have been waiting meanwhile are out of date.
            while frames.try_recv().is_ok() {}
            continue;
        };
        if write_frame(open, &frame).is_err() {
            stream = None;
        }
    }
}
