//! What each replicated command does. Deterministic: it depends only on the keyspace, its replicated time and its
//! arguments.

use std::borrow::Cow;

use inband_resp::reply::Reply;

use crate::bits;
use crate::command::{
    Command, ExpireWhen, Expiry, Extend, Queue, SetReply, SetWhen, Strings, TimeUnit,
};
use crate::events::EventClass;
use crate::float;
use crate::keyspace::Keys;
use crate::limits::{
    KEYS_REPLY_BYTES_MAX, TRANSACTION_SCRIPTS_MAX, TRANSACTION_WRITTEN_BYTES_MAX,
    VALUES_REPLY_BYTES_MAX,
};
use crate::lock;
use crate::parse::{strict_integer, NOT_AN_INTEGER};
use crate::script;
use crate::types::{self, Kind, Work};

const MS_PER_S: i64 = 1000;

/// `TTL` reply for a key that does not exist.
const TTL_NO_KEY: i64 = -2;
/// `TTL` reply for a key that does not expire.
const TTL_NO_EXPIRY: i64 = -1;

type Result<T> = std::result::Result<T, rocksdb::Error>;

/// Execute one command, except `INBAND.SESSION NEW`: sessions are not in the keyspace.
pub fn execute(keys: &mut dyn Keys, command: &Command<'_>) -> Result<Reply> {
    execute_within(keys, &Work::default(), command)
}

/// The same, with the work that it may still do.
pub fn execute_within(keys: &mut dyn Keys, work: &Work, command: &Command<'_>) -> Result<Reply> {
    match command {
        Command::Eval { .. } => script::execute(keys, work, command),
        Command::Exec { watched, commands } => {
            for (key, version) in watched.iter() {
                if version_of(keys, key)? != version {
                    return Ok(Reply::NilArray);
                }
            }
            execute_all(keys, work, commands)
        }
        command => execute_simple(keys, work, command),
    }
}

