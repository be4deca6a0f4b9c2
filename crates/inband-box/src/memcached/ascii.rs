//! The classic commands.

use std::borrow::Cow;

use super::number::{parse_i32, parse_u32, parse_u64};
use super::{meta, say, say_unless, with_data, Line, Request, BAD_FORMAT, ERROR, VERSION};
use crate::command::Mode;
use crate::limits::KEY_LEN_BYTES_MAX;

/// memcached looks at no more words of a line, unless it is a `get`.
const WORDS_MAX: usize = 23;

/// Parses a request's line.
pub(super) fn line(line: &[u8]) -> Line<'_> {
    let mut all = line.split(|b| *b == b' ').filter(|word| !word.is_empty());
    let words: Vec<&[u8]> = all.by_ref().take(WORDS_MAX).collect();
    let Some((&command, arguments)) = words.split_first() else {
        return say(ERROR);
    };
    let get = |with_cas| {
        let keys: Vec<_> = arguments.iter().copied().chain(all.clone()).collect();
        match keys.iter().any(|key| key.len() > KEY_LEN_BYTES_MAX) {
            true => say(BAD_FORMAT),
            false => Line::Whole(Request::Get { with_cas, keys }),
        }
    };
    let touch = |with_cas| {
        let Some(exptime_s) = parse_i32(arguments[0]) else {
            return say("CLIENT_ERROR invalid exptime argument");
        };
        let keys: Vec<_> = arguments[1..].iter().copied().chain(all.clone()).collect();
        match keys.iter().any(|key| key.len() > KEY_LEN_BYTES_MAX) {
            true => say(BAD_FORMAT),
            false => Line::Whole(Request::GetAndTouch {
                with_cas,
                exptime_s,
                keys,
            }),
        }
    };
    let count = arguments.len();
    let is_quiet = words.len() > 1 && words.last() == Some(&&b"noreply"[..]);
    match (command, count) {
        ([_], _) => say(ERROR),
        ([b'm', b'e'], _) => debug(arguments),
        (b"mn", _) => say("MN"),
        ([b'm', verb], _) => meta::line(*verb, arguments),
        (b"get" | b"bget", 1..) => get(false),
        (b"gets", 1..) => get(true),
        (b"gat", 1..) => touch(false),
        (b"gats", 1..) => touch(true),
        (b"set", 4 | 5) => store(Mode::Set, arguments, is_quiet),
        (b"add", 4 | 5) => store(Mode::Add, arguments, is_quiet),
        (b"replace", 4 | 5) => store(Mode::Replace, arguments, is_quiet),
        (b"append", 4 | 5) => store(Mode::Append, arguments, is_quiet),
        (b"prepend", 4 | 5) => store(Mode::Prepend, arguments, is_quiet),
        (b"cas", 5 | 6) => store(Mode::Cas, arguments, is_quiet),
        (b"delete", 1..=3) => delete(arguments, is_quiet),
        (b"incr", 2 | 3) => arithmetic(true, arguments, is_quiet),
        (b"decr", 2 | 3) => arithmetic(false, arguments, is_quiet),
        (b"touch", 2 | 3) => match (key(arguments[0]), parse_i32(arguments[1])) {
            (None, _) => say_unless(is_quiet, BAD_FORMAT),
            (_, None) => say_unless(is_quiet, "CLIENT_ERROR invalid exptime argument"),
            (Some(key), Some(exptime_s)) => Line::Whole(Request::Touch {
                key,
                exptime_s,
                is_quiet,
            }),
        },
        (b"flush_all", 0..=2) => {
            let has_time = count != usize::from(is_quiet);
            match has_time.then(|| parse_i32(arguments[0])) {
                Some(None) => say_unless(is_quiet, "CLIENT_ERROR invalid exptime argument"),
                time => Line::Whole(Request::FlushAll {
                    exptime_s: time.flatten().unwrap_or(0),
                    is_quiet,
                }),
            }
        }
        (b"verbosity", 1 | 2) => match parse_u32(arguments[0]) {
            None => say_unless(is_quiet, BAD_FORMAT),
            Some(_) => say_unless(is_quiet, "OK"),
        },
        (b"version", _) => {
            const REPLY: &str = "VERSION 1.6.18";
            debug_assert!(REPLY.ends_with(VERSION));
            say(REPLY)
        }
        (b"shutdown", _) => say("ERROR: shutdown not enabled"),
        (b"stats", _) => Line::Whole(Request::Stats(arguments.first().copied())),
        (b"quit", _) => Line::Whole(Request::Quit),
        // An HTTP client takes this for a web server.
        ([first, ..], _)
            if !b"mgsacidt".contains(first)
                && words.last().is_some_and(|word| word.starts_with(b"HTTP/")) =>
        {
            Line::Hopeless
        }
        _ => say(ERROR),
    }
}

fn key(word: &[u8]) -> Option<&[u8]> {
    (word.len() <= KEY_LEN_BYTES_MAX).then_some(word)
}

fn store<'a>(mode: Mode, arguments: &[&'a [u8]], is_quiet: bool) -> Line<'a> {
    let numbers = (
        parse_u32(arguments[1]),
        parse_i32(arguments[2]),
        parse_i32(arguments[3]),
    );
    let cas = match mode {
        Mode::Cas => parse_u64(arguments[4]),
        _ => Some(0),
    };
    let (Some(key), (Some(flags), Some(exptime_s), Some(len_bytes)), Some(cas)) =
        (key(arguments[0]), numbers, cas)
    else {
        return say_unless(is_quiet, BAD_FORMAT);
    };
    if !(0..=i32::MAX - 2).contains(&len_bytes) {
        return say_unless(is_quiet, BAD_FORMAT);
    }
    with_data(len_bytes, key, is_quiet, || Request::Store {
        mode,
        key,
        flags,
        exptime_s,
        cas,
        value: &[],
        is_quiet,
    })
}

fn delete<'a>(arguments: &[&'a [u8]], is_quiet: bool) -> Line<'a> {
    const USAGE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
    let is_valid = match *arguments {
        [_] => true,
        [_, second] => second == b"0" || is_quiet,
        [_, second, _] => second == b"0" && is_quiet,
        _ => false,
    };
    let is_quiet = is_quiet && arguments.len() > 1;
    match (is_valid, key(arguments[0])) {
        (false, _) => say_unless(is_quiet, USAGE),
        (_, None) => say_unless(is_quiet, BAD_FORMAT),
        (_, Some(key)) => Line::Whole(Request::Delete { key, is_quiet }),
    }
}

fn arithmetic<'a>(is_increment: bool, arguments: &[&'a [u8]], is_quiet: bool) -> Line<'a> {
    match (key(arguments[0]), parse_u64(arguments[1])) {
        (None, _) => say_unless(is_quiet, BAD_FORMAT),
        (_, None) => say_unless(is_quiet, "CLIENT_ERROR invalid numeric delta argument"),
        (Some(key), Some(delta)) => Line::Whole(Request::Arithmetic {
            key,
            is_increment,
            delta,
            is_quiet,
        }),
    }
}

fn debug<'a>(arguments: &[&'a [u8]]) -> Line<'a> {
    let Some(&word) = arguments.first() else {
        return say(BAD_FORMAT);
    };
    let key = match (key(word), arguments.get(1)) {
        (Some(key), Some(&b"b")) => meta::decode_key(key).map(Cow::Owned),
        (Some(key), _) => Some(Cow::Borrowed(key)),
        (None, _) => None,
    };
    match key {
        Some(key) => Line::Whole(Request::Debug { key }),
        None => say(BAD_FORMAT),
    }
}
