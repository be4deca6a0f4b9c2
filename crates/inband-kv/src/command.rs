//! Commands that go through the log, and their compact encoding inside a value.
//!
//! A replica that does not know an operation must not skip it: adding an operation, or changing an encoding, requires
//! raising [`crate::value::VALUE_VERSION`].

use bytes::{BufMut, BytesMut};
use inband_resp::reply::Reply;
use inband_resp::request::Args;

use crate::partition::partition_of;
use crate::types::{Kind, Op, OPS};

/// When a `SET` takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetWhen {
    Always,
    /// Only if the key does not exist (`NX`).
    Missing,
    /// Only if the key exists (`XX`).
    Exists,
}

/// What a `SET` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetReply {
    /// OK, or nil if it took no effect.
    Status,
    /// The old value (`GET`, `GETSET`).
    Old,
    /// 1 or 0 (`SETNX`).
    Flag,
}

/// When a key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    Never,
    /// Unchanged (`KEEPTTL`).
    Keep,
    /// This many milliseconds after the replicated time at which the command is applied.
    InMs(i64),
    /// At this Unix time in milliseconds.
    AtMs(i64),
}

/// When an `EXPIRE` takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpireWhen {
    /// Always.
    Always,
    /// If the key has no expiry (`NX`).
    NoExpiry,
    /// If the key has an expiry (`XX`).
    HasExpiry,
    /// If the new expiry is later (`GT`).
    Later,
    /// If the new expiry is earlier (`LT`).
    Earlier,
    /// If the key has an expiry and the new one is later (`XX GT`).
    HasExpiryAndLater,
    /// If the key has an expiry and the new one is earlier (`XX LT`).
    HasExpiryAndEarlier,
}

/// Which keys a lock's owner may extend, and how the new time to live is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extend {
    /// Any key; the given time.
    Set,
    /// A key that expires; the given time.
    SetIfExpiring,
    /// A key that expires; the given time plus the remaining time.
    AddIfExpiring,
}

/// Unit of the reply to `TTL` or `PTTL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds, rounded.
    Seconds,
    /// Milliseconds.
    Milliseconds,
}

/// Identifies one command of a named client session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionStamp {
    pub id: u64,
    /// Sequence number of the command within the session.
    pub seq: u64,
    /// Replies below this were received and may be dropped.
    pub low: u64,
}

/// Several strings: the arguments of a request, or their encoded form.
#[derive(Debug, Clone, Copy)]
pub enum Strings<'a> {
    /// Arguments from this index on.
    Args(Args<'a>, usize),
    /// This many length-prefixed strings, known to be well-formed.
    Encoded(usize, &'a [u8]),
}

impl<'a> Strings<'a> {
    pub fn len(&self) -> usize {
        match self {
            Strings::Args(args, first) => args.len().saturating_sub(*first),
            Strings::Encoded(count, _) => *count,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let this = *self;
        let mut reader = Reader(if let Strings::Encoded(_, bytes) = this {
            bytes
        } else {
            &[]
        });
        (0..self.len()).map_while(move |i| match this {
            Strings::Args(args, first) => Some(args.get(first + i)),
            Strings::Encoded(..) => reader.string(),
        })
    }
}

impl PartialEq for Strings<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// The keys that a transaction watches, with their versions.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    count: usize,
    /// `count` pairs of a string and a number, known to be well-formed.
    bytes: &'a [u8],
}

impl<'a> Watched<'a> {
    /// `bytes` holds `count` keys appended by [`push`](Self::push).
    pub fn new(count: usize, bytes: &'a [u8]) -> Self {
        Self { count, bytes }
    }

    pub fn push(bytes: &mut BytesMut, key: &[u8], version: u64) {
        put_string(bytes, key);
        put_varint(bytes, version);
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the keys with their versions.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], u64)> + use<'a> {
        let mut reader = Reader(self.bytes);
        (0..self.count).map_while(move |_| Some((reader.string()?, reader.varint()?)))
    }
}

impl PartialEq for Watched<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// The commands of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct Queue<'a> {
    count: usize,
    /// `count` length-prefixed encoded commands, known to be well-formed.
    bytes: &'a [u8],
}

impl<'a> Queue<'a> {
    /// `bytes` holds `count` commands appended by [`push`](Self::push).
    pub fn new(count: usize, bytes: &'a [u8]) -> Self {
        Self { count, bytes }
    }

