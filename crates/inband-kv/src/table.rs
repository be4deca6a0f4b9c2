//! The command table: names, arities and the metadata of `COMMAND`.

use crate::bits::BitOp;
use crate::types::{Combine, Kind, Op};

/// Commands; the ones answered without the log come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are the commands
pub enum CommandId {
    Append,
    Copy,
    DbSize,
    Decr,
    DecrBy,
    Del,
    DelEx,
    DelIfEq,
    Exists,
    Expire,
    ExpireAt,
    ExpireTime,
    FlushAll,
    Get,
    GetDel,
    GetEx,
    GetRange,
    GetSet,
    Incr,
    IncrBy,
    IncrByFloat,
    MGet,
    MSet,
    MSetNx,
    PExpire,
    PExpireAt,
    PExpireTime,
    PSetEx,
    PTtl,
    Persist,
    Publish,
    Rename,
    RenameNx,
    Set,
    SetEx,
    SetNx,
    SetRange,
    StrLen,
    Ttl,
    Type,
    /// A command for collections.
    Typed(Op),
    /// `LMPOP` and its like: whose elements, and whether it blocks.
    MultiPop(Kind, bool),
    /// A command for the bits of a string.
    Bits(BitOp),
    CombineBits,
    /// A command on several collections.
    Combine(Combine),
    /// Elements at random.
    Sample(Kind),
    Restore,
    Eval,
    EvalRo,
    EvalSha,
    EvalShaRo,
    Keys,
    Lock,
    Watch,
    Unwatch,
    Multi,
    Exec,
    Discard,
    Export,
    Reads,
    Session,
    Asking,
    Auth,
    Client,
    Cluster,
    Command,
    Config,
    Echo,
    Hello,
    Info,
    PSubscribe,
    PUnsubscribe,
    Ping,
    PubSub,
    Quit,
    ReadOnly,
    ReadWrite,
    Reset,
    Role,
    Scan,
    Script,
    Select,
    Sentinel,
    Subscribe,
    Time,
    Unsubscribe,
    UnwatchPrefix,
    WatchPrefix,
}

impl CommandId {
    /// The [version](crate::command::version_of) since which scripts may call it. All versions before 12 are 1: no
    /// script in a log names them.
    pub fn version(self) -> u8 {
        match self {
            CommandId::Bits(_) | CommandId::CombineBits => 12,
            _ => 1,
        }
    }

    /// Changes what is pushed to the client.
    pub fn is_subscription(self) -> bool {
        matches!(
            self,
            CommandId::Subscribe
                | CommandId::PSubscribe
                | CommandId::Unsubscribe
                | CommandId::PUnsubscribe
                | CommandId::UnwatchPrefix
                | CommandId::WatchPrefix
        )
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandSpec {
    /// Name in upper case.
    pub name: &'static str,
    pub id: CommandId,
    /// Number of arguments, the name included; if negative, the minimum.
    pub arity: i64,
    /// Flags as Redis names them.
    pub flags: &'static [&'static str],
    /// Index of the first key, of the last (negative: from the end), and the step between.
    pub keys: (i64, i64, i64),
}

impl CommandSpec {
    /// Returns whether a request with `len` arguments, the name included, matches the arity.
    pub fn takes(&self, len: usize) -> bool {
        let len = len as i64;
        if self.arity >= 0 {
            len == self.arity
        } else {
            len >= -self.arity
        }
    }
}

const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const WRITE_SLOWLY: &[&str] = &["write", "denyoom"];
const SHRINK: &[&str] = &["write", "fast"];
const ADMIN: &[&str] = &["loading", "stale", "fast"];
const SCAN: &[&str] = &["readonly"];
const SCRIPT: &[&str] = &["write", "noscript", "movablekeys"];
const TRANSACTION: &[&str] = &["noscript", "fast"];
const PUBLISH: &[&str] = &["pubsub", "loading", "stale", "fast"];
const SUBSCRIBE: &[&str] = &["pubsub", "noscript", "loading", "stale"];
const WATCH: &[&str] = &["pubsub", "noscript"];
const BLOCK: &[&str] = &["write", "noscript", "blocking"];
const COMBINE: &[&str] = &["readonly", "movablekeys"];
const STORE_COMBINED: &[&str] = &["write", "denyoom", "movablekeys"];
const MULTI_POP: &[&str] = &["write", "movablekeys"];
const BLOCK_MULTI_POP: &[&str] = &["write", "blocking", "movablekeys"];
const BLOCK_MOVE: &[&str] = &["write", "denyoom", "noscript", "blocking"];

const NONE: (i64, i64, i64) = (0, 0, 0);
const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const TWO: (i64, i64, i64) = (1, 2, 1);
const FROM_SECOND: (i64, i64, i64) = (2, -1, 1);
const ALL_BUT_LAST: (i64, i64, i64) = (1, -2, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);

const fn row(
    name: &'static str,
    id: CommandId,
    arity: i64,
    flags: &'static [&'static str],
    keys: (i64, i64, i64),
) -> CommandSpec {
    CommandSpec {
        name,
        id,
        arity,
        flags,
        keys,
    }
}

