//! `INBAND.LOCK`: locks with an owner, a lease and a fencing token.
//!
//! A lock is a string, `inband.lock TOKEN OWNER`, that expires with its lease, so what is true of keys is true of locks:
//! deletion, checkpoints, exports, WATCH, replicated time.
//!
//! A token is larger than all tokens that its partition has issued before, whatever has become of their locks. It comes
//! from the numbers of the partition's writes, which are part of the replicated state and never go back, and which are
//! moved up to replicated time first. So the tokens of a cluster into which an export was imported are larger than those
//! of the one that it came from, too, provided that its clocks are not behind.

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use crate::command::Command;
use crate::events::EventClass;
use crate::keyspace::Keys;
use crate::limits::LOCK_OWNER_LEN_BYTES_MAX;
use crate::parse::{integer, unknown_subcommand, wrong_arity, TIME_MS_MAX};
use crate::types::{Kind, WRONG_TYPE};

/// First word of a lock's value.
const WORD: &[u8] = b"inband.lock ";

type Result<T> = std::result::Result<T, rocksdb::Error>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOp {
    /// Take the lock, or keep it: what a client may repeat that got no answer.
    Acquire,
    /// Keep the lock.
    Renew,
    Release,
    /// Ask who has it.
    Get,
}

impl LockOp {
    /// In the order of their numbers in the log; never reorder, only append.
    pub(crate) const ALL: [LockOp; 4] =
        [LockOp::Acquire, LockOp::Renew, LockOp::Release, LockOp::Get];

    fn name(self) -> &'static str {
        match self {
            LockOp::Acquire => "ACQUIRE",
            LockOp::Renew => "RENEW",
            LockOp::Release => "RELEASE",
            LockOp::Get => "GET",
        }
    }

    /// Number of arguments after its name.
    fn arguments(self) -> usize {
        match self {
            LockOp::Acquire | LockOp::Renew => 3,
            LockOp::Release => 2,
            LockOp::Get => 1,
        }
    }
}

/// Parses `INBAND.LOCK`.
pub fn parse(args: Args<'_>) -> std::result::Result<Command<'_>, Reply> {
    let word = args.get(1);
    let is_word = |op: &LockOp| word.eq_ignore_ascii_case(op.name().as_bytes());
    let Some(op) = LockOp::ALL.into_iter().find(is_word) else {
        return Err(unknown_subcommand("INBAND.LOCK", word));
    };
    if args.len() != 2 + op.arguments() {
        let name = op.name().to_lowercase();
        return Err(wrong_arity(&format!("inband.lock|{name}")));
    }
    let owner = if op == LockOp::Get { b"" } else { args.get(3) };
    let ttl_ms = match op {
        LockOp::Acquire | LockOp::Renew => match integer(args.get(4))? {
            ms @ 1..=TIME_MS_MAX => ms as u64,
            ms => {
                return Err(Reply::error(format!(
                    "ERR ttl_ms = {ms} is out of range; it must be 1 to {TIME_MS_MAX}"
                )));
            }
        },
        LockOp::Release | LockOp::Get => 0,
    };
    let (len, limit) = (owner.len(), LOCK_OWNER_LEN_BYTES_MAX);
    if op != LockOp::Get && !(1..=limit).contains(&len) {
        return Err(Reply::error(format!(
            "ERR an owner of {len} bytes; it must have 1 to {limit} bytes, such as a random UUID"
        )));
    }
    Ok(Command::Lock {
        op,
        key: args.get(2),
        owner,
        ttl_ms,
    })
}

/// Returns token and owner of a lock's value; `None` if it is another string.
fn parts(value: &[u8]) -> Option<(u64, &[u8])> {
    let rest = value.strip_prefix(WORD)?;
    let space = rest.iter().position(|b| *b == b' ')?;
    let token = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    Some((token, &rest[space + 1..]))
}

/// Executes a command whose key holds a string or nothing.
pub fn execute(
    keys: &mut dyn Keys,
    op: LockOp,
    key: &[u8],
    owner: &[u8],
    ttl_ms: u64,
) -> Result<Reply> {
    let expire_at_ms = keys.now_ms().saturating_add(ttl_ms);
    let record = keys.get(key)?;
    let held = match record.map(|record| parts(record.value)) {
        None => None,
        Some(Some((token, holder))) => Some((token, holder.to_vec())),
        Some(None) => return Ok(Reply::error(WRONG_TYPE)),
    };
    let token = match (op, held) {
        (LockOp::Get, None) => return Ok(Reply::NilArray),
        (LockOp::Get, Some((token, holder))) => {
            let token = Reply::Integer(token as i64);
            return Ok(Reply::Array(vec![Reply::bulk(holder), token]));
        }
        (LockOp::Release, held) => {
            let is_owner = held.is_some_and(|(_, holder)| holder == owner);
            if is_owner {
                keys.delete(key)?;
                keys.notify(EventClass::Generic, "del", key);
            }
            return Ok(Reply::Integer(i64::from(is_owner)));
        }
        (_, Some((token, holder))) if holder == owner => token,
        (LockOp::Acquire, None) => keys.issue_token(key),
        (LockOp::Acquire | LockOp::Renew, _) => return Ok(Reply::Nil),
    };
    let value = [WORD, token.to_string().as_bytes(), b" ", owner].concat();
    keys.put_as(Kind::String, key, expire_at_ms, &value)?;
    keys.notify(EventClass::String, "set", key);
    keys.notify(EventClass::Generic, "expire", key);
    Ok(Reply::Integer(token as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_lock() {
        assert_eq!(parts(b"inband.lock 7 me"), Some((7, &b"me"[..])));
        assert_eq!(parts(b"inband.lock 7 a b"), Some((7, &b"a b"[..])));
        for other in [
            &b""[..],
            b"inband.lock",
            b"inband.lock 7",
            b"inband.lock x me",
            b"inband.lock -1 me",
            b"inband.lock 99999999999999999999 me",
            b"7 me",
        ] {
            assert_eq!(parts(other), None, "{:?}", String::from_utf8_lossy(other));
        }
    }
}
