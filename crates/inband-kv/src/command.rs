//! Commands that go through the log: what they are, which keys they name, and what is known about them before they are
//! executed.

mod encoding;
mod lists;

use inband_resp::reply::Reply;

use crate::bits::{BitLogic, BitOp};
use crate::events::EventClasses;
use crate::lock::LockOp;
use crate::partition::partition_of;
use crate::types::{Combine, Kind, MultiPop, Op, Sample};
pub use encoding::{version_of, COMMANDS_VERSION};
pub use lists::{Queue, Strings, Watched};

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

/// Unit of the reply to `TTL` and its relatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds, rounded.
    Seconds,
    Milliseconds,
    /// The Unix time of the expiry in seconds, rounded (`EXPIRETIME`).
    AtSeconds,
    /// The same in milliseconds.
    AtMilliseconds,
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
    /// A command for collections; `args` follow the key.
    Typed {
        op: Op,
        key: &'a [u8],
        args: Strings<'a>,
    },
    /// `LMPOP`, `ZMPOP`, `BLMPOP` and `BZMPOP`.
    MultiPop {
        pop: MultiPop,
        keys: Strings<'a>,
        /// Those that block have one; empty: the client waits already.
        timeout: Option<&'a [u8]>,
    },
    /// `SINTERCARD`, `ZUNION` and their like.
    Combine {
        op: Combine,
        /// Where the result is stored; empty if it is the reply.
        target: &'a [u8],
        keys: Strings<'a>,
        options: Strings<'a>,
    },
    /// `HRANDFIELD`, `SRANDMEMBER` and `ZRANDMEMBER`.
    Sample {
        sample: Sample,
        key: &'a [u8],
    },
    /// `GETBIT` and its like; `args` follow the key.
    Bits {
        op: BitOp,
        key: &'a [u8],
        args: Strings<'a>,
    },
    /// `BITOP`.
    CombineBits {
        logic: BitLogic,
        target: &'a [u8],
        keys: Strings<'a>,
    },
    /// `INBAND.RESTORE`: a packed collection.
    Restore {
        kind: Kind,
        key: &'a [u8],
        /// 0: never.
        expire_at_ms: u64,
        value: &'a [u8],
    },
    /// `INBAND.LOCK`.
    Lock {
        op: LockOp,
        key: &'a [u8],
        /// Empty for `GET`.
        owner: &'a [u8],
        /// 0 where there is none.
        ttl_ms: u64,
    },
    /// `RENAME` and `RENAMENX`.
    Rename {
        from: &'a [u8],
        to: &'a [u8],
        only_if_missing: bool,
    },
    Copy {
        from: &'a [u8],
        to: &'a [u8],
        replaces: bool,
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
        /// It may call the commands of this version (see [`version_of`]) and earlier ones: those that the program which
        /// took it from its client knows. Replicas with later programs refuse the others, as that one does.
        calls_version: u8,
    },
    Publish {
        channel: &'a [u8],
        payload: &'a [u8],
    },
    /// `SCRIPT LOAD`: every replica remembers the text.
    ScriptLoad(&'a [u8]),
    ScriptFlush,
    /// `CONFIG SET notify-keyspace-events`.
    SetEvents(EventClasses),
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

impl<'a> Command<'a> {
    /// Changes nothing but replicated time, so it is executed only on the replica whose client waits for the reply.
    pub fn only_reads(&self) -> bool {
        if let Command::Exec { commands, .. } = self {
            return commands.iter().all(|command| command.only_reads());
        }
        if let Command::Typed { op, .. } = self {
            return op.only_reads();
        }
        if let Command::Lock { op, .. } = self {
            return *op == LockOp::Get;
        }
        if let Command::Combine { op, .. } = self {
            return !op.stores();
        }
        if let Command::Bits { op, .. } = self {
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
                | Command::Sample { .. }
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
            | Command::MultiPop { .. }
            | Command::Publish { .. }
            | Command::FlushAll => false,
            Command::Lock { op, .. } if *op == LockOp::Release => false,
            Command::Typed { op, .. } if op.only_removes() => false,
            command => !command.only_reads(),
        }
    }

    /// Returns whether the reply reveals how long a key has left to live.
    pub fn tells_time(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (Command::Ttl(_, TimeUnit::AtSeconds | TimeUnit::AtMilliseconds), _) => false,
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
            | Command::Lock { key, .. }
            | Command::Bits { key, .. }
            | Command::SetIfEqual { key, .. } => Some(key),
            Command::Set {
                key,
                reply: SetReply::Old,
                ..
            } => Some(key),
            _ => None,
        }
    }

    /// Returns the key, or the channel, if the command names exactly one.
    fn single_key(&self) -> Option<&'a [u8]> {
        match self {
            Command::Type(key)
            | Command::Persist(key)
            | Command::Ttl(key, _)
            | Command::Set { key, .. }
            | Command::Restore { key, .. }
            | Command::Sample { key, .. }
            | Command::Expire { key, .. } => Some(key),
            Command::Publish { channel, .. } => Some(channel),
            Command::Typed { op, key, args } if op.further_keys(args.len()) == 0 => Some(key),
            command => command.string_key(),
        }
    }

    /// Call `visit` with every key or channel that the command names; `false` if it involves all existing keys.
    pub(crate) fn each_key(&self, visit: &mut dyn FnMut(&[u8])) -> bool {
        match self {
            Command::MGet(keys)
            | Command::Del(keys)
            | Command::Exists(keys)
            | Command::Watch(keys) => keys.iter().for_each(visit),
            Command::MSet(pairs) | Command::MSetNx(pairs) => {
                pairs.iter().step_by(2).for_each(visit)
            }
            Command::Eval { keys, .. } | Command::MultiPop { keys, .. } => {
                keys.iter().for_each(visit)
            }
            Command::Typed { op, key, args } => {
                let further = op.further_keys(args.len());
                std::iter::once(*key)
                    .chain(args.iter().take(further))
                    .for_each(visit);
            }
            Command::Combine {
                op, target, keys, ..
            } => {
                let target = op.stores().then_some(*target);
                target.into_iter().chain(keys.iter()).for_each(visit);
            }
            Command::CombineBits { target, keys, .. } => {
                std::iter::once(*target).chain(keys.iter()).for_each(visit);
            }
            Command::Rename { from, to, .. } | Command::Copy { from, to, .. } => {
                [*from, *to].into_iter().for_each(visit)
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

    /// Returns the type of the elements that the command waits for, if it is a blocking pop.
    pub(crate) fn waits_for(&self) -> Option<Kind> {
        match self {
            Command::Typed { op, .. } => op.waits_for(),
            Command::MultiPop { pop, timeout, .. } => timeout.map(|_| pop.kind),
            _ => None,
        }
    }

    /// Calls `visit` with every key from which a blocking pop may pop.
    pub(crate) fn each_awaited_key(&self, visit: &mut dyn FnMut(&[u8])) {
        match self {
            Command::MultiPop { keys, .. } => keys.iter().for_each(visit),
            Command::Typed { op, key, args } => {
                visit(key);
                if op.pops_from_all_keys() {
                    let further = op.further_keys(args.len());
                    args.iter().take(further).for_each(visit);
                }
            }
            _ => {}
        }
    }

    /// Returns the timeout of a blocking pop.
    pub(crate) fn timeout(&self) -> Option<&'a [u8]> {
        match self {
            Command::Typed { args, .. } => args.iter().last(),
            Command::MultiPop { timeout, .. } => *timeout,
            _ => None,
        }
    }

    /// Returns the reply as every replica has it: without the numbers of subscribers, which are those of one replica.
    pub(crate) fn replicated_reply(&self, reply: Reply) -> Reply {
        match (self, reply) {
            (Command::Publish { .. }, Reply::Integer(_)) => Reply::Integer(0),
            (Command::Exec { commands, .. }, Reply::Array(replies)) => {
                let each = commands.iter().zip(replies);
                let each = each.map(|(command, reply)| command.replicated_reply(reply));
                Reply::Array(each.collect())
            }
            (_, reply) => reply,
        }
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
            Command::MultiPop { .. } | Command::Combine { .. } | Command::Sample { .. } => true,
            Command::Bits { op, .. } => op.replies_with_array(),
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
            Command::Eval { keys, .. } | Command::MultiPop { keys, .. } => keys.len(),
            Command::Combine { op, keys, .. } => usize::from(op.stores()) + keys.len(),
            Command::CombineBits { keys, .. } => 1 + keys.len(),
            Command::Rename { .. } | Command::Copy { .. } => 2,
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
            Command::Lock { key, .. } | Command::Bits { key, .. } => (key.len(), 0),
            Command::Typed { op, .. } if op.only_reads() => (0, 0),
            Command::Typed { op, key, args } => {
                let further = op.further_keys(args.len());
                let longest = |args: &mut dyn Iterator<Item = &'a [u8]>| {
                    args.map(<[u8]>::len).max().unwrap_or(0)
                };
                let key_len_bytes = longest(&mut args.iter().take(further)).max(key.len());
                (key_len_bytes, longest(&mut args.iter().skip(further)))
            }
            Command::MultiPop { keys, .. } => (keys.iter().map(<[u8]>::len).max().unwrap_or(0), 0),
            Command::Combine { target, .. } | Command::CombineBits { target, .. } => {
                (target.len(), 0)
            }
            Command::Restore { key, value, .. } => (key.len(), value.len()),
            Command::Rename { to, .. } | Command::Copy { to, .. } => (to.len(), 0),
            Command::MSet(pairs) | Command::MSetNx(pairs) => {
                let longest = |first| pairs.iter().skip(first).step_by(2).map(<[u8]>::len).max();
                (longest(0).unwrap_or(0), longest(1).unwrap_or(0))
            }
            _ => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use inband_resp::request::Args;

    use super::*;

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