/// Execute a command that consists of no others.
pub(crate) fn execute_simple(
    keys: &mut dyn Keys,
    work: &Work,
    command: &Command<'_>,
) -> Result<Reply> {
    if let Some(key) = command.string_key() {
        let record = keys.get(key)?;
        if record.is_some_and(|record| record.kind != Kind::String) {
            return Ok(Reply::error(types::WRONG_TYPE));
        }
    }
    Ok(match command {
        Command::Typed { op, key, args } => types::execute(keys, work, *op, key, args)?,
        Command::MultiPop {
            pop,
            keys: names,
            timeout,
        } => types::multi_pop(keys, work, *pop, names, *timeout)?,
        Command::Combine {
            op,
            target,
            keys: names,
            options,
        } => types::combine(keys, work, *op, target, (names, options))?,
        Command::Bits { op, key, args } => bits::execute(keys, work, *op, key, args)?,
        Command::CombineBits {
            logic,
            target,
            keys: names,
        } => bits::combine(keys, work, *logic, target, names)?,
        Command::Sample { sample, key } => types::sample(keys, work, *sample, key)?,
        Command::Restore {
            kind,
            key,
            expire_at_ms,
            value,
        } => types::restore(keys, *kind, key, *expire_at_ms, value)?,
        Command::Get(key) => bulk_or_nil(keys, key)?,
        Command::GetDel(key) => {
            let reply = bulk_or_nil(keys, key)?;
            if reply != Reply::Nil {
                delete(keys, key)?;
            }
            reply
        }
        Command::StrLen(key) => Reply::Integer(keys.get(key)?.map_or(0, |r| r.value.len()) as i64),
        Command::Type(key) => {
            let name = keys.get(key)?.map_or("none", |record| record.kind.name());
            Reply::Status(Cow::Borrowed(name))
        }
        Command::Persist(key) => persist(keys, key)?,
        Command::Ttl(key, unit) => ttl(keys, key, *unit)?,
        Command::Set {
            key,
            value,
            when,
            expiry,
            reply,
        } => set(keys, key, value, *when, *expiry, *reply)?,
        Command::SetIfEqual {
            key,
            value,
            expected,
            expiry,
            reply,
        } => {
            let record = keys.get(key)?;
            let is_equal = record.is_some_and(|record| record.value == *expected);
            match (is_equal, reply) {
                (true, _) => set(keys, key, value, SetWhen::Always, *expiry, *reply)?,
                (false, SetReply::Old) => bulk_or_nil(keys, key)?,
                (false, _) => Reply::Nil,
            }
        }
        Command::IncrBy(key, delta) => incr_by(keys, key, *delta)?,
        Command::Append(key, tail) => append(keys, key, tail)?,
        Command::Expire { key, expiry, when } => expire(keys, key, *expiry, *when)?,
        Command::MGet(names) => values_of(keys, names)?,
        Command::Lock {
            op,
            key,
            owner,
            ttl_ms,
        } => lock::execute(keys, *op, key, owner, *ttl_ms)?,
        Command::GetRange { key, start, end } => {
            let record = keys.get(key)?;
            let value = record.map_or(&[][..], |record| record.value);
            Reply::bulk(range_of(value, *start, *end))
        }
        Command::SetRange { key, offset, value } => set_range(keys, key, *offset, value)?,
        Command::GetEx(key, expiry) => get_ex(keys, key, *expiry)?,
        Command::IncrByFloat(key, delta) => incr_by_float(keys, key, delta)?,
        Command::CompareDelete(key, value) => {
            let is_equal = keys.get(key)?.is_some_and(|record| record.value == *value);
            if is_equal {
                delete(keys, key)?;
            }
            Reply::Integer(i64::from(is_equal))
        }
        Command::CompareExpire {
            key,
            value,
            ms,
            extend,
        } => compare_expire(keys, key, value, *ms, *extend)?,
        Command::Rename {
            from,
            to,
            only_if_missing,
        } => rename(keys, from, to, *only_if_missing)?,
        Command::Copy { from, to, replaces } => copy(keys, from, to, *replaces)?,
        Command::MSet(pairs) => {
            put_all(keys, pairs)?;
            Reply::Ok
        }
        Command::MSetNx(pairs) => {
            for key in pairs.iter().step_by(2) {
                if keys.get(key)?.is_some() {
                    return Ok(Reply::Integer(0));
                }
            }
            put_all(keys, pairs)?;
            Reply::Integer(1)
        }
        Command::Del(names) => {
            let mut deleted = 0;
            for key in names.iter() {
                deleted += i64::from(delete(keys, key)?);
            }
            Reply::Integer(deleted)
        }
        Command::Exists(names) => {
            let mut found = 0;
            for key in names.iter() {
                found += i64::from(keys.get(key)?.is_some());
            }
            Reply::Integer(found)
        }
        Command::DbSize => Reply::Integer(keys.count() as i64),
        Command::FlushAll => {
            keys.flush();
            Reply::Ok
        }
        Command::SessionNew { .. } => Reply::error("ERR a session cannot be opened here"),
        Command::Keys(pattern) => matching_keys(keys, work, pattern)?,
        Command::Watch(names) => {
            let versions = names.iter().map(|key| {
                let version = version_of(keys, key)?;
                Ok(Reply::Integer(version as i64))
            });
            Reply::Array(versions.collect::<Result<_>>()?)
        }
        Command::Publish { channel, payload } => {
            Reply::Integer(keys.publish(channel, payload) as i64)
        }
        Command::ScriptLoad(text) => Reply::bulk(keys.scripts().remember(text)),
        Command::ScriptFlush => {
            keys.scripts().forget_all();
            Reply::Ok
        }
        Command::SetEvents(classes) => {
            keys.set_events(*classes);
            Reply::Ok
        }
        Command::Eval { .. } | Command::Exec { .. } => {
            Reply::error("ERR this command cannot be executed here")
        }
    })
}

/// Executes the commands of a transaction. When the reply limit is exceeded, the reply is dropped and no later command
/// is read for its reply. Writes are kept in memory until the end: beyond the limit nothing more is written. Every
/// replica makes the same decision, because it depends only on the commands and the keys.
fn execute_all(keys: &mut dyn Keys, work: &Work, commands: &Queue<'_>) -> Result<Reply> {
    let (mut replies, mut len_bytes, mut is_full) = (Vec::new(), 0, false);
    let put_before = keys.put_bytes();
    let mut scripts = 0;
    for command in commands.iter() {
        let put_bytes = keys.put_bytes() - put_before;
        let is_script = matches!(command, Command::Eval { .. });
        scripts += usize::from(is_script);
        let reply = match command.only_reads() {
            _ if is_script && scripts > TRANSACTION_SCRIPTS_MAX => Some(too_many_scripts()),
            true if is_full => None,
            false if put_bytes >= TRANSACTION_WRITTEN_BYTES_MAX as u64 => Some(too_much_written()),
            _ => Some(execute_within(keys, work, &command)?),
        };
        let has_room = |reply: &Reply| len_bytes + reply.len_bytes() <= VALUES_REPLY_BYTES_MAX;
        let reply = reply.filter(has_room);
        is_full |= reply.is_none();
        let reply = reply.unwrap_or_else(reply_left_out);
        len_bytes += reply.len_bytes();
        replies.push(reply);
    }
    Ok(Reply::Array(replies))
}

