//! Sorted sets: a row is a score, as bytes in the order of the numbers, and a member. So the rows ascend as the elements
//! do: by score, then by member. A member is found by looking at all elements.

use std::cmp::Ordering;
use std::ops::Range;

use inband_resp::reply::Reply;

use super::packed::Rows;
use super::score::{self, SCORE_LEN_BYTES};
use super::{
    blocking, check_cursor, count, positive, scan, syntax_error, At, Kind, Op, Outcome, Stop, Work,
};
use crate::float::NOT_A_FLOAT;
use crate::parse::{integer, wrong_arity};

/// Executes a command for sorted sets.
pub(super) fn execute(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    Ok(match op {
        Op::ZAdd | Op::ZIncrBy => add(at, &Add::of_args(op, args)?)?,
        Op::ZScore => match score_of(at, args[0])? {
            Some(score) => number(score),
            None => Reply::Nil,
        },
        Op::ZMScore => {
            at.work.reply(args.len() * 2 * size_of::<Reply>())?;
            let scores = scores_of(at, args)?;
            let scores = scores.into_iter();
            Reply::Array(scores.map(|s| s.map_or(Reply::Nil, number)).collect())
        }
        Op::ZCard => count(at.read(Kind::SortedSet)?.len()),
        Op::ZRank | Op::ZRevRank => rank(at, op, args)?,
        Op::ZRem => remove(at, args)?,
        Op::ZCount => count(Select::scores(args[0], args[1])?.places(at)?.len()),
        Op::ZLexCount => count(Select::members(args[0], args[1])?.places(at)?.len()),
        Op::ZRemRangeByRank => {
            let select = Select::ranks(args[0], args[1])?;
            remove_range(at, "zremrangebyrank", select)?
        }
        Op::ZRemRangeByScore => {
            let select = Select::scores(args[0], args[1])?;
            remove_range(at, "zremrangebyscore", select)?
        }
        Op::ZRemRangeByLex => {
            let select = Select::members(args[0], args[1])?;
            remove_range(at, "zremrangebylex", select)?
        }
        Op::ZPopMin | Op::ZPopMax => pop(at, op, args)?,
        Op::BZPopMin => pop_first(at, Op::ZPopMin, args)?,
        Op::BZPopMax => pop_first(at, Op::ZPopMax, args)?,
        Op::ZScan => {
            check_cursor(args[0])?;
            scan(at, Kind::SortedSet, args, 1)?
        }
        _ => range(at, &List::of_args(op, args)?)?,
    })
}

/// Checks what Redis checks before it looks at the key.
pub(super) fn check(op: Op, args: &[&[u8]]) -> Result<(), Reply> {
    match op {
        Op::ZAdd | Op::ZIncrBy => drop(Add::of_args(op, args)?),
        Op::ZCount | Op::ZRemRangeByScore => drop(Select::scores(args[0], args[1])?),
        Op::ZLexCount | Op::ZRemRangeByLex => drop(Select::members(args[0], args[1])?),
        Op::ZRemRangeByRank => drop(Select::ranks(args[0], args[1])?),
        Op::ZRank | Op::ZRevRank => drop(with_score(op, args)?),
        Op::ZPopMin | Op::ZPopMax => drop(pop_count(args)?),
        Op::ZRange
        | Op::ZRangeByScore
        | Op::ZRangeByLex
        | Op::ZRevRange
        | Op::ZRevRangeByScore
        | Op::ZRevRangeByLex => {
            List::of_args(op, args)?;
        }
        Op::ZScan => check_cursor(args[0])?,
        _ => {}
    }
    Ok(())
}

pub(super) fn member(row: &[u8]) -> &[u8] {
    row.get(SCORE_LEN_BYTES..).unwrap_or(&[])
}

pub(super) fn score(row: &[u8]) -> f64 {
    score::of_bytes(row).unwrap_or(0.0)
}

pub(super) fn row(score: f64, member: &[u8]) -> Vec<u8> {
    [&score::to_bytes(score)[..], member].concat()
}

/// A score in a reply.
fn number(score: f64) -> Reply {
    Reply::Double(score::text(score))
}

