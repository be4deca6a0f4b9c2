//! The meta commands: mg, ms, md, ma.

use std::borrow::Cow;

use base64::engine::general_purpose::STANDARD;
use base64::Engine;

use super::number::{parse_i32, parse_u32, parse_u64};
use super::{say, with_data, Line, Request, BAD_FORMAT, ERROR};
use crate::command::{Command, Mode};
use crate::limits::KEY_LEN_BYTES_MAX;

/// Maximum number of words of a line, including the command and its key.
const WORDS_MAX: usize = 19;
const OPAQUE_LEN_BYTES_MAX: usize = 32;
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Verb {
    Get,
    Set,
    Delete,
    Arithmetic,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Meta<'a> {
    pub verb: Verb,
    pub key: Cow<'a, [u8]>,
    pub flags: Flags,
    /// As given; the item's data are inserted after them.
    pub tokens: Vec<&'a [u8]>,
    pub value: &'a [u8],
}

/// A command's parsed flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Flags {
    pub is_binary_key: bool,
    pub wants_value: bool,
    pub is_quiet: bool,
    pub does_not_count: bool,
    pub invalidates: bool,
    pub create_exptime_s: Option<i32>,
    pub exptime_s: Option<i32>,
    pub recache_s: Option<i32>,
    pub touches_first: bool,
    pub cas: Option<u64>,
    pub client_flags: u32,
    pub mode: Option<u8>,
    pub delta: Option<u64>,
    pub initial: u64,
}

/// Decodes a key from base64.
pub fn decode_key(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok().filter(|key| !key.is_empty())
}

/// Encodes a key in base64.
pub fn encode_key(key: &[u8]) -> String {
    STANDARD.encode(key)
}

/// Parses a request's line.
pub(super) fn line<'a>(verb: u8, arguments: &[&'a [u8]]) -> Line<'a> {
    let verb = match verb {
        b'g' => Verb::Get,
        b's' => Verb::Set,
        b'd' => Verb::Delete,
        b'a' => Verb::Arithmetic,
        _ => return say(ERROR),
    };
    let Some((&key, rest)) = arguments.split_first() else {
        return say(ERROR);
    };
    if key.len() > KEY_LEN_BYTES_MAX || (verb == Verb::Set && rest.is_empty()) {
        return say(BAD_FORMAT);
    }
    if arguments.len() + 1 > WORDS_MAX {
        return say(match verb {
            Verb::Get => "CLIENT_ERROR options flags are too long",
            _ => "CLIENT_ERROR options flags too long",
        });
    }
    let (len_bytes, tokens) = match verb {
        Verb::Set => match parse_i32(rest[0]) {
            Some(len_bytes @ 0..=0x7fff_fffd) => (len_bytes, &rest[1..]),
            _ => return say(BAD_FORMAT),
        },
        _ => (0, rest),
    };
    let refuse = |text| match verb {
        Verb::Set => Line::Skip(text, len_bytes as u64),
        _ => say(text),
    };
    let mut meta = Meta {
        verb,
        key: Cow::Borrowed(key),
        flags: Flags::default(),
        tokens: tokens.to_vec(),
        value: &[],
    };
    if let Err(text) = meta.read_flags() {
        return refuse(match verb {
            Verb::Get | Verb::Set => text,
            _ => "CLIENT_ERROR invalid or duplicate flag",
        });
    }
    let is_long = |token: &&[u8]| token[0] == b'O' && token.len() > OPAQUE_LEN_BYTES_MAX;
    if tokens.iter().any(is_long) {
        return refuse(LONG_OPAQUE);
    }
    let knows_mode = |modes: &[u8]| meta.flags.mode.is_none_or(|mode| modes.contains(&mode));
    match verb {
        Verb::Set if !knows_mode(b"EAPRS") => refuse("CLIENT_ERROR invalid mode for ms M token"),
        Verb::Arithmetic if !knows_mode(b"I+D-") => {
            refuse("CLIENT_ERROR invalid mode for ma M token")
        }
        Verb::Set => with_data(len_bytes, key, false, || Request::Meta(meta)),
        _ => Line::Whole(Request::Meta(meta)),
    }
}

