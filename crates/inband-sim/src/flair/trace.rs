//! The trace of FLAIR's events.

use std::fmt::Write as _;

use inband_flair::dataplane::wire::{flag, Header};
use inband_flair::replica::Message;

use super::history::Act;
use super::host::Host;
use crate::trace::{mix, Happening};

/// An event. It is formatted only if the trace is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    Sent(Host, Host, Header),
    Lost(Host, Host, Header),
    Arrived(Host, Host, Header),
    /// A message between replicas.
    Message(Host, Host, &'static str),
    /// A client begins a request: its number and key.
    Begun(Host, usize, u8, Act),
    Ended(Host, usize, &'static str),
    Active(Host, u64),
    Started(Host),
    Stopped(Host),
}

/// Returns a message between replicas as a trace shows it.
pub(super) fn message(from: Host, to: Host, message: &Message) -> Happened {
    match message {
        Message::Raft(_) => Happened::Message(from, to, "raft"),
        Message::Announce(_) => Happened::Message(from, to, "announce"),
        Message::Grant(_) => Happened::Message(from, to, "grant"),
    }
}

fn number(host: Host) -> u64 {
    match host {
        Host::Replica(n) => u64::from(n),
        Host::Switch(n) => 1 << 8 | u64::from(n),
        Host::Client(n) => 2 << 8 | u64::from(n),
    }
}

fn pair(kind: u64, from: Host, to: Host) -> u64 {
    kind << 32 | number(from) << 16 | number(to)
}

impl Happening for Happened {
    type Words = [u64; 2];

    fn words(&self) -> [u64; 2] {
        words(self)
    }

    fn describe(&self) -> String {
        in_words(self)
    }
}

fn words(what: &Happened) -> [u64; 2] {
    let packet = |kind, from, to, h: &Header| {
        let body = mix(
            mix(h.seq, h.session),
            h.log_index ^ h.client_seq.rotate_left(32),
        );
        [
            pair(kind, from, to) ^ u64::from(h.flags) << 48,
            mix(body, h.kind as u64),
        ]
    };
    match what {
        Happened::Sent(from, to, h) => packet(1, *from, *to, h),
        Happened::Lost(from, to, h) => packet(2, *from, *to, h),
        Happened::Arrived(from, to, h) => packet(3, *from, *to, h),
        Happened::Message(from, to, _) => [pair(4, *from, *to), 0],
        Happened::Begun(host, number, key, _) => [
            pair(5, *host, *host),
            (*number as u64) << 8 | u64::from(*key),
        ],
        Happened::Ended(host, number, _) => [pair(6, *host, *host), *number as u64],
        Happened::Active(host, session) => [pair(7, *host, *host), *session],
        Happened::Started(host) => [pair(8, *host, *host), 0],
        Happened::Stopped(host) => [pair(9, *host, *host), 0],
    }
}

fn packet(h: &Header) -> String {
    let mut text = format!("{:?}", h.kind);
    for (bit, name) in [
        (flag::DELETE, "delete"),
        (flag::OPEN, "open"),
        (flag::STABLE, "stable"),
        (flag::REFUSED, "refused"),
        (flag::MISSING, "missing"),
        (flag::REFRESH, "refresh/neutralise"),
        (flag::ANSWER, "answer"),
    ] {
        if h.has(bit) {
            let _ = write!(text, " {name}");
        }
    }
    let _ = write!(
        text,
        " session={} term={} seq={} index={} followers={:b} replica={}",
        h.session, h.term, h.seq, h.log_index, h.followers, h.replica
    );
    if h.client_seq != 0 {
        let _ = write!(text, " client={:x}/{}", h.client_id, h.client_seq);
    }
    text
}

fn in_words(what: &Happened) -> String {
    match what {
        Happened::Sent(from, to, h) => format!("{from} -> {to}  sends {}", packet(h)),
        Happened::Lost(from, to, h) => format!("{from} -x {to}  {}", packet(h)),
        Happened::Arrived(from, to, h) => format!("{from} => {to}  {}", packet(h)),
        Happened::Message(from, to, kind) => format!("{from} => {to}  {kind}"),
        Happened::Begun(host, number, key, act) => {
            format!("{host} begins request {number}: {act:?} of key {key}")
        }
        Happened::Ended(host, number, how) => format!("{host} request {number} ended: {how}"),
        Happened::Active(host, session) => format!("{host} serves session {session}"),
        Happened::Started(host) => format!("{host} STARTED, and knows nothing"),
        Happened::Stopped(host) => format!("{host} STOPPED"),
    }
}
