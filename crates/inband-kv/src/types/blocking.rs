//! Blocking pops as the log executes them: an attempt that never waits. The last argument is the timeout of the client,
//! or empty if the client waits already: then keys of another type count as empty, as in Redis.

use std::iter;
use std::time::Duration;

use inband_resp::reply::Reply;

use super::{At, Kind, Stop};

/// Reads a timeout in seconds; `None`: no limit.
pub fn timeout(text: &[u8]) -> Result<Option<Duration>, Reply> {
    let text = std::str::from_utf8(text).ok();
    let seconds: Option<f64> = text.and_then(|text| text.parse().ok());
    let Some(seconds) = seconds.filter(|seconds| !seconds.is_nan()) else {
        return Err(Reply::error("ERR timeout is not a float or out of range"));
    };
    let ms = (seconds * 1000.0).ceil();
    if ms >= i64::MAX as f64 {
        return Err(Reply::error("ERR timeout is out of range"));
    }
    if ms < 0.0 {
        return Err(Reply::error("ERR timeout is negative"));
    }
    Ok((ms > 0.0).then(|| Duration::from_millis(ms as u64)))
}

/// Returns the first key that has elements; the further keys are the arguments except the last one.
pub(super) fn first_with_elements(
    at: &mut At<'_>,
    kind: Kind,
    args: &[&[u8]],
) -> Result<Option<Vec<u8>>, Stop> {
    let (is_waiting, further) = match args.split_last() {
        Some((timeout, further)) => (timeout.is_empty(), further),
        None => (false, args),
    };
    let first: &[u8] = at.key;
    let keys: Vec<&[u8]> = iter::once(first).chain(further.iter().copied()).collect();
    first_of(at, kind, &keys, is_waiting)
}

/// Returns the first of these keys that has elements. `is_waiting`: the client waits already.
pub(super) fn first_of(
    at: &mut At<'_>,
    kind: Kind,
    keys: &[&[u8]],
    is_waiting: bool,
) -> Result<Option<Vec<u8>>, Stop> {
    for key in keys {
        match at.other(key).read(kind) {
            Ok(rows) if rows.is_empty() => {}
            Ok(_) => return Ok(Some(key.to_vec())),
            Err(Stop::Reply(_)) if is_waiting => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        let ms = |text: &str| timeout(text.as_bytes()).map(|time| time.map(|t| t.as_millis()));
        assert_eq!(ms("0"), Ok(None));
        assert_eq!(ms("-0"), Ok(None));
        assert_eq!(ms("5"), Ok(Some(5000)));
        assert_eq!(ms("0.0001"), Ok(Some(1)));
        for (text, why) in [
            ("", "ERR timeout is not a float or out of range"),
            ("x", "ERR timeout is not a float or out of range"),
            ("nan", "ERR timeout is not a float or out of range"),
            (" 1", "ERR timeout is not a float or out of range"),
            ("-1", "ERR timeout is negative"),
            ("inf", "ERR timeout is out of range"),
            ("1e17", "ERR timeout is out of range"),
        ] {
            assert_eq!(ms(text), Err(Reply::error(why)), "{text}");
        }
    }
}