fn too_many_scripts() -> Reply {
    Reply::error(format!(
        "ERR a transaction executes at most {TRANSACTION_SCRIPTS_MAX} scripts; this one was not executed. Use \
         several transactions"
    ))
}

/// The reply to a command that would make a string longer than it may be.
pub(crate) fn value_too_long(len_bytes: usize, limit: usize) -> Reply {
    Reply::error(format!(
        "ERR value of {len_bytes} bytes is over the limit of {limit} bytes"
    ))
}

fn too_much_written() -> Reply {
    Reply::error(format!(
        "ERR transaction has written {TRANSACTION_WRITTEN_BYTES_MAX} bytes, which is the limit; this \
         command was not executed. Use several transactions"
    ))
}

fn reply_left_out() -> Reply {
    Reply::error(format!(
        "ERR the replies of the transaction are over the limit of {VALUES_REPLY_BYTES_MAX} bytes; \
         the command was executed, its reply is left out"
    ))
}

fn values_of(keys: &mut dyn Keys, names: &Strings<'_>) -> Result<Reply> {
    let (mut values, mut len_bytes) = (Vec::new(), 0);
    for key in names.iter() {
        let value = bulk_or_nil(keys, key)?;
        len_bytes += value.len_bytes();
        if len_bytes > VALUES_REPLY_BYTES_MAX {
            return Ok(Reply::error(format!(
                "ERR the values are over the limit of {VALUES_REPLY_BYTES_MAX} bytes; ask for fewer \
                 at a time"
            )));
        }
        values.push(value);
    }
    Ok(Reply::Array(values))
}

/// Returns the version that `WATCH` compares: 0 for a key that does not exist, 1 for a record written before there were
/// versions.
fn version_of(keys: &mut dyn Keys, key: &[u8]) -> Result<u64> {
    Ok(keys.get(key)?.map_or(0, |record| record.version.max(1)))
}

/// `KEYS`. The reply, and whether there is one, must be the same on every replica although they visit the keys in
/// different orders: so the work is that for all keys, and the keys are sorted.
fn matching_keys(keys: &mut dyn Keys, work: &Work, pattern: &[u8]) -> Result<Reply> {
    let (mut found, mut found_bytes, mut refusal) = (Vec::new(), 0, None);
    keys.each(&mut |key| {
        match work.is_key_match(pattern, key) {
            Ok(true) => {
                found_bytes += key.len();
                if found_bytes <= KEYS_REPLY_BYTES_MAX {
                    found.push(key.to_vec());
                }
            }
            Ok(false) => {}
            Err(reply) => refusal = Some(reply),
        }
        refusal.is_none()
    })?;
    if let Some(refusal) = refusal {
        return Ok(refusal);
    }
    if found_bytes > KEYS_REPLY_BYTES_MAX {
        return Ok(Reply::error(format!(
            "ERR the keys are over the limit of {KEYS_REPLY_BYTES_MAX} bytes; use SCAN"
        )));
    }
    found.sort_unstable();
    Ok(Reply::Array(found.into_iter().map(Reply::Bulk).collect()))
}

fn bulk_or_nil(keys: &mut dyn Keys, key: &[u8]) -> Result<Reply> {
    let record = keys.get(key)?.filter(|r| r.kind == Kind::String);
    Ok(record.map_or(Reply::Nil, |r| Reply::bulk(r.value)))
}

/// Returns the expiry as a Unix time in milliseconds; 0 if never.
fn expire_at_ms(expiry: Expiry, now_ms: u64, before_ms: u64) -> u64 {
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    // A time in the past is clamped to 1: 0 would mean never.
    let at = |ms: i64| ms.max(1) as u64;
    match expiry {
        Expiry::Never => 0,
        Expiry::Keep => before_ms,
        Expiry::InMs(ms) => at(now_ms.saturating_add(ms)),
        Expiry::AtMs(ms) => at(ms),
    }
}