/// Whether these are the rows of a sorted set.
pub(super) fn is_well_formed(rows: Rows<'_>) -> bool {
    let mut members: Vec<&[u8]> = rows.iter().map(member).collect();
    members.sort_unstable();
    let is_unique = members.windows(2).all(|pair| pair[0] != pair[1]);
    is_unique && rows.is_ascending(1) && rows.iter().all(|row| score::of_bytes(row).is_some())
}

/// Returns the places of members, which ascend.
fn places_of(rows: Rows<'_>, names: &[&[u8]]) -> Vec<Option<usize>> {
    let mut places = vec![None; names.len()];
    for (place, row) in rows.iter().enumerate() {
        if let Ok(name) = names.binary_search(&member(row)) {
            places[name] = Some(place);
        }
    }
    places
}

fn sorted<'n>(names: impl Iterator<Item = &'n [u8]>) -> Vec<&'n [u8]> {
    let mut names: Vec<&[u8]> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn scores_of(at: &mut At<'_>, names: &[&[u8]]) -> Result<Vec<Option<f64>>, Stop> {
    let distinct = sorted(names.iter().copied());
    let rows = at.read_all(Kind::SortedSet)?;
    let places = places_of(rows, &distinct);
    let score_of = |name: &&[u8]| {
        let place = places[distinct.binary_search(name).ok()?]?;
        Some(score(rows.get(place)))
    };
    Ok(names.iter().map(score_of).collect())
}

fn score_of(at: &mut At<'_>, name: &[u8]) -> Result<Option<f64>, Stop> {
    Ok(scores_of(at, &[name])?[0])
}

/// What `ZADD` does with an element.
#[derive(Debug, Clone, Copy, Default)]
struct When {
    is_new: bool,
    exists: bool,
    is_greater: bool,
    is_less: bool,
}

/// The arguments of `ZADD` and `ZINCRBY`.
struct Add<'a> {
    when: When,
    /// `CH`.
    counts_changes: bool,
    /// `INCR`.
    adds_to_score: bool,
    elements: Vec<(f64, &'a [u8])>,
}

impl<'a> Add<'a> {
    fn of_args(op: Op, args: &[&'a [u8]]) -> Result<Self, Reply> {
        let (mut when, mut counts_changes) = (When::default(), false);
        let mut adds_to_score = op == Op::ZIncrBy;
        let mut rest = args;
        while let [option, after @ ..] = rest {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => when.is_new = true,
                b"XX" => when.exists = true,
                b"GT" => when.is_greater = true,
                b"LT" => when.is_less = true,
                b"CH" => counts_changes = true,
                b"INCR" => adds_to_score = true,
                _ => break,
            }
            rest = after;
        }
        if rest.is_empty() || rest.len() % 2 != 0 {
            return Err(syntax_error());
        }
        let error = |why: &'static str| Err(Reply::error(why));
        if when.is_new && when.exists {
            return error("ERR XX and NX options at the same time are not compatible");
        }
        let others = [when.is_new, when.is_greater, when.is_less];
        if others.into_iter().filter(|is_set| *is_set).count() > 1 {
            return error("ERR GT, LT, and/or NX options at the same time are not compatible");
        }
        if adds_to_score && rest.len() > 2 {
            return error("ERR INCR option supports a single increment-element pair");
        }
        let pairs = rest.chunks_exact(2).map(|pair| {
            let score = score::parse(pair[0]).ok_or_else(|| Reply::error(NOT_A_FLOAT))?;
            Ok((score, pair[1]))
        });
        Ok(Self {
            when,
            counts_changes,
            adds_to_score,
            elements: pairs.collect::<Result<_, Reply>>()?,
        })
    }

