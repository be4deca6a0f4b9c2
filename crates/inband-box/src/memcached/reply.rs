//! Formatting of replies.

use super::meta::{encode_key, Flags, Meta, Verb};
use super::NO_MEMORY;
use crate::apply::{Fetched, Outcome};
use crate::limits::ALLOCATION_OVERHEAD_BYTES;
use crate::store::{self, Item, BINARY_KEY, STALE};

/// Why a command was not done, in the words of the protocol.
const UNREADABLE: &str = "SERVER_ERROR the command could not be read";
const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// The reply that a command's client waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// STORED, DELETED, TOUCHED, OK, a number.
    Word {
        /// The reply if the command was done.
        done: &'static str,
        /// The reply is suppressed.
        is_quiet: bool,
    },
    /// An item, for `gat`.
    Item {
        key: Vec<u8>,
        with_cas: bool,
        /// Whether it is the last one of the request.
        is_last: bool,
    },
    /// The reply to a meta command.
    Meta(Box<MetaReply>),
}

/// The reply to a meta command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaReply {
    verb: Verb,
    key: Vec<u8>,
    flags: Flags,
    /// The reply's words, each preceded by a space.
    tokens: Vec<u8>,
}

fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends an item, as in the reply to `get` and `gats`.
pub fn value(out: &mut Vec<u8>, key: &[u8], item: &Item, with_cas: bool) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    let (flags, len_bytes) = (item.meta.flags, item.value.len());
    let rest = match with_cas {
        true => format!(" {flags} {len_bytes} {}\r\n", item.meta.cas),
        false => format!(" {flags} {len_bytes}\r\n"),
    };
    out.extend_from_slice(rest.as_bytes());
    out.extend_from_slice(&item.value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the reply to `me` for an item.
pub fn debug(out: &mut Vec<u8>, key: &[u8], item: &Item, now_ms: u64) {
    let meta = &item.meta;
    out.extend_from_slice(b"ME ");
    match meta.marks & BINARY_KEY {
        0 => out.extend_from_slice(key),
        _ => out.extend_from_slice(encode_key(key).as_bytes()),
    }
    // memcached reports how long ago it expired, as a negative number.
    let expired_s = match meta.expires_ms {
        0 => -1,
        ms => -(ms.saturating_sub(now_ms).div_ceil(1000) as i64),
    };
    let size = store::chunks_of(key.len(), item.value.len()) * store::CHUNK_BYTES;
    let text = format!(
        " exp={expired_s} la={} cas={} fetch={} cls=1 size={size}",
        last_access_s(item, now_ms),
        meta.cas,
        if item.read_s > 0 { "yes" } else { "no" }
    );
    line(out, &text);
}

fn last_access_s(item: &Item, now_ms: u64) -> u64 {
    let last_s = item.read_s.max(item.meta.stored_ms / 1000);
    (now_ms / 1000).saturating_sub(last_s)
}

impl Awaited {
    /// What the client of a `set` waits for.
    pub fn of_set() -> Awaited {
        Awaited::Word {
            done: "STORED",
            is_quiet: false,
        }
    }

    /// Returns the memory that it takes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Awaited::Word { .. } => 0,
            Awaited::Item { key, .. } => key.capacity() + ALLOCATION_OVERHEAD_BYTES,
            Awaited::Meta(reply) => reply.boxed_bytes(),
        }
    }

    /// Appends the reply for this outcome.
    pub fn say(&self, outcome: &Outcome, now_ms: u64, out: &mut Vec<u8>) {
        match self {
            Awaited::Word { is_quiet: true, .. } => {}
            Awaited::Word { done, .. } => match outcome {
                Outcome::Number { value, .. } => line(out, &value.to_string()),
                Outcome::Full if done.is_empty() => line(out, "SERVER_ERROR out of memory"),
                outcome => line(out, word(outcome).unwrap_or(done)),
            },
            Awaited::Item {
                key,
                with_cas,
                is_last,
            } => {
                if let Outcome::Fetched(fetched) = outcome {
                    value(out, key, &fetched.item, *with_cas);
                }
                if *is_last {
                    line(out, "END");
                }
            }
            Awaited::Meta(reply) => reply.say(outcome, now_ms, out),
        }
    }
}

/// Returns the reply for an outcome that is not the desired one.
fn word(outcome: &Outcome) -> Option<&'static str> {
    Some(match outcome {
        Outcome::Exists => "EXISTS",
        Outcome::NotFound => "NOT_FOUND",
        Outcome::NotStored => "NOT_STORED",
        Outcome::NotANumber => NOT_A_NUMBER,
        Outcome::Full => NO_MEMORY,
        Outcome::Unreadable(_) => UNREADABLE,
        _ => return None,
    })
}

impl MetaReply {
    /// Creates the reply to a meta command.
    pub fn new(meta: &Meta) -> MetaReply {
        let tokens = meta.tokens.iter();
        MetaReply {
            verb: meta.verb,
            key: meta.key.to_vec(),
            flags: meta.flags,
            tokens: tokens.flat_map(|token| [b" ", *token].concat()).collect(),
        }
    }

    /// Returns the memory that it takes in a box.
    pub fn boxed_bytes(&self) -> usize {
        let contents_bytes = self.key.capacity() + self.tokens.capacity();
        size_of::<MetaReply>() + contents_bytes + 3 * ALLOCATION_OVERHEAD_BYTES
    }