    pub fn push(bytes: &mut BytesMut, command: &Command<'_>) {
        let mut encoded = BytesMut::new();
        command.encode(None, &mut encoded);
        put_string(bytes, &encoded);
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// See [`version_of`]; a transaction itself has version 2.
    fn version(&self) -> u8 {
        let mut reader = Reader(self.bytes);
        let encoded = (0..self.count).map_while(|_| reader.string());
        encoded.map(version_of).max().unwrap_or(0).max(2)
    }

    pub fn iter(&self) -> impl Iterator<Item = Command<'a>> + use<'a> {
        let mut reader = Reader(self.bytes);
        (0..self.count).map_while(move |_| queued(reader.string()?))
    }
}

impl PartialEq for Queue<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Returns a command that is allowed in a transaction.
fn queued(encoded: &[u8]) -> Option<Command<'_>> {
    // Checked first: otherwise nested transactions would be decoded recursively without a limit on the depth.
    if encoded.first().is_none_or(|op| op & !STAMPED == OP_EXEC) {
        return None;
    }
    match Command::decode(encoded)? {
        (Command::Watch(_) | Command::SessionNew { .. }, _) | (_, Some(_)) => None,
        (command, None) => Some(command),
    }
}

/// Where a command is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// In the log of the only partition that it involves.
    Partition(usize),
    /// In the log of cross-partition commands.
    Several,
}