    /// Returns the score that an element gets; `None` if it stays as it is.
    fn score(&self, given: f64, before: Option<f64>) -> Result<Option<f64>, Reply> {
        let Some(before) = before else {
            return Ok((!self.when.exists).then_some(given));
        };
        if self.when.is_new {
            return Ok(None);
        }
        let score = if self.adds_to_score {
            before + given + 0.0
        } else {
            given
        };
        if score.is_nan() {
            let why = "ERR resulting score is not a number (NaN)";
            return Err(Reply::error(why));
        }
        let is_refused = match score.total_cmp(&before) {
            Ordering::Equal => self.when.is_greater || self.when.is_less,
            Ordering::Less => self.when.is_greater,
            Ordering::Greater => self.when.is_less,
        };
        Ok((!is_refused).then_some(score))
    }
}

fn add(at: &mut At<'_>, add: &Add<'_>) -> Outcome {
    let names = sorted(add.elements.iter().map(|(_, name)| *name));
    let rows = at.read_all(Kind::SortedSet)?;
    let places = places_of(rows, &names);
    let before: Vec<Option<f64>> = places
        .iter()
        .map(|place| place.map(|place| score(rows.get(place))))
        .collect();
    let mut now = before.clone();
    let (mut added, mut updated, mut last) = (0, 0, None);
    for (given, name) in &add.elements {
        let Ok(name) = names.binary_search(name) else {
            continue;
        };
        last = add.score(*given, now[name])?;
        if let Some(score) = last {
            added += usize::from(now[name].is_none());
            updated += usize::from(now[name].is_some_and(|before| before != score));
            now[name] = Some(score);
        }
    }
    let event = if add.adds_to_score { "zincr" } else { "zadd" };
    if now != before {
        let changed: Vec<Vec<u8>> = names
            .iter()
            .zip(now.iter().zip(&before))
            .filter(|(_, (now, before))| now != before)
            .filter_map(|(name, (now, _))| Some(row((*now)?, name)))
            .collect();
        let mut gone: Vec<usize> = places
            .iter()
            .zip(now.iter().zip(&before))
            .filter(|(_, (now, before))| now != before)
            .filter_map(|(place, _)| *place)
            .collect();
        gone.sort_unstable();
        let held = at.hold(Kind::SortedSet)?;
        let mut next_gone = gone.iter().peekable();
        let kept = held.rows().iter().enumerate();
        let kept = kept.filter(|(place, _)| next_gone.next_if_eq(&place).is_none());
        let mut all: Vec<&[u8]> = kept.map(|(_, row)| row).collect();
        all.extend(changed.iter().map(Vec::as_slice));
        // Stable, which is fast for what is in order already.
        all.sort();
        at.store(event, Kind::SortedSet, held.expire_at_ms, all.iter())?;
    } else if added + updated > 0 {
        at.notify(event, Kind::SortedSet);
    }
    Ok(match (add.adds_to_score, last) {
        (true, Some(score)) => number(score),
        (true, None) => Reply::Nil,
        (false, _) if add.counts_changes => count(added + updated),
        (false, _) => count(added),
    })
}

/// Whether `ZRANK` has the option `WITHSCORE`.
fn with_score(op: Op, args: &[&[u8]]) -> Result<bool, Reply> {
    match args {
        [_] => Ok(false),
        [_, option] if option.eq_ignore_ascii_case(b"WITHSCORE") => Ok(true),
        [_, _] => Err(syntax_error()),
        _ if op == Op::ZRank => Err(wrong_arity("zrank")),
        _ => Err(wrong_arity("zrevrank")),
    }
}

fn rank(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    let with_score = with_score(op, args)?;
    let rows = at.read_all(Kind::SortedSet)?;
    let Some(place) = places_of(rows, &args[..1])[0] else {
        return Ok(if with_score {
            Reply::NilArray
        } else {
            Reply::Nil
        });
    };
    let rank = match op {
        Op::ZRank => count(place),
        _ => count(rows.len() - 1 - place),
    };
    Ok(match with_score {
        true => Reply::Array(vec![rank, number(score(rows.get(place)))]),
        false => rank,
    })
}

fn remove(at: &mut At<'_>, names: &[&[u8]]) -> Outcome {
    let names = sorted(names.iter().copied());
    let rows = at.read_all(Kind::SortedSet)?;
    let mut gone: Vec<usize> = places_of(rows, &names).into_iter().flatten().collect();
    gone.sort_unstable();
    remove_places(at, "zrem", &gone)
}

