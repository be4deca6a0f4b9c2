//! Numbers in requests, parsed like memcached's `safe_strto...` functions.

pub use crate::apply::parse_number as parse_u64;

/// Parses an unsigned 32-bit number; longer numbers lose their high half, as in memcached.
pub fn parse_u32(text: &[u8]) -> Option<u32> {
    parse_u64(text).map(|number| number as u32)
}

/// Parses a signed 32-bit number; longer numbers lose their high half, as in memcached.
pub fn parse_i32(text: &[u8]) -> Option<i32> {
    let is_space = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|b| !is_space(b))?;
    let rest = &text[start..];
    let digits = match rest[0] {
        b'-' | b'+' => &rest[1..],
        _ => rest,
    };
    let count = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    let number = &rest[..rest.len() - digits.len() + count];
    let ends = digits.get(count).is_none_or(is_space);
    let number = std::str::from_utf8(number).ok()?;
    let number: i64 = number.parse().ok()?;
    ends.then_some(number as i32)
}
