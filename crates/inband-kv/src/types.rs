//! Hashes, lists and sets.
//!
//! A collection is one record, as a string is: the [`Kind`] is in the record's version, and the elements are
//! [packed](packed) in its value, so that expiry, deletion, transactions, scripts, checkpoints and exports treat all
//! types alike. A collection is limited as a string is, because a write copies it.

mod hash;
mod list;
pub mod packed;
mod set;

use inband_resp::reply::Reply;

use crate::command::Strings;
use crate::glob;
use crate::keyspace::Keys;
use crate::parse::{integer, SYNTAX_ERROR};
use packed::Rows;

/// The error for a command that is meant for another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The type of a value. Stored in records: never renumber.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    #[default]
    String = 0,
    Hash = 1,
    Set = 2,
    List = 3,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::String, Kind::Hash, Kind::Set, Kind::List];

    /// Returns the kind with this number.
    pub fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Returns its name, as `TYPE` answers it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::Set => "set",
            Kind::List => "list",
        }
    }

    /// Returns the kind with this name, case-insensitive.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| name.eq_ignore_ascii_case(kind.name().as_bytes()))
    }
}

/// A command for collections. Encoded as an index into [`OPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are the commands
pub enum Op {
    HSet,
    HMSet,
    HSetNx,
    HGet,
    HMGet,
    HGetAll,
    HDel,
    HExists,
    HLen,
    HKeys,
    HVals,
    HIncrBy,
    HIncrByFloat,
    HStrLen,
    HScan,
    LPush,
    RPush,
    LPushX,
    RPushX,
    LPop,
    RPop,
    LLen,
    LRange,
    LIndex,
    LSet,
    LTrim,
    LRem,
    LInsert,
    LMove,
    RPopLPush,
    SAdd,
    SRem,
    SMembers,
    SIsMember,
    SMIsMember,
    SCard,
    SPop,
    SMove,
    SInter,
    SUnion,
    SDiff,
    SScan,
}

/// Never reorder, only append.
pub const OPS: [Op; 42] = [
    Op::HSet,
    Op::HMSet,
    Op::HSetNx,
    Op::HGet,
    Op::HMGet,
    Op::HGetAll,
    Op::HDel,
    Op::HExists,
    Op::HLen,
    Op::HKeys,
    Op::HVals,
    Op::HIncrBy,
    Op::HIncrByFloat,
    Op::HStrLen,
    Op::HScan,
    Op::LPush,
    Op::RPush,
    Op::LPushX,
    Op::RPushX,
    Op::LPop,
    Op::RPop,
    Op::LLen,
    Op::LRange,
    Op::LIndex,
    Op::LSet,
    Op::LTrim,
    Op::LRem,
    Op::LInsert,
    Op::LMove,
    Op::RPopLPush,
    Op::SAdd,
    Op::SRem,
    Op::SMembers,
    Op::SIsMember,
    Op::SMIsMember,
    Op::SCard,
    Op::SPop,
    Op::SMove,
    Op::SInter,
    Op::SUnion,
    Op::SDiff,
    Op::SScan,
];

impl Op {
    /// Changes nothing.
    pub fn only_reads(self) -> bool {
        matches!(
            self,
            Op::HGet
                | Op::HMGet
                | Op::HGetAll
                | Op::HExists
                | Op::HLen
                | Op::HKeys
                | Op::HVals
                | Op::HStrLen
                | Op::HScan
                | Op::LLen
                | Op::LRange
                | Op::LIndex
                | Op::SMembers
                | Op::SIsMember
                | Op::SMIsMember
                | Op::SCard
                | Op::SInter
                | Op::SUnion
                | Op::SDiff
                | Op::SScan
        )
    }

    /// Makes collections smaller only.
    pub fn only_removes(self) -> bool {
        matches!(
            self,
            Op::HDel | Op::LPop | Op::RPop | Op::LTrim | Op::LRem | Op::SRem | Op::SPop
        )
    }

    /// How many of the arguments after the first key are keys.
    pub fn further_keys(self, args: usize) -> usize {
        match self {
            Op::LMove | Op::RPopLPush | Op::SMove => args.min(1),
            Op::SInter | Op::SUnion | Op::SDiff => args,
            _ => 0,
        }
    }
}

