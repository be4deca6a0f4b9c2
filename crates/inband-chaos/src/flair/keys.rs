//! Which keys clients of FLAIR use: a few at a time, fresh ones every few seconds so that a check of a key ends in
//! milliseconds; and how values are stored, of many lengths.

/// Keys in use at a time: more than there are key groups, so that keys share some.
const KEYS: u64 = 10;
/// How long a key is used.
const KEY_FOR_NS: u64 = 5_000_000_000;
/// Fills a value up.
const FILLER: char = '-';
/// So much of it, at most: with the longest key and number still less than a packet takes.
const FILLER_LEN_MAX: u64 = 1_200;

/// The name of key `index` of those in use at a moment. Keys change at different times.
fn key(index: u64, now_ns: u64) -> String {
    format!("key{index}-{}", window(index, now_ns))
}

fn window(index: u64, now_ns: u64) -> u64 {
    (now_ns + KEY_FOR_NS / KEYS * index) / KEY_FOR_NS
}

/// One of those in use, by chance.
pub fn one(random: u64, now_ns: u64) -> String {
    key(random % KEYS, now_ns)
}

/// All keys there were until now.
pub fn all_until(now_ns: u64) -> Vec<String> {
    let of = |index| {
        let windows = window(index, 0)..=window(index, now_ns);
        windows.map(move |window| format!("key{index}-{window}"))
    };
    (0..KEYS).flat_map(of).collect()
}

/// What is stored for a value: it and filler, of a length that depends on the value.
pub fn stored(value: &str) -> String {
    let sum: u64 = value.bytes().map(|byte| u64::from(byte) * 97).sum();
    let filler = sum % FILLER_LEN_MAX;
    let filler = std::iter::repeat_n(FILLER, filler as usize);
    value.chars().chain(filler).collect()
}

/// The value of what is stored; if nobody has stored that, all of it, which is then no value of anybody's.
pub fn value_of(text: &str) -> String {
    let value = text.trim_end_matches(FILLER);
    match stored(value) == text {
        true => value.to_owned(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_what_was_meant() {
        for value in ["1", "77001", "9999999012"] {
            assert_eq!(value_of(&stored(value)), value);
            assert_eq!(value_of(&(stored(value) + "-")), stored(value) + "-");
        }
        let lengths: std::collections::BTreeSet<usize> = (0..100)
            .map(|n| stored(&(n * 1001).to_string()).len())
            .collect();
        assert!(lengths.len() > 20, "{lengths:?}");
    }

    #[test]
    fn every_key_in_use_is_among_all() {
        let all = all_until(20_000_000_000);
        for now_ns in (0..20_000_000_000).step_by(100_000_000) {
            for random in 0..KEYS {
                assert!(all.contains(&one(random, now_ns)));
            }
        }
        assert_ne!(one(3, 0), one(3, KEY_FOR_NS));
    }
}
