//! Lists: rows are elements, from left to right.

use std::ops::Range;

use inband_resp::reply::Reply;

use super::{
    blocking, count, packed::Rows, positive, syntax_error, At, Kind, Op, Outcome, Packed, Stop,
};
use crate::parse::integer;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Left,
    Right,
}

impl End {
    fn pop_event(self) -> &'static str {
        match self {
            End::Left => "lpop",
            End::Right => "rpop",
        }
    }

    fn push_event(self) -> &'static str {
        match self {
            End::Left => "lpush",
            End::Right => "rpush",
        }
    }
}

/// Executes a command for lists.
pub(super) fn execute(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    let work = at.work;
    Ok(match op {
        Op::LPush => count(push(at, End::Left, args)?),
        Op::RPush => count(push(at, End::Right, args)?),
        Op::LPushX | Op::RPushX if at.read(Kind::List)?.is_empty() => count(0),
        Op::LPushX => count(push(at, End::Left, args)?),
        Op::RPushX => count(push(at, End::Right, args)?),
        Op::LPop => pop(at, End::Left, args)?,
        Op::RPop => pop(at, End::Right, args)?,
        Op::LLen => count(at.read(Kind::List)?.len()),
        Op::LRange => {
            let (start, end) = (integer(args[0])?, integer(args[1])?);
            let rows = at.read(Kind::List)?;
            let range = range(rows.len(), start, end);
            work.bulks(range.map(|place| rows.get(place)))?
        }
        Op::LIndex => {
            let rows = at.read(Kind::List)?;
            if rows.is_empty() {
                // As in Redis, whatever the index is.
                return Ok(Reply::Nil);
            }
            let place = index(rows.len(), integer(args[0])?);
            place.map_or(Reply::Nil, |place| Reply::bulk(rows.get(place)))
        }
        Op::LPos => find(at, args)?,
        Op::LSet => set(at, args[0], args[1])?,
        Op::LTrim => trim(at, integer(args[0])?, integer(args[1])?)?,
        Op::LRem => remove(at, integer(args[0])?, args[1])?,
        Op::LInsert => insert(at, args)?,
        Op::BLPop => pop_first(at, End::Left, args)?,
        Op::BRPop => pop_first(at, End::Right, args)?,
        Op::BLMove | Op::BRPopLPush => move_if_any(at, op, args)?,
        Op::RPopLPush => move_element(at, args[0], End::Right, End::Left)?,
        _ => move_element(at, args[0], end(args[1])?, end(args[2])?)?,
    })
}

pub(super) fn end(word: &[u8]) -> Result<End, Reply> {
    match word.to_ascii_uppercase().as_slice() {
        b"LEFT" => Ok(End::Left),
        b"RIGHT" => Ok(End::Right),
        _ => Err(syntax_error()),
    }
}

/// The place of an index, which counts from the end if it is negative.
fn index(len: usize, index: i64) -> Option<usize> {
    let place = if index < 0 {
        index.checked_add(len as i64)?
    } else {
        index
    };
    usize::try_from(place).ok().filter(|place| *place < len)
}

/// The places from `start` to `end`, both included.
pub(super) fn range(len: usize, start: i64, end: i64) -> Range<usize> {
    let place = |at: i64| match at {
        0.. => at.min(len as i64),
        _ => at.saturating_add(len as i64),
    };
    let (start, end) = (
        place(start).max(0) as usize,
        (place(end) + 1).max(0) as usize,
    );
    let end = end.min(len);
    start.min(end)..end
}

/// Pushes elements one after the other. Returns the new length.
fn push(at: &mut At<'_>, end: End, elements: &[&[u8]]) -> Result<usize, Stop> {
    let (packed, len) = with(at, end, elements)?;
    at.put(end.push_event(), Kind::List, packed)?;
    Ok(len)
}

/// Packs the list with further elements. Also returns its length.
fn with(at: &mut At<'_>, end: End, elements: &[&[u8]]) -> Result<(Packed, usize), Stop> {
    let held = at.hold(Kind::List)?;
    let old = held.rows().iter();
    let new = elements.iter().copied();
    let all: Vec<&[u8]> = match end {
        End::Left => new.rev().chain(old).collect(),
        End::Right => old.chain(new).collect(),
    };
    let packed = at.pack(Kind::List, held.expire_at_ms, all.iter())?;
    Ok((packed, all.len()))
}

/// Packs the elements in a range.
fn part(at: &mut At<'_>, places: Range<usize>) -> Result<Packed, Stop> {
    let held = at.hold(Kind::List)?;
    let rows = held.rows();
    at.pack(
        Kind::List,
        held.expire_at_ms,
        places.map(|place| rows.get(place)),
    )
}

