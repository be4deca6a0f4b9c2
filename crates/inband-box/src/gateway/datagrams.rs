//! memcached's clients over UDP: a request in one datagram, and its reply in one.
//!
//! The sender address of a datagram can be forged, so replies go only to addresses of the network that the user has
//! named, and never take more than one datagram: a longer reply is refused with one line.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::request::{command_of, count, get, stats, Keys};
use super::{Counters, Shared};
use crate::apply::Outcome;
use crate::limits::{DATAGRAMS_PER_TURN_MAX, DATAGRAMS_UNDER_WAY_MAX, UNANSWERED_MS_MAX};
use crate::memcached::reply::Awaited;
use crate::memcached::udp::{self, DATAGRAM_BYTES_MAX, HEADER_BYTES};
use crate::memcached::{parse, Parsed, Request, ERROR};
use crate::network::Network;
use crate::registers::Client;

/// The slot of the commands of the first listener's clients, which no connection has; those of other listeners are
/// below it.
const SLOT: usize = usize::MAX - 1;
const TOO_LONG: &[u8] = b"SERVER_ERROR the reply is longer than a datagram; ask over TCP\r\n";
const NOT_HERE: &[u8] = b"SERVER_ERROR not over UDP; ask over TCP\r\n";

/// A request that has not been answered yet.
struct Asked {
    from: SocketAddr,
    request: u16,
    since: Instant,
    what: What,
}

enum What {
    Command(Awaited),
    Get {
        with_cas: bool,
        keys: Keys,
        barrier: u64,
    },
}

/// The socket to which clients send datagrams.
#[derive(Debug)]
pub struct Listener {
    pub socket: UdpSocket,
    /// Datagrams from outside this network are ignored.
    pub network: Network,
    /// Whether reads are answered at once, from this node's own copy.
    pub is_local: bool,
}

impl Listener {
    /// Returns another handle of the same socket.
    pub fn try_clone(&self) -> io::Result<Listener> {
        Ok(Listener {
            socket: self.socket.try_clone()?,
            ..*self
        })
    }
}

/// The clients that use datagrams. See the [module](self).
pub(super) struct Datagrams {
    listener: Listener,
    slot: usize,
    asked: BTreeMap<u64, Asked>,
    next: u64,
    /// Whether there may be more datagrams than a turn takes.
    pub is_ready: bool,
}

impl Datagrams {
    /// Creates the clients of the listener in this place.
    pub fn new(place: usize, listener: Listener) -> io::Result<Datagrams> {
        listener.socket.set_nonblocking(true)?;
        Ok(Datagrams {
            listener,
            slot: SLOT - place,
            asked: BTreeMap::new(),
            next: 1,
            is_ready: false,
        })
    }

    pub fn slot(&self) -> usize {
        self.slot
    }

    pub fn is_local(&self) -> bool {
        self.listener.is_local
    }

    pub fn fd(&self) -> RawFd {
        self.listener.socket.as_raw_fd()
    }

    /// Begins the requests that have arrived.
    pub fn receive(&mut self, shared: &mut Shared, now: Instant) {
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        self.is_ready = true;
        for _ in 0..DATAGRAMS_PER_TURN_MAX {
            match self.listener.socket.recv_from(&mut buffer) {
                Ok((len_bytes, from)) => self.begin(&buffer[..len_bytes], from, shared, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_ready = false;
                    break;
                }
                // An earlier client was gone before it got its reply.
                Err(_) => {}
            }
        }
    }