/// A command that goes through the log.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // the fields are the arguments of the Redis commands of these names
pub enum Command<'a> {
    Get(&'a [u8]),
    GetDel(&'a [u8]),
    StrLen(&'a [u8]),
    Type(&'a [u8]),
    Persist(&'a [u8]),
    /// `TTL` and `PTTL`.
    Ttl(&'a [u8], TimeUnit),
    /// `SET` and its variants: `SETNX`, `SETEX`, `PSETEX`, `GETSET`.
    Set {
        key: &'a [u8],
        value: &'a [u8],
        when: SetWhen,
        expiry: Expiry,
        reply: SetReply,
    },
    /// `SET` with `IFEQ`: if the key holds the value `expected`.
    SetIfEqual {
        key: &'a [u8],
        value: &'a [u8],
        expected: &'a [u8],
        expiry: Expiry,
        reply: SetReply,
    },
    /// `INCR`, `DECR`, `INCRBY`, `DECRBY`.
    IncrBy(&'a [u8], i64),
    Append(&'a [u8], &'a [u8]),
    /// `EXPIRE`, `PEXPIRE`, `EXPIREAT`, `PEXPIREAT`.
    Expire {
        key: &'a [u8],
        expiry: Expiry,
        when: ExpireWhen,
    },
    GetRange {
        key: &'a [u8],
        start: i64,
        end: i64,
    },
    SetRange {
        key: &'a [u8],
        offset: u64,
        value: &'a [u8],
    },
    /// `GETEX` with an option; without one it is `GET`.
    GetEx(&'a [u8], Expiry),
    IncrByFloat(&'a [u8], &'a [u8]),
    /// `DELIFEQ`, and `DELEX` with `IFEQ`: delete a key if it holds this value.
    CompareDelete(&'a [u8], &'a [u8]),
    /// Change the time to live, in milliseconds, of a key that holds this value. Only in logs of earlier programs.
    CompareExpire {
        key: &'a [u8],
        value: &'a [u8],
        ms: i64,
        extend: Extend,
    },
    MGet(Strings<'a>),
    /// A command for hashes, lists or sets; `args` follow the key.
    Typed {
        op: Op,
        key: &'a [u8],
        args: Strings<'a>,
    },
    /// `INBAND.RESTORE`: a packed collection.
    Restore {
        kind: Kind,
        key: &'a [u8],
        /// 0: never.
        expire_at_ms: u64,
        value: &'a [u8],
    },
    /// Alternating keys and values.
    MSet(Strings<'a>),
    /// Alternating keys and values; sets all of them if none of the keys exists.
    MSetNx(Strings<'a>),
    /// `EVAL`, and `EVALSHA` with the text of the script.
    Eval {
        text: &'a [u8],
        keys: Strings<'a>,
        args: Strings<'a>,
        /// `EVAL_RO`.
        is_read_only: bool,
    },
    /// `SCRIPT LOAD`: every replica remembers the text.
    ScriptLoad(&'a [u8]),
    ScriptFlush,
    /// `DEL` and `UNLINK`.
    Del(Strings<'a>),
    Exists(Strings<'a>),
    DbSize,
    /// `FLUSHALL` and `FLUSHDB`: there is one database.
    FlushAll,
    /// `INBAND.SESSION NEW`.
    SessionNew {
        /// See [`crate::client_sessions::owner_of`].
        owner: u64,
    },
    /// `KEYS` with its pattern.
    Keys(&'a [u8]),
    /// `WATCH`: the versions of some keys.
    Watch(Strings<'a>),
    /// `EXEC` with the queued commands.
    Exec {
        watched: Watched<'a>,
        commands: Queue<'a>,
    },
}

/// Set in the opcode byte if a session stamp follows.
const STAMPED: u8 = 0x80;

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
const OP_EXEC: u8 = 20;
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

const EXPIRY_NEVER: u8 = 0;
const EXPIRY_KEEP: u8 = 1;
const EXPIRY_IN_MS: u8 = 2;
const EXPIRY_AT_MS: u8 = 3;

/// Fields are encoded as an index into these; never reorder, only append.
const SET_WHEN: [SetWhen; 3] = [SetWhen::Always, SetWhen::Missing, SetWhen::Exists];
const SET_REPLY: [SetReply; 3] = [SetReply::Status, SetReply::Old, SetReply::Flag];
const EXTEND: [Extend; 3] = [Extend::Set, Extend::SetIfExpiring, Extend::AddIfExpiring];
const TIME_UNIT: [TimeUnit; 2] = [TimeUnit::Seconds, TimeUnit::Milliseconds];
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
        // Their work is bounded since version 6. A script may execute commands of any version.
        Some(OP_TYPED | OP_EVAL | OP_EVAL_RO) => 6,
        Some(OP_RESTORE..) => 5,
        Some(OP_SCRIPT_LOAD..) => 4,
        Some(OP_GET_RANGE..) => 3,
        Some(OP_KEYS..) => 2,
        _ => 1,
    }
}

impl<'a> Command<'a> {
    /// Changes nothing but replicated time, so it is executed only on the replica whose client waits for the reply.
    pub fn only_reads(&self) -> bool {
        if let Command::Exec { commands, .. } = self {
            return commands.iter().all(|command| command.only_reads());
        }
        if let Command::Typed { op, .. } = self {
            return op.only_reads();
        }
        matches!(
            self,
            Command::Get(_)
                | Command::GetRange { .. }
                | Command::StrLen(_)
                | Command::Type(_)
                | Command::Ttl(..)
                | Command::MGet(_)
                | Command::Exists(_)
                | Command::DbSize
                | Command::Keys(_)
                | Command::Watch(_)
        )
    }

    /// Returns whether the command needs free disk space; deletions free space.
    pub fn needs_room(&self) -> bool {
        match self {
            Command::Exec { commands, .. } => commands.iter().any(|command| command.needs_room()),
            Command::Del(_)
            | Command::GetDel(_)
            | Command::CompareDelete(..)
            | Command::FlushAll => false,
            Command::Typed { op, .. } if op.only_removes() => false,
            command => !command.only_reads(),
        }
    }

    /// Returns whether the reply reveals how long a key has left to live.
    pub fn tells_time(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (Command::Ttl(..), Reply::Integer(left)) => *left >= 0,
            (Command::Exec { commands, .. }, Reply::Array(replies)) => {
                let mut each = commands.iter().zip(replies);
                each.any(|(command, reply)| command.tells_time(reply))
            }
            _ => false,
        }
    }

    /// Returns the key that must hold a string if it exists.
    pub(crate) fn string_key(&self) -> Option<&'a [u8]> {
        match self {
            Command::Get(key)
            | Command::GetDel(key)
            | Command::StrLen(key)
            | Command::IncrBy(key, _)
            | Command::Append(key, _)
            | Command::GetRange { key, .. }
            | Command::SetRange { key, .. }
            | Command::GetEx(key, _)
            | Command::IncrByFloat(key, _)
            | Command::CompareDelete(key, _)
            | Command::CompareExpire { key, .. }
            | Command::SetIfEqual { key, .. } => Some(key),
            Command::Set {
                key,
                reply: SetReply::Old,
                ..
            } => Some(key),
            _ => None,
        }
    }

    /// Returns the key, if the command names exactly one.
    fn single_key(&self) -> Option<&'a [u8]> {
        match self {
            Command::Type(key)
            | Command::Persist(key)
            | Command::Ttl(key, _)
            | Command::Set { key, .. }
            | Command::Restore { key, .. }
            | Command::Expire { key, .. } => Some(key),
            Command::Typed { op, key, args } if op.further_keys(args.len()) == 0 => Some(key),
            command => command.string_key(),
        }
    }

    /// Call `visit` with every key that the command names; `false` if it involves all existing keys.
    pub(crate) fn each_key(&self, visit: &mut dyn FnMut(&[u8])) -> bool {
        match self {
            Command::MGet(keys)
            | Command::Del(keys)
            | Command::Exists(keys)
            | Command::Watch(keys) => keys.iter().for_each(visit),
            Command::MSet(pairs) | Command::MSetNx(pairs) => {
                pairs.iter().step_by(2).for_each(visit)
            }
            Command::Eval { keys, .. } => keys.iter().for_each(visit),
            Command::Typed { op, key, args } => {
                let further = op.further_keys(args.len());
                std::iter::once(*key)
                    .chain(args.iter().take(further))
                    .for_each(visit);
            }
            Command::ScriptLoad(_) | Command::ScriptFlush => {}
            Command::Exec { watched, commands } => {
                watched.iter().for_each(|(key, _)| visit(key));
                return commands.iter().all(|command| command.each_key(visit));
            }
            _ => match self.single_key() {
                Some(key) => visit(key),
                None => return false,
            },
        }
        true
    }

    /// Returns the log that decides the command: the same for every retry.
    pub fn route(&self, partitions: usize) -> Route {
        if partitions == 1 {
            return Route::Partition(0);
        }
        if let Some(key) = self.single_key() {
            return Route::Partition(partition_of(key, partitions));
        }
        match self.involved(partitions)[..] {
            // Watching or executing nothing involves no partition.
            [] => Route::Partition(0),
            [only] => Route::Partition(only),
            _ => Route::Several,
        }
    }

    /// Returns the partitions that the command involves, ascending.
    pub fn involved(&self, partitions: usize) -> Vec<usize> {
        let mut involved = Vec::new();
        let names_all = self.each_key(&mut |key| {
            let partition = partition_of(key, partitions);
            if let Err(place) = involved.binary_search(&partition) {
                involved.insert(place, partition);
            }
        });
        if names_all {
            involved
        } else {
            (0..partitions).collect()
        }
    }

    /// Returns whether the reply can be as long as a stored value.
    pub fn replies_with_value(&self) -> bool {
        match self {
            Command::Get(_) | Command::GetDel(_) | Command::MGet(_) => true,
            Command::GetRange { .. } | Command::GetEx(..) | Command::Typed { .. } => true,
            Command::Keys(_) | Command::Exec { .. } | Command::Eval { .. } => true,
            Command::Set { reply, .. } | Command::SetIfEqual { reply, .. } => {
                *reply == SetReply::Old
            }
            _ => false,
        }
    }

    /// Returns the number of keys that the command names; 0 for a transaction, whose commands were counted
    /// individually.
    pub fn keys(&self) -> usize {
        match self {
            Command::MGet(names) | Command::Del(names) => names.len(),
            Command::Exists(names) | Command::Watch(names) => names.len(),
            Command::MSet(pairs) | Command::MSetNx(pairs) => pairs.len() / 2,
            Command::Eval { keys, .. } => keys.len(),
            Command::Typed { args, .. } => 1 + args.len(),
            Command::Exec { .. } => 0,
            _ => 1,
        }
    }

    /// Lengths of the longest key and of the longest value that the command stores; 0 if it stores none.
    pub fn stored_len_bytes(&self) -> (usize, usize) {
        match self {
            Command::Set { key, value, .. }
            | Command::SetIfEqual { key, value, .. }
            | Command::Append(key, value) => (key.len(), value.len()),
            Command::SetRange { key, offset, value } if !value.is_empty() => {
                let offset = usize::try_from(*offset).unwrap_or(usize::MAX);
                (key.len(), offset.saturating_add(value.len()))
            }
            Command::IncrBy(key, _) | Command::IncrByFloat(key, _) => (key.len(), 0),
            Command::Typed { op, .. } if op.only_reads() => (0, 0),
            Command::Typed { op, key, args } => {
                let further = op.further_keys(args.len());
                let longest = |args: &mut dyn Iterator<Item = &'a [u8]>| {
                    args.map(<[u8]>::len).max().unwrap_or(0)
                };
                let key_len_bytes = longest(&mut args.iter().take(further)).max(key.len());
                (key_len_bytes, longest(&mut args.iter().skip(further)))
            }
            Command::Restore { key, value, .. } => (key.len(), value.len()),
            Command::MSet(pairs) | Command::MSetNx(pairs) => {
                let longest = |first| pairs.iter().skip(first).step_by(2).map(<[u8]>::len).max();
                (longest(0).unwrap_or(0), longest(1).unwrap_or(0))
            }
            _ => (0, 0),
        }
    }

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
            Command::Eval { is_read_only, .. } => match is_read_only {
                true => OP_EVAL_RO,
                false => OP_EVAL,
            },
            Command::ScriptLoad(_) => OP_SCRIPT_LOAD,
            Command::ScriptFlush => OP_SCRIPT_FLUSH,
            Command::Typed { .. } => OP_TYPED,
            Command::Restore { .. } => OP_RESTORE,
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
            | Command::CompareDelete(key, value) => {
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
            Command::Eval {
                text, keys, args, ..
            } => {
                put_string(out, text);
                put_strings(out, keys);
                put_strings(out, args);
            }
            Command::Exec { watched, commands } => {
                put_varint(out, watched.count as u64);
                for (key, version) in watched.iter() {
                    Watched::push(out, key, version);
                }
                put_varint(out, commands.count as u64);
                commands.iter().for_each(|c| Queue::push(out, &c));
            }
            Command::SessionNew { owner } if *owner != 0 => put_varint(out, *owner),
            Command::DbSize
            | Command::FlushAll
            | Command::ScriptFlush
            | Command::SessionNew { .. } => {}
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
            op @ (OP_EVAL | OP_EVAL_RO) => Command::Eval {
                text: reader.string()?,
                keys: reader.strings()?,
                args: reader.strings()?,
                is_read_only: op == OP_EVAL_RO,
            },
            OP_SCRIPT_LOAD => Command::ScriptLoad(reader.string()?),
            OP_SCRIPT_FLUSH => Command::ScriptFlush,
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

/// Appends an unsigned number as a varint: seven bits per byte, low bits first.
fn put_varint(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

fn put_signed(out: &mut BytesMut, number: i64) {
    put_varint(out, ((number << 1) ^ (number >> 63)) as u64);
}

fn put_string(out: &mut BytesMut, string: &[u8]) {
    put_varint(out, string.len() as u64);
    out.put_slice(string);
}

fn put_strings(out: &mut BytesMut, strings: &Strings<'_>) {
    put_varint(out, strings.len() as u64);
    strings.iter().for_each(|string| put_string(out, string));
}

fn put_expiry(out: &mut BytesMut, expiry: Expiry) {
    match expiry {
        Expiry::Never => out.put_u8(EXPIRY_NEVER),
        Expiry::Keep => out.put_u8(EXPIRY_KEEP),
        Expiry::InMs(ms) => {
            out.put_u8(EXPIRY_IN_MS);
            put_signed(out, ms);
        }
        Expiry::AtMs(ms) => {
            out.put_u8(EXPIRY_AT_MS);
            put_signed(out, ms);
        }
    }
}

/// Takes fields from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return None;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (string, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(string)
    }

    fn strings(&mut self) -> Option<Strings<'a>> {
        let count = usize::try_from(self.varint()?).ok()?;
        let all = self.0;
        for _ in 0..count {
            self.string()?;
        }
        Some(Strings::Encoded(count, all))
    }

    fn watched(&mut self) -> Option<Watched<'a>> {
        let count = usize::try_from(self.varint()?).ok()?;
        let bytes = self.0;
        for _ in 0..count {
            self.string()?;
            self.varint()?;
        }
        Some(Watched { count, bytes })
    }

    fn queue(&mut self) -> Option<Queue<'a>> {
        let count = usize::try_from(self.varint()?).ok()?;
        let bytes = self.0;
        for _ in 0..count {
            queued(self.string()?)?;
        }
        Some(Queue { count, bytes })
    }

    fn choice<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(usize::from(self.byte()?)).copied()
    }

    fn expiry(&mut self) -> Option<Expiry> {
        Some(match self.byte()? {
            EXPIRY_NEVER => Expiry::Never,
            EXPIRY_KEEP => Expiry::Keep,
            EXPIRY_IN_MS => Expiry::InMs(self.signed()?),
            EXPIRY_AT_MS => Expiry::AtMs(self.signed()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_cut() {
        let bytes = b"k1v1k2";
        let ranges = [(0, 2), (2, 4), (4, 6), (0, 0)];
        let strings = Strings::Args(Args::new(bytes, &ranges), 0);
        let (mut watched, mut queue) = (BytesMut::new(), BytesMut::new());
        Watched::push(&mut watched, b"k", 1 << 40);
        Watched::push(&mut watched, b"", 0);
        Queue::push(&mut queue, &Command::Get(b"k"));
        Queue::push(&mut queue, &Command::MSet(strings));
        let mut commands = vec![
            Command::Get(b"k"),
            Command::GetDel(b""),
            Command::StrLen(b"k"),
            Command::Type(b"k"),
            Command::Persist(b"k"),
            Command::Ttl(b"k", TimeUnit::Seconds),
            Command::Ttl(b"k", TimeUnit::Milliseconds),
            Command::IncrBy(b"k", i64::MIN),
            Command::IncrBy(b"k", i64::MAX),
            Command::IncrBy(b"k", -1),
            Command::Append(b"k", &[7; 300]),
            Command::MGet(strings),
            Command::MSet(strings),
            Command::Del(strings),
            Command::Exists(strings),
            Command::DbSize,
            Command::FlushAll,
            Command::SessionNew { owner: 0 },
            Command::SessionNew { owner: u64::MAX },
            Command::GetRange {
                key: b"k",
                start: -1,
                end: i64::MAX,
            },
            Command::SetRange {
                key: b"k",
                offset: 300,
                value: b"v",
            },
            Command::GetEx(b"k", Expiry::Never),
            Command::GetEx(b"k", Expiry::InMs(7)),
            Command::IncrByFloat(b"k", b"0.5"),
            Command::CompareDelete(b"k", b"token"),
            Command::CompareExpire {
                key: b"k",
                value: b"token",
                ms: -3,
                extend: Extend::AddIfExpiring,
            },
            Command::MSetNx(strings),
            Command::Eval {
                text: b"return 1",
                keys: strings,
                args: strings,
                is_read_only: false,
            },
            Command::Eval {
                text: b"",
                keys: strings,
                args: strings,
                is_read_only: true,
            },
            Command::ScriptLoad(b"return 1"),
            Command::ScriptFlush,
            Command::SetIfEqual {
                key: b"k",
                value: b"new",
                expected: b"old",
                expiry: Expiry::InMs(5),
                reply: SetReply::Old,
            },
            Command::Typed {
                op: Op::HSet,
                key: b"k",
                args: strings,
            },
            Command::Typed {
                op: Op::SScan,
                key: b"",
                args: strings,
            },
            Command::Restore {
                kind: Kind::List,
                key: b"k",
                expire_at_ms: 300,
                value: b"v",
            },
            Command::Keys(b"k*"),
            Command::Watch(strings),
            Command::Exec {
                watched: Watched::new(2, &watched),
                commands: Queue::new(2, &queue),
            },
            Command::Exec {
                watched: Watched::new(0, &[]),
                commands: Queue::new(0, &[]),
            },
        ];
        for expiry in [
            Expiry::Never,
            Expiry::Keep,
            Expiry::InMs(-5),
            Expiry::AtMs(1 << 50),
        ] {
            for reply in SET_REPLY {
                for when in SET_WHEN {
                    commands.push(Command::Set {
                        key: b"k",
                        value: b"v",
                        when,
                        expiry,
                        reply,
                    });
                }
            }
            for when in EXPIRE_WHEN {
                commands.push(Command::Expire {
                    key: b"k",
                    expiry,
                    when,
                });
            }
        }
        for command in commands {
            for stamp in [
                None,
                Some(SessionStamp {
                    id: u64::MAX,
                    seq: 300,
                    low: 1,
                }),
            ] {
                let mut out = BytesMut::new();
                command.encode(stamp, &mut out);
                assert_eq!(Command::decode(&out), Some((command, stamp)));
                for len in 0..out.len() {
                    assert_eq!(
                        Command::decode(&out[..len]),
                        None,
                        "{command:?} cut at {len}"
                    );
                }
                out.put_u8(0);
                assert_eq!(
                    Command::decode(&out),
                    None,
                    "{command:?} with a byte too many"
                );
            }
        }
    }

    #[test]
    fn the_version_is_that_of_the_latest_operation() {
        let version = |command: &Command<'_>| {
            let mut out = BytesMut::new();
            command.encode(None, &mut out);
            version_of(&out)
        };
        assert_eq!(version(&Command::Get(b"k")), 1);
        assert_eq!(version(&Command::Keys(b"k")), 2);
        assert_eq!(version(&Command::CompareDelete(b"k", b"v")), 3);
        assert_eq!(version(&Command::ScriptFlush), 4);
        let none = Strings::Encoded(0, &[]);
        let script = |is_read_only| Command::Eval {
            text: b"return redis.call('hget', KEYS[1], 'f')",
            keys: none,
            args: none,
            is_read_only,
        };
        assert_eq!(version(&script(false)), 6);
        assert_eq!(version(&script(true)), 6);
        let (op, key, args) = (Op::HGetAll, b"k", none);
        assert_eq!(version(&Command::Typed { op, key, args }), 6);
        for (inner, expected) in [
            (Command::Get(b"k"), 2),
            (Command::GetEx(b"k", Expiry::Never), 3),
            (Command::ScriptLoad(b"return 1"), 4),
            (script(false), 6),
        ] {
            let mut queue = BytesMut::new();
            Queue::push(&mut queue, &inner);
            let exec = Command::Exec {
                watched: Watched::new(0, &[]),
                commands: Queue::new(1, &queue),
            };
            assert_eq!(version(&exec), expected);
        }
    }

    #[test]
    fn lying_lengths_are_refused() {
        assert_eq!(
            Command::decode(&[OP_GET, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
            None
        );
        assert_eq!(
            Command::decode(&[OP_DEL, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, b'a']),
            None
        );
        assert_eq!(Command::decode(&[OP_MSET, 1, 1, b'a']), None);
        assert_eq!(Command::decode(&[OP_TTL, 2, 1, b'a']), None);
        // Neither transactions nor session commands are allowed in a transaction.
        assert_eq!(Command::decode(&[OP_EXEC, 0, 1, 3, OP_EXEC, 0, 0]), None);
        assert_eq!(Command::decode(&[OP_EXEC, 0, 1, 1, OP_SESSION_NEW]), None);
    }

    #[test]
    fn routes() {
        // Slots modulo 4: foo 12182 -> 2, bar 5061 -> 1, hello 866 -> 2.
        let bytes = b"foobarhello";
        let args = |ranges: &'static [(usize, usize)]| Strings::Args(Args::new(bytes, ranges), 0);
        let both = args(&[(0, 3), (3, 6)]);
        assert_eq!(Command::Get(b"foo").route(4), Route::Partition(2));
        assert_eq!(Command::MGet(both).route(4), Route::Several);
        assert_eq!(Command::MGet(both).route(1), Route::Partition(0));
        assert_eq!(Command::MGet(both).involved(4), [1, 2]);
        assert_eq!(
            Command::Del(args(&[(0, 3), (6, 11)])).route(4),
            Route::Partition(2)
        );
        // Values are not keys.
        assert_eq!(
            Command::MSet(args(&[(0, 3), (3, 6)])).route(4),
            Route::Partition(2)
        );
        assert_eq!(Command::FlushAll.involved(3), [0, 1, 2]);
        let (mut watched, mut queue) = (BytesMut::new(), BytesMut::new());
        Watched::push(&mut watched, b"bar", 1);
        Queue::push(&mut queue, &Command::Get(b"foo"));
        Queue::push(&mut queue, &Command::DbSize);
        let exec = |watches, commands| Command::Exec {
            watched: Watched::new(watches, &watched),
            commands: Queue::new(commands, &queue),
        };
        assert_eq!(exec(1, 0).route(4), Route::Partition(1));
        assert_eq!(exec(1, 1).involved(4), [1, 2]);
        assert_eq!(exec(0, 2).involved(3), [0, 1, 2]);
        assert!(exec(1, 2).only_reads());
    }
}
