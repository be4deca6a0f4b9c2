//! Hashes, lists, sets and sorted sets.
//!
//! A collection is one record, as a string is: the [`Kind`] is in the record's version, and the elements are
//! [packed](packed) in its value, so that expiry, deletion, transactions, scripts, checkpoints and exports treat all
//! types alike. A collection is limited as a string is, because a write copies it.

mod blocking;
mod combine;
mod hash;
mod list;
mod multi_pop;
pub mod packed;
mod sample;
mod scan;
mod score;
mod set;
mod sorted_set;
mod work;

use inband_resp::reply::Reply;

use crate::command::Strings;
use crate::events::EventClass;
use crate::keyspace::Keys;
use crate::parse::{integer, wrong_arity, SYNTAX_ERROR};
pub use blocking::timeout;
pub use combine::{execute as combine, parse as parse_combine, Combine};
pub use multi_pop::{execute as multi_pop, parse as parse_multi_pop, MultiPop};
use packed::Rows;
pub use sample::{execute as sample, parse as parse_sample, Sample};
use scan::{check_cursor, scan};
pub use work::Work;

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
    SortedSet = 4,
}

impl Kind {
    const ALL: [Kind; 5] = [
        Kind::String,
        Kind::Hash,
        Kind::Set,
        Kind::List,
        Kind::SortedSet,
    ];

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
            Kind::SortedSet => "zset",
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
    ZAdd,
    ZScore,
    ZMScore,
    ZIncrBy,
    ZCard,
    ZCount,
    ZLexCount,
    ZRank,
    ZRevRank,
    ZRem,
    ZRange,
    ZRangeByScore,
    ZRangeByLex,
    ZRevRange,
    ZRevRangeByScore,
    ZRevRangeByLex,
    ZRemRangeByRank,
    ZRemRangeByScore,
    ZRemRangeByLex,
    ZPopMin,
    ZPopMax,
    ZScan,
    BLPop,
    BRPop,
    BLMove,
    BRPopLPush,
    BZPopMin,
    BZPopMax,
    LPos,
    SInterStore,
    SUnionStore,
    SDiffStore,
}

/// Never reorder, only append.
pub const OPS: [Op; 74] = [
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
    Op::ZAdd,
    Op::ZScore,
    Op::ZMScore,
    Op::ZIncrBy,
    Op::ZCard,
    Op::ZCount,
    Op::ZLexCount,
    Op::ZRank,
    Op::ZRevRank,
    Op::ZRem,
    Op::ZRange,
    Op::ZRangeByScore,
    Op::ZRangeByLex,
    Op::ZRevRange,
    Op::ZRevRangeByScore,
    Op::ZRevRangeByLex,
    Op::ZRemRangeByRank,
    Op::ZRemRangeByScore,
    Op::ZRemRangeByLex,
    Op::ZPopMin,
    Op::ZPopMax,
    Op::ZScan,
    Op::BLPop,
    Op::BRPop,
    Op::BLMove,
    Op::BRPopLPush,
    Op::BZPopMin,
    Op::BZPopMax,
    Op::LPos,
    Op::SInterStore,
    Op::SUnionStore,
    Op::SDiffStore,
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
                | Op::LPos
                | Op::SMembers
                | Op::SIsMember
                | Op::SMIsMember
                | Op::SCard
                | Op::SInter
                | Op::SUnion
                | Op::SDiff
                | Op::SScan
                | Op::ZScore
                | Op::ZMScore
                | Op::ZCard
                | Op::ZCount
                | Op::ZLexCount
                | Op::ZRank
                | Op::ZRevRank
                | Op::ZRange
                | Op::ZRangeByScore
                | Op::ZRangeByLex
                | Op::ZRevRange
                | Op::ZRevRangeByScore
                | Op::ZRevRangeByLex
                | Op::ZScan
        )
    }

    /// Makes collections smaller only.
    pub fn only_removes(self) -> bool {
        matches!(
            self,
            Op::HDel
                | Op::LPop
                | Op::RPop
                | Op::LTrim
                | Op::LRem
                | Op::SRem
                | Op::SPop
                | Op::ZRem
                | Op::ZRemRangeByRank
                | Op::ZRemRangeByScore
                | Op::ZRemRangeByLex
                | Op::ZPopMin
                | Op::ZPopMax
        ) || self.pops_from_all_keys()
    }

    /// Programs that know only version 9 of the log's commands do not know it.
    pub fn is_of_version_10(self) -> bool {
        self as usize >= Op::LPos as usize
    }

    /// For sorted sets, which programs of earlier versions do not know.
    pub fn is_for_sorted_sets(self) -> bool {
        let is_later = self as usize >= Op::ZAdd as usize && !self.is_of_version_10();
        is_later && self.waits_for() != Some(Kind::List)
    }

    /// What a blocking pop waits for; `None`: the command does not block. Its last argument is the timeout.
    pub fn waits_for(self) -> Option<Kind> {
        match self {
            Op::BLPop | Op::BRPop | Op::BLMove | Op::BRPopLPush => Some(Kind::List),
            Op::BZPopMin | Op::BZPopMax => Some(Kind::SortedSet),
            _ => None,
        }
    }

    /// A blocking pop with several keys, whose reply begins with the key of the element.
    pub fn pops_from_all_keys(self) -> bool {
        matches!(self, Op::BLPop | Op::BRPop | Op::BZPopMin | Op::BZPopMax)
    }

    /// How many of the arguments after the first key are keys.
    pub fn further_keys(self, args: usize) -> usize {
        match self {
            Op::LMove | Op::RPopLPush | Op::SMove | Op::BLMove | Op::BRPopLPush => args.min(1),
            Op::SInter | Op::SUnion | Op::SDiff => args,
            Op::SInterStore | Op::SUnionStore | Op::SDiffStore => args,
            op if op.pops_from_all_keys() => args.saturating_sub(1),
            _ => 0,
        }
    }
}