/// Keeps the elements in a range.
fn keep(at: &mut At<'_>, event: &str, places: Range<usize>) -> Result<(), Stop> {
    let kept = part(at, places)?;
    at.put(event, Kind::List, kept)
}

/// Splits a list into what is popped and what is left.
fn split(rows: Rows<'_>, end: End, wanted: usize) -> (Range<usize>, Range<usize>) {
    let len = rows.len();
    let popped = wanted.min(len);
    match end {
        End::Left => (0..popped, popped..len),
        End::Right => (len - popped..len, 0..len - popped),
    }
}

fn pop(at: &mut At<'_>, end: End, args: &[&[u8]]) -> Outcome {
    let wanted = match args {
        [] => None,
        [wanted] => Some(positive(wanted)?),
        _ => return Err(super::wrong_arity(end.pop_event()).into()),
    };
    let work = at.work;
    let rows = at.read(Kind::List)?;
    let (popped, left) = split(rows, end, wanted.unwrap_or(1));
    let elements = popped.map(|place| work.bulk(rows.get(place)));
    let mut elements: Vec<Reply> = elements.collect::<Result<_, _>>()?;
    if rows.is_empty() {
        return Ok(if wanted.is_some() {
            Reply::NilArray
        } else {
            Reply::Nil
        });
    }
    if end == End::Right {
        elements.reverse();
    }
    if !elements.is_empty() {
        keep(at, end.pop_event(), left)?;
    }
    Ok(match wanted {
        None => elements.pop().unwrap_or(Reply::Nil),
        Some(_) => Reply::Array(elements),
    })
}

/// Pops up to `count` elements.
pub(super) fn pop_some(at: &mut At<'_>, from_right: bool, count: &[u8]) -> Outcome {
    let end = if from_right { End::Right } else { End::Left };
    pop(at, end, &[count])
}

/// `BLPOP` and `BRPOP`: pops from the first key that has elements.
fn pop_first(at: &mut At<'_>, end: End, args: &[&[u8]]) -> Outcome {
    let Some(key) = blocking::first_with_elements(at, Kind::List, args)? else {
        return Ok(Reply::NilArray);
    };
    let element = pop(&mut at.other(&key), end, &[])?;
    Ok(Reply::Array(vec![Reply::Bulk(key), element]))
}

/// `BLMOVE` and `BRPOPLPUSH`.
fn move_if_any(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    let timeout = &args[args.len() - 1..];
    if blocking::first_with_elements(at, Kind::List, timeout)?.is_none() {
        return Ok(Reply::Nil);
    }
    match op {
        Op::BLMove => move_element(at, args[0], end(args[1])?, end(args[2])?),
        _ => move_element(at, args[0], End::Right, End::Left),
    }
}

fn set(at: &mut At<'_>, at_index: &[u8], element: &[u8]) -> Outcome {
    let len = at.read(Kind::List)?.len();
    if len == 0 {
        return Err(Reply::error("ERR no such key").into());
    }
    let place =
        index(len, integer(at_index)?).ok_or_else(|| Reply::error("ERR index out of range"))?;
    let held = at.hold(Kind::List)?;
    let rows = held.rows().iter().enumerate();
    let rows = rows.map(|(number, row)| if number == place { element } else { row });
    let rows: Vec<&[u8]> = rows.collect();
    at.store("lset", Kind::List, held.expire_at_ms, rows.iter())?;
    Ok(Reply::Ok)
}

fn trim(at: &mut At<'_>, start: i64, end: i64) -> Outcome {
    let len = at.read(Kind::List)?.len();
    let places = range(len, start, end);
    if places != (0..len) {
        keep(at, "ltrim", places)?;
    } else if len > 0 {
        at.notify("ltrim", Kind::List);
    }
    Ok(Reply::Ok)
}

/// Removes up to `limit` elements that equal this one: from the right if `limit` is negative, all if it is 0.
fn remove(at: &mut At<'_>, limit: i64, element: &[u8]) -> Outcome {
    let rows = at.read_all(Kind::List)?;
    let equal = (0..rows.len()).filter(|place| rows.get(*place) == element);
    let most = match limit {
        0 => usize::MAX,
        _ => usize::try_from(limit.unsigned_abs()).unwrap_or(usize::MAX),
    };
    let mut gone: Vec<usize> = equal.collect();
    if limit < 0 {
        gone.drain(..gone.len().saturating_sub(most));
    } else {
        gone.truncate(most);
    }
    if gone.is_empty() {
        return Ok(count(0));
    }
    at.remove("lrem", Kind::List, 1, &gone)?;
    Ok(count(gone.len()))
}

