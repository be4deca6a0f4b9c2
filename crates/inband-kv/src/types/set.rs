//! Sets: rows are members, ascending.

use std::collections::BTreeSet;

use inband_resp::reply::Reply;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    check_cursor, count, flag, positive, scan, syntax_error, At, Kind, Op, Outcome, Packed, Stop,
};
use crate::events::EventClass;

/// Executes a command for sets.
pub(super) fn execute(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    Ok(match op {
        Op::SAdd => count(add(at, args)?),
        Op::SRem => count(remove(at, args)?),
        Op::SMembers => {
            let work = at.work;
            work.bulks(at.read_all(Kind::Set)?.iter())?
        }
        Op::SIsMember => flag(at.read(Kind::Set)?.find(args[0], 1).is_some()),
        Op::SMIsMember => {
            let work = at.work;
            work.reply(args.len() * size_of::<Reply>())?;
            let rows = at.read(Kind::Set)?;
            let flags = args.iter().map(|row| flag(rows.find(row, 1).is_some()));
            Reply::Array(flags.collect())
        }
        Op::SCard => count(at.read(Kind::Set)?.len()),
        Op::SPop => pop(at, args)?,
        Op::SMove => move_member(at, args[0], args[1])?,
        Op::SInter | Op::SUnion | Op::SDiff => {
            let members = combine(at, op, args)?;
            Reply::Array(members.into_iter().map(Reply::Bulk).collect())
        }
        Op::SInterStore | Op::SUnionStore | Op::SDiffStore => store_combined(at, op, args)?,
        _ => {
            check_cursor(args[0])?;
            scan(at, Kind::Set, args, 1)?
        }
    })
}

/// Adds members. Returns how many are new.
fn add(at: &mut At<'_>, members: &[&[u8]]) -> Result<usize, Stop> {
    let rows = at.read(Kind::Set)?;
    if members.iter().all(|member| rows.find(member, 1).is_some()) {
        return Ok(0);
    }
    let (packed, added) = with(at, members)?;
    at.put("sadd", Kind::Set, packed)?;
    Ok(added)
}

/// Packs the set with further members. Also returns how many are new.
fn with(at: &mut At<'_>, members: &[&[u8]]) -> Result<(Packed, usize), Stop> {
    let held = at.hold(Kind::Set)?;
    let mut all: Vec<&[u8]> = held.rows().iter().chain(members.iter().copied()).collect();
    // Stable, which is fast for what is in order already.
    all.sort();
    all.dedup();
    let packed = at.pack(Kind::Set, held.expire_at_ms, all.iter())?;
    Ok((packed, all.len() - held.rows().len()))
}

/// Removes members. Returns how many there were.
fn remove(at: &mut At<'_>, members: &[&[u8]]) -> Result<usize, Stop> {
    let rows = at.read(Kind::Set)?;
    let gone = members
        .iter()
        .filter_map(|member| rows.find(member, 1))
        .collect();
    remove_at(at, "srem", gone)
}

/// Removes the members at these places. Returns how many different ones there are.
fn remove_at(at: &mut At<'_>, event: &str, mut gone: Vec<usize>) -> Result<usize, Stop> {
    gone.sort_unstable();
    gone.dedup();
    if gone.is_empty() {
        return Ok(0);
    }
    at.remove(event, Kind::Set, 1, &gone)?;
    Ok(gone.len())
}

