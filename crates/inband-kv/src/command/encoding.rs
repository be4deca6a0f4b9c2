//! The compact encoding of commands inside a value.
//!
//! A replica that does not know an operation must not skip it: adding an operation, or changing an encoding, requires
//! raising [`crate::value::VALUE_VERSION`].

mod collections;
mod fields;

use bytes::{BufMut, BytesMut};

use super::{
    Command, ExpireWhen, Extend, Queue, SessionStamp, SetReply, SetWhen, TimeUnit, Watched,
};
use crate::bits::{BitLogic, BitOp};
use crate::events::EventClasses;
use crate::lock::LockOp;
use crate::types::{Kind, OPS};
use collections::{put_combine, put_multi_pop, put_sample};
use fields::{put_expiry, put_signed, put_strings};
pub(super) use fields::{put_string, put_varint, Reader};

/// Set in the opcode byte if a session stamp follows.
pub(super) const STAMPED: u8 = 0x80;

const OP_GET: u8 = 1;
const OP_GET_DEL: u8 = 2;
const OP_STR_LEN: u8 = 3;
const OP_TYPE: u8 = 4;
const OP_PERSIST: u8 = 5;
const OP_TTL: u8 = 6;
const OP_SET: u8 = 7;
const OP_INCR_BY: u8 = 8;
const OP_APPEND: u8 = 9;
const OP_EXPIRE: u8 = 10;
const OP_MGET: u8 = 11;
const OP_MSET: u8 = 12;
const OP_DEL: u8 = 13;
const OP_EXISTS: u8 = 14;
const OP_DB_SIZE: u8 = 15;
const OP_FLUSH_ALL: u8 = 16;
const OP_SESSION_NEW: u8 = 17;
/// The first operation of version 2.
const OP_KEYS: u8 = 18;
const OP_WATCH: u8 = 19;
pub(super) const OP_EXEC: u8 = 20;
/// The first operation of version 3.
const OP_GET_RANGE: u8 = 21;
const OP_SET_RANGE: u8 = 22;
const OP_GET_EX: u8 = 23;
const OP_INCR_BY_FLOAT: u8 = 24;
const OP_COMPARE_DELETE: u8 = 25;
const OP_COMPARE_EXPIRE: u8 = 26;
const OP_MSET_NX: u8 = 27;
const OP_SESSION_NEW_OF: u8 = 28;
/// The first operation of version 4.
const OP_EVAL: u8 = 29;
const OP_EVAL_RO: u8 = 30;
const OP_SCRIPT_LOAD: u8 = 31;
const OP_SCRIPT_FLUSH: u8 = 32;
const OP_SET_IF_EQUAL: u8 = 33;
/// The first operation of version 5.
const OP_TYPED: u8 = 34;
const OP_RESTORE: u8 = 35;
/// The first operation of version 7.
const OP_RENAME: u8 = 36;
const OP_COPY: u8 = 37;
/// The first operation of version 8.
const OP_PUBLISH: u8 = 38;
/// The first operation of version 9.
const OP_LOCK: u8 = 39;
/// The first operation of version 10.
const OP_SET_EVENTS: u8 = 40;
const OP_MULTI_POP: u8 = 41;
/// The first operation of version 11.
const OP_COMBINE: u8 = 42;
const OP_SAMPLE: u8 = 43;
/// The first operation of version 12.
const OP_BITS: u8 = 44;
const OP_COMBINE_BITS: u8 = 45;
const OP_EVAL_OF_VERSION: u8 = 46;
const OP_EVAL_RO_OF_VERSION: u8 = 47;

/// The version of the last commands that were added; see [`version_of`].
pub const COMMANDS_VERSION: u8 = 12;
/// Scripts that do not say which commands they may call come from a program of this version.
const CALLS_VERSION_UNSAID: u8 = 11;

/// Fields are encoded as an index into these; never reorder, only append.
const SET_WHEN: [SetWhen; 3] = [SetWhen::Always, SetWhen::Missing, SetWhen::Exists];
const SET_REPLY: [SetReply; 3] = [SetReply::Status, SetReply::Old, SetReply::Flag];
const EXTEND: [Extend; 3] = [Extend::Set, Extend::SetIfExpiring, Extend::AddIfExpiring];
const TIME_UNIT: [TimeUnit; 4] = [
    TimeUnit::Seconds,
    TimeUnit::Milliseconds,
    TimeUnit::AtSeconds,
    TimeUnit::AtMilliseconds,
];
const EXPIRE_WHEN: [ExpireWhen; 7] = [
    ExpireWhen::Always,
    ExpireWhen::NoExpiry,
    ExpireWhen::HasExpiry,
    ExpireWhen::Later,
    ExpireWhen::Earlier,
    ExpireWhen::HasExpiryAndLater,
    ExpireWhen::HasExpiryAndEarlier,
];