/// The options of `LPOS`.
pub(super) struct Search {
    /// Which match comes first; negative: from the right.
    rank: i64,
    /// How many matches; 0: all.
    count: Option<usize>,
    /// How many elements are compared; 0: all.
    compared_max: usize,
}

impl Search {
    /// The arguments after the key.
    pub(super) fn of_args(args: &[&[u8]]) -> Result<Self, Reply> {
        let mut search = Self {
            rank: 1,
            count: None,
            compared_max: 0,
        };
        let natural = |arg: &[u8], name: &str| {
            let number = integer(arg)?;
            let why = || Reply::error(format!("ERR {name} can't be negative"));
            usize::try_from(number).map_err(|_| why())
        };
        for option in args[1..].chunks(2) {
            let [name, value] = option else {
                return Err(syntax_error());
            };
            match name.to_ascii_uppercase().as_slice() {
                b"RANK" => match integer(value)? {
                    0 => {
                        return Err(Reply::error(
                            "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... \
                             or use negative to start from the end of the list",
                        ))
                    }
                    rank => search.rank = rank,
                },
                b"COUNT" => search.count = Some(natural(value, "COUNT")?),
                b"MAXLEN" => search.compared_max = natural(value, "MAXLEN")?,
                _ => return Err(syntax_error()),
            }
        }
        Ok(search)
    }
}

/// `LPOS`.
fn find(at: &mut At<'_>, args: &[&[u8]]) -> Outcome {
    let search = Search::of_args(args)?;
    let work = at.work;
    let rows = at.read_all(Kind::List)?;
    let compared = match search.compared_max {
        0 => rows.len(),
        most => most.min(rows.len()),
    };
    let place = |step: usize| match search.rank {
        1.. => step,
        _ => rows.len() - 1 - step,
    };
    let is_equal = |place: &usize| rows.get(*place) == args[0];
    let skipped = usize::try_from(search.rank.unsigned_abs() - 1).unwrap_or(usize::MAX);
    let mut found = (0..compared).map(place).filter(is_equal).skip(skipped);
    let Some(wanted) = search.count else {
        return Ok(found.next().map_or(Reply::Nil, count));
    };
    let wanted = if wanted == 0 { usize::MAX } else { wanted };
    let mut places = Vec::new();
    for place in found.take(wanted) {
        work.reply(size_of::<Reply>())?;
        places.push(count(place));
    }
    Ok(Reply::Array(places))
}

/// How far behind its pivot an element is inserted.
pub(super) fn offset(word: &[u8]) -> Result<usize, Reply> {
    match word.to_ascii_uppercase().as_slice() {
        b"BEFORE" => Ok(0),
        b"AFTER" => Ok(1),
        _ => Err(syntax_error()),
    }
}

fn insert(at: &mut At<'_>, args: &[&[u8]]) -> Outcome {
    let offset = offset(args[0])?;
    let rows = at.read_all(Kind::List)?;
    if rows.is_empty() {
        return Ok(count(0));
    }
    let Some(place) = rows.iter().position(|row| row == args[1]) else {
        return Ok(Reply::Integer(-1));
    };
    let held = at.hold(Kind::List)?;
    let mut all: Vec<&[u8]> = held.rows().iter().collect();
    all.insert(place + offset, args[2]);
    at.store("linsert", Kind::List, held.expire_at_ms, all.iter())?;
    Ok(count(all.len()))
}

/// Moves an element between lists, or within one.
fn move_element(at: &mut At<'_>, to: &[u8], from_end: End, to_end: End) -> Outcome {
    let rows = at.read(Kind::List)?;
    let (popped, left) = split(rows, from_end, 1);
    let Some(element) = popped.map(|place| rows.get(place).to_vec()).next() else {
        return Ok(Reply::Nil);
    };
    if to == at.key {
        let held = at.hold(Kind::List)?;
        let rows = held.rows();
        let mut all: Vec<&[u8]> = left.map(|place| rows.get(place)).collect();
        let place = if to_end == End::Left { 0 } else { all.len() };
        all.insert(place, &element);
        let event = to_end.push_event();
        at.store(event, Kind::List, held.expire_at_ms, all.iter())?;
        at.notify(from_end.pop_event(), Kind::List);
    } else {
        let left = part(at, left)?;
        let mut target = at.other(to);
        let (packed, _) = with(&mut target, to_end, &[&element])?;
        target.put(to_end.push_event(), Kind::List, packed)?;
        at.put(from_end.pop_event(), Kind::List, left)?;
    }
    Ok(Reply::Bulk(element))
}