impl Meta<'_> {
    fn read_flags(&mut self) -> Result<(), &'static str> {
        let mut seen = [false; 127];
        let mut result = Ok(());
        let flags = &mut self.flags;
        for token in &self.tokens {
            let (flag, rest) = (token[0], &token[1..]);
            match seen.get_mut(usize::from(flag)) {
                Some(seen @ false) => *seen = true,
                _ => return Err("CLIENT_ERROR duplicate flag"),
            }
            let mut time = || {
                let time = parse_i32(rest);
                if time.is_none() {
                    result = Err(BAD_TOKEN);
                }
                time
            };
            match flag {
                b'b' => {
                    flags.is_binary_key = true;
                    match decode_key(&self.key) {
                        Some(key) => self.key = Cow::Owned(key),
                        None => result = Err("CLIENT_ERROR error decoding key"),
                    }
                }
                b'N' => flags.create_exptime_s = time(),
                b'T' => {
                    flags.exptime_s = time();
                    // The second time applies only to an item that is created.
                    flags.create_exptime_s = flags.create_exptime_s.and(flags.exptime_s);
                    flags.touches_first = flags.recache_s.is_none();
                }
                b'R' => flags.recache_s = time(),
                b'l' | b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' => {}
                b'v' => flags.wants_value = true,
                b'u' => flags.does_not_count = true,
                b'q' => flags.is_quiet = true,
                b'I' => flags.invalidates = true,
                b'F' => match parse_u32(rest) {
                    Some(client_flags) => flags.client_flags = client_flags,
                    // memcached has no error text of its own for this.
                    None => result = result.and(Err(BAD_FORMAT)),
                },
                b'C' => match parse_u64(rest) {
                    Some(cas) => flags.cas = Some(cas),
                    None => result = Err(BAD_TOKEN),
                },
                b'M' => match rest {
                    [mode] => flags.mode = Some(*mode),
                    _ => result = Err("CLIENT_ERROR incorrect length for M token"),
                },
                b'J' => match parse_u64(rest) {
                    Some(initial) => flags.initial = initial,
                    None => result = Err("CLIENT_ERROR invalid numeric initial value"),
                },
                b'D' => match parse_u64(rest) {
                    Some(delta) => flags.delta = Some(delta),
                    None => result = Err("CLIENT_ERROR invalid numeric delta value"),
                },
                _ => return Err("CLIENT_ERROR invalid flag"),
            }
        }
        result
    }

    /// Returns whether the command changes nothing, unless the item is stale.
    pub fn is_read(&self) -> bool {
        let flags = &self.flags;
        let times = [flags.create_exptime_s, flags.exptime_s, flags.recache_s];
        self.verb == Verb::Get && times == [None; 3]
    }

    /// Returns the command to submit.
    pub fn command(&self) -> Command<'_> {
        let (key, flags) = (&self.key[..], &self.flags);
        match self.verb {
            Verb::Get => Command::Fetch {
                key,
                create_exptime_s: flags.create_exptime_s,
                exptime_s: flags.exptime_s,
                recache_s: flags.recache_s,
                touches_first: flags.touches_first,
                is_binary_key: flags.is_binary_key,
                marks_read: !flags.does_not_count,
                takes_token: true,
            },
            Verb::Set => Command::Store {
                mode: match (flags.mode, flags.cas) {
                    (Some(b'E'), _) => Mode::Add,
                    (Some(b'A'), _) => Mode::Append,
                    (Some(b'P'), _) => Mode::Prepend,
                    (_, Some(_)) => Mode::Cas,
                    (Some(b'R'), None) => Mode::Replace,
                    (_, None) => Mode::Set,
                },
                key,
                value: self.value,
                flags: flags.client_flags,
                exptime_s: flags.exptime_s.unwrap_or(0),
                cas: flags.cas.unwrap_or(0),
                may_be_stale: flags.invalidates,
                is_binary_key: flags.is_binary_key,
            },
            Verb::Delete if flags.invalidates => Command::Invalidate {
                key,
                cas: flags.cas,
                exptime_s: flags.exptime_s,
            },
            Verb::Delete => Command::Delete {
                key,
                cas: flags.cas,
            },
            Verb::Arithmetic => Command::Arithmetic {
                key,
                is_increment: !matches!(flags.mode, Some(b'D' | b'-')),
                delta: flags.delta.unwrap_or(1),
                cas: flags.cas.unwrap_or(0),
                create: flags
                    .create_exptime_s
                    .map(|exptime_s| (flags.initial, exptime_s)),
                exptime_s: flags.exptime_s,
            },
        }
    }
}