fn remove_range(at: &mut At<'_>, event: &str, select: Select<'_>) -> Outcome {
    let gone: Vec<usize> = select.places(at)?.collect();
    remove_places(at, event, &gone)
}

fn remove_places(at: &mut At<'_>, event: &str, gone: &[usize]) -> Outcome {
    if !gone.is_empty() {
        at.remove(event, Kind::SortedSet, 1, gone)?;
    }
    Ok(count(gone.len()))
}

/// The count of `ZPOPMIN` and `ZPOPMAX`, if it is given.
fn pop_count(args: &[&[u8]]) -> Result<Option<usize>, Reply> {
    match args {
        [] => Ok(None),
        [wanted] => positive(wanted).map(Some),
        _ => Err(syntax_error()),
    }
}

fn pop(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    let wanted = pop_count(args)?;
    let work = at.work;
    let rows = at.read(Kind::SortedSet)?;
    let popped = wanted.unwrap_or(1).min(rows.len());
    let (places, event) = match op {
        Op::ZPopMin => (0..popped, "zpopmin"),
        _ => (rows.len() - popped..rows.len(), "zpopmax"),
    };
    let gone: Vec<usize> = places.clone().collect();
    let mut pairs = Vec::new();
    for place in ordered(places, op == Op::ZPopMax) {
        let row = rows.get(place);
        work.reply(2 * size_of::<Reply>())?;
        pairs.push((work.bulk(member(row))?, number(score(row))));
    }
    remove_places(at, event, &gone)?;
    Ok(match wanted {
        Some(1..) => Reply::Pairs(pairs),
        _ => Reply::Array(pairs.into_iter().flat_map(|(m, s)| [m, s]).collect()),
    })
}

/// Pops up to `count` elements.
pub(super) fn pop_some(at: &mut At<'_>, from_highest: bool, count: &[u8]) -> Outcome {
    let op = if from_highest {
        Op::ZPopMax
    } else {
        Op::ZPopMin
    };
    pop(at, op, &[count])
}

/// `BZPOPMIN` and `BZPOPMAX`: pops from the first key that has elements.
fn pop_first(at: &mut At<'_>, op: Op, args: &[&[u8]]) -> Outcome {
    let Some(key) = blocking::first_with_elements(at, Kind::SortedSet, args)? else {
        return Ok(Reply::NilArray);
    };
    let popped = pop(&mut at.other(&key), op, &[])?;
    let mut reply = vec![Reply::Bulk(key)];
    if let Reply::Array(popped) = popped {
        reply.extend(popped);
    }
    Ok(Reply::Array(reply))
}

fn ordered(places: Range<usize>, is_reverse: bool) -> Box<dyn Iterator<Item = usize>> {
    match is_reverse {
        true => Box::new(places.rev()),
        false => Box::new(places),
    }
}

/// One end of a range of scores.
#[derive(Debug, Clone, Copy)]
struct ScoreEnd {
    score: f64,
    is_exclusive: bool,
}

impl ScoreEnd {
    fn of_arg(arg: &[u8]) -> Result<Self, Reply> {
        let (is_exclusive, text) = match arg {
            [b'(', text @ ..] => (true, text),
            text => (false, text),
        };
        let score = score::parse_end(text);
        let score = score.ok_or_else(|| Reply::error("ERR min or max is not a float"))?;
        Ok(Self {
            score,
            is_exclusive,
        })
    }
}

