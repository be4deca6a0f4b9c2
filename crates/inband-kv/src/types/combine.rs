//! Commands on several collections whose number is an argument: `SINTERCARD`, and the unions, intersections and
//! differences of sorted sets, in which sets count as sorted sets whose scores are 1.

use std::collections::BTreeMap;

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use super::packed::Rows;
use super::{count, score, set, sorted_set, syntax_error, At, Kind, Op, Outcome, Stop, Work};
use super::{EventClass, WRONG_TYPE};
use crate::command::{Command, Strings};
use crate::keyspace::Keys;
use crate::parse::{integer, strict_integer};

/// Which of these commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are the commands
pub enum Combine {
    SInterCard,
    ZUnion,
    ZInter,
    ZDiff,
    ZInterCard,
    ZUnionStore,
    ZInterStore,
    ZDiffStore,
}

impl Combine {
    /// In the order of their numbers in the log; never reorder, only append.
    pub(crate) const ALL: [Combine; 8] = [
        Combine::SInterCard,
        Combine::ZUnion,
        Combine::ZInter,
        Combine::ZDiff,
        Combine::ZInterCard,
        Combine::ZUnionStore,
        Combine::ZInterStore,
        Combine::ZDiffStore,
    ];

    /// Whether the result replaces what is at a key.
    pub fn stores(self) -> bool {
        self.event().is_some()
    }

    /// The event after the result was stored.
    fn event(self) -> Option<&'static str> {
        match self {
            Combine::ZUnionStore => Some("zunionstore"),
            Combine::ZInterStore => Some("zinterstore"),
            Combine::ZDiffStore => Some("zdiffstore"),
            _ => None,
        }
    }

    fn counts(self) -> bool {
        matches!(self, Combine::SInterCard | Combine::ZInterCard)
    }

    /// Whether scores are weighted and aggregated.
    fn aggregates(self) -> bool {
        !self.counts() && !matches!(self, Combine::ZDiff | Combine::ZDiffStore)
    }

    fn name(self) -> &'static str {
        match self {
            Combine::SInterCard => "sintercard",
            Combine::ZUnion => "zunion",
            Combine::ZInter => "zinter",
            Combine::ZDiff => "zdiff",
            Combine::ZInterCard => "zintercard",
            Combine::ZUnionStore => "zunionstore",
            Combine::ZInterStore => "zinterstore",
            Combine::ZDiffStore => "zdiffstore",
        }
    }
}

/// Parses one of the commands. Options of those for sorted sets are checked when the command is executed: Redis checks
/// the types of the keys first.
pub fn parse(args: Args<'_>, op: Combine) -> Result<Command<'_>, Reply> {
    let number_at = if op.stores() { 2 } else { 1 };
    let keys_at = number_at + 1;
    let given = args.len().saturating_sub(keys_at);
    let error = |why: String| Err(Reply::error(format!("ERR {why}")));
    let number = match op {
        Combine::SInterCard => {
            let number = strict_integer(args.get(number_at)).filter(|number| *number > 0);
            let Some(number) = number else {
                return error("numkeys should be greater than 0".into());
            };
            number
        }
        _ => integer(args.get(number_at))?,
    };
    if number < 1 {
        let name = op.name();
        return error(format!(
            "at least 1 input key is needed for '{name}' command"
        ));
    }
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    if number > given {
        return match op {
            Combine::SInterCard => {
                error("Number of keys can't be greater than number of args".into())
            }
            _ => Err(syntax_error()),
        };
    }
    let command = Command::Combine {
        op,
        target: if op.stores() { args.get(1) } else { b"" },
        keys: Strings::Args(args.part(keys_at, number), 0),
        options: Strings::Args(args.part(keys_at + number, given - number), 0),
    };
    if op == Combine::SInterCard {
        let options: Vec<&[u8]> = args.from(keys_at + number).collect();
        Options::of_args(op, number, &options)?;
    }
    Ok(command)
}

#[derive(Debug, Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn add(self, total: &mut f64, value: f64) {
        match self {
            Aggregate::Sum => *total = zero_if_nan(*total + value),
            Aggregate::Min if value < *total => *total = value,
            Aggregate::Max if value > *total => *total = value,
            Aggregate::Min | Aggregate::Max => {}
        }
    }
}