/// All commands, sorted by name.
pub static COMMANDS: &[CommandSpec] = &[
    row("APPEND", CommandId::Append, 3, WRITE, ONE),
    row("ASKING", CommandId::Asking, 1, ADMIN, NONE),
    row("AUTH", CommandId::Auth, -2, ADMIN, NONE),
    row("BITCOUNT", CommandId::Bits(BitOp::BitCount), -2, SCAN, ONE),
    row(
        "BITFIELD",
        CommandId::Bits(BitOp::BitField),
        -2,
        WRITE_SLOWLY,
        ONE,
    ),
    row(
        "BITFIELD_RO",
        CommandId::Bits(BitOp::BitFieldRo),
        -2,
        READ,
        ONE,
    ),
    row(
        "BITOP",
        CommandId::CombineBits,
        -4,
        WRITE_SLOWLY,
        FROM_SECOND,
    ),
    row("BITPOS", CommandId::Bits(BitOp::BitPos), -3, SCAN, ONE),
    row("BLMOVE", CommandId::Typed(Op::BLMove), 6, BLOCK_MOVE, TWO),
    row(
        "BLMPOP",
        CommandId::MultiPop(Kind::List, true),
        -5,
        BLOCK_MULTI_POP,
        NONE,
    ),
    row(
        "BLPOP",
        CommandId::Typed(Op::BLPop),
        -3,
        BLOCK,
        ALL_BUT_LAST,
    ),
    row(
        "BRPOP",
        CommandId::Typed(Op::BRPop),
        -3,
        BLOCK,
        ALL_BUT_LAST,
    ),
    row(
        "BRPOPLPUSH",
        CommandId::Typed(Op::BRPopLPush),
        4,
        BLOCK_MOVE,
        TWO,
    ),
    row(
        "BZMPOP",
        CommandId::MultiPop(Kind::SortedSet, true),
        -5,
        BLOCK_MULTI_POP,
        NONE,
    ),
    row(
        "BZPOPMAX",
        CommandId::Typed(Op::BZPopMax),
        -3,
        BLOCK,
        ALL_BUT_LAST,
    ),
    row(
        "BZPOPMIN",
        CommandId::Typed(Op::BZPopMin),
        -3,
        BLOCK,
        ALL_BUT_LAST,
    ),
    row("CLIENT", CommandId::Client, -2, ADMIN, NONE),
    row("CLUSTER", CommandId::Cluster, -2, ADMIN, NONE),
    row("COMMAND", CommandId::Command, -1, ADMIN, NONE),
    row("CONFIG", CommandId::Config, -2, ADMIN, NONE),
    row("COPY", CommandId::Copy, -3, WRITE, TWO),
    row("DBSIZE", CommandId::DbSize, 1, READ, NONE),
    row("DECR", CommandId::Decr, 2, WRITE, ONE),
    row("DECRBY", CommandId::DecrBy, 3, WRITE, ONE),
    row("DEL", CommandId::Del, -2, SHRINK, ALL),
    row("DELEX", CommandId::DelEx, -2, SHRINK, ONE),
    row("DELIFEQ", CommandId::DelIfEq, 3, SHRINK, ONE),
    row("DISCARD", CommandId::Discard, 1, TRANSACTION, NONE),
    row("ECHO", CommandId::Echo, 2, ADMIN, NONE),
    row("EVAL", CommandId::Eval, -3, SCRIPT, NONE),
    row("EVALSHA", CommandId::EvalSha, -3, SCRIPT, NONE),
    row("EVALSHA_RO", CommandId::EvalShaRo, -3, SCRIPT, NONE),
    row("EVAL_RO", CommandId::EvalRo, -3, SCRIPT, NONE),
    row("EXEC", CommandId::Exec, 1, TRANSACTION, NONE),
    row("EXISTS", CommandId::Exists, -2, READ, ALL),
    row("EXPIRE", CommandId::Expire, -3, SHRINK, ONE),
    row("EXPIREAT", CommandId::ExpireAt, -3, SHRINK, ONE),
    row("EXPIRETIME", CommandId::ExpireTime, 2, READ, ONE),
    row("FLUSHALL", CommandId::FlushAll, -1, SHRINK, NONE),
    row("FLUSHDB", CommandId::FlushAll, -1, SHRINK, NONE),
    row("GET", CommandId::Get, 2, READ, ONE),
    row("GETBIT", CommandId::Bits(BitOp::GetBit), 3, READ, ONE),
    row("GETDEL", CommandId::GetDel, 2, SHRINK, ONE),
    row("GETEX", CommandId::GetEx, -2, SHRINK, ONE),
    row("GETRANGE", CommandId::GetRange, 4, READ, ONE),
    row("GETSET", CommandId::GetSet, 3, WRITE, ONE),
    row("HDEL", CommandId::Typed(Op::HDel), -3, SHRINK, ONE),
    row("HELLO", CommandId::Hello, -1, ADMIN, NONE),
    row("HEXISTS", CommandId::Typed(Op::HExists), 3, READ, ONE),
    row("HGET", CommandId::Typed(Op::HGet), 3, READ, ONE),
    row("HGETALL", CommandId::Typed(Op::HGetAll), 2, READ, ONE),
    row("HINCRBY", CommandId::Typed(Op::HIncrBy), 4, WRITE, ONE),
    row(
        "HINCRBYFLOAT",
        CommandId::Typed(Op::HIncrByFloat),
        4,
        WRITE,
        ONE,
    ),
    row("HKEYS", CommandId::Typed(Op::HKeys), 2, READ, ONE),
    row("HLEN", CommandId::Typed(Op::HLen), 2, READ, ONE),
    row("HMGET", CommandId::Typed(Op::HMGet), -3, READ, ONE),
    row("HMSET", CommandId::Typed(Op::HMSet), -4, WRITE, ONE),
    row("HRANDFIELD", CommandId::Sample(Kind::Hash), -2, SCAN, ONE),
    row("HSCAN", CommandId::Typed(Op::HScan), -3, SCAN, ONE),
    row("HSET", CommandId::Typed(Op::HSet), -4, WRITE, ONE),
    row("HSETNX", CommandId::Typed(Op::HSetNx), 4, WRITE, ONE),
    row("HSTRLEN", CommandId::Typed(Op::HStrLen), 3, READ, ONE),
    row("HVALS", CommandId::Typed(Op::HVals), 2, READ, ONE),
    row("INBAND.EXPORT", CommandId::Export, 1, SCAN, NONE),
    row("INBAND.LOCK", CommandId::Lock, -3, WRITE, (2, 2, 1)),
    row("INBAND.READS", CommandId::Reads, 2, ADMIN, NONE),
    row("INBAND.RESTORE", CommandId::Restore, 5, WRITE, ONE),
    row("INBAND.SESSION", CommandId::Session, -2, ADMIN, NONE),
    row("INBAND.UNWATCH", CommandId::UnwatchPrefix, -1, WATCH, NONE),
    row("INBAND.WATCH", CommandId::WatchPrefix, -2, WATCH, NONE),
    row("INCR", CommandId::Incr, 2, WRITE, ONE),
    row("INCRBY", CommandId::IncrBy, 3, WRITE, ONE),
    row("INCRBYFLOAT", CommandId::IncrByFloat, 3, WRITE, ONE),
    row("INFO", CommandId::Info, -1, ADMIN, NONE),
    row("KEYS", CommandId::Keys, 2, SCAN, NONE),
    row("LINDEX", CommandId::Typed(Op::LIndex), 3, READ, ONE),
    row("LINSERT", CommandId::Typed(Op::LInsert), 5, WRITE, ONE),
    row("LLEN", CommandId::Typed(Op::LLen), 2, READ, ONE),
    row("LMOVE", CommandId::Typed(Op::LMove), 5, WRITE, TWO),
    row(
        "LMPOP",
        CommandId::MultiPop(Kind::List, false),
        -4,
        MULTI_POP,
        NONE,
    ),
    row("LPOP", CommandId::Typed(Op::LPop), -2, SHRINK, ONE),
    row("LPOS", CommandId::Typed(Op::LPos), -3, READ, ONE),
    row("LPUSH", CommandId::Typed(Op::LPush), -3, WRITE, ONE),
    row("LPUSHX", CommandId::Typed(Op::LPushX), -3, WRITE, ONE),
    row("LRANGE", CommandId::Typed(Op::LRange), 4, READ, ONE),
    row("LREM", CommandId::Typed(Op::LRem), 4, SHRINK, ONE),
    row("LSET", CommandId::Typed(Op::LSet), 4, WRITE, ONE),
    row("LTRIM", CommandId::Typed(Op::LTrim), 4, SHRINK, ONE),
    row("MGET", CommandId::MGet, -2, READ, ALL),
    row("MSET", CommandId::MSet, -3, WRITE, PAIRS),
    row("MSETNX", CommandId::MSetNx, -3, WRITE, PAIRS),
    row("MULTI", CommandId::Multi, 1, TRANSACTION, NONE),
    row("PERSIST", CommandId::Persist, 2, SHRINK, ONE),
    row("PEXPIRE", CommandId::PExpire, -3, SHRINK, ONE),
    row("PEXPIREAT", CommandId::PExpireAt, -3, SHRINK, ONE),
    row("PEXPIRETIME", CommandId::PExpireTime, 2, READ, ONE),
    row("PING", CommandId::Ping, -1, ADMIN, NONE),
    row("PSETEX", CommandId::PSetEx, 4, WRITE, ONE),
    row("PSUBSCRIBE", CommandId::PSubscribe, -2, SUBSCRIBE, NONE),
    row("PTTL", CommandId::PTtl, 2, READ, ONE),
    row("PUBLISH", CommandId::Publish, 3, PUBLISH, NONE),
    row("PUBSUB", CommandId::PubSub, -2, PUBLISH, NONE),
    row("PUNSUBSCRIBE", CommandId::PUnsubscribe, -1, SUBSCRIBE, NONE),
    row("QUIT", CommandId::Quit, -1, ADMIN, NONE),
    row("READONLY", CommandId::ReadOnly, 1, ADMIN, NONE),
    row("READWRITE", CommandId::ReadWrite, 1, ADMIN, NONE),
    row("RENAME", CommandId::Rename, 3, WRITE, TWO),
    row("RENAMENX", CommandId::RenameNx, 3, WRITE, TWO),
    row("RESET", CommandId::Reset, 1, ADMIN, NONE),
    row("ROLE", CommandId::Role, 1, ADMIN, NONE),
    row("RPOP", CommandId::Typed(Op::RPop), -2, SHRINK, ONE),
    row("RPOPLPUSH", CommandId::Typed(Op::RPopLPush), 3, WRITE, TWO),
    row("RPUSH", CommandId::Typed(Op::RPush), -3, WRITE, ONE),
    row("RPUSHX", CommandId::Typed(Op::RPushX), -3, WRITE, ONE),
    row("SADD", CommandId::Typed(Op::SAdd), -3, WRITE, ONE),
    row("SCAN", CommandId::Scan, -2, SCAN, NONE),
    row("SCARD", CommandId::Typed(Op::SCard), 2, READ, ONE),
    row("SCRIPT", CommandId::Script, -2, TRANSACTION, NONE),
    row("SDIFF", CommandId::Typed(Op::SDiff), -2, READ, ALL),
    row(
        "SDIFFSTORE",
        CommandId::Typed(Op::SDiffStore),
        -3,
        WRITE,
        ALL,
    ),
    row("SELECT", CommandId::Select, 2, ADMIN, NONE),
    row("SENTINEL", CommandId::Sentinel, -2, ADMIN, NONE),
    row("SET", CommandId::Set, -3, WRITE, ONE),
    row(
        "SETBIT",
        CommandId::Bits(BitOp::SetBit),
        4,
        WRITE_SLOWLY,
        ONE,
    ),
    row("SETEX", CommandId::SetEx, 4, WRITE, ONE),
    row("SETNX", CommandId::SetNx, 3, WRITE, ONE),
    row("SETRANGE", CommandId::SetRange, 4, WRITE, ONE),
    row("SINTER", CommandId::Typed(Op::SInter), -2, READ, ALL),
    row(
        "SINTERCARD",
        CommandId::Combine(Combine::SInterCard),
        -3,
        COMBINE,
        NONE,
    ),
    row(
        "SINTERSTORE",
        CommandId::Typed(Op::SInterStore),
        -3,
        WRITE,
        ALL,
    ),
    row("SISMEMBER", CommandId::Typed(Op::SIsMember), 3, READ, ONE),
    row("SMEMBERS", CommandId::Typed(Op::SMembers), 2, READ, ONE),
    row(
        "SMISMEMBER",
        CommandId::Typed(Op::SMIsMember),
        -3,
        READ,
        ONE,
    ),
    row("SMOVE", CommandId::Typed(Op::SMove), 4, SHRINK, TWO),
    row("SPOP", CommandId::Typed(Op::SPop), -2, SHRINK, ONE),
    row("SRANDMEMBER", CommandId::Sample(Kind::Set), -2, SCAN, ONE),
    row("SREM", CommandId::Typed(Op::SRem), -3, SHRINK, ONE),
    row("SSCAN", CommandId::Typed(Op::SScan), -3, SCAN, ONE),
    row("STRLEN", CommandId::StrLen, 2, READ, ONE),
    row("SUBSCRIBE", CommandId::Subscribe, -2, SUBSCRIBE, NONE),
    row("SUBSTR", CommandId::GetRange, 4, READ, ONE),
    row("SUNION", CommandId::Typed(Op::SUnion), -2, READ, ALL),
    row(
        "SUNIONSTORE",
        CommandId::Typed(Op::SUnionStore),
        -3,
        WRITE,
        ALL,
    ),
    row("TIME", CommandId::Time, 1, ADMIN, NONE),
    row("TOUCH", CommandId::Exists, -2, READ, ALL),
    row("TTL", CommandId::Ttl, 2, READ, ONE),
    row("TYPE", CommandId::Type, 2, READ, ONE),
    row("UNLINK", CommandId::Del, -2, SHRINK, ALL),
    row("UNSUBSCRIBE", CommandId::Unsubscribe, -1, SUBSCRIBE, NONE),
    row("UNWATCH", CommandId::Unwatch, 1, TRANSACTION, NONE),
    row("WATCH", CommandId::Watch, -2, TRANSACTION, ALL),
    row("ZADD", CommandId::Typed(Op::ZAdd), -4, WRITE, ONE),
    row("ZCARD", CommandId::Typed(Op::ZCard), 2, READ, ONE),
    row("ZCOUNT", CommandId::Typed(Op::ZCount), 4, READ, ONE),
    row(
        "ZDIFF",
        CommandId::Combine(Combine::ZDiff),
        -3,
        COMBINE,
        NONE,
    ),
    row(
        "ZDIFFSTORE",
        CommandId::Combine(Combine::ZDiffStore),
        -4,
        STORE_COMBINED,
        ONE,
    ),
    row("ZINCRBY", CommandId::Typed(Op::ZIncrBy), 4, WRITE, ONE),
    row(
        "ZINTER",
        CommandId::Combine(Combine::ZInter),
        -3,
        COMBINE,
        NONE,
    ),
    row(
        "ZINTERCARD",
        CommandId::Combine(Combine::ZInterCard),
        -3,
        COMBINE,
        NONE,
    ),
    row(
        "ZINTERSTORE",
        CommandId::Combine(Combine::ZInterStore),
        -4,
        STORE_COMBINED,
        ONE,
    ),
    row("ZLEXCOUNT", CommandId::Typed(Op::ZLexCount), 4, READ, ONE),
    row(
        "ZMPOP",
        CommandId::MultiPop(Kind::SortedSet, false),
        -4,
        MULTI_POP,
        NONE,
    ),
    row("ZMSCORE", CommandId::Typed(Op::ZMScore), -3, READ, ONE),
    row("ZPOPMAX", CommandId::Typed(Op::ZPopMax), -2, SHRINK, ONE),
    row("ZPOPMIN", CommandId::Typed(Op::ZPopMin), -2, SHRINK, ONE),
    row(
        "ZRANDMEMBER",
        CommandId::Sample(Kind::SortedSet),
        -2,
        SCAN,
        ONE,
    ),
    row("ZRANGE", CommandId::Typed(Op::ZRange), -4, READ, ONE),
    row(
        "ZRANGEBYLEX",
        CommandId::Typed(Op::ZRangeByLex),
        -4,
        READ,
        ONE,
    ),
    row(
        "ZRANGEBYSCORE",
        CommandId::Typed(Op::ZRangeByScore),
        -4,
        READ,
        ONE,
    ),
    row("ZRANK", CommandId::Typed(Op::ZRank), -3, READ, ONE),
    row("ZREM", CommandId::Typed(Op::ZRem), -3, SHRINK, ONE),
    row(
        "ZREMRANGEBYLEX",
        CommandId::Typed(Op::ZRemRangeByLex),
        4,
        SHRINK,
        ONE,
    ),
    row(
        "ZREMRANGEBYRANK",
        CommandId::Typed(Op::ZRemRangeByRank),
        4,
        SHRINK,
        ONE,
    ),
    row(
        "ZREMRANGEBYSCORE",
        CommandId::Typed(Op::ZRemRangeByScore),
        4,
        SHRINK,
        ONE,
    ),
    row("ZREVRANGE", CommandId::Typed(Op::ZRevRange), -4, READ, ONE),
    row(
        "ZREVRANGEBYLEX",
        CommandId::Typed(Op::ZRevRangeByLex),
        -4,
        READ,
        ONE,
    ),
    row(
        "ZREVRANGEBYSCORE",
        CommandId::Typed(Op::ZRevRangeByScore),
        -4,
        READ,
        ONE,
    ),
    row("ZREVRANK", CommandId::Typed(Op::ZRevRank), -3, READ, ONE),
    row("ZSCAN", CommandId::Typed(Op::ZScan), -3, SCAN, ONE),
    row("ZSCORE", CommandId::Typed(Op::ZScore), 3, READ, ONE),
    row(
        "ZUNION",
        CommandId::Combine(Combine::ZUnion),
        -3,
        COMBINE,
        NONE,
    ),
    row(
        "ZUNIONSTORE",
        CommandId::Combine(Combine::ZUnionStore),
        -4,
        STORE_COMBINED,
        ONE,
    ),
];