/// One end of a range of members.
#[derive(Debug, Clone, Copy)]
enum MemberEnd<'a> {
    /// `-`
    Lowest,
    /// `+`
    Highest,
    Inclusive(&'a [u8]),
    Exclusive(&'a [u8]),
}

impl<'a> MemberEnd<'a> {
    fn of_arg(arg: &'a [u8]) -> Result<Self, Reply> {
        match arg {
            b"-" => Ok(MemberEnd::Lowest),
            b"+" => Ok(MemberEnd::Highest),
            [b'[', member @ ..] => Ok(MemberEnd::Inclusive(member)),
            [b'(', member @ ..] => Ok(MemberEnd::Exclusive(member)),
            _ => Err(Reply::error("ERR min or max not valid string range item")),
        }
    }

    /// Whether nothing is between this end and a later one.
    fn excludes_all_up_to(self, max: MemberEnd<'a>) -> bool {
        let place = |end: MemberEnd<'a>| match end {
            MemberEnd::Lowest => (0, &[][..]),
            MemberEnd::Inclusive(member) | MemberEnd::Exclusive(member) => (1, member),
            MemberEnd::Highest => (2, &[][..]),
        };
        let is_inclusive = |end: MemberEnd<'_>| matches!(end, MemberEnd::Inclusive(_));
        match place(self).cmp(&place(max)) {
            Ordering::Less => false,
            Ordering::Equal => !is_inclusive(self) || !is_inclusive(max),
            Ordering::Greater => true,
        }
    }

    fn is_at_most(self, member: &[u8]) -> bool {
        match self {
            MemberEnd::Lowest => true,
            MemberEnd::Highest => false,
            MemberEnd::Inclusive(end) => end <= member,
            MemberEnd::Exclusive(end) => end < member,
        }
    }

    fn is_at_least(self, member: &[u8]) -> bool {
        match self {
            MemberEnd::Lowest => false,
            MemberEnd::Highest => true,
            MemberEnd::Inclusive(end) => end >= member,
            MemberEnd::Exclusive(end) => end > member,
        }
    }
}

/// Which elements.
#[derive(Debug, Clone, Copy)]
enum Select<'a> {
    Ranks(i64, i64),
    Scores(ScoreEnd, ScoreEnd),
    Members(MemberEnd<'a>, MemberEnd<'a>),
}

impl<'a> Select<'a> {
    fn ranks(start: &[u8], end: &[u8]) -> Result<Self, Reply> {
        Ok(Select::Ranks(integer(start)?, integer(end)?))
    }

    fn scores(min: &[u8], max: &[u8]) -> Result<Self, Reply> {
        Ok(Select::Scores(
            ScoreEnd::of_arg(min)?,
            ScoreEnd::of_arg(max)?,
        ))
    }

    fn members(min: &'a [u8], max: &'a [u8]) -> Result<Self, Reply> {
        let (min, max) = (MemberEnd::of_arg(min)?, MemberEnd::of_arg(max)?);
        Ok(Select::Members(min, max))
    }

    /// The places of the elements at a key.
    fn places(self, at: &mut At<'_>) -> Result<Range<usize>, Stop> {
        let rows = match self {
            Select::Members(..) => at.read_all(Kind::SortedSet)?,
            _ => at.read(Kind::SortedSet)?,
        };
        Ok(self.places_in(rows, false))
    }

    fn places_in(self, rows: Rows<'_>, is_reverse: bool) -> Range<usize> {
        match self {
            Select::Ranks(start, end) => {
                let places = super::list::range(rows.len(), start, end);
                match is_reverse {
                    true => rows.len() - places.end..rows.len() - places.start,
                    false => places,
                }
            }
            Select::Scores(min, max) => {
                let start = rows.partition_point(|row| match min.is_exclusive {
                    true => score(row) <= min.score,
                    false => score(row) < min.score,
                });
                let end = rows.partition_point(|row| match max.is_exclusive {
                    true => score(row) < max.score,
                    false => score(row) <= max.score,
                });
                start.min(end)..end
            }
            Select::Members(min, max) => members_in(rows, min, max, is_reverse),
        }
    }
}

/// The places of the members in a range. Redis takes for granted that all elements have the same score; if they have not,
/// this is what it finds in a short set.
fn members_in(
    rows: Rows<'_>,
    min: MemberEnd<'_>,
    max: MemberEnd<'_>,
    is_reverse: bool,
) -> Range<usize> {
    let at = |place: usize| member(rows.get(place));
    let Some(last) = rows.len().checked_sub(1) else {
        return 0..0;
    };
    let is_outside = !min.is_at_most(at(last)) || !max.is_at_least(at(0));
    if min.excludes_all_up_to(max) || is_outside {
        return 0..0;
    }
    if is_reverse {
        let end = (0..=last).rev().find(|place| max.is_at_least(at(*place)));
        let end = end.map_or(0, |place| place + 1);
        let found = (0..end).rev();
        let len = found.take_while(|place| min.is_at_most(at(*place))).count();
        return end - len..end;
    }
    let start = (0..=last).find(|place| min.is_at_most(at(*place)));
    let start = start.unwrap_or(rows.len());
    let found = start..rows.len();
    let len = found
        .take_while(|place| max.is_at_least(at(*place)))
        .count();
    start..start + len
}