/// Checks what Redis checks before it looks at the key. A request that fails is malformed, as one with a wrong number of
/// arguments is.
pub fn check(op: Op, args: &Strings<'_>) -> Result<(), Reply> {
    let arg = |at: usize| args.iter().nth(at).unwrap_or(&[]);
    match op {
        Op::HSet if args.len() % 2 != 0 => return Err(wrong_arity("hset")),
        Op::HMSet if args.len() % 2 != 0 => return Err(wrong_arity("hmset")),
        Op::LPop if args.len() > 1 => return Err(wrong_arity("lpop")),
        Op::RPop if args.len() > 1 => return Err(wrong_arity("rpop")),
        Op::SPop if args.len() > 1 => return Err(syntax_error()),
        Op::LPop | Op::RPop | Op::SPop if args.len() == 1 => drop(positive(arg(0))?),
        Op::HIncrBy => drop(integer(arg(1))?),
        Op::HIncrByFloat => drop(hash::increment_of(arg(1))?),
        Op::HScan | Op::SScan => check_cursor(arg(0))?,
        Op::LRange | Op::LTrim => drop((integer(arg(0))?, integer(arg(1))?)),
        Op::LRem => drop(integer(arg(0))?),
        Op::LPos => {
            let args: Vec<&[u8]> = args.iter().collect();
            list::Search::of_args(&args)?;
        }
        Op::LInsert => drop(list::offset(arg(0))?),
        Op::LMove => drop((list::end(arg(1))?, list::end(arg(2))?)),
        Op::BLMove => {
            list::end(arg(1))?;
            list::end(arg(2))?;
            blocking::timeout(arg(3))?;
        }
        op if op.waits_for().is_some() => {
            blocking::timeout(arg(args.len().saturating_sub(1)))?;
        }
        op if op.is_for_sorted_sets() => {
            let args: Vec<&[u8]> = args.iter().collect();
            sorted_set::check(op, &args)?;
        }
        _ => {}
    }
    Ok(())
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
    work: &Work,
    op: Op,
    key: &[u8],
    args: &Strings<'_>,
) -> Result<Reply, rocksdb::Error> {
    answer(work, args.len(), || {
        let args: Vec<&[u8]> = args.iter().collect();
        let mut at = At { keys, work, key };
        execute_at(&mut at, op, &args)
    })
}

/// Begins a command with this many arguments, and returns its reply.
fn answer(
    work: &Work,
    args: usize,
    execute: impl FnOnce() -> Outcome,
) -> Result<Reply, rocksdb::Error> {
    if let Err(reply) = work.begin(args) {
        return Ok(reply);
    }
    match execute() {
        Ok(reply) | Err(Stop::Reply(reply)) => Ok(reply),
        Err(Stop::Store(error)) => Err(error),
    }
}

fn execute_at(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    match op {
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
        | Op::HScan => hash::execute(at, op, args),
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
        | Op::SInterStore
        | Op::SUnionStore
        | Op::SDiffStore
        | Op::SScan => set::execute(at, op, args),
        op if op.is_for_sorted_sets() => sorted_set::execute(at, op, args),
        _ => list::execute(at, op, args),
    }
}

/// The key of a command.
struct At<'a> {
    keys: &'a mut dyn Keys,
    work: &'a Work,
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

/// A collection that is to be stored.
struct Packed {
    expire_at_ms: u64,
    /// `None`: it has no elements.
    value: Option<Vec<u8>>,
}

impl<'a> At<'a> {
    /// Another key of the same command.
    fn other<'o>(&'o mut self, key: &'o [u8]) -> At<'o> {
        At {
            keys: &mut *self.keys,
            work: self.work,
            key,
        }
    }

