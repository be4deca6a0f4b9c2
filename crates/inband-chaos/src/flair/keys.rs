//! The keys that FLAIR clients use. Few are in use at a time, and each is replaced every few seconds, so that the
//! checker needs only milliseconds per key. Values are padded to many different lengths.

/// Keys in use at a time: more than there are key groups, so that some keys share a group.
const KEYS: u64 = 10;
/// How long a key is used.
const KEY_FOR_NS: u64 = 5_000_000_000;
const FILLER: char = '-';
/// With this much filler, the longest key and the longest number, a write still fits in a packet.
const FILLER_LEN_MAX: u64 = 1_200;

/// Returns the name of key `index` at a moment. Keys change at different times.
fn key(index: u64, now_ns: u64) -> String {
    format!("key{index}-{}", window(index, now_ns))
}

fn window(index: u64, now_ns: u64) -> u64 {
    (now_ns + KEY_FOR_NS / KEYS * index) / KEY_FOR_NS
}

/// Picks one of the keys in use.
pub fn one(random: u64, now_ns: u64) -> String {
    key(random % KEYS, now_ns)
}

/// Returns all keys used so far.
pub fn all_until(now_ns: u64) -> Vec<String> {
    let of = |index| {
        let windows = window(index, 0)..=window(index, now_ns);
        windows.map(move |window| format!("key{index}-{window}"))
    };
    (0..KEYS).flat_map(of).collect()
}

/// Returns the value padded with filler; the length of the filler depends on the value.
pub fn stored(value: &str) -> String {
    let sum: u64 = value.bytes().map(|byte| u64::from(byte) * 97).sum();
    let filler = sum % FILLER_LEN_MAX;
    let filler = std::iter::repeat_n(FILLER, filler as usize);
    value.chars().chain(filler).collect()
}

/// Returns the inverse of [`stored`]. A text that `stored` never produces is returned unchanged, so that the checker
/// sees a value that nobody wrote.
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
