//! `LMPOP`, `ZMPOP`, and `BLMPOP` and `BZMPOP`, which wait: they pop several elements of the first key that has any.

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use super::{blocking, list, sorted_set, syntax_error, At, Kind, Outcome, Work};
use crate::command::{Command, Strings};
use crate::keyspace::Keys;
use crate::parse::strict_integer;

/// What such a command pops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultiPop {
    /// A list or a sorted set.
    pub kind: Kind,
    /// From the right, or those with the highest scores.
    pub from_end: bool,
    /// At most this many elements.
    pub count: u64,
}

/// Parses one of the commands; those that block begin with their timeout.
pub fn parse(args: Args<'_>, kind: Kind, blocks: bool) -> Result<Command<'_>, Reply> {
    let timeout = blocks.then(|| args.get(1));
    let keys_at = if blocks { 3 } else { 2 };
    let number = positive(args.get(keys_at - 1), "numkeys should be greater than 0")?;
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    let rest = keys_at.saturating_add(number);
    if rest >= args.len() {
        return Err(syntax_error());
    }
    let mut pop = MultiPop {
        kind,
        from_end: is_from_end(kind, args.get(rest))?,
        count: 1,
    };
    let options: Vec<&[u8]> = args.from(rest + 1).collect();
    match options[..] {
        [] => {}
        [option, count, ..] if option.eq_ignore_ascii_case(b"COUNT") => {
            pop.count = positive(count, "count should be greater than 0")?;
            if options.len() > 2 {
                return Err(syntax_error());
            }
        }
        _ => return Err(syntax_error()),
    }
    // Last, as in Redis.
    timeout.map_or(Ok(None), blocking::timeout)?;
    Ok(Command::MultiPop {
        pop,
        keys: Strings::Args(args.part(keys_at, number), 0),
        timeout,
    })
}

fn positive(arg: &[u8], why: &str) -> Result<u64, Reply> {
    let number = strict_integer(arg).and_then(|number| u64::try_from(number).ok());
    let number = number.filter(|number| *number > 0);
    number.ok_or_else(|| Reply::error(format!("ERR {why}")))
}

fn is_from_end(kind: Kind, word: &[u8]) -> Result<bool, Reply> {
    match (kind, word.to_ascii_uppercase().as_slice()) {
        (Kind::List, b"LEFT") | (Kind::SortedSet, b"MIN") => Ok(false),
        (Kind::List, b"RIGHT") | (Kind::SortedSet, b"MAX") => Ok(true),
        _ => Err(syntax_error()),
    }
}

/// Executes such a command; see [`blocking`] for the timeout.
pub fn execute(
    keys: &mut dyn Keys,
    work: &Work,
    pop: MultiPop,
    names: &Strings<'_>,
    timeout: Option<&[u8]>,
) -> Result<Reply, rocksdb::Error> {
    let is_waiting = timeout.is_some_and(<[u8]>::is_empty);
    super::answer(work, names.len(), || {
        let names: Vec<&[u8]> = names.iter().collect();
        let key = names.first().copied().unwrap_or_default();
        let mut at = At { keys, work, key };
        let found = blocking::first_of(&mut at, pop.kind, &names, is_waiting)?;
        let Some(key) = found else {
            return Ok(Reply::NilArray);
        };
        let popped = pop_from(&mut at.other(&key), pop)?;
        Ok(Reply::Array(vec![Reply::Bulk(key), popped]))
    })
}

fn pop_from(at: &mut At<'_>, pop: MultiPop) -> Outcome {
    let count = pop.count.to_string();
    let popped = match pop.kind {
        Kind::SortedSet => sorted_set::pop_some(at, pop.from_end, count.as_bytes())?,
        _ => list::pop_some(at, pop.from_end, count.as_bytes())?,
    };
    Ok(match popped {
        // Nested in RESP2, too.
        Reply::Pairs(pairs) => {
            let pairs = pairs.into_iter().map(|(m, s)| Reply::Array(vec![m, s]));
            Reply::Array(pairs.collect())
        }
        other => other,
    })
}
