//! Hashes: rows alternate between fields, ascending, and their values.

use inband_resp::reply::Reply;

use super::{
    check_cursor, count, flag, packed::Rows, scan, wrong_arity, At, Kind, Op, Outcome, Stop, Work,
};
use crate::float;
use crate::parse::{integer, strict_integer};

/// Executes a command for hashes.
pub(super) fn execute(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    let work = at.work;
    Ok(match op {
        Op::HSet | Op::HMSet => {
            if args.len() % 2 != 0 {
                let name = if op == Op::HSet { "hset" } else { "hmset" };
                return Err(wrong_arity(name).into());
            }
            let added = set(at, "hset", args)?;
            if op == Op::HSet {
                count(added)
            } else {
                Reply::Ok
            }
        }
        Op::HSetNx => {
            let is_new = find(at.read(Kind::Hash)?, args[0]).is_none();
            if is_new {
                set(at, "hset", args)?;
            }
            flag(is_new)
        }
        Op::HGet => bulk_or_nil(work, find(at.read(Kind::Hash)?, args[0]))?,
        Op::HMGet => {
            let rows = at.read(Kind::Hash)?;
            let values = args.iter().map(|f| bulk_or_nil(work, find(rows, f)));
            Reply::Array(values.collect::<Result<_, _>>()?)
        }
        Op::HGetAll => {
            let rows = at.read_all(Kind::Hash)?;
            let pairs = fields(rows).zip(values(rows));
            let pairs = pairs.map(|(field, value)| Ok((work.bulk(field)?, work.bulk(value)?)));
            Reply::Map(pairs.collect::<Result<_, Reply>>()?)
        }
        Op::HKeys => work.bulks(fields(at.read_all(Kind::Hash)?))?,
        Op::HVals => work.bulks(values(at.read_all(Kind::Hash)?))?,
        Op::HExists => flag(find(at.read(Kind::Hash)?, args[0]).is_some()),
        Op::HLen => count(at.read(Kind::Hash)?.len() / 2),
        Op::HStrLen => count(find(at.read(Kind::Hash)?, args[0]).map_or(0, <[u8]>::len)),
        Op::HDel => delete(at, args)?,
        Op::HIncrBy => increment(at, args[0], integer(args[1])?)?,
        Op::HIncrByFloat => increment_float(at, args[0], args[1])?,
        _ => {
            check_cursor(args[0])?;
            scan(at, Kind::Hash, args, 2)?
        }
    })
}

fn bulk_or_nil(work: &Work, value: Option<&[u8]>) -> Result<Reply, Reply> {
    work.reply(value.map_or(0, <[u8]>::len))?;
    Ok(value.map_or(Reply::Nil, Reply::bulk))
}

fn fields<'r>(rows: Rows<'r>) -> impl Iterator<Item = &'r [u8]> {
    rows.iter().step_by(2)
}

fn values<'r>(rows: Rows<'r>) -> impl Iterator<Item = &'r [u8]> {
    rows.iter().skip(1).step_by(2)
}

fn find<'r>(rows: Rows<'r>, field: &[u8]) -> Option<&'r [u8]> {
    rows.find(field, 2).map(|at| rows.get(at + 1))
}

/// Sets fields; `pairs` alternate between fields and values. Returns how many fields are new.
fn set(at: &mut At<'_>, event: &str, pairs: &[&[u8]]) -> Result<usize, Stop> {
    let held = at.hold(Kind::Hash)?;
    let old = fields(held.rows()).zip(values(held.rows()));
    let new = pairs.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    let mut all: Vec<(&[u8], &[u8])> = old.chain(new).collect();
    // Stable, and fast for what is in order already.
    all.sort_by_key(|(field, _)| *field);
    all.dedup_by(|later, earlier| {
        let is_same = later.0 == earlier.0;
        if is_same {
            earlier.1 = later.1;
        }
        is_same
    });
    let added = all.len() - held.rows().len() / 2;
    let rows: Vec<&[u8]> = all
        .iter()
        .flat_map(|(field, value)| [*field, *value])
        .collect();
    at.store(event, Kind::Hash, held.expire_at_ms, rows.iter())?;
    Ok(added)
}

fn delete(at: &mut At<'_>, names: &[&[u8]]) -> Outcome {
    let rows = at.read(Kind::Hash)?;
    let mut gone: Vec<usize> = names.iter().filter_map(|name| rows.find(name, 2)).collect();
    gone.sort_unstable();
    gone.dedup();
    if gone.is_empty() {
        return Ok(count(0));
    }
    at.remove("hdel", Kind::Hash, 2, &gone)?;
    Ok(count(gone.len()))
}

fn increment(at: &mut At<'_>, field: &[u8], delta: i64) -> Outcome {
    let number = match find(at.read(Kind::Hash)?, field) {
        None => 0,
        Some(value) => {
            strict_integer(value).ok_or_else(|| Reply::error("ERR hash value is not an integer"))?
        }
    };
    let number = number
        .checked_add(delta)
        .ok_or_else(|| Reply::error("ERR increment or decrement would overflow"))?;
    set(at, "hincrby", &[field, number.to_string().as_bytes()])?;
    Ok(Reply::Integer(number))
}

/// The increment of `HINCRBYFLOAT`.
pub(super) fn increment_of(arg: &[u8]) -> Result<float::Number, Reply> {
    float::parse(arg).ok_or_else(|| Reply::error(float::NOT_A_FLOAT))
}

fn increment_float(at: &mut At<'_>, field: &[u8], delta: &[u8]) -> Outcome {
    let delta = increment_of(delta)?;
    let before = find(at.read(Kind::Hash)?, field).unwrap_or(b"0");
    let before =
        float::parse(before).ok_or_else(|| Reply::error("ERR hash value is not a float"))?;
    let sum = before
        .plus(delta)
        .ok_or_else(|| Reply::error("ERR increment would produce NaN or Infinity"))?;
    set(at, "hincrbyfloat", &[field, sum.as_bytes()])?;
    Ok(Reply::bulk(sum))
}