    /// Returns the elements, to find some of them; none if there is no such key.
    fn read(&mut self, kind: Kind) -> Result<Rows<'_>, Stop> {
        match self.keys.get(self.key)? {
            None => Ok(Rows::default()),
            Some(record) if record.kind == kind => Ok(Rows::new(record.value)),
            Some(_) => Err(Reply::error(WRONG_TYPE).into()),
        }
    }

    /// Returns the elements, to visit all of them.
    fn read_all(&mut self, kind: Kind) -> Result<Rows<'_>, Stop> {
        let work = self.work;
        let rows = self.read(kind)?;
        work.pass(rows)?;
        Ok(rows)
    }

    /// Returns a copy of the collection, which is empty if there is no such key.
    fn hold(&mut self, kind: Kind) -> Result<Held, Stop> {
        match self.keys.get(self.key)? {
            None => Ok(Held {
                expire_at_ms: 0,
                version: 0,
                value: Vec::new(),
            }),
            Some(record) if record.kind == kind => {
                self.work.pass(Rows::new(record.value))?;
                Ok(Held {
                    expire_at_ms: record.expire_at_ms,
                    version: record.version,
                    value: record.value.to_vec(),
                })
            }
            Some(_) => Err(Reply::error(WRONG_TYPE).into()),
        }
    }

    /// Packs a collection, unless that is over a limit. A command that stores several packs all of them first: then it
    /// has its whole effect or none.
    fn pack<'r, R: AsRef<[u8]> + 'r>(
        &self,
        kind: Kind,
        expire_at_ms: u64,
        rows: impl ExactSizeIterator<Item = R> + Clone,
    ) -> Result<Packed, Stop> {
        if rows.len() == 0 {
            return Ok(Packed {
                expire_at_ms,
                value: None,
            });
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
        self.work.visit(rows.len(), len)?;
        Ok(Packed {
            expire_at_ms,
            value: Some(packed::pack(rows)),
        })
    }

    /// Stores a packed collection; an empty one is deleted. `event` is what has happened.
    fn put(&mut self, event: &str, kind: Kind, packed: Packed) -> Result<(), Stop> {
        let is_deleted = packed.value.is_none();
        self.put_quietly(kind, packed)?;
        self.notify(event, kind);
        if is_deleted {
            self.keys.notify(EventClass::Generic, "del", self.key);
        }
        Ok(())
    }

    fn put_quietly(&mut self, kind: Kind, packed: Packed) -> Result<(), Stop> {
        let Packed {
            expire_at_ms,
            value,
        } = packed;
        match value {
            Some(value) => self.keys.put_as(kind, self.key, expire_at_ms, &value)?,
            None => drop(self.keys.delete(self.key)?),
        }
        Ok(())
    }

    fn notify(&mut self, event: &str, kind: Kind) {
        let class = EventClass::of_kind(kind);
        self.keys.notify(class, event, self.key);
    }

    /// Stores a collection; an empty one is deleted.
    fn store<'r, R: AsRef<[u8]> + 'r>(
        &mut self,
        event: &str,
        kind: Kind,
        expire_at_ms: u64,
        rows: impl ExactSizeIterator<Item = R> + Clone,
    ) -> Result<(), Stop> {
        let packed = self.pack(kind, expire_at_ms, rows)?;
        self.put(event, kind, packed)
    }

    /// Packs what is left without the elements that begin at these places, which ascend; an element is `step` rows.
    fn without(&mut self, kind: Kind, step: usize, gone: &[usize]) -> Result<Packed, Stop> {
        let held = self.hold(kind)?;
        let rows = held.rows();
        let mut next_gone = gone.iter().peekable();
        let mut left: Vec<&[u8]> = Vec::with_capacity(rows.len());
        for place in (0..rows.len()).step_by(step) {
            if next_gone.next_if_eq(&&place).is_none() {
                left.extend((place..place + step).map(|at| rows.get(at)));
            }
        }
        self.pack(kind, held.expire_at_ms, left.iter())
    }

    /// Removes the elements that begin at these places, which ascend; an element is `step` rows.
    fn remove(&mut self, event: &str, kind: Kind, step: usize, gone: &[usize]) -> Result<(), Stop> {
        let left = self.without(kind, step, gone)?;
        self.put(event, kind, left)
    }
}

fn flag(is_set: bool) -> Reply {
    Reply::Integer(i64::from(is_set))
}

fn count(number: usize) -> Reply {
    Reply::Integer(number as i64)
}

fn syntax_error() -> Reply {
    Reply::error(SYNTAX_ERROR)
}

/// The count of `LPOP` and `SPOP`.
fn positive(arg: &[u8]) -> Result<usize, Reply> {
    let number = integer(arg).ok().and_then(|n| usize::try_from(n).ok());
    let why = "ERR value is out of range, must be positive";
    number.ok_or_else(|| Reply::error(why))
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
        Kind::SortedSet => sorted_set::is_well_formed(rows),
    });
    if !is_good {
        return Ok(Reply::error("ERR this is not a collection of an export"));
    }
    if expire_at_ms != 0 && expire_at_ms <= keys.now_ms() {
        keys.delete(key)?;
        return Ok(Reply::Ok);
    }
    keys.put_as(kind, key, expire_at_ms, value)?;
    keys.notify(EventClass::Generic, "restore", key);
    Ok(Reply::Ok)
}
