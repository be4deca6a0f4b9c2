//! The keys that clients use: a few groups of keys that are checked together. The keys of a group are replaced every
//! few seconds, so that checking it takes only seconds.

use inband_kv::partition::partition_of;

/// How the keys of a group are spread over partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Single,
    /// Several keys in one partition, by a hash tag.
    Tagged,
    /// Several keys in different partitions, if there are enough partitions.
    Spread,
}

/// The groups: kind and number of keys.
const GROUPS: [(Kind, usize); 12] = [
    (Kind::Single, 1),
    (Kind::Single, 1),
    (Kind::Single, 1),
    (Kind::Single, 1),
    (Kind::Single, 1),
    (Kind::Single, 1),
    (Kind::Tagged, 2),
    (Kind::Tagged, 3),
    (Kind::Spread, 2),
    (Kind::Spread, 2),
    (Kind::Spread, 3),
    (Kind::Spread, 3),
];
/// How long the keys of a group are used.
const KEYS_FOR_NS: u64 = 5_000_000_000;
/// Times with all kinds of operations alternate with [quiet](is_quiet) times; this is the length of each.
const TURN_NS: u64 = 5_000_000_000;

/// One group in one window of time.
#[derive(Debug, Clone)]
pub struct Group {
    pub name: String,
    pub keys: Vec<String>,
}

/// Returns how many groups are in use at a time.
pub fn groups() -> usize {
    GROUPS.len()
}

/// Whether, at this time, only a few reads may span several partitions. An operation that spans partitions masks,
/// within milliseconds, what an earlier read left open.
pub fn is_quiet(now_ns: u64) -> bool {
    now_ns / TURN_NS % 2 == 1
}

/// Returns the groups with keys in different partitions.
pub fn spread() -> impl Iterator<Item = usize> {
    (0..GROUPS.len()).filter(|index| GROUPS[*index].0 == Kind::Spread)
}

/// Returns the number of the window that group `index` is in. Groups change at different times.
fn window(index: usize, now_ns: u64) -> u64 {
    let shift_ns = KEYS_FOR_NS / GROUPS.len() as u64 * index as u64;
    (now_ns + shift_ns) / KEYS_FOR_NS
}

/// Returns a group at a moment.
pub fn group(index: usize, now_ns: u64, partitions: usize) -> Group {
    group_in(index, window(index, now_ns), partitions)
}

/// Returns all groups used so far.
pub fn all_until(now_ns: u64, partitions: usize) -> Vec<Group> {
    let of = |index| {
        let windows = window(index, 0)..=window(index, now_ns);
        windows.map(move |window| group_in(index, window, partitions))
    };
    (0..GROUPS.len()).flat_map(of).collect()
}

fn group_in(index: usize, window: u64, partitions: usize) -> Group {
    let (kind, count) = GROUPS[index];
    let name = match kind {
        Kind::Single => format!("single{index}-{window}"),
        Kind::Tagged => format!("tagged{index}-{window}"),
        Kind::Spread => format!("spread{index}-{window}"),
    };
    let key = |number: usize| {
        let letter = char::from(b'a' + number as u8);
        match kind {
            Kind::Single => name.clone(),
            Kind::Tagged => format!("{{{name}}}{letter}"),
            Kind::Spread => in_partition(&format!("{name}{letter}"), number, partitions),
        }
    };
    Group {
        keys: (0..count).map(key).collect(),
        name,
    }
}

/// Returns a key with this prefix, in partition `number` modulo the number of partitions.
pub fn in_partition(begin: &str, number: usize, partitions: usize) -> String {
    let wanted = number % partitions;
    let mut suffix = 0;
    loop {
        let key = format!("{begin}{suffix}");
        if partition_of(key.as_bytes(), partitions) == wanted {
            return key;
        }
        suffix += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_and_quiet_take_turns() {
        let turns = [0, 4, 5, 9, 10, 15].map(|s| is_quiet(s * 1_000_000_000));
        assert_eq!(turns, [false, false, true, true, false, true]);
        assert!(spread().count() > 1);
    }

    #[test]
    fn keys_are_where_their_kind_says() {
        let partitions_of = |group: &Group| {
            let keys = group.keys.iter();
            let mut all: Vec<usize> = keys.map(|k| partition_of(k.as_bytes(), 3)).collect();
            all.dedup();
            all.len()
        };
        for (index, (kind, count)) in GROUPS.into_iter().enumerate() {
            let group = group(index, 77_000_000_000, 3);
            assert_eq!(group.keys.len(), count);
            let expected = if kind == Kind::Spread { count } else { 1 };
            assert_eq!(partitions_of(&group), expected, "{group:?}");
        }
    }

    #[test]
    fn every_group_in_use_is_among_all() {
        let all = all_until(20_000_000_000, 3);
        for now_ns in (0..20_000_000_000).step_by(100_000_000) {
            for index in 0..groups() {
                let used = group(index, now_ns, 3);
                assert!(all.iter().any(|group| group.name == used.name));
            }
        }
        assert_ne!(group(0, 0, 3).keys, group(0, KEYS_FOR_NS, 3).keys);
    }
}