/// Pops members at places that look random and are the same on every replica: they follow from the replicated time and
/// from the version of the set, which every write changes.
fn pop(at: &mut At<'_>, args: &[&[u8]]) -> Outcome {
    let wanted = match args {
        [] => 1,
        [wanted] => positive(wanted)?,
        _ => return Err(syntax_error().into()),
    };
    let now_ms = at.keys.now_ms();
    if wanted == 0 {
        at.read(Kind::Set)?;
        return Ok(Reply::Array(Vec::new()));
    }
    let (work, held) = (at.work, at.hold(Kind::Set)?);
    let rows = held.rows();
    let mut places: Vec<usize> = (0..rows.len()).collect();
    let popped = wanted.min(places.len());
    let mut seed = [held.version.to_be_bytes(), now_ms.to_be_bytes()].concat();
    for place in 0..popped {
        // The first steps of a Fisher-Yates shuffle.
        let random = xxh3_64(&seed);
        seed = random.to_be_bytes().to_vec();
        let left = places.len() - place;
        places.swap(place, place + (random % left as u64) as usize);
    }
    places.truncate(popped);
    let reply = match (args, places.first()) {
        ([], None) => Reply::Nil,
        ([], Some(place)) => work.bulk(rows.get(*place))?,
        _ => work.bulks(places.iter().map(|place| rows.get(*place)))?,
    };
    remove_at(at, "spop", places)?;
    Ok(reply)
}

fn move_member(at: &mut At<'_>, to: &[u8], member: &[u8]) -> Outcome {
    let (place, is_absent) = {
        let rows = at.read(Kind::Set)?;
        (rows.find(member, 1), rows.is_empty())
    };
    if is_absent {
        return Ok(flag(false));
    }
    let is_target_member = at.other(to).read(Kind::Set)?.find(member, 1).is_some();
    if let Some(place) = place.filter(|_| to != at.key) {
        let left = at.without(Kind::Set, 1, &[place])?;
        if is_target_member {
            at.put("srem", Kind::Set, left)?;
        } else {
            // The order of writes numbers the versions; that of the events is Redis's.
            let (packed, _) = with(&mut at.other(to), &[member])?;
            at.other(to).put_quietly(Kind::Set, packed)?;
            at.put("srem", Kind::Set, left)?;
            at.other(to).notify("sadd", Kind::Set);
        }
    }
    Ok(flag(place.is_some()))
}

/// The members of an intersection, a union or a difference.
pub(super) fn combine(at: &mut At<'_>, op: Op, others: &[&[u8]]) -> Result<Vec<Vec<u8>>, Stop> {
    if op == Op::SUnion {
        return unite(at, others);
    }
    let first = at.hold(Kind::Set)?;
    let mut members: Vec<&[u8]> = first.rows().iter().collect();
    for other in others {
        at.work.pass(first.rows())?;
        let mut other = at.other(other);
        let rows = other.read_all(Kind::Set)?;
        members.retain(|member| rows.find(member, 1).is_some() == (op == Op::SInter));
    }
    for member in &members {
        at.work.reply(member.len())?;
    }
    Ok(members.into_iter().map(<[u8]>::to_vec).collect())
}

fn unite(at: &mut At<'_>, others: &[&[u8]]) -> Result<Vec<Vec<u8>>, Stop> {
    let mut members = BTreeSet::new();
    for key in std::iter::once(at.key).chain(others.iter().copied()) {
        let work = at.work;
        let mut other = at.other(key);
        for member in other.read_all(Kind::Set)?.iter() {
            if !members.contains(member) {
                work.reply(member.len())?;
                members.insert(member.to_vec());
            }
        }
    }
    Ok(members.into_iter().collect())
}

/// `SINTERSTORE` and its like: `sources` are combined, and replace what is at the key.
fn store_combined(at: &mut At<'_>, op: Op, sources: &[&[u8]]) -> Outcome {
    let (op, event) = match op {
        Op::SInterStore => (Op::SInter, "sinterstore"),
        Op::SUnionStore => (Op::SUnion, "sunionstore"),
        _ => (Op::SDiff, "sdiffstore"),
    };
    let members = combine(&mut at.other(sources[0]), op, &sources[1..])?;
    if !members.is_empty() {
        at.store(event, Kind::Set, 0, members.iter())?;
    } else if at.keys.delete(at.key)? {
        at.keys.notify(EventClass::Generic, "del", at.key);
    }
    Ok(count(members.len()))
}