/// Gives a key another expiry time, or deletes it if that has passed.
fn put_or_expire(
    keys: &mut dyn Keys,
    kind: Kind,
    key: &[u8],
    expire_at_ms: u64,
    value: &[u8],
) -> Result<()> {
    if is_over(keys, expire_at_ms) {
        delete(keys, key)?;
        return Ok(());
    }
    keys.put_as(kind, key, expire_at_ms, value)?;
    keys.notify(EventClass::Generic, "expire", key);
    Ok(())
}

fn is_over(keys: &dyn Keys, expire_at_ms: u64) -> bool {
    expire_at_ms != 0 && expire_at_ms <= keys.now_ms()
}

/// Deletes a key for a command. Returns whether it existed.
fn delete(keys: &mut dyn Keys, key: &[u8]) -> Result<bool> {
    let existed = keys.delete(key)?;
    if existed {
        keys.notify(EventClass::Generic, "del", key);
    }
    Ok(existed)
}

/// Stores a string for a command.
fn put(
    keys: &mut dyn Keys,
    event: &str,
    key: &[u8],
    expire_at_ms: u64,
    value: &[u8],
) -> Result<()> {
    keys.put(key, expire_at_ms, value)?;
    keys.notify(EventClass::String, event, key);
    Ok(())
}

fn set(
    keys: &mut dyn Keys,
    key: &[u8],
    value: &[u8],
    when: SetWhen,
    expiry: Expiry,
    reply: SetReply,
) -> Result<Reply> {
    let now_ms = keys.now_ms();
    let plain = when == SetWhen::Always && reply == SetReply::Status && expiry != Expiry::Keep;
    let (mut exists, mut before_ms, mut old) = (false, 0, Reply::Nil);
    if !plain {
        if let Some(record) = keys.get(key)? {
            (exists, before_ms) = (true, record.expire_at_ms);
            if reply == SetReply::Old {
                old = Reply::bulk(record.value);
            }
        }
    }
    let takes_effect = match when {
        SetWhen::Always => true,
        SetWhen::Missing => !exists,
        SetWhen::Exists => exists,
    };
    if takes_effect {
        let at_ms = expire_at_ms(expiry, now_ms, before_ms);
        let is_over = is_over(keys, at_ms);
        if !is_over {
            keys.put(key, at_ms, value)?;
        } else if !keys.delete(key)? {
            keys.notify(EventClass::New, "new", key);
        }
        keys.notify(EventClass::String, "set", key);
        if matches!(expiry, Expiry::InMs(_) | Expiry::AtMs(_)) {
            keys.notify(EventClass::Generic, "expire", key);
        }
        if is_over {
            keys.notify(EventClass::Expired, "expired", key);
        }
    }
    Ok(match reply {
        SetReply::Status if takes_effect => Reply::Ok,
        SetReply::Status => Reply::Nil,
        SetReply::Old => old,
        SetReply::Flag => Reply::Integer(i64::from(takes_effect)),
    })
}

fn incr_by(keys: &mut dyn Keys, key: &[u8], delta: i64) -> Result<Reply> {
    let (number, expire_at_ms) = match keys.get(key)? {
        None => (Some(0), 0),
        Some(record) => (strict_integer(record.value), record.expire_at_ms),
    };
    let Some(number) = number else {
        return Ok(Reply::error(NOT_AN_INTEGER));
    };
    let Some(number) = number.checked_add(delta) else {
        return Ok(Reply::error("ERR increment or decrement would overflow"));
    };
    let text = number.to_string();
    put(keys, "incrby", key, expire_at_ms, text.as_bytes())?;
    Ok(Reply::Integer(number))
}

fn put_all(keys: &mut dyn Keys, pairs: &Strings<'_>) -> Result<()> {
    let mut strings = pairs.iter();
    while let (Some(key), Some(value)) = (strings.next(), strings.next()) {
        put(keys, "set", key, 0, value)?;
    }
    Ok(())
}

/// Returns the bytes from `start` to `end`, both inclusive; negative indices count from the end.
fn range_of(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    let place = |at: i64| if at < 0 { (len + at).max(0) } else { at };
    let is_crossed = start < 0 && end < 0 && start > end;
    let (start, end) = (place(start), place(end).min(len - 1));
    if is_crossed || start > end {
        return &[];
    }
    &value[start as usize..=end as usize]
}

