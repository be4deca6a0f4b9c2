//! Parses the arguments of a request into a command, with Redis's exact error texts.

mod expiry;

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use crate::bits;
use crate::command::{Command, Expiry, SetReply, SetWhen, Strings, TimeUnit};
use crate::events;
use crate::float;
use crate::lock;
use crate::script;
use crate::table::{self, CommandId, CommandSpec, COMMANDS};
use crate::types::{self, Kind};
use expiry::{invalid_expire_time, parse_expire, parse_getex, parse_set, parse_setex, set};

/// Unix times and times to live beyond this many milliseconds are rejected as invalid.
pub(crate) const TIME_MS_MAX: i64 = i64::MAX / 2;

/// How much of an unknown command's name and arguments is repeated in the error.
const UNKNOWN_ECHO_BYTES_MAX: usize = 128;

/// Errors shared by several commands.
pub const SYNTAX_ERROR: &str = "ERR syntax error";
/// Error for an argument or a stored value that is not an integer.
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// How read-only commands are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadMode {
    /// From this replica's copy, once it has applied everything that was decided before: the log is asked for the
    /// instance to wait for, and nothing goes through it.
    #[default]
    Position,
    /// Through the log, like writes.
    Log,
}

impl ReadMode {
    pub fn name(self) -> &'static str {
        match self {
            ReadMode::Position => "position",
            ReadMode::Log => "log",
        }
    }

    /// Returns the mode with this name, case-insensitive.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        let modes = [ReadMode::Position, ReadMode::Log];
        modes.into_iter().find(|mode| is(name, mode.name()))
    }
}