/// As Redis adds infinities of different signs, and multiplies infinity by 0.
fn zero_if_nan(number: f64) -> f64 {
    if number.is_nan() {
        0.0
    } else {
        number
    }
}

struct Options {
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
    /// Most elements that are counted; 0: no limit.
    limit: usize,
}

impl Options {
    fn of_args(op: Combine, keys: usize, args: &[&[u8]]) -> Result<Self, Reply> {
        let mut options = Self {
            weights: vec![1.0; keys],
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: 0,
        };
        let mut rest = args;
        while let [option, after @ ..] = rest {
            rest = after;
            match (option.to_ascii_uppercase().as_slice(), after) {
                (b"WEIGHTS", _) if op.aggregates() && after.len() >= keys => {
                    let (weights, after) = after.split_at(keys);
                    for (weight, text) in options.weights.iter_mut().zip(weights) {
                        let number = score::parse(text);
                        let why = "ERR weight value is not a float";
                        *weight = number.ok_or_else(|| Reply::error(why))?;
                    }
                    rest = after;
                }
                (b"AGGREGATE", [how, after @ ..]) if op.aggregates() => {
                    options.aggregate = match how.to_ascii_uppercase().as_slice() {
                        b"SUM" => Aggregate::Sum,
                        b"MIN" => Aggregate::Min,
                        b"MAX" => Aggregate::Max,
                        _ => return Err(syntax_error()),
                    };
                    rest = after;
                }
                (b"WITHSCORES", _) if !op.stores() && !op.counts() => options.with_scores = true,
                (b"LIMIT", [limit, after @ ..]) if op.counts() => {
                    let limit = strict_integer(limit).and_then(|n| usize::try_from(n).ok());
                    let why = "ERR LIMIT can't be negative";
                    options.limit = limit.ok_or_else(|| Reply::error(why))?;
                    rest = after;
                }
                _ => return Err(syntax_error()),
            }
        }
        Ok(options)
    }

    fn counted(&self, len: usize) -> Reply {
        count(match self.limit {
            0 => len,
            limit => len.min(limit),
        })
    }
}

/// Executes such a command. `target` is where the result is stored.
pub fn execute(
    keys: &mut dyn Keys,
    work: &Work,
    op: Combine,
    target: &[u8],
    (names, options): (&Strings<'_>, &Strings<'_>),
) -> Result<Reply, rocksdb::Error> {
    super::answer(work, names.len() + options.len(), || {
        let names: Vec<&[u8]> = names.iter().collect();
        let options: Vec<&[u8]> = options.iter().collect();
        let (key, others) = names.split_first().ok_or_else(syntax_error)?;
        let mut at = At { keys, work, key };
        if op == Combine::SInterCard {
            let options = Options::of_args(op, names.len(), &options)?;
            let members = set::combine(&mut at, Op::SInter, others)?;
            return Ok(options.counted(members.len()));
        }
        let lens = names.iter().map(|name| len(&mut at.other(name)));
        let lens: Vec<usize> = lens.collect::<Result<_, Stop>>()?;
        let options = Options::of_args(op, names.len(), &options)?;
        let mut sources: Vec<(&[u8], f64)> = names
            .iter()
            .copied()
            .zip(options.weights.iter().copied())
            .collect();
        let elements = match op {
            Combine::ZDiff | Combine::ZDiffStore => subtract(&mut at, others)?,
            _ => {
                // The order in which Redis adds scores, which may round.
                let mut order: Vec<usize> = (0..names.len()).collect();
                order.sort_by_key(|place| lens[*place]);
                sources = order.into_iter().map(|place| sources[place]).collect();
                match op {
                    Combine::ZUnion | Combine::ZUnionStore => unite(&mut at, &sources, &options)?,
                    _ => intersect(&mut at, &sources, &options)?,
                }
            }
        };
        if op.counts() {
            return Ok(options.counted(elements.len()));
        }
        // `-0` is 0, as everywhere.
        let rows = elements
            .iter()
            .map(|(m, score)| sorted_set::row(score + 0.0, m));
        let mut rows: Vec<Vec<u8>> = rows.collect();
        rows.sort_unstable();
        match op.event() {
            Some(event) => store(&mut at.other(target), event, &rows),
            None => reply(work, &rows, options.with_scores),
        }
    })
}