    pub fn key(&self) -> &[u8] {
        &self.key
    }

    pub fn flags(&self) -> &Flags {
        &self.flags
    }

    fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        self.tokens.split(|b| *b == b' ').skip(1)
    }

    /// Appends the reply for this outcome.
    pub fn say(&self, outcome: &Outcome, now_ms: u64, out: &mut Vec<u8>) {
        let is_quiet = self.flags.is_quiet;
        match (outcome, self.verb) {
            (Outcome::Fetched(fetched), _) => self.item(fetched, now_ms, out),
            (Outcome::NotFound, Verb::Get) if is_quiet => {}
            (Outcome::NotFound, Verb::Get) => self.status("EN", None, out),
            (Outcome::Number { value, now, before }, _) => {
                self.number(*value, now, before, now_ms, out)
            }
            (Outcome::Stored { .. } | Outcome::Done, _) if is_quiet => {}
            (Outcome::Stored { cas }, _) => self.status("HD", Some(*cas), out),
            (Outcome::Done | Outcome::Opened, _) => self.status("HD", None, out),
            (Outcome::Exists, _) => self.status("EX", Some(0), out),
            (Outcome::NotFound, _) => self.status("NF", Some(0), out),
            (Outcome::NotStored, _) => self.status("NS", Some(0), out),
            (Outcome::NotANumber, _) => line(out, NOT_A_NUMBER),
            (Outcome::Full, Verb::Arithmetic) => line(out, "SERVER_ERROR out of memory"),
            (Outcome::Full, _) => line(out, NO_MEMORY),
            (Outcome::Unreadable(_), _) => line(out, UNREADABLE),
        }
    }

    fn put_key(&self, is_binary: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b" k");
        match is_binary {
            true => out.extend_from_slice(format!("{} b", encode_key(&self.key)).as_bytes()),
            false => out.extend_from_slice(&self.key),
        }
    }

    fn status(&self, status: &str, cas: Option<u64>, out: &mut Vec<u8>) {
        out.extend_from_slice(status.as_bytes());
        for token in self.tokens() {
            match (token[0], cas) {
                (b'O', _) => out.extend_from_slice(&[b" ", token].concat()),
                (b'k', _) => self.put_key(self.flags.is_binary_key, out),
                (b'c', Some(cas)) if self.verb == Verb::Set => {
                    out.extend_from_slice(format!(" c{cas}").as_bytes());
                }
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    fn item(&self, fetched: &Fetched, now_ms: u64, out: &mut Vec<u8>) {
        let Fetched { item, before, .. } = fetched;
        match self.flags.wants_value {
            true => out.extend_from_slice(format!("VA {}", item.value.len()).as_bytes()),
            false => out.extend_from_slice(b"HD"),
        }
        let is_new = fetched.has_won && before.expires_ms == 0 && before.marks & !BINARY_KEY == 0;
        let mut is_touched = false;
        for token in self.tokens() {
            let mut put = |text: String| out.extend_from_slice(text.as_bytes());
            match token[0] {
                b'T' => is_touched = true,
                b'N' => is_touched |= is_new,
                b's' => put(format!(" s{}", item.value.len())),
                b't' => put(left(if is_touched { &item.meta } else { before }, now_ms)),
                b'c' => put(format!(" c{}", item.meta.cas)),
                b'f' => put(format!(" f{}", item.meta.flags)),
                b'l' => put(format!(" l{}", last_access_s(item, now_ms))),
                b'h' => put(format!(" h{}", u8::from(item.read_s > 0))),
                b'O' => out.extend_from_slice(&[b" ", token].concat()),
                b'k' => self.put_key(item.meta.marks & BINARY_KEY != 0, out),
                _ => {}
            }
        }
        if fetched.was_won {
            out.extend_from_slice(b" Z");
        }
        if before.marks & STALE != 0 {
            out.extend_from_slice(b" X");
        }
        if fetched.has_won {
            out.extend_from_slice(b" W");
        }
        out.extend_from_slice(b"\r\n");
        if self.flags.wants_value {
            out.extend_from_slice(&item.value);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn number(
        &self,
        value: u64,
        now: &store::Meta,
        before: &store::Meta,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) {
        let is_new = before.cas == 0;
        if self.flags.is_quiet && !is_new {
            return;
        }
        let value = value.to_string();
        match self.flags.wants_value {
            true => out.extend_from_slice(format!("VA {}", value.len()).as_bytes()),
            false => out.extend_from_slice(b"HD"),
        }
        let mut is_touched = false;
        for token in self.tokens() {
            let mut put = |text: String| out.extend_from_slice(text.as_bytes());
            match token[0] {
                b'T' => is_touched = true,
                b'N' => is_touched |= is_new,
                b't' => put(left(if is_touched { now } else { before }, now_ms)),
                b'c' => put(format!(" c{}", now.cas)),
                b'O' => out.extend_from_slice(&[b" ", token].concat()),
                b'k' => self.put_key(self.flags.is_binary_key, out),
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
        if self.flags.wants_value {
            line(out, &value);
        }
    }
}

/// Returns the seconds that an item has left.
fn left(meta: &store::Meta, now_ms: u64) -> String {
    match meta.expires_ms {
        0 => " t-1".to_owned(),
        ms => format!(" t{}", ms.saturating_sub(now_ms).div_ceil(1000)),
    }
}