/// Why a command ends early.
enum Stop {
    /// This is the reply.
    Reply(Reply),
    /// The store failed.
    Store(rocksdb::Error),
}

impl From<rocksdb::Error> for Stop {
    fn from(error: rocksdb::Error) -> Self {
        Stop::Store(error)
    }
}

impl From<Reply> for Stop {
    fn from(reply: Reply) -> Self {
        Stop::Reply(reply)
    }
}

type Outcome = Result<Reply, Stop>;

/// Executes a command. `args` follow the key.
pub fn execute(
    keys: &mut dyn Keys,
    op: Op,
    key: &[u8],
    args: &Strings<'_>,
) -> Result<Reply, rocksdb::Error> {
    let args: Vec<&[u8]> = args.iter().collect();
    let mut at = At { keys, key };
    let outcome = match op {
        Op::HSet
        | Op::HMSet
        | Op::HSetNx
        | Op::HGet
        | Op::HMGet
        | Op::HGetAll
        | Op::HDel
        | Op::HExists
        | Op::HLen
        | Op::HKeys
        | Op::HVals
        | Op::HIncrBy
        | Op::HIncrByFloat
        | Op::HStrLen
        | Op::HScan => hash::execute(&mut at, op, &args),
        Op::SAdd
        | Op::SRem
        | Op::SMembers
        | Op::SIsMember
        | Op::SMIsMember
        | Op::SCard
        | Op::SPop
        | Op::SMove
        | Op::SInter
        | Op::SUnion
        | Op::SDiff
        | Op::SScan => set::execute(&mut at, op, &args),
        _ => list::execute(&mut at, op, &args),
    };
    match outcome {
        Ok(reply) | Err(Stop::Reply(reply)) => Ok(reply),
        Err(Stop::Store(error)) => Err(error),
    }
}

/// The key of a command.
struct At<'a> {
    keys: &'a mut dyn Keys,
    key: &'a [u8],
}

/// A copy of a collection, to be changed.
struct Held {
    expire_at_ms: u64,
    version: u64,
    value: Vec<u8>,
}

impl Held {
    fn rows(&self) -> Rows<'_> {
        Rows::new(&self.value)
    }
}

impl At<'_> {
    /// Returns the elements; none if there is no such key.
    fn read(&mut self, kind: Kind) -> Result<Rows<'_>, Stop> {
        match self.keys.get(self.key)? {
            None => Ok(Rows::default()),
            Some(record) if record.kind == kind => Ok(Rows::new(record.value)),
            Some(_) => Err(Reply::error(WRONG_TYPE).into()),
        }
    }

    /// Returns a copy of the collection, which is empty if there is no such key.
    fn hold(&mut self, kind: Kind) -> Result<Held, Stop> {
        match self.keys.get(self.key)? {
            None => Ok(Held {
                expire_at_ms: 0,
                version: 0,
                value: Vec::new(),
            }),
            Some(record) if record.kind == kind => Ok(Held {
                expire_at_ms: record.expire_at_ms,
                version: record.version,
                value: record.value.to_vec(),
            }),
            Some(_) => Err(Reply::error(WRONG_TYPE).into()),
        }
    }

    /// Stores a collection; an empty one is deleted.
    fn store<'r, R: AsRef<[u8]> + 'r>(
        &mut self,
        kind: Kind,
        expire_at_ms: u64,
        rows: impl ExactSizeIterator<Item = R> + Clone,
    ) -> Result<(), Stop> {
        if rows.len() == 0 {
            self.keys.delete(self.key)?;
            return Ok(());
        }
        let (len, limit) = (
            packed::len_bytes(rows.clone()),
            self.keys.grown_len_bytes_max(),
        );
        if len > limit {
            let name = kind.name();
            let why = format!("ERR {name} of {len} bytes is over the limit of {limit} bytes");
            return Err(Reply::error(why).into());
        }
        let value = packed::pack(rows);
        Ok(self.keys.put_as(kind, self.key, expire_at_ms, &value)?)
    }

    /// Removes the elements that begin at these places, which ascend; an element is `step` rows.
    fn remove(&mut self, kind: Kind, step: usize, gone: &[usize]) -> Result<(), Stop> {
        let held = self.hold(kind)?;
        let rows = held.rows();
        let mut next_gone = gone.iter().peekable();
        let mut left: Vec<&[u8]> = Vec::with_capacity(rows.len());
        for place in (0..rows.len()).step_by(step) {
            if next_gone.next_if_eq(&&place).is_none() {
                left.extend((place..place + step).map(|at| rows.get(at)));
            }
        }
        self.store(kind, held.expire_at_ms, left.iter())
    }
}