/// The arguments of `ZRANGE` and its relatives.
struct List<'a> {
    select: Select<'a>,
    is_reverse: bool,
    has_scores: bool,
    offset: i64,
    /// All if it is negative.
    limit: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

impl<'a> List<'a> {
    fn of_args(op: Op, args: &[&'a [u8]]) -> Result<Self, Reply> {
        let (mut by, mut is_reverse) = match op {
            Op::ZRangeByScore => (Some(By::Score), Some(false)),
            Op::ZRangeByLex => (Some(By::Lex), Some(false)),
            Op::ZRevRange => (Some(By::Rank), Some(true)),
            Op::ZRevRangeByScore => (Some(By::Score), Some(true)),
            Op::ZRevRangeByLex => (Some(By::Lex), Some(true)),
            _ => (None, None),
        };
        let (mut has_scores, mut offset, mut limit) = (false, 0, -1);
        let mut rest = &args[2..];
        while let [option, after @ ..] = rest {
            rest = after;
            match (option.to_ascii_uppercase().as_slice(), after) {
                (b"WITHSCORES", _) => has_scores = true,
                (b"LIMIT", [first, second, after @ ..]) => {
                    (offset, limit) = (integer(first)?, integer(second)?);
                    rest = after;
                }
                (b"REV", _) if is_reverse.is_none() => is_reverse = Some(true),
                (b"BYLEX", _) if by.is_none() => by = Some(By::Lex),
                (b"BYSCORE", _) if by.is_none() => by = Some(By::Score),
                _ => return Err(syntax_error()),
            }
        }
        let (by, is_reverse) = (by.unwrap_or(By::Rank), is_reverse.unwrap_or(false));
        if limit != -1 && by == By::Rank {
            return Err(Reply::error(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if has_scores && by == By::Lex {
            return Err(Reply::error(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let (first, second) = (args[0], args[1]);
        let (min, max) = match is_reverse && by != By::Rank {
            true => (second, first),
            false => (first, second),
        };
        let select = match by {
            By::Rank => Select::ranks(min, max)?,
            By::Score => Select::scores(min, max)?,
            By::Lex => Select::members(min, max)?,
        };
        Ok(Self {
            select,
            is_reverse,
            has_scores,
            offset,
            limit,
        })
    }
}

fn range(at: &mut At<'_>, list: &List<'_>) -> Outcome {
    let work = at.work;
    let rows = match list.select {
        Select::Members(..) => at.read_all(Kind::SortedSet)?,
        _ => at.read(Kind::SortedSet)?,
    };
    let places = list.select.places_in(rows, list.is_reverse);
    // A negative offset skips everything, as in Redis; a negative limit takes everything.
    let offset = usize::try_from(list.offset).unwrap_or(usize::MAX);
    let limit = usize::try_from(list.limit).unwrap_or(usize::MAX);
    let places = ordered(places, list.is_reverse).skip(offset).take(limit);
    let rows = places.map(|place| rows.get(place));
    if !list.has_scores {
        return Ok(work.bulks(rows.map(member))?);
    }
    Ok(pairs(work, rows)?)
}

/// A reply of members with their scores.
pub(super) fn pairs<'r>(work: &Work, rows: impl Iterator<Item = &'r [u8]>) -> Result<Reply, Reply> {
    let pairs = rows.map(|row| {
        work.reply(2 * size_of::<Reply>())?;
        Ok((work.bulk(member(row))?, number(score(row))))
    });
    Ok(Reply::Pairs(pairs.collect::<Result<_, Reply>>()?))
}
