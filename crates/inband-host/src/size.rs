//! Sizes in bytes, in human-readable form.

/// Parses a human-readable size: 64, 4KiB, 256MiB, 4GiB.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" | "K" | "k" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1u64 << 40,
        other => {
            return Err(format!(
                "{other:?} is not a unit: B, KiB, MiB, GiB or TiB (or K, M, G, T, the same)"
            ))
        }
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{digits:?} is not a whole number; write for example 64MiB"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("{text} is too much"))
}

/// Formats a size for humans.
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                rest => format!("{}.{rest} {unit}", tenths / 10),
            }
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("64", 64),
            ("4KiB", 4096),
            ("256MiB", 256 << 20),
            ("1TiB", 1 << 40),
            ("64M", 64 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        assert_eq!(
            (size(1536), size(4 << 30), size(63)),
            ("1.5 KiB".into(), "4 GiB".into(), "63 B".into())
        );
        for wrong in ["", "x", "4XB", "-1", "99999999TiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