/// The rows as replies.
fn bulks<'r>(rows: impl Iterator<Item = &'r [u8]>) -> Reply {
    Reply::Array(rows.map(Reply::bulk).collect())
}

fn flag(is_set: bool) -> Reply {
    Reply::Integer(i64::from(is_set))
}

fn count(number: usize) -> Reply {
    Reply::Integer(number as i64)
}

fn syntax_error() -> Stop {
    Reply::error(SYNTAX_ERROR).into()
}

fn wrong_arity(name: &str) -> Stop {
    Reply::error(format!(
        "ERR wrong number of arguments for '{name}' command"
    ))
    .into()
}

/// The count of `LPOP` and `SPOP`.
fn positive(arg: &[u8]) -> Result<usize, Stop> {
    let number = integer(arg).ok().and_then(|n| usize::try_from(n).ok());
    let why = "ERR value is out of range, must be positive";
    number.ok_or_else(|| Reply::error(why).into())
}

/// Answers `HSCAN` and `SSCAN`: all elements at once, as Redis does for a small collection. `args` are the cursor and
/// the options; an element is `step` rows, and its first one must match the pattern.
fn scan(rows: Rows<'_>, args: &[&[u8]], step: usize) -> Outcome {
    if rows.is_empty() {
        // As in Redis, whatever the options are.
        return Ok(Reply::Array(vec![
            Reply::bulk("0"),
            Reply::Array(Vec::new()),
        ]));
    }
    let mut pattern = None;
    for option in args[1..].chunks(2) {
        let [name, value] = option else {
            return Err(syntax_error());
        };
        match name.to_ascii_uppercase().as_slice() {
            b"MATCH" => pattern = Some(*value),
            b"COUNT" if integer(value)? < 1 => return Err(syntax_error()),
            b"COUNT" => {}
            _ => return Err(syntax_error()),
        }
    }
    let mut found = Vec::new();
    for at in (0..rows.len()).step_by(step) {
        if pattern.is_none_or(|pattern| glob::matches(pattern, rows.get(at))) {
            found.extend((at..at + step).map(|at| Reply::bulk(rows.get(at))));
        }
    }
    Ok(Reply::Array(vec![Reply::bulk("0"), Reply::Array(found)]))
}

/// Checks the cursor of `HSCAN` and `SSCAN`.
fn check_cursor(arg: &[u8]) -> Result<(), Stop> {
    let text = std::str::from_utf8(arg).ok();
    let cursor: Option<u64> = text.and_then(|text| text.parse().ok());
    cursor.ok_or_else(|| Reply::error("ERR invalid cursor"))?;
    Ok(())
}

/// `INBAND.RESTORE`: stores a packed collection of an export.
pub fn restore(
    keys: &mut dyn Keys,
    kind: Kind,
    key: &[u8],
    expire_at_ms: u64,
    value: &[u8],
) -> Result<Reply, rocksdb::Error> {
    let rows = Rows::checked(value).filter(|rows| !rows.is_empty());
    let is_good = rows.is_some_and(|rows| match kind {
        Kind::String => false,
        Kind::List => true,
        Kind::Hash => rows.len() % 2 == 0 && rows.is_ascending(2),
        Kind::Set => rows.is_ascending(1),
    });
    if !is_good {
        return Ok(Reply::error("ERR this is not a collection of an export"));
    }
    if expire_at_ms != 0 && expire_at_ms <= keys.now_ms() {
        keys.delete(key)?;
        return Ok(Reply::Ok);
    }
    keys.put_as(kind, key, expire_at_ms, value)?;
    Ok(Reply::Ok)
}
