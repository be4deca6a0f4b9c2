//! `INCRBYFLOAT` arithmetic, with the same result on every replica.
//!
//! Redis adds 80-bit floating-point numbers and prints 17 decimals. Decimal numbers up to 10^20 with up to 17 decimals
//! are added exactly here, which prints the same; others are added as 64-bit floating-point numbers.

/// Error for an argument or a stored value that is not a number.
pub const NOT_A_FLOAT: &str = "ERR value is not a valid float";

const DECIMALS: i32 = 17;
/// Fixed-point numbers are below this.
const FIXED_END: i128 = 10i128.pow(20 + DECIMALS as u32);

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// In units of 10^-17.
    Fixed(i128),
    /// A number that does not fit the fixed-point form.
    Float(f64),
}

pub fn parse(text: &[u8]) -> Option<Number> {
    let text = std::str::from_utf8(text).ok()?;
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.iI".contains(c)) {
        return None; // also of `nan`
    }
    let float: f64 = text.parse().ok()?;
    Some(fixed(text).map_or(Number::Float(float), Number::Fixed))
}

fn fixed(text: &str) -> Option<i128> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse().ok()?),
        None => (text, 0i32),
    };
    let (is_negative, digits) = match mantissa.as_bytes().first()? {
        b'-' => (true, &mantissa[1..]),
        b'+' => (false, &mantissa[1..]),
        _ => (false, mantissa),
    };
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let mut units: i128 = 0;
    for digit in whole.bytes().chain(decimals.bytes()) {
        let digit = digit.is_ascii_digit().then_some(digit - b'0')?;
        units = units.checked_mul(10)?.checked_add(i128::from(digit))?;
    }
    let shift = DECIMALS
        .checked_add(exponent)?
        .checked_sub(i32::try_from(decimals.len()).ok()?)?;
    let factor = 10i128.checked_pow(shift.unsigned_abs())?;
    let units = match shift {
        0.. => units.checked_mul(factor)?,
        _ if units % factor == 0 => units / factor,
        _ => return None,
    };
    (units < FIXED_END).then_some(if is_negative { -units } else { units })
}

impl Number {
    fn as_float(self) -> f64 {
        match self {
            Number::Fixed(units) => units as f64 / 10f64.powi(DECIMALS),
            Number::Float(float) => float,
        }
    }

    /// Returns the sum as text; `None` if it is infinite or NaN.
    pub fn plus(self, other: Number) -> Option<String> {
        if let (Number::Fixed(a), Number::Fixed(b)) = (self, other) {
            let sum = a + b;
            let unit = 10u128.pow(DECIMALS as u32);
            let sign = if sum < 0 { "-" } else { "" };
            let (whole, decimals) = (sum.unsigned_abs() / unit, sum.unsigned_abs() % unit);
            let decimals = format!("{decimals:017}");
            let decimals = decimals.trim_end_matches('0');
            let point = if decimals.is_empty() { "" } else { "." };
            return Some(format!("{sign}{whole}{point}{decimals}"));
        }
        let sum = self.as_float() + other.as_float();
        sum.is_finite().then(|| format!("{sum}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_redis() {
        let sum = |a: &str, b: &str| parse(a.as_bytes())?.plus(parse(b.as_bytes())?);
        for (a, b, expected) in [
            ("10.50", "0.1", "10.6"),
            ("0.1", "0.2", "0.3"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-3.5", "-0.5"),
            ("-0.5", "0.5", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("99999999999999999999", "1", "100000000000000000000"),
            ("1e300", "1", "1000000000000000052504760255204420248704468581108159154915854115111802457988908195786371375080447854045104384"),
            (".5", "+1.", "1.5"),
        ] {
            let expected = match expected.len() {
                100.. => format!("1{}", "0".repeat(300)),
                _ => expected.to_owned(),
            };
            assert_eq!(sum(a, b).as_deref(), Some(&*expected), "{a} + {b}");
        }
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1.7e308", "1.7e308"), None);
        for wrong in ["", "nan", "x", "1x", " 1", "1 ", "e5", ".", "--1"] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
