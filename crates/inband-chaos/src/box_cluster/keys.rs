//! The keys that memcached clients use, and the values that they store. Few keys are in use at a time, and each is
//! replaced every few seconds, so that a key is checked in milliseconds.

use crate::workload::CLIENTS_MAX;

/// Keys in use at a time.
const KEYS: u64 = 8;
/// How long a key is used.
const KEY_FOR_NS: u64 = 5_000_000_000;
/// Stored numbers differ by more than `incr` adds to any of them.
const STEP: u64 = 10_000;

fn window(index: u64, now_ns: u64) -> u64 {
    (now_ns + KEY_FOR_NS / KEYS * index) / KEY_FOR_NS
}

/// Returns one of the keys in use. Keys change at different times.
pub fn one(random: u64, now_ns: u64) -> String {
    let index = random % KEYS;
    format!("key{index}-{}", window(index, now_ns))
}

/// Returns all keys used so far.
pub fn all_until(now_ns: u64) -> Vec<String> {
    let of = |index| {
        let windows = window(index, 0)..=window(index, now_ns);
        windows.map(move |window| format!("key{index}-{window}"))
    };
    (0..KEYS).flat_map(of).collect()
}

/// Returns the value of a client's write: a number that no other write stores, and that `incr` cannot reach from
/// another one.
pub fn value(write: u64, client: usize) -> String {
    ((write * CLIENTS_MAX + client as u64) * STEP).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_in_use_is_among_all() {
        let all = all_until(20_000_000_000);
        for now_ns in (0..=20_000_000_000).step_by(100_000_000) {
            for random in 0..KEYS {
                assert!(all.contains(&one(random, now_ns)));
            }
        }
        assert_ne!(one(0, 0), one(0, KEY_FOR_NS));
    }

    #[test]
    fn numbers_are_far_apart() {
        let number = |write, client| value(write, client).parse::<u64>().expect("a number");
        assert!(number(1, 4).abs_diff(number(1, 5)) >= STEP);
        assert!(number(1, 999).abs_diff(number(2, 0)) >= STEP);
    }
}