fn set_range(keys: &mut dyn Keys, key: &[u8], offset: u64, part: &[u8]) -> Result<Reply> {
    let (mut value, expire_at_ms) = match keys.get(key)? {
        None => (Vec::new(), 0),
        Some(record) => (record.value.to_vec(), record.expire_at_ms),
    };
    if part.is_empty() {
        return Ok(Reply::Integer(value.len() as i64));
    }
    let limit = keys.grown_len_bytes_max();
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = start.saturating_add(part.len());
    if end > limit {
        return Ok(value_too_long(end, limit));
    }
    value.resize(value.len().max(end), 0);
    value[start..end].copy_from_slice(part);
    put(keys, "setrange", key, expire_at_ms, &value)?;
    Ok(Reply::Integer(value.len() as i64))
}

fn get_ex(keys: &mut dyn Keys, key: &[u8], expiry: Expiry) -> Result<Reply> {
    let now_ms = keys.now_ms();
    let Some(record) = keys.get(key)? else {
        return Ok(Reply::Nil);
    };
    let (value, before_ms) = (record.value.to_vec(), record.expire_at_ms);
    let at_ms = expire_at_ms(expiry, now_ms, before_ms);
    if at_ms == 0 && before_ms != 0 {
        keys.put(key, 0, &value)?;
        keys.notify(EventClass::Generic, "persist", key);
    } else if at_ms != before_ms {
        put_or_expire(keys, Kind::String, key, at_ms, &value)?;
    } else if at_ms != 0 {
        keys.notify(EventClass::Generic, "expire", key);
    }
    Ok(Reply::Bulk(value))
}

fn incr_by_float(keys: &mut dyn Keys, key: &[u8], delta: &[u8]) -> Result<Reply> {
    let (before, expire_at_ms) = match keys.get(key)? {
        None => (float::parse(b"0"), 0),
        Some(record) => (float::parse(record.value), record.expire_at_ms),
    };
    let (Some(before), Some(delta)) = (before, float::parse(delta)) else {
        return Ok(Reply::error(float::NOT_A_FLOAT));
    };
    let Some(sum) = before.plus(delta) else {
        return Ok(Reply::error("ERR increment would produce NaN or Infinity"));
    };
    put(keys, "incrbyfloat", key, expire_at_ms, sum.as_bytes())?;
    Ok(Reply::bulk(sum))
}

fn compare_expire(
    keys: &mut dyn Keys,
    key: &[u8],
    value: &[u8],
    ms: i64,
    extend: Extend,
) -> Result<Reply> {
    let now_ms = keys.now_ms();
    let Some(record) = keys.get(key)?.filter(|record| record.value == value) else {
        return Ok(Reply::Integer(0));
    };
    let before_ms = record.expire_at_ms;
    let left_ms = i64::try_from(before_ms.saturating_sub(now_ms)).unwrap_or(i64::MAX);
    let ms = match extend {
        Extend::Set => ms,
        _ if before_ms == 0 => return Ok(Reply::Integer(0)),
        Extend::SetIfExpiring => ms,
        Extend::AddIfExpiring => ms.saturating_add(left_ms),
    };
    let at_ms = expire_at_ms(Expiry::InMs(ms), now_ms, before_ms);
    put_or_expire(keys, Kind::String, key, at_ms, value)?;
    Ok(Reply::Integer(1))
}

fn append(keys: &mut dyn Keys, key: &[u8], tail: &[u8]) -> Result<Reply> {
    let (mut value, expire_at_ms) = match keys.get(key)? {
        None => (Vec::new(), 0),
        Some(record) => (record.value.to_vec(), record.expire_at_ms),
    };
    value.extend_from_slice(tail);
    let limit = keys.grown_len_bytes_max();
    if value.len() > limit {
        return Ok(value_too_long(value.len(), limit));
    }
    put(keys, "append", key, expire_at_ms, &value)?;
    Ok(Reply::Integer(value.len() as i64))
}