fn place<T: PartialEq>(all: &[T], value: &T) -> u8 {
    all.iter().position(|v| v == value).unwrap_or(0) as u8
}

/// Returns the lowest version of the value format that a program must support to execute this encoded command.
pub fn version_of(encoded: &[u8]) -> u8 {
    match encoded.first().map(|op| op & !STAMPED) {
        // A value may grow beyond the first version's limit once records have versions, which needs version 2.
        Some(OP_APPEND) => 2,
        Some(OP_EXEC) => match Command::decode(encoded) {
            Some((Command::Exec { commands, .. }, _)) => commands.version(),
            _ => 2,
        },
        Some(OP_TTL) => match Command::decode(encoded) {
            Some((Command::Ttl(_, TimeUnit::AtSeconds | TimeUnit::AtMilliseconds), _)) => 7,
            _ => 1,
        },
        Some(OP_EVAL_OF_VERSION | OP_EVAL_RO_OF_VERSION) => match Command::decode(encoded) {
            Some((Command::Eval { calls_version, .. }, _)) => calls_version,
            _ => COMMANDS_VERSION,
        },
        Some(OP_BITS..) => 12,
        Some(OP_COMBINE..) => 11,
        Some(OP_SET_EVENTS..) => 10,
        Some(OP_LOCK..) => 9,
        Some(OP_PUBLISH..) => 8,
        Some(OP_RENAME..) => 7,
        Some(OP_EVAL | OP_EVAL_RO) => CALLS_VERSION_UNSAID,
        Some(OP_TYPED) => match Command::decode(encoded) {
            Some((Command::Typed { op, .. }, _)) if op.is_of_version_10() => 10,
            Some((Command::Typed { op, .. }, _)) if op.waits_for().is_some() => 8,
            Some((Command::Typed { op, .. }, _)) if op.is_for_sorted_sets() => 7,
            // Their work is bounded since version 6.
            _ => 6,
        },
        Some(OP_RESTORE..) => 5,
        Some(OP_SCRIPT_LOAD..) => 4,
        Some(OP_GET_RANGE..) => 3,
        Some(OP_KEYS..) => 2,
        _ => 1,
    }
}