/// A parsed request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Request<'a> {
    /// Goes through the log.
    Replicated(Command<'a>),
    /// `EVALSHA`: becomes an `EVAL` if this replica knows the script.
    EvalSha {
        sha1: &'a [u8],
        /// `EVAL` of an empty text.
        command: Command<'a>,
    },
    /// Answered by this replica; see [`crate::local`].
    Local(&'static CommandSpec),
    /// `INBAND.READS`: the read mode of this connection from now on.
    UseReads(ReadMode),
    /// `SCAN`.
    Scan,
    /// `INBAND.EXPORT`: the connection switches to carrying an export only.
    Export,
    /// `MULTI`.
    Multi,
    /// `EXEC`.
    Exec,
    /// `DISCARD`.
    Discard,
    /// `UNWATCH`.
    Unwatch,
    /// `INBAND.SESSION id seq`: identifies the connection's next data commands.
    UseSession {
        id: u64,
        /// Sequence number of the next data command.
        seq: u64,
    },
}

/// Parses a request; the error is the reply to the client.
pub fn parse(args: Args<'_>) -> Result<Request<'_>, Reply> {
    parse_at(table::place(args.get(0)), args)
}

/// The same; `place` is that of its command in the table.
pub fn parse_at(place: Option<usize>, args: Args<'_>) -> Result<Request<'_>, Reply> {
    let spec = place.map(|at| &COMMANDS[at]);
    let spec = spec.ok_or_else(|| unknown_command(args))?;
    if !spec.takes(args.len()) {
        return Err(wrong_arity(spec.name));
    }
    let key = args.get(1);
    let strings = Strings::Args(args, 1);
    let command = match spec.id {
        CommandId::Get => Command::Get(key),
        CommandId::Typed(op) => {
            let args = Strings::Args(args, 2);
            types::check(op, &args)?;
            Command::Typed { op, key, args }
        }
        CommandId::MultiPop(kind, blocks) => types::parse_multi_pop(args, kind, blocks)?,
        CommandId::Bits(op) => {
            let args = Strings::Args(args, 2);
            bits::check(op, &args)?;
            Command::Bits { op, key, args }
        }
        CommandId::CombineBits => bits::parse_combine(args)?,
        CommandId::Combine(op) => types::parse_combine(args, op)?,
        CommandId::Sample(kind) => types::parse_sample(args, kind)?,
        CommandId::Restore => Command::Restore {
            kind: Kind::of_name(args.get(2)).ok_or_else(syntax_error)?,
            key,
            expire_at_ms: match integer(args.get(3))? {
                ms @ 0..=TIME_MS_MAX => ms as u64,
                _ => return Err(invalid_expire_time("inband.restore")),
            },
            value: args.get(4),
        },
        CommandId::Lock => lock::parse(args)?,
        CommandId::Set => parse_set(args)?,
        CommandId::Incr => Command::IncrBy(key, 1),
        CommandId::Decr => Command::IncrBy(key, -1),
        CommandId::IncrBy => Command::IncrBy(key, integer(args.get(2))?),
        CommandId::DecrBy => {
            let delta = integer(args.get(2))?.checked_neg();
            Command::IncrBy(
                key,
                delta.ok_or_else(|| Reply::error("ERR decrement would overflow"))?,
            )
        }
        CommandId::Append => Command::Append(key, args.get(2)),
        CommandId::GetDel => Command::GetDel(key),
        CommandId::GetEx => parse_getex(args)?,
        CommandId::GetRange => Command::GetRange {
            key,
            start: integer(args.get(2))?,
            end: integer(args.get(3))?,
        },
        CommandId::SetRange => {
            let offset = u64::try_from(integer(args.get(2))?);
            Command::SetRange {
                key,
                offset: offset.map_err(|_| Reply::error("ERR offset is out of range"))?,
                value: args.get(3),
            }
        }
        CommandId::IncrByFloat => {
            float::parse(args.get(2)).ok_or_else(|| Reply::error(float::NOT_A_FLOAT))?;
            Command::IncrByFloat(key, args.get(2))
        }
        CommandId::Eval | CommandId::EvalRo => {
            script::parse_eval(args, spec.id == CommandId::EvalRo)?
        }
        CommandId::EvalSha | CommandId::EvalShaRo => {
            let command = script::parse_eval(args, spec.id == CommandId::EvalShaRo)?;
            return Ok(Request::EvalSha { sha1: key, command });
        }
        CommandId::Script => match script::parse(args)? {
            Some(command) => command,
            None => return Ok(Request::Local(spec)),
        },
        CommandId::Config => match events::parse_config(args)? {
            Some(command) => command,
            None => return Ok(Request::Local(spec)),
        },
        CommandId::Publish => Command::Publish {
            channel: key,
            payload: args.get(2),
        },
        CommandId::StrLen => Command::StrLen(key),
        CommandId::Type => Command::Type(key),
        CommandId::Persist => Command::Persist(key),
        CommandId::Ttl => Command::Ttl(key, TimeUnit::Seconds),
        CommandId::PTtl => Command::Ttl(key, TimeUnit::Milliseconds),
        CommandId::ExpireTime => Command::Ttl(key, TimeUnit::AtSeconds),
        CommandId::PExpireTime => Command::Ttl(key, TimeUnit::AtMilliseconds),
        CommandId::Rename | CommandId::RenameNx => Command::Rename {
            from: key,
            to: args.get(2),
            only_if_missing: spec.id == CommandId::RenameNx,
        },
        CommandId::Copy => parse_copy(args)?,
        CommandId::SetNx => set(
            key,
            args.get(2),
            SetWhen::Missing,
            Expiry::Never,
            SetReply::Flag,
        ),
        CommandId::GetSet => set(
            key,
            args.get(2),
            SetWhen::Always,
            Expiry::Never,
            SetReply::Old,
        ),
        CommandId::SetEx => parse_setex(args, "setex", 1000)?,
        CommandId::PSetEx => parse_setex(args, "psetex", 1)?,
        CommandId::Expire => parse_expire(args, "expire", 1000, Expiry::InMs)?,
        CommandId::PExpire => parse_expire(args, "pexpire", 1, Expiry::InMs)?,
        CommandId::ExpireAt => parse_expire(args, "expireat", 1000, Expiry::AtMs)?,
        CommandId::PExpireAt => parse_expire(args, "pexpireat", 1, Expiry::AtMs)?,
        CommandId::MGet => Command::MGet(strings),
        CommandId::MSet if args.len() % 2 == 0 => return Err(wrong_arity("MSET")),
        CommandId::MSet => Command::MSet(strings),
        CommandId::MSetNx if args.len() % 2 == 0 => return Err(wrong_arity("MSETNX")),
        CommandId::MSetNx => Command::MSetNx(strings),
        CommandId::Del => Command::Del(strings),
        CommandId::DelEx => match args.len() {
            2 => Command::Del(strings),
            4 if is(args.get(2), "IFEQ") => Command::CompareDelete(key, args.get(3)),
            4 if ["IFNE", "IFDEQ", "IFDNE"]
                .iter()
                .any(|word| is(args.get(2), word)) =>
            {
                return Err(Reply::error(
                    "ERR of DELEX's conditions only IFEQ is supported",
                ));
            }
            _ => return Err(syntax_error()),
        },
        CommandId::DelIfEq => Command::CompareDelete(key, args.get(2)),
        CommandId::Exists => Command::Exists(strings),
        CommandId::DbSize => Command::DbSize,
        CommandId::FlushAll => parse_flush(args)?,
        CommandId::Session => return parse_session(args),
        CommandId::Reads => {
            let mode = ReadMode::of_name(key).ok_or_else(syntax_error)?;
            return Ok(Request::UseReads(mode));
        }
        CommandId::Scan => return Ok(Request::Scan),
        CommandId::Export => return Ok(Request::Export),
        CommandId::Keys => Command::Keys(key),
        CommandId::Watch => Command::Watch(strings),
        CommandId::Multi => return Ok(Request::Multi),
        CommandId::Exec => return Ok(Request::Exec),
        CommandId::Discard => return Ok(Request::Discard),
        CommandId::Unwatch => return Ok(Request::Unwatch),
        CommandId::UnwatchPrefix if args.len() > 2 => return Err(wrong_arity(spec.name)),
        CommandId::WatchPrefix if args.len() > 3 => return Err(wrong_arity(spec.name)),
        CommandId::Asking
        | CommandId::Auth
        | CommandId::Client
        | CommandId::Cluster
        | CommandId::Command
        | CommandId::Echo
        | CommandId::Hello
        | CommandId::Info
        | CommandId::Ping
        | CommandId::PSubscribe
        | CommandId::PubSub
        | CommandId::PUnsubscribe
        | CommandId::Quit
        | CommandId::ReadOnly
        | CommandId::ReadWrite
        | CommandId::Reset
        | CommandId::Role
        | CommandId::Select
        | CommandId::Sentinel
        | CommandId::Subscribe
        | CommandId::Time
        | CommandId::Unsubscribe
        | CommandId::UnwatchPrefix
        | CommandId::WatchPrefix => return Ok(Request::Local(spec)),
    };
    Ok(Request::Replicated(command))
}

/// `ERR wrong number of arguments`; `name` is `command` or `command|subcommand`, case-insensitive.
pub fn wrong_arity(name: &str) -> Reply {
    let name = name.to_lowercase();
    Reply::error(format!(
        "ERR wrong number of arguments for '{name}' command"
    ))
}

/// `ERR unknown subcommand`.
pub fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Reply {
    let subcommand = &subcommand[..subcommand.len().min(UNKNOWN_ECHO_BYTES_MAX)];
    let subcommand = String::from_utf8_lossy(subcommand);
    Reply::error(format!(
        "ERR unknown subcommand '{subcommand}'. Try {command} HELP."
    ))
}

fn unknown_command(args: Args<'_>) -> Reply {
    let name = args.get(0);
    let name = String::from_utf8_lossy(&name[..name.len().min(UNKNOWN_ECHO_BYTES_MAX)]);
    let mut listed = String::new();
    for arg in args.from(1) {
        let Some(room @ 1..) = UNKNOWN_ECHO_BYTES_MAX.checked_sub(listed.len()) else {
            break;
        };
        listed += &format!(
            "'{}' ",
            String::from_utf8_lossy(&arg[..arg.len().min(room)])
        );
    }
    Reply::error(format!(
        "ERR unknown command '{name}', with args beginning with: {listed}"
    ))
}

/// Returns an integer exactly as Redis accepts it: no plus sign, no leading zeros, no spaces.
pub fn strict_integer(bytes: &[u8]) -> Option<i64> {
    match bytes {
        b"0" => Some(0),
        [b'1'..=b'9', ..] | [b'-', b'1'..=b'9', ..] => {
            std::str::from_utf8(bytes).ok()?.parse().ok()
        }
        _ => None,
    }
}

pub fn integer(bytes: &[u8]) -> Result<i64, Reply> {
    strict_integer(bytes).ok_or_else(|| Reply::error(NOT_AN_INTEGER))
}

fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

fn syntax_error() -> Reply {
    Reply::error(SYNTAX_ERROR)
}

fn parse_copy(args: Args<'_>) -> Result<Command<'_>, Reply> {
    let (mut replaces, mut at) = (false, 3);
    while at < args.len() {
        if is(args.get(at), "REPLACE") {
            replaces = true;
        } else if is(args.get(at), "DB") && at + 1 < args.len() {
            at += 1;
            if integer(args.get(at))? != 0 {
                return Err(Reply::error("ERR DB index is out of range"));
            }
        } else {
            return Err(syntax_error());
        }
        at += 1;
    }
    let (from, to) = (args.get(1), args.get(2));
    if from == to {
        return Err(Reply::error(
            "ERR source and destination objects are the same",
        ));
    }
    Ok(Command::Copy { from, to, replaces })
}

fn parse_flush(args: Args<'_>) -> Result<Command<'_>, Reply> {
    match args.len() {
        1 => Ok(Command::FlushAll),
        2 if is(args.get(1), "ASYNC") || is(args.get(1), "SYNC") => Ok(Command::FlushAll),
        _ => Err(syntax_error()),
    }
}

fn parse_session(args: Args<'_>) -> Result<Request<'_>, Reply> {
    match args.len() {
        2 if is(args.get(1), "NEW") => Ok(Request::Replicated(Command::SessionNew { owner: 0 })),
        3 => {
            let number = |at| integer(args.get(at)).map(|n| u64::try_from(n).unwrap_or(0));
            match (number(1)?, number(2)?) {
                (0, _) | (_, 0) => Err(Reply::error(
                    "ERR session id and sequence start at 1; INBAND.SESSION NEW opens a session",
                )),
                (id, seq) => Ok(Request::UseSession { id, seq }),
            }
        }
        2 => Err(unknown_subcommand("INBAND.SESSION", args.get(1))),
        _ => Err(wrong_arity("INBAND.SESSION")),
    }
}

#[cfg(test)]
mod tests;
