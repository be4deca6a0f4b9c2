//! Scores of sorted sets: read and written as Redis does, and as bytes in the order of their numbers.

/// Length of a score in front of a member.
pub const SCORE_LEN_BYTES: usize = 8;
/// Redis keeps whole numbers below this as integers.
const INTEGER_END: f64 = (1u64 << 62) as f64;
/// Digits of `%.17g`.
const DIGITS: i32 = 17;

/// Reads a score; `None` if Redis would not take it. Hexadecimal numbers are not taken.
pub fn parse(text: &[u8]) -> Option<f64> {
    let number = number(text)?;
    let is_word = text.iter().any(|byte| matches!(byte, b'i' | b'I'));
    let mantissa = text.split(|byte| matches!(byte, b'e' | b'E')).next()?;
    let is_nonzero = mantissa.iter().any(|byte| matches!(byte, b'1'..=b'9'));
    let is_over = number.is_infinite() && !is_word;
    let is_under = number == 0.0 && is_nonzero;
    (!is_over && !is_under).then_some(number)
}

/// The same for the end of a range, where Redis takes more: too large numbers, spaces in front, and nothing for 0.
pub fn parse_end(text: &[u8]) -> Option<f64> {
    match text.trim_ascii_start() {
        [] if text.is_empty() => Some(0.0),
        trimmed => number(trimmed),
    }
}

fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: f64 = text.parse().ok()?;
    // `-0` is 0, so that equal scores have equal bytes.
    (!number.is_nan()).then_some(number + 0.0)
}

/// Writes a number as C's `%.17g` does.
pub fn text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |digits: &str| match digits.contains('.') {
        true => digits
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        false => digits.to_owned(),
    };
    if (-4..DIGITS).contains(&exponent) {
        let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
        return trimmed(&format!("{number:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

/// Writes a number as `ZSCAN` of a short set does.
pub fn scan_text(number: f64) -> String {
    match number.abs() < INTEGER_END && number.fract() == 0.0 {
        true => format!("{number:.0}"),
        false => text(number),
    }
}

/// Returns bytes that are in the order of the numbers.
pub fn to_bytes(number: f64) -> [u8; SCORE_LEN_BYTES] {
    let bits = number.to_bits();
    let is_negative = bits >> 63 == 1;
    let ordered = if is_negative { !bits } else { bits | 1 << 63 };
    ordered.to_be_bytes()
}

/// The number of these bytes; `None` if they are too few, or no score.
pub fn of_bytes(bytes: &[u8]) -> Option<f64> {
    let ordered = u64::from_be_bytes(*bytes.first_chunk()?);
    let is_negative = ordered >> 63 == 0;
    let bits = if is_negative {
        !ordered
    } else {
        ordered & !(1 << 63)
    };
    let number = f64::from_bits(bits);
    let is_score = !number.is_nan() && to_bytes(number + 0.0) == ordered.to_be_bytes();
    is_score.then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_written_as_redis_writes_them() {
        for (number, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e-4, "0.0001"),
            (1e-5, "1.0000000000000001e-05"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "4.9406564584124654e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (3.0e100, "2.9999999999999999e+100"),
        ] {
            assert_eq!(text(number), expected);
        }
        assert_eq!(scan_text(1e17), "100000000000000000");
        assert_eq!(scan_text(-7.25), "-7.25");
        assert_eq!(scan_text(f64::INFINITY), "inf");
        assert_eq!(scan_text(1e19), "1e+19");
    }

    #[test]
    fn scores_are_read_as_redis_reads_them() {
        for (text, expected) in [
            ("1", Some(1.0)),
            ("+1.5e3", Some(1500.0)),
            (".5", Some(0.5)),
            ("1.", Some(1.0)),
            ("-0", Some(0.0)),
            ("inf", Some(f64::INFINITY)),
            ("+Infinity", Some(f64::INFINITY)),
            ("-inf", Some(f64::NEG_INFINITY)),
            ("0e-999", Some(0.0)),
            ("nan", None),
            ("1e400", None),
            ("1e-400", None),
            ("", None),
            (" 1", None),
            ("1 ", None),
            ("1x", None),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(parse_end(b""), Some(0.0));
        assert_eq!(parse_end(b" 1"), Some(1.0));
        assert_eq!(parse_end(b"1e400"), Some(f64::INFINITY));
        assert_eq!(parse_end(b"nan"), None);
    }

    #[test]
    fn bytes_are_in_the_order_of_the_numbers() {
        let numbers = [
            f64::NEG_INFINITY,
            -1e300,
            -2.0,
            -1.0,
            -5e-324,
            0.0,
            5e-324,
            0.5,
            1.0,
            1e300,
            f64::INFINITY,
        ];
        assert!(numbers.map(to_bytes).is_sorted_by(|a, b| a < b));
        for number in numbers {
            assert_eq!(of_bytes(&to_bytes(number)), Some(number));
        }
        for none in [to_bytes(f64::NAN), to_bytes(-f64::NAN), to_bytes(-0.0)] {
            assert_eq!(of_bytes(&none), None);
        }
        assert_eq!(of_bytes(&[0; 7]), None);
    }
}
