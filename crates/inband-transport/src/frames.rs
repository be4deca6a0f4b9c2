//! Messages over TCP: a length, then the message in postcard's format. [`Links`] sends, one way; whoever
//! listens reads with [`read_len`] and [`read_body`], between which it may count what it is about to hold.

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

/// Messages waiting for a peer that does not take them; further ones are dropped, as a network does.
const LINK_QUEUE_FRAMES: usize = 256;
/// How long a connection to a peer may take to open, and a message to be taken.
const LINK_TIMEOUT: Duration = Duration::from_secs(1);
/// A link without a message to send for this long ends; the next one opens another.
const LINK_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Links at once: to every other node there can be, and some that have just changed their address.
const LINKS_MAX: usize = 300;

/// The length before a message.
const LEN_BYTES: usize = 4;
/// Memory that the length of a message alone reserves: most have room in it.
const BODY_RESERVED_BYTES: usize = 8 << 10;

/// Send one message.
pub fn write_frame(stream: &mut impl Write, frame: &impl Serialize) -> io::Result<()> {
    // In one piece, length and all: two would be two packets, and two wake-ups of the peer.
    let room = vec![0; LEN_BYTES];
    let mut bytes = postcard::to_extend(frame, room).expect("a message can always be written");
    let len = u32::try_from(bytes.len() - LEN_BYTES);
    let len = len.map_err(|_| bad("a message of 4 GiB or more"))?;
    bytes[..LEN_BYTES].copy_from_slice(&len.to_be_bytes());
    stream.write_all(&bytes)?;
    stream.flush()
}

/// The length of the message that follows, at most `len_max_bytes`.
pub fn read_len(stream: &mut impl Read, len_max_bytes: usize) -> io::Result<usize> {
    let mut len = [0; LEN_BYTES];
    stream.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > len_max_bytes {
        return Err(bad("a message is too long"));
    }
    Ok(len)
}

/// The message itself. [`io::ErrorKind::InvalidData`]: it is none.
pub fn read_body<F: DeserializeOwned>(stream: &mut impl Read, len: usize) -> io::Result<F> {
    // Grows as bytes arrive: a length alone reserves no more than this.
    let mut bytes = Vec::with_capacity(len.min(BODY_RESERVED_BYTES));
    stream.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(|_| bad("not a message"))
}

/// Both.
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
    /// Dropped by its thread at its end.
    lives: Weak<()>,
}

/// Connections to other hosts, each with a thread that opens it and sends.
pub struct Links<F> {
    links: BTreeMap<SocketAddr, Link<F>>,
    transport: Transport,
    thread_name: &'static str,
}

impl<F: Serialize + Send + 'static> Links<F> {
    /// None yet.
    pub fn new(transport: Transport, thread_name: &'static str) -> Links<F> {
        Links {
            links: BTreeMap::new(),
            transport,
            thread_name,
        }
    }

    /// Send a message if that is possible now; else it is lost. False: too many links are open.
    pub fn send(&mut self, to: SocketAddr, frame: F) -> bool {
        let mut frame = frame;
        if let Some(link) = self.links.get(&to) {
            match link.frames.try_send(frame) {
                Err(mpsc::TrySendError::Disconnected(unsent)) => frame = unsent,
                Ok(()) | Err(mpsc::TrySendError::Full(_)) => return true,
            }
            // It ended because it was idle, or had no thread.
            self.links.remove(&to);
        }
        if self.links.len() >= LINKS_MAX {
            // Whoever can make this host answer could have it open any number.
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
        // Without a thread the channel is closed, and the next message tries again.
        let _ = thread::Builder::new()
            .name(self.thread_name.into())
            .spawn(run);
        Link {
            frames: sender,
            lives,
        }
    }
}

/// A message must be taken in time; nothing is read.
const LINK_PACE: Pace = Pace {
    silence_max: LINK_TIMEOUT,
    grace: Duration::ZERO,
    bytes_per_s_min: 0,
};

fn is_alive(stream: &Stream) -> bool {
    matches!(stream.paced().stream().take_error(), Ok(None))
}

/// Send messages as they come; whatever does not get through is lost.
fn run_link<F: Serialize>(to: SocketAddr, frames: &Receiver<F>, transport: &Transport) {
    let mut stream: Option<Stream> = None;
    while let Ok(frame) = frames.recv_timeout(LINK_IDLE_TIMEOUT) {
        // One that the system has ended: what is written to it is lost.
        stream = stream.filter(is_alive);
        if stream.is_none() {
            stream = transport.connect(to, LINK_TIMEOUT, LINK_PACE).ok();
        }
        let Some(open) = &mut stream else {
            // What has been waiting meanwhile is out of date.
            while frames.try_recv().is_ok() {}
            continue;
        };
        if write_frame(open, &frame).is_err() {
            stream = None;
        }
    }
}