fn expire(keys: &mut dyn Keys, key: &[u8], expiry: Expiry, when: ExpireWhen) -> Result<Reply> {
    let now_ms = keys.now_ms();
    let Some(record) = keys.get(key)? else {
        return Ok(Reply::Integer(0));
    };
    let before_ms = record.expire_at_ms;
    let at_ms = expire_at_ms(expiry, now_ms, before_ms);
    let has_expiry = before_ms != 0;
    // A key without an expiry counts as expiring later than any other.
    let takes_effect = match when {
        ExpireWhen::Always => true,
        ExpireWhen::NoExpiry => !has_expiry,
        ExpireWhen::HasExpiry => has_expiry,
        ExpireWhen::Later | ExpireWhen::HasExpiryAndLater => has_expiry && at_ms > before_ms,
        ExpireWhen::Earlier => !has_expiry || at_ms < before_ms,
        ExpireWhen::HasExpiryAndEarlier => has_expiry && at_ms < before_ms,
    };
    if takes_effect {
        let (kind, value) = (record.kind, record.value.to_vec());
        put_or_expire(keys, kind, key, at_ms, &value)?;
    }
    Ok(Reply::Integer(i64::from(takes_effect)))
}

fn rename(keys: &mut dyn Keys, from: &[u8], to: &[u8], only_if_missing: bool) -> Result<Reply> {
    let is_there = keys.get(to)?.is_some();
    let is_refused = from == to || (only_if_missing && is_there);
    let Some(record) = keys.get(from)? else {
        return Ok(Reply::error("ERR no such key"));
    };
    if !is_refused {
        let (kind, at_ms, value) = (record.kind, record.expire_at_ms, record.value.to_vec());
        replace(keys, is_there, kind, to, at_ms, &value)?;
        keys.delete(from)?;
        keys.notify(EventClass::Generic, "rename_from", from);
        keys.notify(EventClass::Generic, "rename_to", to);
    }
    Ok(match only_if_missing {
        true => Reply::Integer(i64::from(!is_refused)),
        false => Reply::Ok,
    })
}

fn copy(keys: &mut dyn Keys, from: &[u8], to: &[u8], replaces: bool) -> Result<Reply> {
    let is_there = keys.get(to)?.is_some();
    let Some(record) = keys.get(from)?.filter(|_| replaces || !is_there) else {
        return Ok(Reply::Integer(0));
    };
    let (kind, at_ms, value) = (record.kind, record.expire_at_ms, record.value.to_vec());
    replace(keys, is_there, kind, to, at_ms, &value)?;
    keys.notify(EventClass::Generic, "copy_to", to);
    Ok(Reply::Integer(1))
}

/// Stores a value of another key. As in Redis, the key is a new one even if it exists.
fn replace(
    keys: &mut dyn Keys,
    exists: bool,
    kind: Kind,
    key: &[u8],
    expire_at_ms: u64,
    value: &[u8],
) -> Result<()> {
    keys.put_as(kind, key, expire_at_ms, value)?;
    if exists {
        keys.notify(EventClass::New, "new", key);
    }
    Ok(())
}

fn persist(keys: &mut dyn Keys, key: &[u8]) -> Result<Reply> {
    match keys.get(key)? {
        Some(record) if record.expire_at_ms != 0 => {
            let (kind, value) = (record.kind, record.value.to_vec());
            keys.put_as(kind, key, 0, &value)?;
            keys.notify(EventClass::Generic, "persist", key);
            Ok(Reply::Integer(1))
        }
        _ => Ok(Reply::Integer(0)),
    }
}

fn ttl(keys: &mut dyn Keys, key: &[u8], unit: TimeUnit) -> Result<Reply> {
    let now_ms = keys.now_ms();
    Ok(Reply::Integer(match keys.get(key)? {
        None => TTL_NO_KEY,
        Some(record) if record.expire_at_ms == 0 => TTL_NO_EXPIRY,
        Some(record) => {
            // In a cross-partition command, some partitions' times may be slightly behind `now_ms`.
            let ms = match unit {
                TimeUnit::Milliseconds | TimeUnit::Seconds => {
                    record.expire_at_ms.saturating_sub(now_ms)
                }
                TimeUnit::AtMilliseconds | TimeUnit::AtSeconds => record.expire_at_ms,
            };
            let ms = i64::try_from(ms).unwrap_or(i64::MAX);
            match unit {
                TimeUnit::Milliseconds | TimeUnit::AtMilliseconds => ms,
                TimeUnit::Seconds | TimeUnit::AtSeconds => {
                    ms.saturating_add(MS_PER_S / 2) / MS_PER_S
                }
            }
        }
    }))
}