impl<'a> Command<'a> {
    /// Appends the encoded command.
    pub fn encode(&self, stamp: Option<SessionStamp>, out: &mut BytesMut) {
        let op = match self {
            Command::Get(_) => OP_GET,
            Command::GetDel(_) => OP_GET_DEL,
            Command::StrLen(_) => OP_STR_LEN,
            Command::Type(_) => OP_TYPE,
            Command::Persist(_) => OP_PERSIST,
            Command::Ttl(..) => OP_TTL,
            Command::Set { .. } => OP_SET,
            Command::SetIfEqual { .. } => OP_SET_IF_EQUAL,
            Command::IncrBy(..) => OP_INCR_BY,
            Command::Append(..) => OP_APPEND,
            Command::Expire { .. } => OP_EXPIRE,
            Command::MGet(_) => OP_MGET,
            Command::MSet(_) => OP_MSET,
            Command::Del(_) => OP_DEL,
            Command::Exists(_) => OP_EXISTS,
            Command::DbSize => OP_DB_SIZE,
            Command::FlushAll => OP_FLUSH_ALL,
            Command::SessionNew { owner: 0 } => OP_SESSION_NEW,
            Command::SessionNew { .. } => OP_SESSION_NEW_OF,
            Command::GetRange { .. } => OP_GET_RANGE,
            Command::SetRange { .. } => OP_SET_RANGE,
            Command::GetEx(..) => OP_GET_EX,
            Command::IncrByFloat(..) => OP_INCR_BY_FLOAT,
            Command::CompareDelete(..) => OP_COMPARE_DELETE,
            Command::CompareExpire { .. } => OP_COMPARE_EXPIRE,
            Command::MSetNx(_) => OP_MSET_NX,
            Command::Eval {
                is_read_only,
                calls_version,
                ..
            } => match (is_read_only, *calls_version) {
                (true, CALLS_VERSION_UNSAID) => OP_EVAL_RO,
                (false, CALLS_VERSION_UNSAID) => OP_EVAL,
                (true, _) => OP_EVAL_RO_OF_VERSION,
                (false, _) => OP_EVAL_OF_VERSION,
            },
            Command::Publish { .. } => OP_PUBLISH,
            Command::ScriptLoad(_) => OP_SCRIPT_LOAD,
            Command::ScriptFlush => OP_SCRIPT_FLUSH,
            Command::SetEvents(_) => OP_SET_EVENTS,
            Command::Typed { .. } => OP_TYPED,
            Command::MultiPop { .. } => OP_MULTI_POP,
            Command::Combine { .. } => OP_COMBINE,
            Command::Sample { .. } => OP_SAMPLE,
            Command::Bits { .. } => OP_BITS,
            Command::CombineBits { .. } => OP_COMBINE_BITS,
            Command::Restore { .. } => OP_RESTORE,
            Command::Lock { .. } => OP_LOCK,
            Command::Rename { .. } => OP_RENAME,
            Command::Copy { .. } => OP_COPY,
            Command::Keys(_) => OP_KEYS,
            Command::Watch(_) => OP_WATCH,
            Command::Exec { .. } => OP_EXEC,
        };
        match stamp {
            None => out.put_u8(op),
            Some(stamp) => {
                out.put_u8(op | STAMPED);
                put_varint(out, stamp.id);
                put_varint(out, stamp.seq);
                put_varint(out, stamp.low);
            }
        }
        match self {
            Command::Get(key)
            | Command::GetDel(key)
            | Command::StrLen(key)
            | Command::Type(key)
            | Command::Persist(key)
            | Command::ScriptLoad(key)
            | Command::Keys(key) => put_string(out, key),
            Command::Ttl(key, unit) => {
                out.put_u8(place(&TIME_UNIT, unit));
                put_string(out, key);
            }
            Command::Set {
                key,
                value,
                when,
                expiry,
                reply,
            } => {
                out.put_u8(place(&SET_WHEN, when));
                out.put_u8(place(&SET_REPLY, reply));
                put_expiry(out, *expiry);
                put_string(out, key);
                put_string(out, value);
            }
            Command::SetIfEqual {
                key,
                value,
                expected,
                expiry,
                reply,
            } => {
                out.put_u8(place(&SET_REPLY, reply));
                put_expiry(out, *expiry);
                put_string(out, key);
                put_string(out, value);
                put_string(out, expected);
            }
            Command::IncrBy(key, delta) => {
                put_signed(out, *delta);
                put_string(out, key);
            }
            Command::Append(key, value)
            | Command::IncrByFloat(key, value)
            | Command::CompareDelete(key, value)
            | Command::Publish {
                channel: key,
                payload: value,
            } => {
                put_string(out, key);
                put_string(out, value);
            }
            Command::GetRange { key, start, end } => {
                put_signed(out, *start);
                put_signed(out, *end);
                put_string(out, key);
            }
            Command::SetRange { key, offset, value } => {
                put_varint(out, *offset);
                put_string(out, key);
                put_string(out, value);
            }
            Command::GetEx(key, expiry) => {
                put_expiry(out, *expiry);
                put_string(out, key);
            }
            Command::CompareExpire {
                key,
                value,
                ms,
                extend,
            } => {
                out.put_u8(place(&EXTEND, extend));
                put_signed(out, *ms);
                put_string(out, key);
                put_string(out, value);
            }
            Command::Expire { key, expiry, when } => {
                out.put_u8(place(&EXPIRE_WHEN, when));
                put_expiry(out, *expiry);
                put_string(out, key);
            }
            Command::MGet(strings)
            | Command::MSet(strings)
            | Command::MSetNx(strings)
            | Command::Del(strings)
            | Command::Exists(strings)
            | Command::Watch(strings) => {
                put_strings(out, strings);
            }
            Command::Typed { op, key, args } => {
                out.put_u8(place(&OPS, op));
                put_string(out, key);
                put_strings(out, args);
            }
            Command::MultiPop { pop, keys, timeout } => put_multi_pop(out, pop, keys, *timeout),
            Command::Combine {
                op,
                target,
                keys,
                options,
            } => put_combine(out, *op, target, keys, options),
            Command::Sample { sample, key } => put_sample(out, sample, key),
            Command::Bits { op, key, args } => {
                out.put_u8(place(&BitOp::ALL, op));
                put_string(out, key);
                put_strings(out, args);
            }
            Command::CombineBits {
                logic,
                target,
                keys,
            } => {
                out.put_u8(place(&BitLogic::ALL, logic));
                put_string(out, target);
                put_strings(out, keys);
            }
            Command::Restore {
                kind,
                key,
                expire_at_ms,
                value,
            } => {
                out.put_u8(*kind as u8);
                put_varint(out, *expire_at_ms);
                put_string(out, key);
                put_string(out, value);
            }
            Command::Lock {
                op,
                key,
                owner,
                ttl_ms,
            } => {
                out.put_u8(place(&LockOp::ALL, op));
                put_varint(out, *ttl_ms);
                put_string(out, key);
                put_string(out, owner);
            }
            Command::Rename {
                from,
                to,
                only_if_missing: flag,
            }
            | Command::Copy {
                from,
                to,
                replaces: flag,
            } => {
                out.put_u8(u8::from(*flag));
                put_string(out, from);
                put_string(out, to);
            }
            Command::Eval {
                text,
                keys,
                args,
                calls_version,
                ..
            } => {
                if *calls_version != CALLS_VERSION_UNSAID {
                    out.put_u8(*calls_version);
                }
                put_string(out, text);
                put_strings(out, keys);
                put_strings(out, args);
            }
            Command::Exec { watched, commands } => {
                put_varint(out, watched.len() as u64);
                for (key, version) in watched.iter() {
                    Watched::push(out, key, version);
                }
                put_varint(out, commands.len() as u64);
                commands.iter().for_each(|c| Queue::push(out, &c));
            }
            Command::SessionNew { owner } if *owner != 0 => put_varint(out, *owner),
            Command::SetEvents(classes) => put_varint(out, classes.bits()),
            Command::DbSize
            | Command::FlushAll
            | Command::ScriptFlush
            | Command::SessionNew { .. } => {}
        }
    }

