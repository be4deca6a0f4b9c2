//! Sets: rows are members, ascending.

use inband_resp::reply::Reply;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    bulks, check_cursor, count, flag, positive, scan, syntax_error, At, Kind, Op, Outcome, Stop,
};

/// Executes a command for sets.
pub(super) fn execute(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    Ok(match op {
        Op::SAdd => count(add(at, args)?),
        Op::SRem => count(remove(at, args)?),
        Op::SMembers => bulks(at.read(Kind::Set)?.iter()),
        Op::SIsMember => flag(at.read(Kind::Set)?.find(args[0], 1).is_some()),
        Op::SMIsMember => {
            let rows = at.read(Kind::Set)?;
            let flags = args.iter().map(|row| flag(rows.find(row, 1).is_some()));
            Reply::Array(flags.collect())
        }
        Op::SCard => count(at.read(Kind::Set)?.len()),
        Op::SPop => pop(at, args)?,
        Op::SMove => move_member(at, args[0], args[1])?,
        Op::SInter | Op::SUnion | Op::SDiff => combine(at, op, args)?,
        _ => {
            check_cursor(args[0])?;
            scan(at.read(Kind::Set)?, args, 1)?
        }
    })
}

/// Adds members. Returns how many are new.
fn add(at: &mut At<'_>, members: &[&[u8]]) -> Result<usize, Stop> {
    let rows = at.read(Kind::Set)?;
    if members.iter().all(|member| rows.find(member, 1).is_some()) {
        return Ok(0);
    }
    let held = at.hold(Kind::Set)?;
    let mut all: Vec<&[u8]> = held.rows().iter().chain(members.iter().copied()).collect();
    // Stable, which is fast for what is in order already.
    all.sort();
    all.dedup();
    at.store(Kind::Set, held.expire_at_ms, all.iter())?;
    Ok(all.len() - held.rows().len())
}

/// Removes members. Returns how many there were.
fn remove(at: &mut At<'_>, members: &[&[u8]]) -> Result<usize, Stop> {
    let rows = at.read(Kind::Set)?;
    let gone = members
        .iter()
        .filter_map(|member| rows.find(member, 1))
        .collect();
    remove_at(at, gone)
}

/// Removes the members at these places. Returns how many different ones there are.
fn remove_at(at: &mut At<'_>, mut gone: Vec<usize>) -> Result<usize, Stop> {
    gone.sort_unstable();
    gone.dedup();
    if gone.is_empty() {
        return Ok(0);
    }
    at.remove(Kind::Set, 1, &gone)?;
    Ok(gone.len())
}

/// Pops members at places that look random and are the same on every replica: they follow from the replicated time and
/// from the version of the set, which every write changes.
fn pop(at: &mut At<'_>, args: &[&[u8]]) -> Outcome {
    let wanted = match args {
        [] => 1,
        [wanted] => positive(wanted)?,
        _ => return Err(syntax_error()),
    };
    let now_ms = at.keys.now_ms();
    let held = at.hold(Kind::Set)?;
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
    let members: Vec<Reply> = places
        .iter()
        .map(|place| Reply::bulk(rows.get(*place)))
        .collect();
    remove_at(at, places)?;
    Ok(match args {
        [] => members.into_iter().next().unwrap_or(Reply::Nil),
        _ => Reply::Array(members),
    })
}

fn move_member(at: &mut At<'_>, to: &[u8], member: &[u8]) -> Outcome {
    let (is_there, is_absent) = {
        let rows = at.read(Kind::Set)?;
        (rows.find(member, 1).is_some(), rows.is_empty())
    };
    if is_absent {
        return Ok(flag(false));
    }
    let mut target = At {
        keys: &mut *at.keys,
        key: to,
    };
    target.read(Kind::Set)?;
    if is_there && to != at.key {
        add(&mut target, &[member])?;
        remove(at, &[member])?;
    }
    Ok(flag(is_there))
}

fn combine(at: &mut At<'_>, op: Op, others: &[&[u8]]) -> Outcome {
    let first = at.hold(Kind::Set)?;
    let mut members: Vec<Vec<u8>> = first.rows().iter().map(<[u8]>::to_vec).collect();
    for other in others {
        let mut at = At {
            keys: &mut *at.keys,
            key: other,
        };
        let rows = at.read(Kind::Set)?;
        match op {
            Op::SInter => members.retain(|member| rows.find(member, 1).is_some()),
            Op::SDiff => members.retain(|member| rows.find(member, 1).is_none()),
            _ => {
                members.extend(rows.iter().map(<[u8]>::to_vec));
                members.sort();
                members.dedup();
            }
        }
    }
    Ok(Reply::Array(members.into_iter().map(Reply::Bulk).collect()))
}
