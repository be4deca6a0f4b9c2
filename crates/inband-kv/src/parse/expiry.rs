//! Parses commands that set an expiry: SET and its variants, GETEX, EXPIRE.

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use super::{integer, is, syntax_error, TIME_MS_MAX, UNKNOWN_ECHO_BYTES_MAX};
use crate::command::{Command, ExpireWhen, Expiry, SetReply, SetWhen};

pub(super) fn set<'a>(
    key: &'a [u8],
    value: &'a [u8],
    when: SetWhen,
    expiry: Expiry,
    reply: SetReply,
) -> Command<'a> {
    Command::Set {
        key,
        value,
        when,
        expiry,
        reply,
    }
}

pub(super) fn invalid_expire_time(command: &str) -> Reply {
    Reply::error(format!("ERR invalid expire time in '{command}' command"))
}

/// Returns a positive time for `SET` and its variants, in milliseconds.
fn positive_ms(number: i64, unit_ms: i64, command: &str) -> Result<i64, Reply> {
    number
        .checked_mul(unit_ms)
        .filter(|ms| (1..=TIME_MS_MAX).contains(ms))
        .ok_or_else(|| invalid_expire_time(command))
}

/// Constructor of an expiry from a number of milliseconds.
pub(super) type ExpiryKind = fn(i64) -> Expiry;

/// `SET` options with a time: the unit in milliseconds, and the kind of expiry.
const TIME_OPTIONS: [(&str, i64, ExpiryKind); 4] = [
    ("EX", 1000, Expiry::InMs),
    ("PX", 1, Expiry::InMs),
    ("EXAT", 1000, Expiry::AtMs),
    ("PXAT", 1, Expiry::AtMs),
];

pub(super) fn parse_set(args: Args<'_>) -> Result<Command<'_>, Reply> {
    let (mut when, mut reply) = (None, SetReply::Status);
    let mut expected = None;
    let mut expiry: Option<Expiry> = None;
    // The time is validated after all options, as in Redis: syntax errors take precedence.
    let mut time: Option<(&[u8], i64, ExpiryKind)> = None;
    let mut unit = None;
    let mut at = 3;
    while at < args.len() {
        let option = args.get(at);
        let has_argument = at + 1 < args.len();
        // The same unit may be repeated, as in Redis: the last one counts.
        let is_unit_again = unit.is_some_and(|unit| is(option, unit));
        let no_expiry = expiry.is_none() && (time.is_none() || is_unit_again);
        let is_free = |w| expected.is_none() && when.is_none_or(|other| other == w);
        let is_equal_free = when.is_none() && expected.is_none();
        if is(option, "IFEQ") && has_argument && is_equal_free {
            at += 1;
            expected = Some(args.get(at));
        } else if is(option, "NX") && is_free(SetWhen::Missing) {
            when = Some(SetWhen::Missing);
        } else if is(option, "XX") && is_free(SetWhen::Exists) {
            when = Some(SetWhen::Exists);
        } else if is(option, "GET") {
            reply = SetReply::Old;
        } else if is(option, "KEEPTTL") && time.is_none() {
            expiry = Some(Expiry::Keep);
        } else if has_argument && no_expiry {
            let known = TIME_OPTIONS.iter().find(|(name, ..)| is(option, name));
            let (name, unit_ms, kind) = *known.ok_or_else(syntax_error)?;
            unit = Some(name);
            at += 1;
            time = Some((args.get(at), unit_ms, kind));
        } else {
            return Err(syntax_error());
        }
        at += 1;
    }
    if let Some((number, unit_ms, kind)) = time {
        expiry = Some(kind(positive_ms(integer(number)?, unit_ms, "set")?));
    }
    let (when, expiry) = (
        when.unwrap_or(SetWhen::Always),
        expiry.unwrap_or(Expiry::Never),
    );
    if let Some(expected) = expected {
        return Ok(Command::SetIfEqual {
            key: args.get(1),
            value: args.get(2),
            expected,
            expiry,
            reply,
        });
    }
    Ok(set(args.get(1), args.get(2), when, expiry, reply))
}

pub(super) fn parse_getex(args: Args<'_>) -> Result<Command<'_>, Reply> {
    let key = args.get(1);
    match args.len() {
        2 => Ok(Command::Get(key)),
        3 if is(args.get(2), "PERSIST") => Ok(Command::GetEx(key, Expiry::Never)),
        4 => {
            let known = TIME_OPTIONS.iter().find(|(name, ..)| is(args.get(2), name));
            let (_, unit_ms, kind) = *known.ok_or_else(syntax_error)?;
            let ms = positive_ms(integer(args.get(3))?, unit_ms, "getex")?;
            Ok(Command::GetEx(key, kind(ms)))
        }
        _ => Err(syntax_error()),
    }
}

pub(super) fn parse_setex<'a>(
    args: Args<'a>,
    name: &str,
    unit_ms: i64,
) -> Result<Command<'a>, Reply> {
    let expiry = Expiry::InMs(positive_ms(integer(args.get(2))?, unit_ms, name)?);
    Ok(set(
        args.get(1),
        args.get(3),
        SetWhen::Always,
        expiry,
        SetReply::Status,
    ))
}

pub(super) fn parse_expire<'a>(
    args: Args<'a>,
    name: &str,
    unit_ms: i64,
    kind: ExpiryKind,
) -> Result<Command<'a>, Reply> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for option in args.from(3) {
        match option {
            o if is(o, "NX") => nx = true,
            o if is(o, "XX") => xx = true,
            o if is(o, "GT") => gt = true,
            o if is(o, "LT") => lt = true,
            other => {
                let other = &other[..other.len().min(UNKNOWN_ECHO_BYTES_MAX)];
                let other = String::from_utf8_lossy(other);
                return Err(Reply::error(format!("ERR Unsupported option {other}")));
            }
        }
    }
    let when = match (nx, xx, gt, lt) {
        (true, true, _, _) | (true, _, true, _) | (true, _, _, true) => {
            return Err(Reply::error(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        (_, _, true, true) => {
            return Err(Reply::error(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        (true, ..) => ExpireWhen::NoExpiry,
        (_, true, true, _) => ExpireWhen::HasExpiryAndLater,
        (_, true, _, true) => ExpireWhen::HasExpiryAndEarlier,
        (_, true, ..) => ExpireWhen::HasExpiry,
        (_, _, true, _) => ExpireWhen::Later,
        (_, _, _, true) => ExpireWhen::Earlier,
        _ => ExpireWhen::Always,
    };
    let ms = integer(args.get(2))?
        .checked_mul(unit_ms)
        .filter(|ms| (-TIME_MS_MAX..=TIME_MS_MAX).contains(ms))
        .ok_or_else(|| invalid_expire_time(name))?;
    Ok(Command::Expire {
        key: args.get(1),
        expiry: kind(ms),
        when,
    })
}