    /// Appends a blocking pop as a client tries it that waits already: without the timeout.
    pub fn encode_again(&self, out: &mut BytesMut) {
        if let Command::MultiPop { pop, keys, timeout } = self {
            out.put_u8(OP_MULTI_POP);
            put_multi_pop(out, pop, keys, timeout.map(|_| &[][..]));
        }
        if let Command::Typed { op, key, args } = self {
            out.put_u8(OP_TYPED);
            out.put_u8(place(&OPS, op));
            put_string(out, key);
            put_varint(out, args.len() as u64);
            let kept = args.len().saturating_sub(1);
            args.iter().take(kept).for_each(|arg| put_string(out, arg));
            put_string(out, b"");
        }
    }

    /// Decodes a command; `None` if it is malformed.
    pub fn decode(bytes: &'a [u8]) -> Option<(Self, Option<SessionStamp>)> {
        let mut reader = Reader(bytes);
        let op = reader.byte()?;
        let stamp = if op & STAMPED == 0 {
            None
        } else {
            let (id, seq, low) = (reader.varint()?, reader.varint()?, reader.varint()?);
            Some(SessionStamp { id, seq, low })
        };
        let command = match op & !STAMPED {
            OP_GET => Command::Get(reader.string()?),
            OP_GET_DEL => Command::GetDel(reader.string()?),
            OP_STR_LEN => Command::StrLen(reader.string()?),
            OP_TYPE => Command::Type(reader.string()?),
            OP_PERSIST => Command::Persist(reader.string()?),
            OP_TTL => {
                let unit = reader.choice(&TIME_UNIT)?;
                Command::Ttl(reader.string()?, unit)
            }
            OP_SET => {
                let when = reader.choice(&SET_WHEN)?;
                let reply = reader.choice(&SET_REPLY)?;
                let expiry = reader.expiry()?;
                let (key, value) = (reader.string()?, reader.string()?);
                Command::Set {
                    key,
                    value,
                    when,
                    expiry,
                    reply,
                }
            }
            OP_INCR_BY => {
                let delta = reader.signed()?;
                Command::IncrBy(reader.string()?, delta)
            }
            OP_APPEND => Command::Append(reader.string()?, reader.string()?),
            OP_EXPIRE => {
                let when = reader.choice(&EXPIRE_WHEN)?;
                let expiry = reader.expiry()?;
                Command::Expire {
                    key: reader.string()?,
                    expiry,
                    when,
                }
            }
            OP_MGET => Command::MGet(reader.strings()?),
            OP_MSET => Command::MSet(reader.strings().filter(|s| s.len() % 2 == 0)?),
            OP_DEL => Command::Del(reader.strings()?),
            OP_EXISTS => Command::Exists(reader.strings()?),
            OP_DB_SIZE => Command::DbSize,
            OP_FLUSH_ALL => Command::FlushAll,
            OP_SESSION_NEW => Command::SessionNew { owner: 0 },
            OP_SESSION_NEW_OF => Command::SessionNew {
                owner: reader.varint().filter(|owner| *owner != 0)?,
            },
            OP_GET_RANGE => {
                let (start, end) = (reader.signed()?, reader.signed()?);
                Command::GetRange {
                    key: reader.string()?,
                    start,
                    end,
                }
            }
            OP_SET_RANGE => {
                let offset = reader.varint()?;
                Command::SetRange {
                    key: reader.string()?,
                    offset,
                    value: reader.string()?,
                }
            }
            OP_GET_EX => {
                let expiry = reader.expiry()?;
                Command::GetEx(reader.string()?, expiry)
            }
            OP_INCR_BY_FLOAT => Command::IncrByFloat(reader.string()?, reader.string()?),
            OP_COMPARE_DELETE => Command::CompareDelete(reader.string()?, reader.string()?),
            OP_COMPARE_EXPIRE => {
                let extend = reader.choice(&EXTEND)?;
                let ms = reader.signed()?;
                Command::CompareExpire {
                    key: reader.string()?,
                    value: reader.string()?,
                    ms,
                    extend,
                }
            }
            OP_MSET_NX => Command::MSetNx(reader.strings().filter(|s| s.len() % 2 == 0)?),
            op @ (OP_EVAL | OP_EVAL_RO | OP_EVAL_OF_VERSION | OP_EVAL_RO_OF_VERSION) => {
                let calls_version = match op {
                    OP_EVAL | OP_EVAL_RO => CALLS_VERSION_UNSAID,
                    _ => {
                        let version = reader.byte()?;
                        let known = CALLS_VERSION_UNSAID + 1..=COMMANDS_VERSION;
                        Some(version).filter(|version| known.contains(version))?
                    }
                };
                Command::Eval {
                    text: reader.string()?,
                    keys: reader.strings()?,
                    args: reader.strings()?,
                    is_read_only: matches!(op, OP_EVAL_RO | OP_EVAL_RO_OF_VERSION),
                    calls_version,
                }
            }
            OP_SCRIPT_LOAD => Command::ScriptLoad(reader.string()?),
            OP_SCRIPT_FLUSH => Command::ScriptFlush,
            OP_SET_EVENTS => Command::SetEvents(EventClasses::of_bits(reader.varint()?)?),
            OP_SET_IF_EQUAL => {
                let reply = reader.choice(&SET_REPLY)?;
                let expiry = reader.expiry()?;
                Command::SetIfEqual {
                    key: reader.string()?,
                    value: reader.string()?,
                    expected: reader.string()?,
                    expiry,
                    reply,
                }
            }
            OP_TYPED => Command::Typed {
                op: reader.choice(&OPS)?,
                key: reader.string()?,
                args: reader.strings()?,
            },
            OP_MULTI_POP => reader.multi_pop()?,
            OP_COMBINE => reader.combine()?,
            OP_SAMPLE => reader.sample()?,
            OP_BITS => Command::Bits {
                op: reader.choice(&BitOp::ALL)?,
                key: reader.string()?,
                args: reader.strings()?,
            },
            OP_COMBINE_BITS => Command::CombineBits {
                logic: reader.choice(&BitLogic::ALL)?,
                target: reader.string()?,
                keys: reader.strings()?,
            },
            OP_RESTORE => {
                let kind = Kind::of_byte(reader.byte()?)?;
                let expire_at_ms = reader.varint()?;
                Command::Restore {
                    kind,
                    key: reader.string()?,
                    expire_at_ms,
                    value: reader.string()?,
                }
            }
            OP_RENAME => Command::Rename {
                only_if_missing: reader.choice(&[false, true])?,
                from: reader.string()?,
                to: reader.string()?,
            },
            OP_COPY => Command::Copy {
                replaces: reader.choice(&[false, true])?,
                from: reader.string()?,
                to: reader.string()?,
            },
            OP_LOCK => {
                let op = reader.choice(&LockOp::ALL)?;
                let ttl_ms = reader.varint()?;
                Command::Lock {
                    op,
                    key: reader.string()?,
                    owner: reader.string()?,
                    ttl_ms,
                }
            }
            OP_PUBLISH => Command::Publish {
                channel: reader.string()?,
                payload: reader.string()?,
            },
            OP_KEYS => Command::Keys(reader.string()?),
            OP_WATCH => Command::Watch(reader.strings()?),
            OP_EXEC => Command::Exec {
                watched: reader.watched()?,
                commands: reader.queue()?,
            },
            _ => return None,
        };
        reader.0.is_empty().then_some((command, stamp))
    }
}

#[cfg(test)]
mod tests;