/// Longest name in the table.
const NAME_LEN_MAX: usize = 16;

/// Finds a command by name, case-insensitive.
pub fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    place(name).map(|at| &COMMANDS[at])
}

/// Returns the place of a command in the table.
pub fn place(name: &[u8]) -> Option<usize> {
    let mut upper = [0u8; NAME_LEN_MAX];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    COMMANDS
        .binary_search_by(|row| row.name.as_bytes().cmp(upper))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_and_found() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for row in COMMANDS {
            assert!(row.name.len() <= NAME_LEN_MAX);
            assert_eq!(
                find(row.name.to_lowercase().as_bytes()).unwrap().name,
                row.name
            );
        }
        assert!(find(b"").is_none());
        assert!(find(b"a name that is longer than any").is_none());
    }

    #[test]
    fn the_document_lists_the_same() {
        let text = include_str!("../../../docs/compatibility.md");
        let rows = text.lines().skip_while(|line| !line.starts_with("|---"));
        let rows = rows.skip(1).take_while(|line| line.starts_with("| "));
        let listed: Vec<&str> = rows
            .filter_map(|row| row.split('|').nth(1))
            .map(str::trim)
            .collect();
        let commands: Vec<&str> = COMMANDS.iter().map(|row| row.name).collect();
        assert_eq!(listed, commands);
    }
}
