//! `HSCAN`, `SSCAN` and `ZSCAN`.

use inband_resp::reply::Reply;

use super::{score, sorted_set, syntax_error, At, Kind, Outcome};
use crate::parse::integer;

/// Answers `HSCAN`, `SSCAN` and `ZSCAN`: all elements at once, as Redis does for a small collection. `args` are the cursor and
/// the options; an element is `step` rows, and its name, which comes first, must match the pattern.
pub(super) fn scan(at: &mut At<'_>, kind: Kind, args: &[&[u8]], step: usize) -> Outcome {
    let work = at.work;
    let rows = at.read_all(kind)?;
    if rows.is_empty() {
        // As in Redis, whatever the options are.
        return Ok(Reply::Array(vec![
            Reply::bulk("0"),
            Reply::Array(Vec::new()),
        ]));
    }
    let mut pattern = None;
    for option in args[1..].chunks(2) {
        let [name, value] = option else {
            return Err(syntax_error().into());
        };
        match name.to_ascii_uppercase().as_slice() {
            b"MATCH" => pattern = Some(*value),
            b"COUNT" if integer(value)? < 1 => return Err(syntax_error().into()),
            b"COUNT" => {}
            _ => return Err(syntax_error().into()),
        }
    }
    let mut found = Vec::new();
    for place in (0..rows.len()).step_by(step) {
        let row = rows.get(place);
        let name = match kind {
            Kind::SortedSet => sorted_set::member(row),
            _ => row,
        };
        if let Some(pattern) = pattern {
            if !work.is_match(pattern, name)? {
                continue;
            }
        }
        found.push(work.bulk(name)?);
        if kind == Kind::SortedSet {
            found.push(work.bulk(score::scan_text(sorted_set::score(row)).as_bytes())?);
        }
        for at in place + 1..place + step {
            found.push(work.bulk(rows.get(at))?);
        }
    }
    Ok(Reply::Array(vec![Reply::bulk("0"), Reply::Array(found)]))
}

/// Checks the cursor of `HSCAN`, `SSCAN` and `ZSCAN`.
pub(super) fn check_cursor(arg: &[u8]) -> Result<(), Reply> {
    let text = std::str::from_utf8(arg).ok();
    let cursor: Option<u64> = text.and_then(|text| text.parse().ok());
    cursor.ok_or_else(|| Reply::error("ERR invalid cursor"))?;
    Ok(())
}