fn reply(work: &Work, rows: &[Vec<u8>], with_scores: bool) -> Outcome {
    let rows = rows.iter().map(Vec::as_slice);
    Ok(match with_scores {
        true => sorted_set::pairs(work, rows)?,
        false => work.bulks(rows.map(sorted_set::member))?,
    })
}

fn store(at: &mut At<'_>, event: &str, rows: &[Vec<u8>]) -> Outcome {
    if !rows.is_empty() {
        at.store(event, Kind::SortedSet, 0, rows.iter())?;
    } else if at.keys.delete(at.key)? {
        at.keys.notify(EventClass::Generic, "del", at.key);
    }
    Ok(count(rows.len()))
}

/// A set or a sorted set.
fn source<'r>(at: &'r mut At<'_>) -> Result<(Kind, Rows<'r>), Stop> {
    match at.keys.get(at.key)? {
        None => Ok((Kind::SortedSet, Rows::default())),
        Some(record) if [Kind::Set, Kind::SortedSet].contains(&record.kind) => {
            Ok((record.kind, Rows::new(record.value)))
        }
        Some(_) => Err(Reply::error(WRONG_TYPE).into()),
    }
}

fn len(at: &mut At<'_>) -> Result<usize, Stop> {
    Ok(source(at)?.1.len())
}

/// Members with their scores.
fn elements<'r>(at: &'r mut At<'_>) -> Result<impl Iterator<Item = (&'r [u8], f64)>, Stop> {
    let work = at.work;
    let (kind, rows) = source(at)?;
    work.pass(rows)?;
    Ok(rows.iter().map(move |row| match kind {
        Kind::Set => (row, 1.0),
        _ => (sorted_set::member(row), sorted_set::score(row)),
    }))
}

/// Elements of the result, by member.
type Elements = BTreeMap<Vec<u8>, f64>;

fn unite(at: &mut At<'_>, sources: &[(&[u8], f64)], options: &Options) -> Result<Elements, Stop> {
    let (work, mut united) = (at.work, Elements::new());
    for (name, weight) in sources {
        for (member, score) in elements(&mut at.other(name))? {
            let score = zero_if_nan(score * weight);
            match united.get_mut(member) {
                Some(total) => options.aggregate.add(total, score),
                None => {
                    work.reply(member.len())?;
                    united.insert(member.to_vec(), score);
                }
            }
        }
    }
    Ok(united)
}

fn intersect(
    at: &mut At<'_>,
    sources: &[(&[u8], f64)],
    options: &Options,
) -> Result<Elements, Stop> {
    let Some(((first, weight), others)) = sources.split_first() else {
        return Ok(Elements::new());
    };
    let mut common: Elements = elements(&mut at.other(first))?
        .map(|(member, score)| (member.to_vec(), zero_if_nan(score * weight)))
        .collect();
    for (name, weight) in others {
        if common.is_empty() {
            break;
        }
        let mut at = at.other(name);
        let other: BTreeMap<&[u8], f64> = elements(&mut at)?.collect();
        common.retain(|member, total| {
            let score = other.get(member.as_slice());
            score.inspect(|score| options.aggregate.add(total, **score * weight));
            score.is_some()
        });
    }
    Ok(common)
}

/// What is at the key and at none of the others.
fn subtract(at: &mut At<'_>, others: &[&[u8]]) -> Result<Elements, Stop> {
    let left = elements(at)?.map(|(member, score)| (member.to_vec(), score));
    let mut left: Elements = left.collect();
    for name in others {
        if left.is_empty() {
            break;
        }
        for (member, _) in elements(&mut at.other(name))? {
            left.remove(member);
        }
    }
    Ok(left)
}
