//! memcached's protocol, with the replies of memcached 1.6.18. Parsing and formatting only: no sockets, no store.

pub mod ascii;
pub mod meta;
mod number;
pub mod reply;
pub mod udp;

use std::borrow::Cow;

use crate::command::Mode;
use crate::limits::{
    GET_LINE_LEN_BYTES_MAX, KEY_LEN_BYTES_MAX, LINE_LEN_BYTES_MAX, VALUE_LEN_BYTES_MAX,
};

/// The version reported to clients, whose replies are imitated.
pub const VERSION: &str = "1.6.18";
/// The request's line is malformed.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
/// The value fits no table.
pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
/// The value does not fit the table at present.
pub const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
/// There is no such command.
pub(crate) const ERROR: &str = "ERROR";

#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Get {
        with_cas: bool,
        keys: Vec<&'a [u8]>,
    },
    GetAndTouch {
        with_cas: bool,
        exptime_s: i32,
        keys: Vec<&'a [u8]>,
    },
    Store {
        mode: Mode,
        key: &'a [u8],
        flags: u32,
        exptime_s: i32,
        cas: u64,
        value: &'a [u8],
        is_quiet: bool,
    },
    Delete {
        key: &'a [u8],
        is_quiet: bool,
    },
    Arithmetic {
        key: &'a [u8],
        is_increment: bool,
        delta: u64,
        is_quiet: bool,
    },
    Touch {
        key: &'a [u8],
        exptime_s: i32,
        is_quiet: bool,
    },
    FlushAll {
        exptime_s: i32,
        is_quiet: bool,
    },
    Meta(meta::Meta<'a>),
    /// `me`: an item's metadata.
    Debug {
        key: Cow<'a, [u8]>,
    },
    Stats(Option<&'a [u8]>),
    /// Only this reply is needed, unless it is empty.
    Say(&'static str),
    Quit,
}

/// The result of parsing the beginning of a client's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed<'a> {
    Incomplete,
    /// Not a request: the client must be closed.
    Hopeless,
    Whole {
        /// Length of the request.
        len_bytes: usize,
        /// Bytes to skip after it, which may not have arrived yet.
        skip_bytes: u64,
        request: Request<'a>,
    },
}

/// The first byte of a request of the binary protocol, which is not served: its client is closed, and need not wait for a reply.
const BINARY_REQUEST: u8 = 0x80;

/// Parses the request at the beginning of a buffer.
pub fn parse(buffer: &[u8]) -> Parsed<'_> {
    if buffer.first() == Some(&BINARY_REQUEST) {
        return Parsed::Hopeless;
    }
    let Some(end) = buffer.iter().position(|b| *b == b'\n') else {
        return match buffer.len() <= LINE_LEN_BYTES_MAX || may_be_long(buffer) {
            true => Parsed::Incomplete,
            false => Parsed::Hopeless,
        };
    };
    let line = match end > 1 && buffer[end - 1] == b'\r' {
        true => &buffer[..end - 1],
        false => &buffer[..end],
    };
    // As in C, where a string ends at a NUL.
    let line = line.split(|b| *b == 0).next().unwrap_or(line);
    match ascii::line(line) {
        Line::Whole(request) => Parsed::Whole {
            len_bytes: end + 1,
            skip_bytes: 0,
            request,
        },
        Line::Hopeless => Parsed::Hopeless,
        Line::Skip(say, data_len_bytes) => Parsed::Whole {
            len_bytes: end + 1,
            skip_bytes: data_len_bytes + 2,
            request: Request::Say(say),
        },
        Line::Data(len_bytes, mut request) => {
            let data = &buffer[end + 1..];
            if data.len() < len_bytes + 2 {
                return Parsed::Incomplete;
            }
            let (value, rest) = data.split_at(len_bytes);
            let is_ended = rest.starts_with(b"\r\n");
            match &mut request {
                Request::Store {
                    value: to,
                    is_quiet,
                    ..
                } => match is_ended {
                    true => *to = value,
                    false => {
                        request = Request::Say(if *is_quiet { "" } else { BAD_CHUNK });
                    }
                },
                Request::Meta(meta) => match is_ended {
                    true => meta.value = value,
                    false => request = Request::Say(BAD_CHUNK),
                },
                _ => {}
            }
            Parsed::Whole {
                len_bytes: end + 1 + len_bytes + 2,
                skip_bytes: 0,
                request,
            }
        }
    }
}

fn may_be_long(buffer: &[u8]) -> bool {
    let spaces = buffer.iter().take_while(|b| **b == b' ').count();
    let line = &buffer[spaces..];
    let is_get = line.starts_with(b"get ") || line.starts_with(b"gets ");
    spaces <= 100 && is_get && buffer.len() <= GET_LINE_LEN_BYTES_MAX
}

/// The result of parsing a request's line.
enum Line<'a> {
    Whole(Request<'a>),
    /// This many bytes of data follow.
    Data(usize, Request<'a>),
    /// An error; this many bytes of data must be skipped.
    Skip(&'static str, u64),
    Hopeless,
}

fn say(text: &'static str) -> Line<'static> {
    Line::Whole(Request::Say(text))
}

fn say_unless(is_quiet: bool, text: &'static str) -> Line<'static> {
    say(if is_quiet { "" } else { text })
}

/// Returns a request that stores `len_bytes` bytes; the caller has checked the key's length.
fn with_data<'a>(
    len_bytes: i32,
    key: &[u8],
    is_quiet: bool,
    request: impl FnOnce() -> Request<'a>,
) -> Line<'a> {
    debug_assert!(key.len() <= KEY_LEN_BYTES_MAX);
    match len_bytes as usize <= VALUE_LEN_BYTES_MAX {
        true => Line::Data(len_bytes as usize, request()),
        false => Line::Skip(if is_quiet { "" } else { TOO_LARGE }, len_bytes as u64),
    }
}

#[cfg(test)]
mod tests;
