//! `HRANDFIELD`, `SRANDMEMBER` and `ZRANDMEMBER`: elements at places that look random. They follow from a seed in the
//! command, from the replicated time and from the version of the collection, so every replica gives the same reply.

use inband_resp::reply::Reply;
use inband_resp::request::Args;
use xxhash_rust::xxh3::xxh3_64;

use super::packed::Rows;
use super::{sorted_set, syntax_error, At, Kind, Outcome, Work, WRONG_TYPE};
use crate::command::Command;
use crate::keyspace::Keys;
use crate::parse::integer;

/// What such a command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// A hash, a set or a sorted set.
    pub kind: Kind,
    /// `None`: one element. Negative: elements may be repeated.
    pub count: Option<i64>,
    /// Also values, or scores.
    pub with_values: bool,
    /// Given by the replica whose client asks; 0 in scripts.
    pub seed: u64,
}

/// Parses one of the commands.
pub fn parse(args: Args<'_>, kind: Kind) -> Result<Command<'_>, Reply> {
    let option = match kind {
        Kind::Hash => Some("WITHVALUES"),
        Kind::SortedSet => Some("WITHSCORES"),
        _ => None,
    };
    if option.is_none() && args.len() > 3 {
        return Err(syntax_error());
    }
    let mut sample = Sample {
        kind,
        count: None,
        with_values: args.len() > 3,
        seed: 0,
    };
    if args.len() > 2 {
        let count = integer(args.get(2))?;
        if count == i64::MIN {
            let max = i64::MAX;
            return Err(Reply::error(format!(
                "ERR value is out of range, value must between -{max} and {max}"
            )));
        }
        sample.count = Some(count);
        if sample.with_values {
            let is_option = option.is_some_and(|o| args.get(3).eq_ignore_ascii_case(o.as_bytes()));
            if args.len() > 4 || !is_option {
                return Err(syntax_error());
            }
            if count.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
                return Err(Reply::error("ERR value is out of range"));
            }
        }
    }
    Ok(Command::Sample {
        sample,
        key: args.get(1),
    })
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = xxh3_64(&self.0.to_be_bytes());
        (self.0 % end as u64) as usize
    }
}

/// Executes such a command.
pub fn execute(
    keys: &mut dyn Keys,
    work: &Work,
    sample: Sample,
    key: &[u8],
) -> Result<Reply, rocksdb::Error> {
    super::answer(work, 1, || pick(&mut At { keys, work, key }, sample))
}

fn pick(at: &mut At<'_>, sample: Sample) -> Outcome {
    let (work, now_ms) = (at.work, at.keys.now_ms());
    let (rows, version) = match at.keys.get(at.key)? {
        None => (Rows::default(), 0),
        Some(record) if record.kind == sample.kind => (Rows::new(record.value), record.version),
        Some(_) => return Err(Reply::error(WRONG_TYPE).into()),
    };
    let step = if sample.kind == Kind::Hash { 2 } else { 1 };
    let elements = rows.len() / step;
    // The steps that are left tell the commands of a script apart.
    let seed = [sample.seed, version, now_ms, work.steps_left()].map(u64::to_be_bytes);
    let mut random = Random(xxh3_64(&seed.concat()));
    let row = |element: usize| rows.get(element * step);
    let name = |element: usize| match sample.kind {
        Kind::SortedSet => sorted_set::member(row(element)),
        _ => row(element),
    };
    let Some(count) = sample.count else {
        return Ok(match elements {
            0 => Reply::Nil,
            elements => work.bulk(name(random.below(elements)))?,
        });
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let places: Box<dyn Iterator<Item = usize>> = if elements == 0 {
        Box::new(std::iter::empty())
    } else if count < 0 {
        Box::new(std::iter::repeat_with(move || random.below(elements)).take(wanted))
    } else {
        work.pass(rows)?;
        let mut places: Vec<usize> = (0..elements).collect();
        if wanted < elements {
            // The first steps of a Fisher-Yates shuffle.
            for place in 0..wanted {
                places.swap(place, place + random.below(elements - place));
            }
            places.truncate(wanted);
        }
        Box::new(places.into_iter())
    };
    if !sample.with_values {
        return Ok(work.bulks(places.map(name))?);
    }
    if sample.kind == Kind::SortedSet {
        return Ok(sorted_set::pairs(work, places.map(row))?);
    }
    let pairs = places.map(|element| {
        Ok((
            work.bulk(name(element))?,
            work.bulk(rows.get(element * step + 1))?,
        ))
    });
    Ok(Reply::Pairs(pairs.collect::<Result<_, Reply>>()?))
}