    fn begin(&mut self, datagram: &[u8], from: SocketAddr, shared: &mut Shared, now: Instant) {
        let counters = shared.counters.clone();
        let refuse = || Counters::add(&counters.datagrams_refused, 1);
        if !self.listener.network.contains(from.ip()) || datagram.len() > DATAGRAM_BYTES_MAX {
            return refuse();
        }
        let Some((frame, text)) = udp::parse(datagram) else {
            return refuse();
        };
        let Parsed::Whole { request, .. } = parse(text) else {
            return refuse();
        };
        Counters::add(&counters.datagrams, 1);
        if self.asked.len() >= DATAGRAMS_UNDER_WAY_MAX {
            return refuse();
        }
        let what = match request {
            Request::Get { with_cas, keys } if self.listener.is_local => {
                let keys = keys.into_iter();
                return self.answer_get(from, frame.request, keys, with_cas, shared);
            }
            Request::Get { with_cas, keys } => What::Get {
                with_cas,
                keys: Keys::new(&keys),
                barrier: shared.wants_barrier(),
            },
            Request::Stats(what) => {
                return self.reply(from, frame.request, &stats(what, shared));
            }
            // Never answer what may be a reply of another server: two servers would exchange errors forever.
            Request::Say(ERROR) => return refuse(),
            Request::Say("") => return,
            Request::Say(text) => {
                let line = format!("{text}\r\n");
                return self.reply(from, frame.request, line.as_bytes());
            }
            request => {
                let Some((command, awaited)) = command_of(&request) else {
                    return self.reply(from, frame.request, NOT_HERE);
                };
                if shared.is_full() {
                    return refuse();
                }
                count(&request, &counters);
                shared.submit(self.slot, self.next, &command);
                What::Command(awaited)
            }
        };
        let asked = Asked {
            from,
            request: frame.request,
            since: now,
            what,
        };
        self.asked.insert(self.next, asked);
        self.next += 1;
    }

    /// Settles a command with this outcome; `None` if it is unknown, and the client may or may not ask again.
    pub fn settle(&mut self, id: u64, outcome: Option<&Outcome>, shared: &Shared) {
        let Some(asked) = self.asked.remove(&id) else {
            return; // it took too long
        };
        let (What::Command(awaited), Some(outcome)) = (&asked.what, outcome) else {
            return;
        };
        let mut reply = Vec::new();
        awaited
            .clone()
            .say(outcome, shared.reader.time_ms(), &mut reply);
        self.reply(asked.from, asked.request, &reply);
    }

    /// Answers a SET that the packet program has proposed.
    pub fn answer_set(&self, client: Client, outcome: &Outcome, shared: &Shared) {
        Counters::add(&shared.counters.datagrams, 1);
        Counters::add(&shared.counters.cmd_set, 1);
        let mut reply = Vec::new();
        Awaited::of_set().say(outcome, shared.reader.time_ms(), &mut reply);
        self.reply(client.address.into(), client.request, &reply);
    }

    /// Answers the reads whose index has been reached.
    pub fn answer_reads(&mut self, shared: &Shared) {
        let reached = |asked: &Asked| matches!(&asked.what, What::Get { barrier, .. } if *barrier <= shared.reached);
        let ids: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, asked)| reached(asked))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let Some(Asked {
                from,
                request,
                what: What::Get { with_cas, keys, .. },
                ..
            }) = self.asked.remove(&id)
            else {
                continue;
            };
            self.answer_get(from, request, keys.iter(), with_cas, shared);
        }
    }

    fn answer_get<'a>(
        &self,
        from: SocketAddr,
        request: u16,
        keys: impl Iterator<Item = &'a [u8]>,
        with_cas: bool,
        shared: &Shared,
    ) {
        let mut reply = Vec::new();
        for key in keys {
            get(shared, key, with_cas, &mut reply);
            if reply.len() > DATAGRAM_BYTES_MAX {
                break;
            }
        }
        reply.extend_from_slice(b"END\r\n");
        self.reply(from, request, &reply);
    }

    fn reply(&self, to: SocketAddr, request: u16, reply: &[u8]) {
        let is_short = reply.len() <= DATAGRAM_BYTES_MAX - HEADER_BYTES;
        let reply = if is_short { reply } else { TOO_LONG };
        for datagram in udp::datagrams(request, reply) {
            // It may be lost, as in the network.
            let _ = self.listener.socket.send_to(&datagram, to);
        }
    }

    /// Discards requests that have waited too long.
    pub fn forget_old(&mut self, now: Instant) {
        let limit = Duration::from_millis(UNANSWERED_MS_MAX);
        self.asked
            .retain(|_, asked| now.saturating_duration_since(asked.since) < limit);
    }
}
